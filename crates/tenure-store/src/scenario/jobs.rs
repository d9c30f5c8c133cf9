//! The lines of scenarios that are about jobs and resources.

use tenure_core::retry::Class;
use tenure_core::{Claim, Command, Finish, JobAction, JobId, Millis, ResourceAction, Submit, Text};

use super::render::name;
use super::{Driver, Runner, Words};

impl Runner {
    /// The command of a line about jobs, if it is one.
    pub(super) fn on_jobs(
        &mut self,
        actor: &str,
        verb: &str,
        words: &Words<'_>,
        now: Millis,
    ) -> Option<Command> {
        let by: Text = actor.into();
        let reason: Text = words.pairs.get("reason").copied().unwrap_or("why not").into();
        let resource = |action| {
            let (key, _, _) = words.locks();
            Some(Command::Resource { key, action })
        };
        match verb {
            "submit" => {
                let tenant = words.pairs.get("tenant").copied().unwrap_or("t");
                let path: tenure_core::LockPath = words.places[0].parse().expect("a resource");
                let key = path.resource(tenant).expect("a resource");
                let action = ResourceAction::Submit(self.submit(by, words, now));
                Some(Command::Resource { key, action })
            }
            "put" => {
                let spec = words.pairs.get("spec").copied().expect("spec=TEXT");
                resource(ResourceAction::Put { spec: format!("{spec:?}").into(), by })
            }
            "delete" => resource(ResourceAction::Delete { by }),
            "pause" => resource(ResourceAction::Pause { by, reason }),
            "resume" => resource(ResourceAction::Resume { by, reason }),
            "claim" => Some(Command::Claim(self.claim(actor, words))),
            _ => {
                let request = (verb == "retry").then(|| self.request(words));
                let action = job_action(verb, words, by, reason, request)?;
                Some(Command::Job { id: self.id(words.places[0]), action })
            }
        }
    }

    fn submit(&mut self, by: Text, words: &Words<'_>, now: Millis) -> Submit {
        let number = |text: &&str| text.parse().expect("a number");
        Submit {
            request: self.request(words),
            operation: words.places[1].into(),
            args: words.pairs.get("args").map(|args| format!("{args:?}").into()),
            priority: words.pairs.get("priority").map_or(0, number),
            run_at: words.ms("in").map(|ms| now.plus(ms)),
            by,
        }
    }

    fn claim(&mut self, actor: &str, words: &Words<'_>) -> Claim {
        let max = words.pairs.get("max").map_or(1, |max| max.parse().expect("a number"));
        Claim {
            session: *self.sessions.get(actor).expect("an open session"),
            request: self.request(words),
            kinds: words.places.iter().map(|kind| (*kind).into()).collect(),
            max,
        }
    }

    fn id(&self, name: &str) -> JobId {
        let number: Option<usize> = name.strip_prefix('j').and_then(|n| n.parse().ok());
        let number = number.unwrap_or_else(|| panic!("{name} is no job"));
        *self.jobs.get(number - 1).unwrap_or(&JobId(number as u128))
    }

    /// A line that only looks: `job j1`, `why j1`, `state cluster/c1`.
    pub(super) async fn look(&mut self, words: &[&str], driver: &mut dyn Driver) -> String {
        if words[0] == "state" {
            let (key, _, _) = Words::of(&words[1..]).locks();
            let Some(resource) = driver.resource(&key).await else { return "unknown".to_owned() };
            let (state, generation) = (&resource.state, resource.generation);
            return match generation {
                0 => state.to_string(),
                _ => format!("{state} generation={generation} observed={}", resource.observed),
            };
        }
        let id = self.id(words[1]);
        if words[0] == "why" {
            return driver.why(id).await;
        }
        let Some(job) = driver.job(id).await else { return "unknown".to_owned() };
        let mut text = format!("{} attempt={}", job.state.as_str(), job.attempt);
        if let Some(error) = &job.error {
            text += &format!(" code={}", error.code);
        }
        if let Some(next) = job.followed_by {
            text += &format!(" followed_by={}", name(next, &mut self.jobs));
        }
        if job.joined > 0 {
            text += &format!(" joined={}", job.joined);
        }
        text
    }
}

fn job_action(
    verb: &str,
    words: &Words<'_>,
    by: Text,
    reason: Text,
    request: Option<tenure_core::RequestId>,
) -> Option<JobAction> {
    Some(match verb {
        "ok" => {
            let state = words.pairs.get("state").map(|state| (*state).into());
            JobAction::Finish { token: words.token(), finish: Finish::Ok { state, result: None } }
        }
        "fail" => {
            let class = words.pairs.get("class").map(|class| match *class {
                "transient" => Class::Transient,
                "permanent" => Class::Permanent,
                other => panic!("{other} is no class"),
            });
            let code = words.pairs.get("code").copied().unwrap_or("BAD").into();
            let state = words.pairs.get("state").map(|state| (*state).into());
            let finish = Finish::Failed { code, message: "it failed".into(), class, state };
            JobAction::Finish { token: words.token(), finish }
        }
        "stopped" => JobAction::Finish { token: words.token(), finish: Finish::Cancelled },
        "handback" => JobAction::Finish { token: words.token(), finish: Finish::HandBack },
        "progress" => {
            let percent = words.places[1].parse().expect("a number");
            JobAction::Progress { token: words.token(), percent, message: "".into() }
        }
        "log" => {
            JobAction::Log { token: words.token(), text: format!("{}\n", words.places[1]).into() }
        }
        "cancel" => JobAction::Cancel { by, reason },
        "retry" => JobAction::Retry { request: request?, by, reason },
        "discard" => JobAction::Discard { by, reason },
        _ => return None,
    })
}
