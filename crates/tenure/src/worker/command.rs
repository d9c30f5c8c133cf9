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
//! See `exec/` for the supervision, `streams.rs` for the output, `exit.rs` for the result.

use std::ffi::OsString;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::{Operation, RunOptions};
use tokio::sync::watch;
use tokio::time::{Sleep, timeout};

use super::context::{CancelReason, Context};
use super::environment;
pub use super::exit::{CommandOutput, Exit, HEARTBEAT_LATE, STOPPED, WATCHDOG_DIED};
use super::handler::{Done, Failure, Handler};
use super::observer::{Line, Observer};
use super::output_file::OutputFile;
use super::streams::Streams;
use crate::exec::{self, CommandEnd, Deadlines, EndReason, Handle, Spec, StopReason, Supervisor};
use crate::session::Session;
use crate::trace::TraceParent;

/// Code of a command that could not be started.
pub const CANNOT_START: &str = "CANNOT_START";
/// Time to read the remaining output of a dead command. Only a process that does not belong to the
/// command can keep its pipes open.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Handler that runs a command.
#[derive(Clone, Debug)]
pub struct Command {
    program: Vec<OsString>,
    helper: Option<PathBuf>,
    dir: Option<PathBuf>,
    grace: Duration,
    cancel_grace: Option<Duration>,
    parent: Option<TraceParent>,
    /// Variables of this process to pass on, by name or prefix.
    passed: Vec<String>,
    env: Vec<(OsString, OsString)>,
    args: Option<String>,
    limit: Option<Duration>,
    phase: Phase,
    observer: Option<Observer>,
    output_file: Option<OutputFile>,
    stop: Option<watch::Receiver<bool>>,
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
    pub(super) fn label(&self) -> String {
        if self.name.is_empty() { String::new() } else { format!("{} | ", self.name) }
    }
}

impl Command {
    /// Creates a handler that runs the declared command of an operation, with its options.
    #[must_use]
    pub fn declared(operation: &Operation) -> Self {
        let RunOptions { dir, cancel_grace_ms, output_file, output_bytes_max } =
            operation.run_options.clone();
        let mut command = Self::new(&operation.run).env(&operation.env);
        command.dir = dir.map(Into::into);
        command.cancel_grace = cancel_grace_ms.map(Duration::from_millis);
        command.output_file =
            output_file.map(|path| OutputFile { path: path.into(), bytes_max: output_bytes_max });
        command
    }

    /// Creates a handler that runs this program with these arguments. Of the environment of this
    /// process it gets [`INHERITED_VARIABLES`](super::INHERITED_VARIABLES) only.
    #[must_use]
    pub fn new(program: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        let program = program.into_iter().map(Into::into).collect();
        Self {
            program,
            helper: None,
            dir: None,
            grace: exec::GRACE_DEFAULT,
            cancel_grace: None,
            parent: None,
            passed: Vec::new(),
            env: Vec::new(),
            args: None,
            limit: None,
            phase: Phase::default(),
            observer: None,
            output_file: None,
            stop: None,
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

    /// Sets the working directory; the default is that of this process. A relative path of the
    /// program is relative to it.
    #[must_use]
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Sets the time from TERM to KILL.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets the time from TERM to KILL after the job was cancelled or a time limit exceeded; the
    /// default is that of [`Command::grace`].
    ///
    /// The tenure is held meanwhile. When it is lost, the deadline of the watchdog counts, and when
    /// the worker shuts down, [`Command::grace`].
    #[must_use]
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.cancel_grace = Some(grace);
        self
    }

    /// Calls `observe` for each line of output as it arrives, before it is redacted and logged.
    ///
    /// The calls of one run are made one after the other on a thread of their own, outside of the
    /// runtime, so `observe` may block: the command, its supervision and its log do not wait. Up to
    /// 4 MiB of lines wait for it; while they do not fit, lines are missed, and [`Line::missed`] of
    /// the next one counts them. If it panics, it gets no more lines of that run. After the end of
    /// the command it has five seconds for the lines that wait; those left are dropped, and a call
    /// that has not returned by then may outlast the attempt.
    #[must_use]
    pub fn on_line(mut self, observe: impl Fn(&Line) + Send + Sync + 'static) -> Self {
        self.observer = Some(Observer::new(observe));
        self
    }

    /// Writes all output to this file as well, with secrets redacted. In the path `{job}` stands
    /// for the id of the job and `{attempt}` for the number of the attempt.
    ///
    /// Each run creates the file with mode 0600, or empties it. Directories are not created. With
    /// `bytes_max`, the line that would exceed it is replaced by a notice, and the rest is dropped.
    /// A disk that is slow makes the command wait; after a failed write the command continues, and
    /// the log says that the file is incomplete.
    #[must_use]
    pub fn output_file(mut self, path: impl Into<PathBuf>, bytes_max: Option<u64>) -> Self {
        self.output_file = Some(OutputFile { path: path.into(), bytes_max });
        self
    }

    /// Stops the command when `stop` becomes true, as if its job was cancelled: the end is
    /// [`StopReason::Requested`].
    #[must_use]
    pub fn stop_when(mut self, stop: watch::Receiver<bool>) -> Self {
        self.stop = Some(stop);
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
        spec.dir.clone_from(&self.dir);
        spec.grace = self.grace;
        spec.helper = self.helper.clone().unwrap_or(spec.helper);
        spec.stdin = Some(Stdio::piped());
        spec.stdout = Some(Stdio::piped());
        spec.stderr = Some(Stdio::piped());
        spec
    }

    /// Runs the command until it and everything it started are dead, and returns how it ended.
    ///
    /// For handlers that classify the end themselves. Such a handler [must
    /// complete](Handler::must_complete), for example by [`completing`](super::completing): if its
    /// future is dropped while the command runs, the command is killed and the session abandoned.
    ///
    /// ```
    /// use tenure::exec::{EndReason, ExitKind};
    /// use tenure::worker::completing;
    /// use tenure::{Client, Context, Done, Failure, Worker, worker::Command};
    ///
    /// async fn create(job: Context) -> Result<Done, Failure> {
    ///     let exit = Command::new(["./create.sh"]).dir("/srv").execute(&job).await?;
    ///     match (exit.reason, exit.status) {
    ///         (EndReason::Exited, ExitKind::Code(3)) => {
    ///             Err(Failure::permanent("QUOTA", exit.output.tail))
    ///         }
    ///         _ => exit.into_result(),
    ///     }
    /// }
    ///
    /// # fn worker(client: &Client) -> Worker {
    /// Worker::new(client, "creator").handle("database", completing(create))
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the command could not be started.
    pub async fn execute(&self, job: &Context) -> Result<Exit, Failure> {
        let streams = self.open_streams(job).await?;
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
        let mut end = self.supervise(job, supervisor, &streams).await?;
        abandon_on_drop.disarm();
        if matches!(end.reason, EndReason::Stopped(_)) && job.check().is_err() {
            // It was being stopped for another reason, but nobody may rely on the tenure now.
            end.reason = EndReason::Lost;
        }
        Ok(Exit::new(end, streams.finish().await))
    }

    async fn open_streams<'a>(&'a self, job: &'a Context) -> Result<Streams<'a>, Failure> {
        let observer = self.observer.as_ref().map(|observer| observer.start(job.id())).transpose();
        let observer = observer.map_err(|error| {
            Failure::new(CANNOT_START, format!("cannot start the line observer: {error}"))
        })?;
        let file = match &self.output_file {
            Some(file) => Some(file.create(job).await),
            None => None,
        };
        let file = file.transpose().map_err(|why| Failure::new(CANNOT_START, why))?;
        Ok(Streams { job, phase: &self.phase, observer, file, output: Mutex::default() })
    }

    async fn supervise(
        &self,
        job: &Context,
        mut supervisor: Supervisor,
        streams: &Streams<'_>,
    ) -> Result<CommandEnd, exec::Error> {
        let handle = supervisor.handle();
        let _registration = handle.follow(job.session());
        let mut io = Box::pin(streams.exchange(self.args_json(job), &mut supervisor));
        let (mut io_open, mut tenure_held) = (true, true);
        let (mut not_cancelled, mut not_shut_down, mut not_stopped) = (true, true, true);
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
                    self.stop(&handle, reason);
                }
                // Also if the job was cancelled before.
                () = job.shutdown_requested(), if not_shut_down => {
                    not_shut_down = false;
                    self.stop(&handle, CancelReason::Shutdown);
                }
                () = stop_requested(self.stop.clone()), if not_stopped => {
                    not_stopped = false;
                    self.stop(&handle, CancelReason::JobCancelled);
                }
                Some(()) = limit_elapsed(&mut limit), if limit.is_some() => {
                    limit = None;
                    self.stop(&handle, CancelReason::TimeLimit);
                }
            }
        };
        if io_open {
            timeout(OUTPUT_DRAIN_TIMEOUT, io).await.ok();
        }
        Ok(ended)
    }

    fn stop(&self, handle: &Handle, reason: CancelReason) {
        let cancel_grace = self.cancel_grace.unwrap_or(self.grace);
        match reason {
            CancelReason::JobCancelled => handle.stop_within(StopReason::Requested, cancel_grace),
            CancelReason::TimeLimit => handle.stop_within(StopReason::TimeLimit, cancel_grace),
            // A worker that stops does not wait for long.
            CancelReason::Shutdown => handle.stop(StopReason::Requested),
        }
    }
}

#[async_trait]
impl Handler for Command {
    async fn run(&self, job: &Context) -> Result<Done, Failure> {
        self.execute(job).await?.into_result()
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

/// Completes when `stop` becomes true, if there is one.
async fn stop_requested(stop: Option<watch::Receiver<bool>>) {
    let Some(mut stop) = stop else { return std::future::pending().await };
    if stop.wait_for(|stop| *stop).await.is_err() {
        // The sender is gone, so nobody can stop the command.
        std::future::pending::<()>().await;
    }
}

/// Completes when the time limit has elapsed.
async fn limit_elapsed(limit: &mut Option<Pin<Box<Sleep>>>) -> Option<()> {
    limit.as_mut()?.await;
    Some(())
}
