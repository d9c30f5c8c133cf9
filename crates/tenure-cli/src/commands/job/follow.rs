//! Following a job until it is over. Whoever stops following leaves the job alone.

use std::process::ExitCode;
use std::time::Duration;

use tenure::Error;
use tenure::http::HttpLink;
use tenure::wire::{AskedAnswer, JobAnswer, KindAnswer, ListAnswer};
use tenure_core::{JobId, JobState};
use tokio::signal::unix::Signal;

use super::logs::Reader;
use super::look;
use crate::commands::why::ask_job;
use crate::exit;
use crate::progress::{Display, Moment};
use crate::text::{plain, span};

/// How often the job is looked at; its end is told at once.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How often a server is asked again that does not answer, and how long is rested in between:
/// a restart is survived.
const OUTAGE_TRIES: u32 = 120;
const OUTAGE_PAUSE: Duration = Duration::from_millis(500);

/// Shows what happens to a job until it is over, and gives how it ended. Nothing when `interrupt`
/// came first: then it is said that the job goes on.
pub(super) async fn follow(
    link: &HttpLink,
    job: &JobAnswer,
    mut interrupt: Signal,
) -> Result<Option<JobAnswer>, Error> {
    let title = format!("{}/{} {}", job.kind, job.name, job.operation);
    let mut display = Display::new(&title);
    let over = tokio::select! {
        over = watch(link, job, &mut display, OUTAGE_PAUSE) => Some(over),
        _ = interrupt.recv() => None,
    };
    drop(display);
    if over.is_none() {
        let id = job.id;
        anstream::eprintln!(
            "detached: job {id} goes on. Follow it with `tenure job show -f {id}`, stop it with \
             `tenure job cancel {id}`"
        );
    }
    over.transpose()
}

async fn watch(
    link: &HttpLink,
    job: &JobAnswer,
    display: &mut Display,
    outage_pause: Duration,
) -> Result<JobAnswer, Error> {
    let attempts_max = attempts_max(link, job).await;
    let mut follower = Follower { link, id: job.id, logs: Reader::new(job.id, None), attempts_max };
    let (mut wait, mut outages) = (Duration::ZERO, 0);
    loop {
        match follower.step(wait, display).await {
            Ok(job) if job.state.is_over() => return Ok(job),
            Ok(_) => (wait, outages) = (LOOK_EVERY, 0),
            Err(error) if error.is_unavailable() && outages < OUTAGE_TRIES => {
                if outages == 0 {
                    display.say(&format!("{error}; asking again, the job does not depend on it"));
                }
                outages += 1;
                tokio::time::sleep(outage_pause).await;
            }
            Err(error) => return Err(error),
        }
    }
}

struct Follower<'a> {
    link: &'a HttpLink,
    id: JobId,
    logs: Reader,
    attempts_max: Option<u32>,
}

impl Follower<'_> {
    /// One look: the job first, so that all it wrote before its end is there when it is over.
    async fn step(&mut self, wait: Duration, display: &mut Display) -> Result<JobAnswer, Error> {
        let job = look(self.link, self.id, wait).await?;
        loop {
            let pieces = self.logs.next(self.link, Duration::ZERO).await?;
            pieces.iter().for_each(|piece| display.log(&piece.text));
            if pieces.is_empty() {
                break;
            }
        }
        let waits = !job.state.is_over() && !job.state.is_running();
        let why = if waits { Some(ask_job(self.link, self.id).await?) } else { None };
        if !job.state.is_over() {
            let (job, why, attempts_max) = (&job, why.as_ref(), self.attempts_max);
            display.update(&Moment { job, why, attempts_max });
        }
        Ok(job)
    }
}

/// How many attempts the kind allows; only shown, so that not knowing it is no failure.
pub(super) async fn attempts_max(link: &HttpLink, job: &JobAnswer) -> Option<u32> {
    let kinds: ListAnswer<KindAnswer> = link.get("/v1/kinds").await.ok()?;
    let kind = kinds.items.into_iter().find(|kind| kind.name == job.kind)?;
    let operation = kind.operations.into_iter().find(|verb| verb.name == job.operation)?;
    Some(operation.retry.attempts)
}

/// The exit code for how a job ended.
pub(super) fn exit_code(state: JobState) -> ExitCode {
    match state {
        JobState::Succeeded => ExitCode::SUCCESS,
        JobState::Cancelled | JobState::Superseded => ExitCode::from(exit::REFUSED),
        _ => ExitCode::from(exit::FAILED),
    }
}

/// How a job ended, in a sentence with what can be done about it.
pub(super) fn ending(job: &JobAnswer) -> String {
    let JobAnswer { id, kind, name, operation, .. } = job;
    let mut said = format!("{operation} of {kind}/{name} {}", job.state.word());
    if let Some((first, end)) = job.attempts.first().zip(job.ended_at.as_ref()) {
        said += &format!(" after {}", span(&first.started_at, end));
    }
    if job.attempt > 1 {
        said += &format!(" in attempt {}", job.attempt);
    }
    let error = job.error.as_ref().map(|e| format!(" with {}: {}", e.code, e.message));
    match job.state {
        JobState::Cancelled => said += &job.cancel.as_ref().map(asked).unwrap_or_default(),
        JobState::Failed | JobState::Dead => said += &error.unwrap_or_default(),
        _ => {}
    }
    if let Some(next) = job.followed_by {
        said += &format!(", followed by job {next}");
    }
    said = plain(&said);
    match job.state {
        JobState::Dead => {
            format!("{said}; try again with `tenure dead redrive {id} --reason TEXT`")
        }
        JobState::Failed => format!("{said}; try again with `tenure job retry {id} --reason TEXT`"),
        _ => said,
    }
}

fn asked(asked: &AskedAnswer) -> String {
    match &*asked.reason {
        "" => format!(" by {}", asked.by),
        reason => format!(" by {}: {reason}", asked.by),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::commands::canned::canned;
    use crate::progress::example;

    /// Follows a job on a server that fails so often before it says that the job is over.
    async fn watch_after(outages: u32) -> Result<JobAnswer, Error> {
        let over = serde_json::to_value(example(|job| job.state = JobState::Succeeded)).unwrap();
        // No kinds, then nothing but cut connections, then the end and its empty log.
        let mut answers = vec![json!({ "items": [], "next": null })];
        answers.extend((0..outages).map(|_| Value::Null));
        answers.extend([over, json!({ "items": [], "next": 0 })]);
        let (link, _server) = canned(answers).await;
        let job = example(|_| {});
        watch(&link, &job, &mut Display::new("test"), Duration::ZERO).await
    }

    #[tokio::test]
    async fn a_server_that_is_away_is_asked_again_up_to_the_bound() {
        assert_eq!(watch_after(OUTAGE_TRIES).await.unwrap().state, JobState::Succeeded);
        assert!(watch_after(OUTAGE_TRIES + 1).await.unwrap_err().is_unavailable());
    }

    #[test]
    fn the_end_is_told_with_its_reason_and_the_remedy() {
        let mut job = example(|job| job.state = JobState::Cancelled);
        let cancel = |reason: &str| {
            let (by, reason) = ("ann".to_owned(), reason.to_owned());
            Some(AskedAnswer { by, reason, at: String::new() })
        };
        job.cancel = cancel("");
        assert_eq!(ending(&job), "create of database/orders cancelled by ann");
        job.cancel = cancel("wrong size");
        assert_eq!(ending(&job), "create of database/orders cancelled by ann: wrong size");
        (job.state, job.attempt) = (JobState::Failed, 2);
        let (code, message) = ("QUOTA".to_owned(), "no\nspace".to_owned());
        job.error = Some(tenure::wire::FailureAnswer { code, message });
        let id = job.id;
        let told = format!(
            "create of database/orders failed in attempt 2 with QUOTA: no space; try again with \
             `tenure job retry {id} --reason TEXT`"
        );
        assert_eq!(ending(&job), told);
    }
}
