//! Runs a command as the handler of a job, and guarantees that it never outlives the job's tenure.
//!
//! The command is supervised like that of `tenure exec`: it is dead, with everything it started,
//! before the store may grant the lock to another holder. It finds its arguments on standard input
//! and in `TENURE_ARGS`, and reports progress and results as directives on standard output. All its
//! output goes to the log of the attempt, with secrets redacted.
//!
//! The handler must never end while a process of the command is alive. When that is unknown, the
//! whole session is abandoned, so that the store waits for its time to live.
//!
//! See `exec/` for the supervision, `output.rs` for the directives.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::retry::{Class, TIME_LIMIT};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::{Sleep, timeout};

use super::context::{CancelReason, Context};
use super::environment;
use super::handler::{Done, Failure, Handler};
use super::output::{Directive, LineSplitter, OutputLine};
use super::redact::StreamState;
use crate::exec::{self, CommandEnd, Deadlines, EndReason, ExitKind, Spec, StopReason, Supervisor};
use crate::session::Session;
use crate::trace::TraceParent;

/// Exit code that requests a retry.
const EX_TEMPFAIL: i32 = 75;
/// Code of a command that could not be started.
pub const CANNOT_START: &str = "CANNOT_START";
/// Code of a command that was stopped because heartbeats failed for too long, although the tenure
/// was kept in the end.
pub const HEARTBEAT_LATE: &str = "HEARTBEAT_LATE";
/// Code of a command that was stopped through its watchdog.
pub const STOPPED: &str = "STOPPED";
/// Code of a command whose watchdog was killed.
pub const WATCHDOG_DIED: &str = "WATCHDOG_DIED";
/// Time to read the remaining output of a dead command. Only a process that does not belong to the
/// command can keep its pipes open.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Size of the buffer for reading output.
const READ_BUFFER_BYTES: usize = 16 * 1024;

/// Handler that runs a command.
#[derive(Clone, Debug)]
pub struct Command {
    program: Vec<OsString>,
    helper: Option<PathBuf>,
    grace: Duration,
    parent: Option<TraceParent>,
    /// Variables of this process to pass on, by name or prefix.
    passed: Vec<String>,
    env: Vec<(OsString, OsString)>,
    args: Option<String>,
    limit: Option<Duration>,
    phase: Phase,
}

/// Phase of a job that consists of several commands.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Name, which prefixes each line in the log; empty if the command is the whole job.
    pub name: String,
    /// Progress of the job when the phase begins, in percent.
    pub from: u8,
    /// Progress of the job when the phase is done, in percent.
    pub to: u8,
}

impl Default for Phase {
    fn default() -> Self {
        Self { name: String::new(), from: 0, to: 100 }
    }
}

impl Phase {
    /// Reports the progress of the phase, scaled to the progress of the job.
    pub fn progress(&self, job: &Context, percent: u8, message: &str) {
        let share = u32::from(self.to.saturating_sub(self.from)) * u32::from(percent.min(100));
        let percent = u32::from(self.from) + share / 100;
        let percent = u8::try_from(percent).unwrap_or(100);
        match (self.name.as_str(), message) {
            ("", message) => job.progress(percent, message),
            (name, "") => job.progress(percent, name),
            (name, message) => job.progress(percent, &format!("{name}: {message}")),
        }
    }

    /// Returns the prefix of each log line.
    fn label(&self) -> String {
        if self.name.is_empty() { String::new() } else { format!("{} | ", self.name) }
    }
}

impl Command {
    /// Creates a handler that runs this program with these arguments. Of the environment of this
    /// process it gets [`INHERITED_VARIABLES`](super::INHERITED_VARIABLES) only.
    #[must_use]
    pub fn new(program: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        let program = program.into_iter().map(Into::into).collect();
        Self {
            program,
            helper: None,
            grace: exec::GRACE_DEFAULT,
            parent: None,
            passed: Vec::new(),
            env: Vec::new(),
            args: None,
            limit: None,
            phase: Phase::default(),
        }
    }

    /// Passes on variables of this process: `NAME`, or `PREFIX*` for all that begin so. Those in
    /// [`CREDENTIAL_VARIABLES`](crate::model::limits::CREDENTIAL_VARIABLES) are never passed.
    #[must_use]
    pub fn pass_env(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.passed.extend(names.into_iter().map(Into::into));
        self
    }

    /// Adds environment variables.
    #[must_use]
    pub fn env(
        mut self,
        variables: impl IntoIterator<Item = (impl Into<OsString>, impl Into<OsString>)>,
    ) -> Self {
        let pair = |(name, value): (_, _)| (Into::into(name), Into::into(value));
        self.env.extend(variables.into_iter().map(pair));
        self
    }

    /// Replaces the arguments of the job, as JSON.
    #[must_use]
    pub fn args(mut self, json: String) -> Self {
        self.args = Some(json);
        self
    }

    fn args_json<'a>(&'a self, job: &'a Context) -> &'a str {
        self.args.as_deref().unwrap_or_else(|| job.args_json())
    }

    /// Sets the time limit of the command, within the time limit of the attempt.
    #[must_use]
    pub fn limit(mut self, limit: Option<Duration>) -> Self {
        self.limit = limit;
        self
    }

    /// Sets the phase of the job that the command executes. The default is the whole job.
    #[must_use]
    pub fn phase(mut self, phase: Phase) -> Self {
        self.phase = phase;
        self
    }

    /// Sets the executable that hosts the watchdog. Its `main` must call [`exec::run_helper`]
    /// first. The default is the current executable.
    #[must_use]
    pub fn helper(mut self, helper: impl Into<PathBuf>) -> Self {
        self.helper = Some(helper.into());
        self
    }

    /// Sets the time from TERM to KILL.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets the parent span of the command. The default is a span in the trace of the job that no
    /// tracer records.
    #[must_use]
    pub fn traceparent(mut self, parent: Option<TraceParent>) -> Self {
        self.parent = parent;
        self
    }

    fn trace(&self, job: &Context) -> TraceParent {
        self.parent.unwrap_or_else(|| TraceParent::for_attempt(job.id(), job.token()))
    }

    fn spec(&self, job: &Context) -> Spec {
        let mut spec = Spec::new(&self.program);
        spec.env_clear = true;
        spec.env = environment::inherited_variables(&self.passed);
        spec.env.extend(environment::of_job(job, self.args_json(job)));
        spec.env.extend(self.trace(job).variables());
        spec.env.extend(self.env.iter().cloned());
        spec.grace = self.grace;
        spec.helper = self.helper.clone().unwrap_or(spec.helper);
        spec.stdin = Some(Stdio::piped());
        spec.stdout = Some(Stdio::piped());
        spec.stderr = Some(Stdio::piped());
        spec
    }

    async fn supervise(
        &self,
        job: &Context,
        mut supervisor: Supervisor,
        output: &Mutex<CommandOutput>,
    ) -> Result<CommandEnd, exec::Error> {
        let handle = supervisor.handle();
        let _registration = handle.follow(job.session());
        let mut io = Box::pin(self.exchange_io(job, &mut supervisor, output));
        let (mut io_open, mut tenure_held, mut not_cancelled) = (true, true, true);
        let mut limit = self.limit.map(|limit| Box::pin(tokio::time::sleep(limit)));
        let ended = loop {
            tokio::select! {
                ended = supervisor.wait() => break ended?,
                () = &mut io, if io_open => io_open = false,
                _ = job.lost(), if tenure_held => {
                    tenure_held = false;
                    handle.stop(StopReason::Lost);
                }
                reason = job.cancelled(), if not_cancelled => {
                    not_cancelled = false;
                    let late = reason == CancelReason::TimeLimit;
                    handle.stop(if late { StopReason::TimeLimit } else { StopReason::Requested });
                }
                Some(()) = limit_elapsed(&mut limit), if limit.is_some() => {
                    limit = None;
                    handle.stop(StopReason::TimeLimit);
                }
            }
        };
        if io_open {
            timeout(OUTPUT_DRAIN_TIMEOUT, io).await.ok();
        }
        Ok(ended)
    }

    /// Writes the arguments to the command and reads its output until all pipes are closed.
    fn exchange_io<'a>(
        &'a self,
        job: &'a Context,
        supervisor: &mut Supervisor,
        output: &'a Mutex<CommandOutput>,
    ) -> impl Future<Output = ()> + Send + use<'a> {
        let stdin = supervisor.stdin.take().map(OwnedFd::from).map(Sender::from_owned_fd);
        let stdout = supervisor.stdout.take().map(OwnedFd::from).map(Receiver::from_owned_fd);
        let stderr = supervisor.stderr.take().map(OwnedFd::from).map(Receiver::from_owned_fd);
        async move {
            let label = self.phase.label();
            let phase = (&self.phase, label.as_str());
            let stdout =
                read_lines(stdout, |stream, line| handle_line(job, phase, output, stream, &line));
            let stderr = read_lines(stderr, |stream, line| {
                if let Some(redacted) = job.log_line(stream, &label, &line.text, line.truncated)
                    && !redacted.trim().is_empty()
                {
                    lock(output).last_stderr_line = Some(redacted);
                }
            });
            tokio::join!(write_args(stdin, self.args_json(job)), stdout, stderr);
        }
    }
}

#[async_trait]
impl Handler for Command {
    async fn run(&self, job: &Context) -> Result<Done, Failure> {
        let session = job.session();
        // Armed from before the command starts until it is known to be dead.
        let abandon_on_drop = AbandonOnDrop(Some(session.clone()));
        let first = Deadlines::for_session(session.ttl(), session.deadline());
        let supervisor = match Supervisor::start(self.spec(job), first).await {
            Ok(supervisor) => supervisor,
            Err(error @ exec::Error::Scan(_)) => return Err(error.into()),
            Err(error) => {
                abandon_on_drop.disarm();
                return Err(start_failure(&error));
            }
        };
        let output = Mutex::new(CommandOutput::default());
        let ended = self.supervise(job, supervisor, &output).await?;
        abandon_on_drop.disarm();
        let output = output.into_inner().expect("nothing panics while it is locked");
        to_result(ended, output)
    }

    fn must_complete(&self) -> bool {
        true
    }
}

/// Abandons the session when dropped, unless the command is known to be dead.
struct AbandonOnDrop(Option<Session>);

impl AbandonOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        if let Some(session) = &self.0 {
            tracing::error!(session = %session.id(),
                "unknown whether a command is dead; the session is left to expire");
            session.abandon();
        }
    }
}

fn start_failure(error: &exec::Error) -> Failure {
    let code = if matches!(error, exec::Error::Late) { HEARTBEAT_LATE } else { CANNOT_START };
    Failure { code: code.to_owned(), ..Failure::from(error) }
}

/// Completes when the time limit has elapsed.
async fn limit_elapsed(limit: &mut Option<Pin<Box<Sleep>>>) -> Option<()> {
    limit.as_mut()?.await;
    Some(())
}

/// Output of a command that determines the result of the attempt.
#[derive(Debug, Default)]
struct CommandOutput {
    error: Option<(String, String)>,
    state: Option<String>,
    result: Option<String>,
    /// Last non-empty line of stderr, used as message if there is no `::error` directive.
    last_stderr_line: Option<String>,
}

fn lock(output: &Mutex<CommandOutput>) -> MutexGuard<'_, CommandOutput> {
    output.lock().expect("nothing panics while it is locked")
}

/// Writes the arguments to stdin. A command need not read them.
async fn write_args(stdin: Option<io::Result<Sender>>, args: &str) {
    if let Some(Ok(mut stdin)) = stdin {
        stdin.write_all(args.as_bytes()).await.ok();
    }
}

async fn read_lines(
    pipe: Option<io::Result<Receiver>>,
    mut on_line: impl FnMut(&mut StreamState, OutputLine),
) {
    let Some(Ok(mut pipe)) = pipe else {
        tracing::error!("cannot read the output of a command");
        return;
    };
    let (mut lines, mut stream) = (LineSplitter::default(), StreamState::default());
    let mut buffer = vec![0; READ_BUFFER_BYTES];
    while let Ok(length) = pipe.read(&mut buffer).await
        && length > 0
    {
        lines.push_bytes(&buffer[..length], |line| on_line(&mut stream, line));
    }
    if let Some(line) = lines.take_unterminated() {
        on_line(&mut stream, line);
    }
}

/// Applies the directive in a line, or logs the line.
fn handle_line(
    job: &Context,
    (phase, label): (&Phase, &str),
    output: &Mutex<CommandOutput>,
    stream: &mut StreamState,
    line: &OutputLine,
) {
    match Directive::parse(&line.text).filter(|_| !line.truncated) {
        Some(Directive::Progress { percent, message }) => {
            return phase.progress(job, percent, &message);
        }
        Some(Directive::Result(json)) => {
            lock(output).result = Some(json);
            return;
        }
        Some(Directive::State(state)) => lock(output).state = Some(state),
        Some(Directive::Error { code, message }) => lock(output).error = Some((code, message)),
        None => {}
    }
    job.log_line(stream, label, &line.text, line.truncated);
}

/// Converts the end of a command into the result of the attempt.
fn to_result(end: CommandEnd, output: CommandOutput) -> Result<Done, Failure> {
    let failure = match (end.reason, end.status) {
        (EndReason::Exited, ExitKind::Code(0)) => {
            return Ok(Done { state: output.state, result: output.result, ..Done::default() });
        }
        (EndReason::Exited, ExitKind::Code(code)) => {
            let class = (code == EX_TEMPFAIL).then_some(Class::Transient);
            let failure =
                output.failure(&format!("EXIT_{code}"), &format!("exited with code {code}"));
            Failure { class, ..failure }
        }
        (EndReason::Exited, ExitKind::Signal(signal)) => {
            output.failure(&format!("SIGNAL_{signal}"), &format!("killed by signal {signal}"))
        }
        (EndReason::Stopped(StopReason::TimeLimit), _) => {
            Failure::new(TIME_LIMIT, CancelReason::TimeLimit)
        }
        (EndReason::Stopped(_), _) => Failure::transient(STOPPED, "the command was stopped"),
        (EndReason::Lost, _) => {
            let message = "heartbeats failed for too long, so the command was stopped";
            Failure::transient(HEARTBEAT_LATE, message)
        }
        (EndReason::WatchdogDied, _) => {
            let message = "the watchdog was killed, so the command was killed";
            Failure::transient(WATCHDOG_DIED, message)
        }
    };
    Err(Failure { state: output.state, ..failure })
}

impl CommandOutput {
    /// Returns the failure given by the `::error` directive, or one that describes the exit.
    fn failure(&self, code: &str, how: &str) -> Failure {
        match (&self.error, &self.last_stderr_line) {
            (Some((code, message)), _) => Failure::new(code, message),
            (None, Some(line)) => Failure::new(code, format!("{how}: {line}")),
            (None, None) => Failure::new(code, how),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(reason: EndReason, status: ExitKind) -> CommandEnd {
        CommandEnd { status, reason }
    }

    fn failure(reason: EndReason, status: ExitKind, output: CommandOutput) -> Failure {
        to_result(end(reason, status), output).expect_err("it failed")
    }

    #[test]
    fn the_exit_code_decides_and_directives_add_details() {
        let output = || CommandOutput {
            error: Some(("DISK_FULL".into(), "no room".into())),
            state: Some("BROKEN".into()),
            ..CommandOutput::default()
        };
        let done = to_result(end(EndReason::Exited, ExitKind::Code(0)), output()).expect("done");
        assert_eq!(done.state.as_deref(), Some("BROKEN"));
        let failed = failure(EndReason::Exited, ExitKind::Code(3), output());
        assert_eq!((failed.code.as_str(), failed.class), ("DISK_FULL", None));
        assert_eq!(failed.state.as_deref(), Some("BROKEN"));
        let later = failure(EndReason::Exited, ExitKind::Code(75), output());
        assert_eq!((later.code.as_str(), later.class), ("DISK_FULL", Some(Class::Transient)));
    }

    #[test]
    fn without_directives_the_exit_gives_the_code_and_stderr_the_message() {
        let output = || CommandOutput {
            last_stderr_line: Some("no such file".into()),
            ..CommandOutput::default()
        };
        let failed = failure(EndReason::Exited, ExitKind::Code(3), output());
        assert_eq!(failed.to_string(), "EXIT_3: exited with code 3: no such file");
        let failed = failure(EndReason::Exited, ExitKind::Signal(9), CommandOutput::default());
        assert_eq!(failed.to_string(), "SIGNAL_9: killed by signal 9");
        let later = failure(EndReason::Exited, ExitKind::Code(75), CommandOutput::default());
        assert_eq!((later.code.as_str(), later.class), ("EXIT_75", Some(Class::Transient)));
    }

    #[test]
    fn a_stopped_command_fails_whatever_its_exit_code() {
        for (reason, code) in [
            (EndReason::Stopped(StopReason::TimeLimit), TIME_LIMIT),
            (EndReason::Stopped(StopReason::Requested), STOPPED),
            (EndReason::Lost, HEARTBEAT_LATE),
            (EndReason::WatchdogDied, WATCHDOG_DIED),
        ] {
            assert_eq!(failure(reason, ExitKind::Code(0), CommandOutput::default()).code, code);
        }
    }
}
