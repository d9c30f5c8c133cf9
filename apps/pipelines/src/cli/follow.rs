//! Following a run until it ends.

use std::process::ExitCode;
use std::time::Duration;

use crate::wire::{RunDetail, RunInfo, RunStatus};
use tenure::http::HttpTransport;
use tenure_core::JobId;
use tenure_wire::WhyResponse;
use tokio::signal::unix::Signal;

use super::display::{Display, RunSnapshot};
use super::get_run;
use tenure::job::LogReader;
use tenure_cli_kit::color;
use tenure_cli_kit::exit;
use tenure_cli_kit::log_text::read_available;
use tenure_cli_kit::text::{format_duration, sanitize, sanitize_line};
use tenure_cli_kit::{Output, follow, hint};

/// Follows a run and returns its final state. Returns `None` if `interrupt` comes first, after a
/// note that the run continues.
pub(super) async fn follow(
    transport: &HttpTransport,
    (id, pipeline): (JobId, &str),
    output: Output,
    interrupt: Signal,
) -> anyhow::Result<Option<RunDetail>> {
    let (logs, display) = (LogReader::new(id, None), Display::new(pipeline, output));
    let ended = follow::follow(Follower { transport, id, logs, display }, interrupt).await?;
    if ended.is_none() {
        hint::print(&format!(
            "detached: run {id} continues. Follow it with `tenure pipeline show -f {id}`, stop it \
             with `tenure pipeline cancel {id}`"
        ));
    }
    Ok(ended)
}

struct Follower<'a> {
    transport: &'a HttpTransport,
    id: JobId,
    logs: LogReader,
    display: Display,
}

impl follow::Follower for Follower<'_> {
    const WHAT: &'static str = "run";
    type Finished = RunDetail;

    /// Reads the run before its log, so that the log is complete when the run has ended.
    async fn poll(&mut self, wait: Duration) -> anyhow::Result<Option<RunDetail>> {
        let detail = get_run(self.transport, self.id, wait).await?;
        let display = &self.display;
        read_available(&mut self.logs, self.transport, |text| display.log(text)).await?;
        if detail.run.status.is_finished() {
            self.display.finish(&detail);
            return Ok(Some(detail));
        }
        let is_waiting = detail.run.status == RunStatus::Pending;
        let why = if is_waiting {
            Some(self.transport.get::<WhyResponse>(&format!("/v1/jobs/{}/why", self.id)).await?)
        } else {
            None
        };
        self.display.update(&RunSnapshot { detail: &detail, why: why.as_ref() });
        Ok(None)
    }

    fn say(&self, line: &str) {
        self.display.print_message(line);
    }
}

/// Returns the exit code for the status of a run; the same as for a job.
pub(super) fn exit_code(status: RunStatus) -> ExitCode {
    match status {
        RunStatus::Complete => ExitCode::SUCCESS,
        RunStatus::Cancelled => ExitCode::from(exit::REFUSED),
        _ => ExitCode::from(exit::FAILED),
    }
}

/// Describes the end of a run, with the remedy if it failed.
pub(super) fn describe_end(run: &RunInfo) -> String {
    let RunInfo { pipeline_logging_id: id, pipeline_id: name, .. } = run;
    let mut text = String::new();
    if let Some(took_ms) = run.duration_ms {
        text += &format!(" after {}", format_duration(took_ms));
    }
    if run.attempt > 1 {
        text += &format!(" in attempt {}", run.attempt);
    }
    match (run.status, &run.cancel, &run.error) {
        (RunStatus::Cancelled, Some(requested), _) if requested.reason.is_empty() => {
            text += &format!(" by {}", requested.by);
        }
        (RunStatus::Cancelled, Some(requested), _) => {
            text += &format!(" by {}: {}", requested.by, requested.reason);
        }
        (RunStatus::Failed | RunStatus::Timeout, _, Some(error)) => {
            text += &format!(" with {}: {}", error.code, error.message);
        }
        _ => {}
    }
    let (name, status) = (sanitize(name), color::state(run.status.as_str()));
    let text = format!("{name} {status}{}", sanitize_line(&text));
    if !matches!(run.status, RunStatus::Failed | RunStatus::Timeout) {
        return text;
    }
    format!(
        "{text}; inspect it with `tenure pipeline show {id}`, try again with `tenure pipeline run \
         {name}`"
    )
}

#[cfg(test)]
mod tests {
    use tenure_wire::{FailureInfo, RequestedByInfo};

    use super::*;
    use crate::cli::display::example;

    #[test]
    fn end_is_described_with_its_reason_and_the_remedy() {
        let describe_end = |run: &RunInfo| color::strip(&describe_end(run));
        let mut run = example(RunStatus::Complete, &[]).run;
        run.duration_ms = Some(3_000);
        assert_eq!(describe_end(&run), "billing COMPLETE after 3s");
        let requested = |reason: &str| {
            let (by, reason) = ("ann".to_owned(), reason.to_owned());
            Some(RequestedByInfo { by, reason, at: String::new() })
        };
        (run.status, run.cancel) = (RunStatus::Cancelled, requested(""));
        assert_eq!(describe_end(&run), "billing CANCELLED after 3s by ann");
        run.cancel = requested("wrong\nday");
        assert_eq!(describe_end(&run), "billing CANCELLED after 3s by ann: wrong day");
        (run.status, run.attempt) = (RunStatus::Failed, 2);
        let (code, message) = ("EXIT_1".to_owned(), "step load: no".to_owned());
        run.error = Some(FailureInfo { code, message });
        let id = run.pipeline_logging_id;
        let expected = format!(
            "billing FAILED after 3s in attempt 2 with EXIT_1: step load: no; inspect it with \
             `tenure pipeline show {id}`, try again with `tenure pipeline run billing`"
        );
        assert_eq!(describe_end(&run), expected);
    }

    #[test]
    fn exit_codes_match_those_of_jobs() {
        let code = |status| format!("{:?}", exit_code(status));
        assert_eq!(code(RunStatus::Complete), format!("{:?}", ExitCode::SUCCESS));
        for status in [RunStatus::Failed, RunStatus::Timeout] {
            assert_eq!(code(status), format!("{:?}", ExitCode::from(exit::FAILED)));
        }
        assert_eq!(code(RunStatus::Cancelled), format!("{:?}", ExitCode::from(exit::REFUSED)));
    }
}
