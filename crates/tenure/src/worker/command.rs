//! Runs a command as the work of a job, so that it can never outlive the job's tenure.
//!
//! The command is supervised like that of `tenure exec`: it is dead, with everything it started,
//! before the store may grant the lock to another. It finds its arguments on standard input and in
//! `TENURE_ARGS`, and says what it has to say in lines on standard output. All its output goes to
//! the log of the attempt, without what looks secret.
//!
//! It must never end while a process of the command lives, and when nobody can tell, the whole
//! session is let go of: the store then waits as long as it has to.
//!
//! Next: `exec/` for the supervision, `lines.rs` for the lines.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::key::lock_path;
use tenure_core::retry::{Class, TIME_LIMIT};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::{Sleep, timeout};

use super::clock::wall_in;
use super::context::{Context, Halt};
use super::handler::{Done, Failure, Handler};
use super::lines::{Line, Lines, Order};
use super::redact::Stream;
use crate::exec::{self, Deadlines, Ended, ExitKind, Spec, Stop, Supervisor, Why};
use crate::session::Session;
use crate::trace::{Parent, STATE_VARIABLE};

/// The exit code that says: try again later (`EX_TEMPFAIL`).
const TRY_LATER: i32 = 75;
/// The command could not be started at all.
pub const CANNOT_START: &str = "CANNOT_START";
/// The command was stopped because heartbeats failed for too long, although they came back.
pub const HEARTBEAT_LATE: &str = "HEARTBEAT_LATE";
/// Somebody stopped the watchdog, and so the command.
pub const STOPPED: &str = "STOPPED";
/// Somebody killed the watchdog, and so the command.
pub const WATCHDOG_DIED: &str = "WATCHDOG_DIED";
/// Variables of this process that are none of the command's business: its credentials, and what
/// somebody's systems said about the trace in which it was started.
const OURS: [&str; 4] = ["TENURE_KEY", "TENURE_STORE", "TENURE_ADMIN_KEY_FILE", STATE_VARIABLE];
/// How long to look for the rest of the output of a command that is dead. Only somebody who is no
/// process of the command can hold its pipes open.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Output is read in pieces of this size.
const PIECE_BYTES: usize = 16 * 1024;

/// Runs a command as the work of a job.
#[derive(Clone, Debug)]
pub struct Command {
    program: Vec<OsString>,
    helper: Option<PathBuf>,
    grace: Duration,
    parent: Option<Parent>,
    env: Vec<(OsString, OsString)>,
    args: Option<String>,
    limit: Option<Duration>,
    part: Part,
}

/// Which part of the work of a job a command is.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its name; empty for all of the work. It stands before each of its lines in the log.
    pub name: String,
    /// The progress of the job when it begins.
    pub from: u8,
    /// The progress of the job when it is done.
    pub to: u8,
}

impl Default for Part {
    fn default() -> Self {
        Self { name: String::new(), from: 0, to: 100 }
    }
}

impl Part {
    /// Says how far the part has come.
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

    /// What stands before each line of it.
    fn label(&self) -> String {
        if self.name.is_empty() { String::new() } else { format!("{} | ", self.name) }
    }
}

impl Command {
    /// The command and its arguments.
    #[must_use]
    pub fn new(program: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        let program = program.into_iter().map(Into::into).collect();
        Self {
            program,
            helper: None,
            grace: exec::GRACE_DEFAULT,
            parent: None,
            env: Vec::new(),
            args: None,
            limit: None,
            part: Part::default(),
        }
    }

    /// More variables of its environment.
    #[must_use]
    pub fn env(
        mut self,
        variables: impl IntoIterator<Item = (impl Into<OsString>, impl Into<OsString>)>,
    ) -> Self {
        let pair = |(name, value): (_, _)| (Into::into(name), Into::into(value));
        self.env.extend(variables.into_iter().map(pair));
        self
    }

    /// Other arguments than those of the job, as JSON.
    #[must_use]
    pub fn args(mut self, json: String) -> Self {
        self.args = Some(json);
        self
    }

    fn args_json<'a>(&'a self, job: &'a Context) -> &'a str {
        self.args.as_deref().unwrap_or_else(|| job.args_json())
    }

    /// The longest it may take, within what the attempt may take.
    #[must_use]
    pub fn limit(mut self, limit: Option<Duration>) -> Self {
        self.limit = limit;
        self
    }

    /// It is a part of the work and not all of it.
    #[must_use]
    pub fn part(mut self, part: Part) -> Self {
        self.part = part;
        self
    }

    /// Another executable than the present one to watch over the command; its `main` calls
    /// [`exec::run_helper`] first.
    #[must_use]
    pub fn helper(mut self, helper: impl Into<PathBuf>) -> Self {
        self.helper = Some(helper.into());
        self
    }

    /// How long the command has from TERM to KILL.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// The span that the command goes on with; without one it is told of one that nobody records,
    /// in the trace of the job.
    #[must_use]
    pub fn traceparent(mut self, parent: Option<Parent>) -> Self {
        self.parent = parent;
        self
    }

    fn trace(&self, job: &Context) -> Parent {
        self.parent.unwrap_or_else(|| Parent::of_attempt(job.id(), job.token()))
    }

    fn spec(&self, job: &Context) -> Spec {
        let mut spec = Spec::new(&self.program);
        spec.env = environment(job, self.args_json(job));
        spec.env.extend(self.trace(job).variables());
        spec.env.extend(self.env.iter().cloned());
        spec.env_remove = OURS.map(Into::into).into();
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
        said: &Mutex<Said>,
    ) -> Result<Ended, exec::Error> {
        let handle = supervisor.handle();
        let _leash = job.session().leash(&handle);
        let mut talk = Box::pin(self.converse(job, &mut supervisor, said));
        let (mut talking, mut held, mut going) = (true, true, true);
        let mut limit = self.limit.map(|limit| Box::pin(tokio::time::sleep(limit)));
        let ended = loop {
            tokio::select! {
                ended = supervisor.wait() => break ended?,
                () = &mut talk, if talking => talking = false,
                _ = job.lost(), if held => {
                    held = false;
                    handle.stop(Stop::Lost);
                }
                why = job.cancelled(), if going => {
                    going = false;
                    handle.stop(if why == Halt::TimeLimit { Stop::TimeLimit } else { Stop::Asked });
                }
                Some(()) = at_limit(&mut limit), if limit.is_some() => {
                    limit = None;
                    handle.stop(Stop::TimeLimit);
                }
            }
        };
        if talking {
            timeout(LAST_WORDS, talk).await.ok();
        }
        Ok(ended)
    }

    /// Gives the command its arguments, and hears what it says until nobody can say anything more.
    fn converse<'a>(
        &'a self,
        job: &'a Context,
        supervisor: &mut Supervisor,
        said: &'a Mutex<Said>,
    ) -> impl Future<Output = ()> + Send + use<'a> {
        let stdin = supervisor.stdin.take().map(OwnedFd::from).map(Sender::from_owned_fd);
        let stdout = supervisor.stdout.take().map(OwnedFd::from).map(Receiver::from_owned_fd);
        let stderr = supervisor.stderr.take().map(OwnedFd::from).map(Receiver::from_owned_fd);
        async move {
            let label = self.part.label();
            let of = (&self.part, label.as_str());
            let out = read(stdout, |stream, line| obey(job, of, said, stream, &line));
            let err = read(stderr, |stream, line| {
                if let Some(clean) = job.log_line(stream, &label, &line.text, line.cut)
                    && !clean.trim().is_empty()
                {
                    locked(said).complaint = Some(clean);
                }
            });
            tokio::join!(feed(stdin, self.args_json(job)), out, err);
        }
    }
}

#[async_trait]
impl Handler for Command {
    async fn run(&self, job: &Context) -> Result<Done, Failure> {
        let session = job.session();
        // Armed from before anything runs until everything is known to be dead.
        let unknown = Unknown(Some(session.clone()));
        let first = Deadlines::under(session.ttl(), session.deadline());
        let supervisor = match Supervisor::start(self.spec(job), first).await {
            Ok(supervisor) => supervisor,
            Err(error @ exec::Error::Scan(_)) => return Err(error.into()),
            Err(error) => {
                unknown.disarm();
                return Err(not_started(&error));
            }
        };
        let said = Mutex::new(Said::default());
        let ended = self.supervise(job, supervisor, &said).await?;
        unknown.disarm();
        let said = said.into_inner().expect("nothing panics while it is locked");
        came_to(ended, said)
    }

    fn winds_up(&self) -> bool {
        true
    }
}

/// Lets go of the session unless it is known that the command is dead.
struct Unknown(Option<Session>);

impl Unknown {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Unknown {
    fn drop(&mut self) {
        if let Some(session) = &self.0 {
            tracing::error!(session = %session.id(),
                "nobody knows whether a command is dead: the session is left to lapse");
            session.abandon();
        }
    }
}

fn not_started(error: &exec::Error) -> Failure {
    let code = if matches!(error, exec::Error::Late) { HEARTBEAT_LATE } else { CANNOT_START };
    Failure { code: code.to_owned(), ..Failure::from(error) }
}

/// What the command finds in its environment beside that of this process.
fn environment(job: &Context, args: &str) -> Vec<(OsString, OsString)> {
    let key = job.key();
    let locks: Vec<_> = job.locks().iter().map(|lock| lock_path(key, lock)).collect();
    let end = job.deadline().unwrap_or_else(|| job.session().deadline());
    let variables = [
        ("TENURE_ARGS", args.to_owned()),
        ("TENURE_TOKEN", job.token().to_string()),
        ("TENURE_JOB", job.id().to_string()),
        ("TENURE_RESOURCE", format!("{}/{}", key.kind(), key.name())),
        ("TENURE_ATTEMPT", job.attempt().to_string()),
        ("TENURE_TENANT", key.tenant().to_owned()),
        ("TENURE_LOCK", locks.join(" ")),
        ("TENURE_SESSION", job.session().id().to_string()),
        ("TENURE_DEADLINE", wall_in(end.remaining())),
    ];
    variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
}

/// Completes when the command has taken as long as it may.
async fn at_limit(limit: &mut Option<Pin<Box<Sleep>>>) -> Option<()> {
    limit.as_mut()?.await;
    Some(())
}

/// What a command has said that counts at its end.
#[derive(Debug, Default)]
struct Said {
    error: Option<(String, String)>,
    state: Option<String>,
    result: Option<String>,
    /// The last line of its errors, for want of a better message.
    complaint: Option<String>,
}

fn locked(said: &Mutex<Said>) -> MutexGuard<'_, Said> {
    said.lock().expect("nothing panics while it is locked")
}

/// A command need not read its arguments.
async fn feed(stdin: Option<io::Result<Sender>>, args: &str) {
    if let Some(Ok(mut stdin)) = stdin {
        stdin.write_all(args.as_bytes()).await.ok();
    }
}

async fn read(pipe: Option<io::Result<Receiver>>, mut each: impl FnMut(&mut Stream, Line)) {
    let Some(Ok(mut pipe)) = pipe else {
        tracing::error!("cannot read the output of a command");
        return;
    };
    let (mut lines, mut stream) = (Lines::default(), Stream::default());
    let mut piece = vec![0; PIECE_BYTES];
    while let Ok(length) = pipe.read(&mut piece).await
        && length > 0
    {
        lines.take(&piece[..length], |line| each(&mut stream, line));
    }
    if let Some(line) = lines.rest() {
        each(&mut stream, line);
    }
}

/// Does what a line says, and logs what is for people.
fn obey(
    job: &Context,
    (part, label): (&Part, &str),
    said: &Mutex<Said>,
    stream: &mut Stream,
    line: &Line,
) {
    match Order::parse(&line.text).filter(|_| !line.cut) {
        Some(Order::Progress { percent, message }) => {
            return part.progress(job, percent, &message);
        }
        Some(Order::Result(json)) => {
            locked(said).result = Some(json);
            return;
        }
        Some(Order::State(state)) => locked(said).state = Some(state),
        Some(Order::Error { code, message }) => locked(said).error = Some((code, message)),
        None => {}
    }
    job.log_line(stream, label, &line.text, line.cut);
}

/// What the end of a command means.
fn came_to(ended: Ended, said: Said) -> Result<Done, Failure> {
    let failure = match (ended.why, ended.status) {
        (Why::ByItself, ExitKind::Code(0)) => {
            return Ok(Done { state: said.state, result: said.result });
        }
        (Why::ByItself, ExitKind::Code(code)) => {
            let class = (code == TRY_LATER).then_some(Class::Transient);
            let failure = said.failure(&format!("EXIT_{code}"), &format!("it ended with {code}"));
            Failure { class, ..failure }
        }
        (Why::ByItself, ExitKind::Signal(signal)) => {
            said.failure(&format!("SIGNAL_{signal}"), &format!("signal {signal} ended it"))
        }
        (Why::Stopped(Stop::TimeLimit), _) => Failure::new(TIME_LIMIT, Halt::TimeLimit),
        (Why::Stopped(_), _) => Failure::transient(STOPPED, "the command was told to stop"),
        (Why::Lost, _) => {
            let why = "heartbeats failed for too long, so the command was stopped";
            Failure::transient(HEARTBEAT_LATE, why)
        }
        (Why::WatchdogDied, _) => {
            let why = "the watchdog was killed, so the command was killed";
            Failure::transient(WATCHDOG_DIED, why)
        }
    };
    Err(Failure { state: said.state, ..failure })
}

impl Said {
    /// The command's own code and message, or what is known of its end.
    fn failure(&self, code: &str, how: &str) -> Failure {
        match (&self.error, &self.complaint) {
            (Some((code, message)), _) => Failure::new(code, message),
            (None, Some(complaint)) => Failure::new(code, format!("{how}: {complaint}")),
            (None, None) => Failure::new(code, how),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(why: Why, status: ExitKind) -> Ended {
        Ended { status, why }
    }

    fn failure(why: Why, status: ExitKind, said: Said) -> Failure {
        came_to(ended(why, status), said).expect_err("it failed")
    }

    #[test]
    fn the_exit_code_decides_and_the_lines_say_more() {
        let said = || Said {
            error: Some(("DISK_FULL".into(), "no room".into())),
            state: Some("BROKEN".into()),
            ..Said::default()
        };
        let done = came_to(ended(Why::ByItself, ExitKind::Code(0)), said()).expect("done");
        assert_eq!(done.state.as_deref(), Some("BROKEN"));
        let failed = failure(Why::ByItself, ExitKind::Code(3), said());
        assert_eq!((failed.code.as_str(), failed.class), ("DISK_FULL", None));
        assert_eq!(failed.state.as_deref(), Some("BROKEN"));
        let later = failure(Why::ByItself, ExitKind::Code(75), said());
        assert_eq!((later.code.as_str(), later.class), ("DISK_FULL", Some(Class::Transient)));
    }

    #[test]
    fn without_lines_the_end_gives_the_code_and_the_last_complaint_the_message() {
        let said = || Said { complaint: Some("no such file".into()), ..Said::default() };
        let failed = failure(Why::ByItself, ExitKind::Code(3), said());
        assert_eq!(failed.to_string(), "EXIT_3: it ended with 3: no such file");
        let failed = failure(Why::ByItself, ExitKind::Signal(9), Said::default());
        assert_eq!(failed.to_string(), "SIGNAL_9: signal 9 ended it");
        let later = failure(Why::ByItself, ExitKind::Code(75), Said::default());
        assert_eq!((later.code.as_str(), later.class), ("EXIT_75", Some(Class::Transient)));
    }

    #[test]
    fn whoever_is_stopped_did_not_end_well_whatever_its_exit_code() {
        for (why, code) in [
            (Why::Stopped(Stop::TimeLimit), TIME_LIMIT),
            (Why::Stopped(Stop::Asked), STOPPED),
            (Why::Lost, HEARTBEAT_LATE),
            (Why::WatchdogDied, WATCHDOG_DIED),
        ] {
            assert_eq!(failure(why, ExitKind::Code(0), Said::default()).code, code);
        }
    }
}
