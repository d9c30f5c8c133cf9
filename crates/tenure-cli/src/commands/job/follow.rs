//! Following a job until it finishes.

use std::process::ExitCode;
use std::time::Duration;

use tenure::http::HttpTransport;
use tenure_core::{JobId, JobState};
use tenure_wire::{JobInfo, RequestedByInfo};
use tokio::signal::unix::Signal;

use super::get_job;
use crate::commands::why::explain_job;
use crate::progress::{Display, JobSnapshot};
use tenure::job::LogReader;
use tenure_cli_kit::follow;
use tenure_cli_kit::log_text::read_available;
use tenure_cli_kit::text::{sanitize, sanitize_line, span};
use tenure_cli_kit::{color, exit, hint};

/// Displays the progress of a job until it finishes, and returns it. Returns `None` after
/// `interrupt`, which leaves the job running.
pub(super) async fn follow(
    transport: &HttpTransport,
    job: &JobInfo,
    interrupt: Signal,
) -> anyhow::Result<Option<JobInfo>> {
    let display = Display::new(&format!("{}/{} {}", job.kind, job.name, job.operation));
    let (id, logs) = (job.id, LogReader::new(job.id, None));
    let follower = JobFollower { transport, id, logs, display };
    let finished = follow::follow(follower, interrupt).await?;
    if finished.is_none() {
        hint::print(&format!(
            "detached: job {id} keeps running. Follow it with `tenure job show -f {id}`, stop it \
             with `tenure job cancel {id}`"
        ));
    }
    Ok(finished)
}

struct JobFollower<'a> {
    transport: &'a HttpTransport,
    id: JobId,
    logs: LogReader,
    display: Display,
}

impl follow::Follower for JobFollower<'_> {
    const WHAT: &'static str = "job";
    type Finished = JobInfo;

    /// Reads the job before its log, so that the log is complete when the job has finished.
    async fn poll(&mut self, wait: Duration) -> anyhow::Result<Option<JobInfo>> {
        let job = get_job(self.transport, self.id, wait).await?;
        let display = &mut self.display;
        let show = |text: &str| {
            display.log(text);
            Ok(())
        };
        read_available(&mut self.logs, self.transport, show).await?;
        if job.state.is_finished() {
            return Ok(Some(job));
        }
        let is_waiting = !job.state.is_running();
        let why = if is_waiting { Some(explain_job(self.transport, self.id).await?) } else { None };
        self.display.update(&JobSnapshot { job: &job, why: why.as_ref() });
        Ok(None)
    }

    fn say(&self, line: &str) {
        self.display.say(line);
    }
}

/// Returns the exit code for the final state of a job.
pub(super) fn exit_code(state: JobState) -> ExitCode {
    match state {
        JobState::Succeeded => ExitCode::SUCCESS,
        JobState::Cancelled | JobState::Superseded => ExitCode::from(exit::REFUSED),
        _ => ExitCode::from(exit::FAILED),
    }
}

/// Describes how a job ended, in a sentence with the remedy.
pub(super) fn describe_end(job: &JobInfo) -> String {
    let JobInfo { id, kind, name, operation, .. } = job;
    let subject = sanitize(&format!("{operation} of {kind}/{name}"));
    let mut text = String::new();
    if let Some((first, end)) = job.attempts.first().zip(job.ended_at.as_ref()) {
        text += &format!(" after {}", span(&first.started_at, end));
    }
    if job.attempt > 1 {
        text += &format!(" in attempt {}", job.attempt);
    }
    let error = job.error.as_ref().map(|e| format!(" with {}: {}", e.code, e.message));
    match job.state {
        JobState::Cancelled => text += &job.cancel.as_ref().map(requested_by).unwrap_or_default(),
        JobState::Failed | JobState::Dead => text += &error.unwrap_or_default(),
        _ => {}
    }
    if let Some(next) = job.followed_by {
        text += &format!(", followed by job {next}");
    }
    let state = color::state(job.state.as_str());
    let text = format!("{subject} {state}{}", sanitize_line(&text));
    match job.state {
        JobState::Dead => {
            format!("{text}; retry it with `tenure dead redrive {id} --reason TEXT`")
        }
        JobState::Failed => format!("{text}; retry it with `tenure job retry {id} --reason TEXT`"),
        _ => text,
    }
}

fn requested_by(request: &RequestedByInfo) -> String {
    match &*request.reason {
        "" => format!(" by {}", request.by),
        reason => format!(" by {}: {reason}", request.by),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::example_job;

    #[test]
    fn the_end_is_described_with_its_reason_and_the_remedy() {
        let describe_end = |job: &JobInfo| color::strip(&describe_end(job));
        let mut job = example_job(|job| job.state = JobState::Cancelled);
        let cancel = |reason: &str| {
            let (by, reason) = ("ann".to_owned(), reason.to_owned());
            Some(RequestedByInfo { by, reason, at: String::new() })
        };
        job.cancel = cancel("");
        assert_eq!(describe_end(&job), "create of database/orders cancelled by ann");
        job.cancel = cancel("wrong size");
        assert_eq!(describe_end(&job), "create of database/orders cancelled by ann: wrong size");
        (job.state, job.attempt) = (JobState::Failed, 2);
        let (code, message) = ("QUOTA".to_owned(), "no\nspace".to_owned());
        job.error = Some(tenure_wire::FailureInfo { code, message });
        let id = job.id;
        let expected = format!(
            "create of database/orders failed in attempt 2 with QUOTA: no space; retry it with \
             `tenure job retry {id} --reason TEXT`"
        );
        assert_eq!(describe_end(&job), expected);
    }
}
