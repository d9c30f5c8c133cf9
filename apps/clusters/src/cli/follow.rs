//! Requests that submit an operation: the verdict, and following it until it ends.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tenure::Error;
use tenure::http::HttpTransport;
use tenure::job::LogReader;
use tenure_cli_kit::follow;
use tenure_cli_kit::log_text::read_available;
use tenure_cli_kit::text::{format_duration, print_line, sanitize, sanitize_line, span};
use tenure_cli_kit::{CliContext, Done, Output, color, exit, hint, print_json};
use tenure_core::{JobId, JobState};
use tenure_wire::{JobInfo, WhyResponse, parse_instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::display::{Display, OperationSnapshot};
use super::{get_cluster, get_job};
use crate::names::{CREATE, DESTROY, JANITOR_DESTROY, SCALE_WORKERS};
use crate::wire::{ClusterInfo, ClusterResponse, ClusterVerdict};

/// An operation that has ended, and its cluster.
pub(crate) struct Ended {
    /// The job.
    pub(crate) job: JobInfo,
    /// The cluster at its end, or later.
    pub(crate) cluster: ClusterInfo,
}

/// The answer to a request that submits an operation.
pub(super) struct Submitted {
    pub(super) answer: ClusterResponse,
    /// Whether the operation is followed.
    pub(super) follow: bool,
}

/// Adds what to do to the error of a request that may have arrived.
pub(super) fn accepted<T>(sent: Result<T, Error>) -> Result<T, Error> {
    sent.map_err(|error| match error {
        Error::Unavailable(why) => Error::Unavailable(format!(
            "{why}. The request may have been accepted; run the same line again, which is harmless"
        )),
        other => other,
    })
}

impl Submitted {
    /// Prints the verdict, follows the operation on request, and returns the exit code.
    pub(super) async fn finish(mut self, cx: &CliContext, transport: &HttpTransport) -> Done {
        let id = self.answer.id.clone();
        // Installed before the verdict is printed: from then on Ctrl-C only stops following.
        let interrupt = self.follow.then(|| signal(SignalKind::interrupt())).transpose()?;
        if cx.output == Output::Table {
            let verdict = verdict_text(self.answer.verdict, self.answer.job.as_ref());
            print_line(&format!("{} {}", color::state(verdict), sanitize(&id)))?;
        }
        if let Some(why) = explain_verdict(&self.answer) {
            hint::print(&why);
        }
        let mut code = ExitCode::SUCCESS;
        if let (Some(interrupt), Some(job)) = (interrupt, &self.answer.job) {
            match follow(transport, &id, job, interrupt).await? {
                Some(ended) => {
                    hint::print(&describe_end(&ended.job, &ended.cluster));
                    if cx.output == Output::Table {
                        print_line(&format!("{} {id}", color::state(&ended.cluster.state)))?;
                    }
                    code = exit_code(ended.job.state);
                    self.answer.job = Some(ended.job);
                }
                None => code = ExitCode::from(exit::INTERRUPTED),
            }
        }
        if cx.output == Output::Json {
            print_json(&self.answer)?;
        }
        Ok(code)
    }
}

/// Returns the word for a verdict. A job that may start is not running yet: no worker has claimed
/// it.
pub(crate) fn verdict_text(verdict: ClusterVerdict, job: Option<&JobInfo>) -> &'static str {
    match verdict {
        ClusterVerdict::Started if job.is_some_and(|job| job.state == JobState::Queued) => "ready",
        ClusterVerdict::Started => "started",
        ClusterVerdict::Queued => "queued",
        ClusterVerdict::Attached => "attached",
        ClusterVerdict::Replaced => "replaced",
        ClusterVerdict::Exists => "exists",
    }
}

/// Says what a verdict means, where that is not obvious.
fn explain_verdict(answer: &ClusterResponse) -> Option<String> {
    let job = answer.job.as_ref();
    let by = job.map(|job| sanitize(&job.by)).unwrap_or_default();
    let operation = job.map(|job| sanitize(&job.operation)).unwrap_or_default();
    match answer.verdict {
        ClusterVerdict::Attached => {
            Some(format!("{operation} was requested by {by} before; it is not done twice"))
        }
        ClusterVerdict::Replaced => {
            Some("it replaces an operation that has not started".to_owned())
        }
        ClusterVerdict::Queued => Some(format!("{operation} waits for the operation before it")),
        ClusterVerdict::Exists => {
            Some("the cluster runs with this configuration; nothing is done".to_owned())
        }
        ClusterVerdict::Started => None,
    }
}

/// Displays the progress of an operation until it ends. Returns `None` after `interrupt`, which
/// leaves the operation running.
pub(super) async fn follow(
    transport: &HttpTransport,
    cluster: &str,
    job: &JobInfo,
    interrupt: Signal,
) -> anyhow::Result<Option<Ended>> {
    let (logs, display) = (LogReader::new(job.id, None), Display::new(cluster));
    let follower = OperationFollower { transport, cluster, id: job.id, logs, display };
    let ended = follow::follow(follower, interrupt).await?;
    if ended.is_none() {
        let (operation, cluster) = (sanitize(&job.operation), sanitize(cluster));
        hint::print(&format!(
            "detached: {operation} of {cluster} continues. Follow it with `tenure cluster show -f \
             {cluster}`, stop it with `tenure job cancel {} --reason TEXT`",
            job.id
        ));
    }
    Ok(ended)
}

/// Polls an operation and displays it.
pub(crate) struct OperationFollower<'a> {
    pub(crate) transport: &'a HttpTransport,
    /// Id of the cluster.
    pub(crate) cluster: &'a str,
    /// Id of the job.
    pub(crate) id: JobId,
    pub(crate) logs: LogReader,
    pub(crate) display: Display,
}

impl follow::Follower for OperationFollower<'_> {
    const WHAT: &'static str = "operation";
    type Finished = Ended;

    /// Reads the job before the cluster and the log, which then have its end.
    async fn poll(&mut self, wait: Duration) -> anyhow::Result<Option<Ended>> {
        let job = get_job(self.transport, self.id, wait).await?;
        let cluster = get_cluster(self.transport, self.cluster).await?;
        let display = &mut self.display;
        let show = |text: &str| {
            display.log(text);
            Ok(())
        };
        read_available(&mut self.logs, self.transport, show).await?;
        if job.state.is_finished() {
            return Ok(Some(Ended { job, cluster }));
        }
        let why = if job.state.is_running() {
            None
        } else {
            let path = format!("/v1/jobs/{}/why", self.id);
            let why = self.transport.get::<WhyResponse>(&path).await;
            Some(why.context("cannot read what the operation waits for")?)
        };
        let snapshot = OperationSnapshot { job: &job, cluster: &cluster, why: why.as_ref() };
        display.update(&snapshot);
        Ok(None)
    }

    fn say(&self, line: &str) {
        self.display.say(line);
    }
}

/// Returns the exit code for the final state of an operation.
pub(super) fn exit_code(state: JobState) -> ExitCode {
    match state {
        JobState::Succeeded => ExitCode::SUCCESS,
        JobState::Cancelled | JobState::Superseded => ExitCode::from(exit::REFUSED),
        _ => ExitCode::from(exit::FAILED),
    }
}

/// Describes how an operation ended, with what to do next.
pub(crate) fn describe_end(job: &JobInfo, cluster: &ClusterInfo) -> String {
    let id = sanitize(&cluster.id);
    let mut text = String::new();
    if let Some((first, end)) = job.attempts.first().zip(job.ended_at.as_ref()) {
        text += &format!(" after {}", span(&first.started_at, end));
    }
    if job.attempt > 1 {
        text += &format!(" in attempt {}", job.attempt);
    }
    if let (JobState::Cancelled, Some(cancel)) = (job.state, &job.cancel) {
        text += &format!(" by {}", cancel.by);
        if !cancel.reason.is_empty() {
            text += &format!(": {}", cancel.reason);
        }
    }
    if matches!(job.state, JobState::Failed | JobState::Dead) {
        let error = job.error.as_ref();
        text += &error.map(|e| format!(" with {}: {}", e.code, e.message)).unwrap_or_default();
    }
    if let (JobState::Superseded, Some(next)) = (job.state, job.followed_by) {
        text += &format!(" by job {next}");
    }
    let operation = sanitize(&job.operation);
    let text =
        format!("{operation} of {id} {}{}", color::state(job.state.as_str()), sanitize_line(&text));
    match next_step(job, cluster, &id) {
        Some(next) => format!("{text}; {next}"),
        None => text,
    }
}

fn next_step(job: &JobInfo, cluster: &ClusterInfo, id: &str) -> Option<String> {
    let ok = job.state == JobState::Succeeded;
    let failed = matches!(job.state, JobState::Failed | JobState::Dead);
    match &*job.operation {
        CREATE if ok => {
            let left = cluster.expires_at.as_ref().zip(job.ended_at.as_ref()).map(|(at, now)| {
                let ms = |at| parse_instant(at).unwrap_or_default();
                format!("it is destroyed in {}; ", format_duration(ms(at).since(ms(now))))
            });
            let left = left.unwrap_or_default();
            Some(format!(
                "{left}get its kubeconfig with `tenure cluster outputs {id} --kubeconfig FILE`"
            ))
        }
        CREATE if failed && cluster.preserved => Some(format!(
            "what it has left is kept: see `tenure cluster show {id}`, and remove it with `tenure \
             cluster destroy {id}`"
        )),
        CREATE | SCALE_WORKERS if failed => {
            Some(format!("see `tenure cluster logs {id}`, and run the same line again"))
        }
        DESTROY | JANITOR_DESTROY if failed => Some(format!(
            "parts of it may exist: see `tenure cluster logs {id}`, and destroy it again"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tenure_wire::{FailureInfo, RequestedByInfo};

    use super::*;
    use crate::cli::display::tests::{example_cluster, example_job};

    fn end(change: impl FnOnce(&mut JobInfo)) -> String {
        color::strip(&describe_end(&example_job(change), &example_cluster()))
    }

    #[test]
    fn the_end_is_described_with_the_next_step() {
        let created = end(|job| job.state = JobState::Succeeded);
        let expected = "CREATE of aws:a.b.c succeeded; get its kubeconfig with `tenure cluster \
                        outputs aws:a.b.c --kubeconfig FILE`";
        assert_eq!(created, expected);
        let failed = end(|job| {
            let (code, message) = ("VcpuLimit".to_owned(), "too\nmany".to_owned());
            (job.state, job.attempt) = (JobState::Failed, 2);
            job.error = Some(FailureInfo { code, message });
        });
        let expected = "CREATE of aws:a.b.c failed in attempt 2 with VcpuLimit: too many; see \
                        `tenure cluster logs aws:a.b.c`, and run the same line again";
        assert_eq!(failed, expected);
        let cancelled = end(|job| {
            let (by, reason) = ("ann".to_owned(), "DESTROY".to_owned());
            job.state = JobState::Cancelled;
            job.cancel = Some(RequestedByInfo { by, reason, at: String::new() });
        });
        assert_eq!(cancelled, "CREATE of aws:a.b.c cancelled by ann: DESTROY");
        let left = end(|job| {
            (job.state, job.operation) = (JobState::Dead, DESTROY.to_owned());
        });
        assert!(left.contains("parts of it may exist"), "{left}");
    }

    #[test]
    fn exit_codes_match_those_of_jobs() {
        let code = |state| format!("{:?}", exit_code(state));
        for (state, expected) in [
            (JobState::Succeeded, 0),
            (JobState::Failed, exit::FAILED),
            (JobState::Dead, exit::FAILED),
            (JobState::Cancelled, exit::REFUSED),
            (JobState::Superseded, exit::REFUSED),
        ] {
            assert_eq!(code(state), format!("{:?}", ExitCode::from(expected)));
        }
    }

    #[test]
    fn only_a_surprising_verdict_is_explained() {
        let answer = |verdict| ClusterResponse {
            verdict,
            id: "aws:a.b.c".to_owned(),
            job: Some(example_job(|_| ())),
        };
        assert_eq!(explain_verdict(&answer(ClusterVerdict::Started)), None);
        let attached = explain_verdict(&answer(ClusterVerdict::Attached)).expect("a sentence");
        assert_eq!(attached, "CREATE was requested by ann before; it is not done twice");
    }
}
