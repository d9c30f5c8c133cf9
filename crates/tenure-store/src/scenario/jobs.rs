//! Scenario steps about jobs and resources.

use tenure_core::retry::Class;
use tenure_core::{
    Claim, ClaimScope, Command, Finish, JobAction, JobId, Millis, Precondition, Put,
    ResourceAction, StatusUpdate, Submit, Text, TimerChange, TimerSetting,
};

use super::render::job_name;
use super::{Arguments, Driver, Runner, parse_ms};

impl Runner {
    /// Returns the command of a step about jobs or resources, if it is one.
    pub(super) fn job_command(
        &mut self,
        actor: &str,
        verb: &str,
        arguments: &Arguments<'_>,
        now: Millis,
    ) -> Option<Command> {
        let by: Text = actor.into();
        let reason: Text = arguments.options.get("reason").copied().unwrap_or("why not").into();
        let resource = |action| {
            let (key, _, _) = arguments.locks();
            Some(Command::Resource { key, action })
        };
        match verb {
            "submit" => {
                let tenant = arguments.options.get("tenant").copied().unwrap_or("t");
                let path: tenure_core::LockPath =
                    arguments.positional[0].parse().expect("a resource");
                let key = path.resource(tenant).expect("a resource");
                let action = ResourceAction::Submit(self.submit(by, arguments, now));
                Some(Command::Resource { key, action })
            }
            "put" => {
                let spec = arguments.options.get("spec").copied().expect("spec=TEXT");
                let put = Put {
                    request: arguments.options.contains_key("as").then(|| self.request(arguments)),
                    precondition: arguments.precondition(),
                    timers: arguments.timers(now),
                    ..Put::new(format!("{spec:?}").into(), by)
                };
                resource(ResourceAction::Put(put))
            }
            "delete" => {
                resource(ResourceAction::Delete { by, precondition: arguments.precondition() })
            }
            "timers" => {
                let (timers, precondition) = (arguments.timers(now), arguments.precondition());
                resource(ResourceAction::SetTimers { timers, by, precondition })
            }
            "pause" => resource(ResourceAction::Pause { by, reason }),
            "resume" => resource(ResourceAction::Resume { by, reason }),
            "claim" => Some(Command::Claim(self.claim(actor, arguments))),
            _ => {
                let request = (verb == "retry").then(|| self.request(arguments));
                let action = job_action(verb, arguments, by, reason, request, now)?;
                Some(Command::Job { id: self.job_id(arguments.positional[0]), action })
            }
        }
    }

    fn submit(&mut self, by: Text, arguments: &Arguments<'_>, now: Millis) -> Submit {
        let number = |text: &&str| text.parse().expect("a number");
        Submit {
            request: self.request(arguments),
            operation: arguments.positional[1].into(),
            args: arguments.options.get("args").map(|args| format!("{args:?}").into()),
            priority: arguments.options.get("priority").map_or(0, number),
            run_at: arguments.ms("in").map(|ms| now.plus(ms)),
            precondition: arguments.precondition(),
            by,
        }
    }

    fn claim(&mut self, actor: &str, arguments: &Arguments<'_>) -> Claim {
        let max = arguments.options.get("max").map_or(1, |max| max.parse().expect("a number"));
        Claim {
            session: *self.sessions.get(actor).expect("an open session"),
            request: self.request(arguments),
            kinds: arguments.positional.iter().map(|kind| (*kind).into()).collect(),
            max,
            only: arguments.scope(),
            tenant: arguments.bound(),
        }
    }

    fn job_id(&self, name: &str) -> JobId {
        let number: Option<usize> = name.strip_prefix('j').and_then(|n| n.parse().ok());
        let number = number.unwrap_or_else(|| panic!("{name} is not a job"));
        *self.jobs.get(number - 1).unwrap_or(&JobId(number as u128))
    }

    /// Runs a read-only step: `job j1`, `why j1`, `state cluster/c1`, `status cluster/c1`.
    pub(super) async fn inspect(&mut self, words: &[&str], driver: &mut dyn Driver) -> String {
        if words[0] == "state" || words[0] == "status" {
            let (key, _, _) = Arguments::parse(&words[1..]).locks();
            let Some(resource) = driver.resource(&key).await else { return "unknown".to_owned() };
            if words[0] == "status" {
                return resource.status.map_or("none".to_owned(), |s| s.document.to_string());
            }
            let (state, generation) = (&resource.state, resource.generation);
            return match generation {
                0 => state.to_string(),
                _ => format!("{state} generation={generation} observed={}", resource.observed),
            };
        }
        let id = self.job_id(words[1]);
        if words[0] == "why" {
            return driver.why(id).await;
        }
        let Some(job) = driver.job(id).await else { return "unknown".to_owned() };
        let mut text = format!("{} attempt={}", job.state.as_str(), job.attempt);
        if let Some(error) = &job.error {
            text += &format!(" code={}", error.code);
        }
        if let Some(next) = job.followed_by {
            text += &format!(" followed_by={}", job_name(next, &mut self.jobs));
        }
        if job.joined > 0 {
            text += &format!(" joined={}", job.joined);
        }
        text
    }
}

impl Arguments<'_> {
    /// Returns the condition `generation=N` or `absent=yes`.
    fn precondition(&self) -> Option<Precondition> {
        if self.options.contains_key("absent") {
            return Some(Precondition::Absent);
        }
        let generation = self.options.get("generation")?;
        Some(Precondition::Generation(generation.parse().expect("a number")))
    }

    /// Returns the restriction `group=NAME` or `only=NAME` of a claim.
    fn scope(&self) -> Option<ClaimScope> {
        let tenant: Text = self.options.get("tenant").copied().unwrap_or("t").into();
        if let Some(group) = self.options.get("group") {
            return Some(ClaimScope::Group { tenant, group: (*group).into() });
        }
        let name = (*self.options.get("only")?).into();
        Some(ClaimScope::Resource { tenant, name })
    }

    /// Returns the timers of the option `timers`, such as `run@5s,stop@never`: times from now.
    fn timers(&self, now: Millis) -> Vec<TimerChange> {
        let timer = |text: &str| {
            let (operation, at) = text.split_once('@').expect("OPERATION@TIME");
            let setting = match at.strip_prefix('+') {
                Some(after) => TimerSetting::After(parse_ms(after)),
                None if at == "never" => TimerSetting::Remove,
                None => TimerSetting::At(now.plus(parse_ms(at))),
            };
            TimerChange { operation: operation.into(), setting }
        };
        self.options
            .get("timers")
            .map_or(Vec::new(), |timers| timers.split(',').map(timer).collect())
    }

    /// Returns the update of the options `merge` and `timers`.
    fn update(&self, now: Millis) -> Option<Box<StatusUpdate>> {
        let merge = self.options.get("merge").map(|merge| (*merge).into());
        let timers = self.timers(now);
        (merge.is_some() || !timers.is_empty()).then(|| Box::new(StatusUpdate { merge, timers }))
    }
}

fn finish(arguments: &Arguments<'_>, finish: Finish) -> JobAction {
    let update = arguments.update(Millis::default());
    JobAction::Finish { token: arguments.token(), finish, update }
}

fn job_action(
    verb: &str,
    arguments: &Arguments<'_>,
    by: Text,
    reason: Text,
    request: Option<tenure_core::RequestId>,
    now: Millis,
) -> Option<JobAction> {
    Some(match verb {
        "ok" => {
            let state = arguments.options.get("state").map(|state| (*state).into());
            finish(arguments, Finish::Ok { state, result: None })
        }
        "fail" => {
            let class = arguments.options.get("class").map(|class| match *class {
                "transient" => Class::Transient,
                "permanent" => Class::Permanent,
                other => panic!("{other} is not a class"),
            });
            let code = arguments.options.get("code").copied().unwrap_or("BAD").into();
            let state = arguments.options.get("state").map(|state| (*state).into());
            let (message, delay_ms) = ("it failed".into(), arguments.ms("delay"));
            finish(arguments, Finish::Failed { code, message, class, state, delay_ms })
        }
        "defer" => {
            let code = arguments.options.get("code").copied().unwrap_or("NOT_YET").into();
            let delay_ms = arguments.ms("delay").expect("delay=TIME");
            finish(arguments, Finish::Deferred { delay_ms, code, message: "later".into() })
        }
        "stopped" => finish(arguments, Finish::Cancelled),
        "handback" => finish(arguments, Finish::HandBack),
        "status" => {
            let update = arguments.update(now).expect("merge=JSON or OPERATION@TIME");
            JobAction::Status { token: arguments.token(), update }
        }
        "progress" => {
            let percent = arguments.positional[1].parse().expect("a number");
            JobAction::Progress { token: arguments.token(), percent, message: "".into() }
        }
        "log" => JobAction::Log {
            token: arguments.token(),
            text: format!("{}\n", arguments.positional[1]).into(),
        },
        "cancel" => JobAction::Cancel { by, reason },
        "retry" => JobAction::Retry { request: request?, by, reason },
        "discard" => JobAction::Discard { by, reason },
        _ => return None,
    })
}
