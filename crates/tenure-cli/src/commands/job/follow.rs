//! Following a job until it is over.

use std::process::ExitCode;
use std::time::Duration;

use tenure::http::HttpTransport;
use tenure_core::{JobId, JobState};
use tenure_wire::{AskedAnswer, JobAnswer};
use tokio::signal::unix::Signal;

use super::look;
use crate::commands::why::ask_job;
use crate::progress::{Display, Moment};
use tenure_cli_kit::exit;
use tenure_cli_kit::follow;
use tenure_cli_kit::log_reader::Reader;
use tenure_cli_kit::text::{plain, span};

/// Shows what happens to a job until it is over, and gives how it ended. Nothing when `interrupt`
/// came first: then it is said that the job goes on.
pub(super) async fn follow(
    link: &HttpTransport,
    job: &JobAnswer,
    interrupt: Signal,
) -> anyhow::Result<Option<JobAnswer>> {
    let display = Display::new(&format!("{}/{} {}", job.kind, job.name, job.operation));
    let (id, logs) = (job.id, Reader::new(job.id, None));
    let follower = Follower { link, id, logs, display };
    let over = follow::follow(follower, interrupt).await?;
    if over.is_none() {
        anstream::eprintln!(
            "detached: job {id} goes on. Follow it with `tenure job show -f {id}`, stop it with \
             `tenure job cancel {id}`"
        );
    }
    Ok(over)
}

struct Follower<'a> {
    link: &'a HttpTransport,
    id: JobId,
    logs: Reader,
    display: Display,
}

impl follow::Follower for Follower<'_> {
    const WHAT: &'static str = "job";
    type Over = JobAnswer;

    /// One look: the job first, so that all it wrote before its end is there when it is over.
    async fn look(&mut self, wait: Duration) -> anyhow::Result<Option<JobAnswer>> {
        let job = look(self.link, self.id, wait).await?;
        let display = &mut self.display;
        let show = |text: &str| {
            display.log(text);
            Ok(())
        };
        self.logs.rest(self.link, show).await?;
        if job.state.is_finished() {
            return Ok(Some(job));
        }
        let waits = !job.state.is_running();
        let why = if waits { Some(ask_job(self.link, self.id).await?) } else { None };
        self.display.update(&Moment { job: &job, why: why.as_ref() });
        Ok(None)
    }

    fn say(&self, line: &str) {
        self.display.say(line);
    }
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
    let mut said = format!("{operation} of {kind}/{name} {}", job.state.as_str());
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
    use super::*;
    use crate::progress::example;

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
        job.error = Some(tenure_wire::FailureAnswer { code, message });
        let id = job.id;
        let told = format!(
            "create of database/orders failed in attempt 2 with QUOTA: no space; try again with \
             `tenure job retry {id} --reason TEXT`"
        );
        assert_eq!(ending(&job), told);
    }
}
