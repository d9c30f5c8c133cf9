//! Following a run until it is over.

use std::process::ExitCode;
use std::time::Duration;

use crate::wire::{RunAnswer, RunDetail, RunStatus};
use tenure::http::HttpTransport;
use tenure_core::JobId;
use tenure_wire::WhyAnswer;
use tokio::signal::unix::Signal;

use super::display::{Display, Moment};
use super::look;
use tenure_cli_kit::exit;
use tenure_cli_kit::log_reader::LogReader;
use tenure_cli_kit::text::{format_duration, sanitize};
use tenure_cli_kit::{Output, follow};

/// Shows what happens to a run until it is over, and gives how it ended. Nothing when `interrupt`
/// came first: then it is said that the run goes on.
pub(super) async fn follow(
    link: &HttpTransport,
    (id, pipeline): (JobId, &str),
    output: Output,
    interrupt: Signal,
) -> anyhow::Result<Option<RunDetail>> {
    let (logs, display) = (LogReader::new(id, None), Display::new(pipeline, output));
    let over = follow::follow(Follower { link, id, logs, display }, interrupt).await?;
    if over.is_none() {
        anstream::eprintln!(
            "detached: run {id} goes on. Follow it with `tenure pipeline show -f {id}`, stop it \
             with `tenure pipeline cancel {id}`"
        );
    }
    Ok(over)
}

struct Follower<'a> {
    link: &'a HttpTransport,
    id: JobId,
    logs: LogReader,
    display: Display,
}

impl follow::Follower for Follower<'_> {
    const WHAT: &'static str = "run";
    type Finished = RunDetail;

    /// One look: the run first, so that all it wrote before its end is there when it is over.
    async fn poll(&mut self, wait: Duration) -> anyhow::Result<Option<RunDetail>> {
        let detail = look(self.link, self.id, wait).await?;
        let display = &self.display;
        self.logs.read_available(self.link, |text| display.log(text)).await?;
        if detail.run.status.is_finished() {
            self.display.over(&detail);
            return Ok(Some(detail));
        }
        let waits = detail.run.status == RunStatus::Pending;
        let why = if waits {
            Some(self.link.get::<WhyAnswer>(&format!("/v1/jobs/{}/why", self.id)).await?)
        } else {
            None
        };
        self.display.update(&Moment { detail: &detail, why: why.as_ref() });
        Ok(None)
    }

    fn say(&self, line: &str) {
        self.display.say(line);
    }
}

/// The exit code for how a run ended; the same as for a job.
pub(super) fn exit_code(status: RunStatus) -> ExitCode {
    match status {
        RunStatus::Complete => ExitCode::SUCCESS,
        RunStatus::Cancelled => ExitCode::from(exit::REFUSED),
        _ => ExitCode::from(exit::FAILED),
    }
}

/// How a run ended, in a sentence with what can be done about it.
pub(super) fn ending(run: &RunAnswer) -> String {
    let RunAnswer { pipeline_logging_id: id, pipeline_id: name, .. } = run;
    let mut said = format!("{name} {}", run.status.as_str());
    if let Some(took_ms) = run.duration_ms {
        said += &format!(" after {}", format_duration(took_ms));
    }
    if run.attempt > 1 {
        said += &format!(" in attempt {}", run.attempt);
    }
    match (run.status, &run.cancel, &run.error) {
        (RunStatus::Cancelled, Some(asked), _) if asked.reason.is_empty() => {
            said += &format!(" by {}", asked.by);
        }
        (RunStatus::Cancelled, Some(asked), _) => {
            said += &format!(" by {}: {}", asked.by, asked.reason);
        }
        (RunStatus::Failed | RunStatus::Timeout, _, Some(error)) => {
            said += &format!(" with {}: {}", error.code, error.message);
        }
        _ => {}
    }
    said = sanitize(&said);
    if !matches!(run.status, RunStatus::Failed | RunStatus::Timeout) {
        return said;
    }
    format!(
        "{said}; see it with `tenure pipeline show {id}`, try again with `tenure pipeline run \
         {name}`"
    )
}

#[cfg(test)]
mod tests {
    use tenure_wire::{AskedAnswer, FailureAnswer};

    use super::*;
    use crate::cli::display::example;

    #[test]
    fn the_end_is_told_with_its_reason_and_the_remedy() {
        let mut run = example(RunStatus::Complete, &[]).run;
        run.duration_ms = Some(3_000);
        assert_eq!(ending(&run), "billing COMPLETE after 3s");
        let asked = |reason: &str| {
            let (by, reason) = ("ann".to_owned(), reason.to_owned());
            Some(AskedAnswer { by, reason, at: String::new() })
        };
        (run.status, run.cancel) = (RunStatus::Cancelled, asked(""));
        assert_eq!(ending(&run), "billing CANCELLED after 3s by ann");
        run.cancel = asked("wrong\nday");
        assert_eq!(ending(&run), "billing CANCELLED after 3s by ann: wrong day");
        (run.status, run.attempt) = (RunStatus::Failed, 2);
        let (code, message) = ("EXIT_1".to_owned(), "step load: no".to_owned());
        run.error = Some(FailureAnswer { code, message });
        let id = run.pipeline_logging_id;
        let told = format!(
            "billing FAILED after 3s in attempt 2 with EXIT_1: step load: no; see it with `tenure \
             pipeline show {id}`, try again with `tenure pipeline run billing`"
        );
        assert_eq!(ending(&run), told);
    }

    #[test]
    fn each_end_has_the_exit_code_of_a_job_that_ended_so() {
        let code = |status| format!("{:?}", exit_code(status));
        assert_eq!(code(RunStatus::Complete), format!("{:?}", ExitCode::SUCCESS));
        for status in [RunStatus::Failed, RunStatus::Timeout] {
            assert_eq!(code(status), format!("{:?}", ExitCode::from(exit::FAILED)));
        }
        assert_eq!(code(RunStatus::Cancelled), format!("{:?}", ExitCode::from(exit::REFUSED)));
    }
}
