//! `tenure exec`: flock for a fleet.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tenure::clock::BootInstant;
use tenure::exec::{
    self, CommandEnd, Deadlines, EndReason, ExitKind, Spec, StopReason, Supervisor,
    forwarded_signals,
};
use tenure::tenure::Waiting;
use tenure::trace::TraceParent;
use tenure::{Client, Error, Session, Tenure};
use tenure_core::{Code, LockPath};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use tenure_cli_kit::exit;
use tenure_cli_kit::text::{human, parse_duration};
use tenure_cli_kit::{ServerArgs, process_name};

/// Below this the watchdog could not stop a command in time.
const TTL_MIN: Duration = Duration::from_secs(3);
/// How often a waiting request asks how things stand.
const POLL: Duration = Duration::from_secs(1);
/// Before the lock could be lost, the command has this long to end by itself.
const TERM_LEAD_MAX: Duration = Duration::from_secs(5);

/// Run a command under a lock
///
/// The command starts when the lock is held, and is dead, with everything it started, before anyone
/// else can get the lock: also when this process is stopped or killed. It finds TENURE_LOCK,
/// TENURE_TOKEN, TENURE_SESSION, TENURE_DEADLINE and TRACEPARENT in its environment; give the token
/// to whatever it writes to.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure exec cluster/c1 -- ./install.sh c1
  tenure exec db/main --wait 10m --reason \"nightly backup\" -- pg_dump -f dump.sql
  tenure exec report/daily --wait 0s -- ./report.sh      # skip when another runs it

Exit codes: those of the command; 122 lost, 123 held by another, 124 time limit, 125 Tenure failed,
126 not executable, 127 not found; 128+N when signal N ended the command.")]
pub(super) struct Exec {
    /// KIND/NAME or KIND/NAME#LOCK
    lock: LockPath,
    /// How long to wait for the lock
    #[arg(long, value_parser = parse_duration, value_name = "DUR", default_value = "1d")]
    wait: Duration,
    /// How long the lock outlives a lost connection
    #[arg(long, value_parser = parse_duration, value_name = "DUR", default_value = "30s")]
    ttl: Duration,
    /// How long the command may take
    #[arg(long, value_parser = parse_duration, value_name = "DUR")]
    limit: Option<Duration>,
    /// What for; shown to those who wait
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Exec {
    /// Gives the exit code.
    pub(super) async fn run(&self, server: &ServerArgs) -> u8 {
        match self.try_run(server).await {
            Ok(code) => code,
            Err(error) => {
                say(&format!("{error:#}"));
                match error.downcast_ref::<Error>().and_then(Error::code) {
                    Some(Code::Held) => exit::under_exec::HELD,
                    Some(Code::Lost) => exit::under_exec::LOST,
                    _ => exit::under_exec::FAILED,
                }
            }
        }
    }

    async fn try_run(&self, server: &ServerArgs) -> anyhow::Result<u8> {
        if self.ttl < TTL_MIN {
            anyhow::bail!(
                "--ttl must be at least {TTL_MIN:?}, so that a command can be stopped in time"
            );
        }
        let mut signals = catch_signals()?;
        let client = Client::with_transport(Arc::new(server.link()?), server.tenant());
        let session = client.session(&process_name(), self.ttl).await?;
        let tenure = tokio::select! {
            tenure = self.acquire(&session) => tenure?,
            Some(signal) = signals.recv() => {
                session.close().await;
                return Ok(by_signal(signal));
            }
        };
        // While nobody knows that the tree is dead the lock must not be given back, whatever
        // happens here: then it lapses, after the watchdog has done its work.
        let held = ManuallyDrop::new((tenure, session));
        let ended = self.run_command(&held.0, &mut signals).await;
        let unknown =
            |error: &anyhow::Error| matches!(error.downcast_ref(), Some(exec::Error::Scan(_)));
        if ended.as_ref().is_err_and(unknown) {
            return Ok(code(&ended.context("watch the command; its lock is left to lapse")?));
        }
        let (tenure, session) = ManuallyDrop::into_inner(held);
        // The tree is dead, or never was: whoever waits may begin.
        let released = match tenure.check() {
            Ok(()) => tenure.release().await,
            // What is lost is not given back: somebody else may have it.
            Err(_) => {
                drop(tenure);
                Ok(())
            }
        };
        if let Err(error) = released {
            say(&format!("the lock was not released, it will lapse: {error}"));
        }
        session.close().await;
        Ok(code(&ended?))
    }

    async fn run_command(
        &self,
        tenure: &Tenure,
        signals: &mut mpsc::Receiver<i32>,
    ) -> anyhow::Result<CommandEnd> {
        let supervisor = self.start(tenure).await?;
        self.supervise(supervisor, tenure, signals).await
    }

    async fn acquire(&self, session: &Session) -> Result<Tenure, Error> {
        let purpose = self.reason.clone().unwrap_or_else(|| self.command_line());
        let ask = session.lock(&self.lock.to_string())?;
        let mut board =
            Board { lock: &self.lock, live: std::io::stderr().is_terminal(), said: false };
        let ask = ask.wait(self.wait).poll_interval(POLL).purpose(&purpose);
        let tenure = ask.acquire_with_updates(|waiting| board.show(waiting)).await;
        board.clear();
        tenure
    }

    /// The command as its purpose: what runs, without its arguments, which may be secret.
    fn command_line(&self) -> String {
        self.command[0].to_string_lossy().chars().filter(|c| !c.is_control()).take(80).collect()
    }

    async fn start(&self, tenure: &Tenure) -> anyhow::Result<Supervisor> {
        let session = tenure.session();
        let mut spec = Spec::new(self.command.clone());
        spec.env = self.environment(tenure);
        spec.sole_child = true;
        let first = deadlines_of(session.ttl(), session.deadline());
        Ok(Supervisor::start(spec, first).await?)
    }

    async fn supervise(
        &self,
        mut supervisor: Supervisor,
        tenure: &Tenure,
        signals: &mut mpsc::Receiver<i32>,
    ) -> anyhow::Result<CommandEnd> {
        let session = tenure.session();
        let mut deadlines = session.watch_deadline();
        deadlines.mark_changed();
        let handle = supervisor.handle();
        let limit = tokio::time::sleep(self.limit.unwrap_or(Duration::MAX));
        tokio::pin!(limit);
        let (mut lost, mut limited) = (false, false);
        loop {
            tokio::select! {
                ended = supervisor.wait() => return Ok(ended?),
                Ok(()) = deadlines.changed() => {
                    let deadline = *deadlines.borrow_and_update();
                    handle.extend(deadlines_of(session.ttl(), deadline));
                }
                why = tenure.lost(), if !lost => {
                    lost = true;
                    handle.stop(StopReason::Lost);
                    say(&format!("the lock is lost: {why}; stopping the command"));
                }
                () = &mut limit, if self.limit.is_some() && !limited => {
                    limited = true;
                    handle.stop(StopReason::TimeLimit);
                    say("the time limit is over; stopping the command");
                }
                Some(signal) = signals.recv() => handle.signal(signal),
            }
        }
    }

    fn environment(&self, tenure: &Tenure) -> Vec<(OsString, OsString)> {
        let left = self.limit.unwrap_or_else(|| tenure.deadline().remaining());
        let vars = [
            ("TENURE_LOCK", self.lock.to_string()),
            ("TENURE_TOKEN", tenure.token().to_string()),
            ("TENURE_SESSION", tenure.session().id().to_string()),
            ("TENURE_DEADLINE", tenure_cli_kit::clock::wall_in(left)),
        ];
        let session = tenure.session().id();
        let upstream = TraceParent::from_env();
        let trace = upstream.unwrap_or_else(|| TraceParent::for_tenure(session, tenure.token()));
        let vars = vars.into_iter().map(|(name, value)| (name.into(), value.into()));
        vars.chain(trace.variables()).collect()
    }
}

fn code(ended: &CommandEnd) -> u8 {
    match (ended.reason, ended.status) {
        (EndReason::Lost, _) => exit::under_exec::LOST,
        (EndReason::Stopped(StopReason::TimeLimit), _) => exit::under_exec::TIME_LIMIT,
        (EndReason::WatchdogDied, _) => {
            say("the watchdog was killed, so the command was killed");
            exit::under_exec::FAILED
        }
        (_, ExitKind::Code(code)) => u8::try_from(code).unwrap_or(exit::under_exec::FAILED),
        (_, ExitKind::Signal(signal)) => by_signal(signal),
    }
}

/// Tells people. A terminal that has gone away is no reason to let go of a command.
fn say(line: &str) {
    writeln!(anstream::stderr(), "tenure: {line}").ok();
}

fn by_signal(signal: i32) -> u8 {
    128 + u8::try_from(signal).unwrap_or(0)
}

/// The command has stopped a twentieth of the time to live before the holder's own deadline, which
/// itself is a tenth before the store's.
fn deadlines_of(ttl: Duration, deadline: BootInstant) -> Deadlines {
    let kill_at = deadline - ttl / 20;
    Deadlines { term_at: kill_at - (ttl / 6).min(TERM_LEAD_MAX), kill_at }
}

/// Collects the signals that belong to the command. A stop from the terminal is declined: a stopped
/// supervisor loses its lock.
fn catch_signals() -> anyhow::Result<mpsc::Receiver<i32>> {
    let (sender, receiver) = mpsc::channel(16);
    for number in forwarded_signals()? {
        let mut caught = signal(SignalKind::from_raw(number))?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while caught.recv().await.is_some() {
                if sender.send(number).await.is_err() {
                    return;
                }
            }
        });
    }
    let mut stop = signal(SignalKind::from_raw(rustix::process::Signal::TSTP.as_raw()))?;
    tokio::spawn(async move {
        while stop.recv().await.is_some() {
            say("not stopping: a stopped process would lose the lock");
        }
    });
    Ok(receiver)
}

/// Tells who waits, whom for: one line that is kept up to date on a terminal, one line in a log.
struct Board<'a> {
    lock: &'a LockPath,
    live: bool,
    said: bool,
}

impl Board<'_> {
    fn show(&mut self, waiting: &Waiting) {
        let holder = waiting.held_by.as_ref().map_or_else(String::new, |by| {
            let purpose = by.purpose.as_ref().map_or_else(String::new, |p| format!(" ({p})"));
            format!("held by {}{purpose} for {}, ", by.holder, human(by.age_ms))
        });
        let (position, length) = (waiting.position, waiting.queue_length);
        let line = format!("waiting for {}: {holder}place {position} of {length}", self.lock);
        if self.live {
            write!(anstream::stderr(), "\r\x1b[2K{line}").ok();
        } else if !self.said {
            say(&line);
        }
        self.said = true;
    }

    fn clear(&mut self) {
        if self.live && self.said {
            write!(anstream::stderr(), "\r\x1b[2K").ok();
        }
    }
}
