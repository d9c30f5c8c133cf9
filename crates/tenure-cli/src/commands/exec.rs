//! `tenure exec`: runs a command under a lock, like `flock` across machines.

use std::ffi::OsString;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use rustix::process::{Signal as PosixSignal, getpgrp, kill_process_group};
use tenure::clock::BootInstant;
use tenure::exec::{
    self, CommandEnd, EndReason, ExitKind, Notice, RunUnder, Spec, StopReason, TTL_MIN, Terminal,
    forwarded_signals, run_under,
};
use tenure::tenure::Waiting;
use tenure::trace::TraceParent;
use tenure::{Client, Error, Session, Tenure};
use tenure_core::limits::{self, CREDENTIAL_VARIABLES};
use tenure_core::{Code, LockPath, Refusal};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use tenure_cli_kit::document::usage_error;
use tenure_cli_kit::status_line::StatusLine;
use tenure_cli_kit::text::{format_duration, parse_duration, sanitize};
use tenure_cli_kit::{Output, ServerArgs, exit, message, process_name};

/// Interval at which the queue position is polled while waiting for the lock.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time to wait for the lock, unless `--wait` is given.
const WAIT_DEFAULT: Duration = WAIT_MAX;
/// Maximum of `--wait`.
const WAIT_MAX: Duration = Duration::from_millis(limits::WAIT_MS_MAX);

/// Run a command under a lock
///
/// The command starts once the lock is held. Its whole process tree is dead before another holder
/// can acquire the lock, even if this process is stopped or killed. Its environment has
/// TENURE_LOCK, TENURE_TOKEN, TENURE_SESSION, TENURE_DEADLINE and TRACEPARENT; pass the token with
/// every write that must be fenced. On a terminal it can prompt; Ctrl-Z suspends it, and it is
/// killed unless it is resumed before the lock expires. It inherits the rest of your environment,
/// except TENURE_KEY, TENURE_STORE and TENURE_ADMIN_KEY_FILE.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure exec cluster/c1 -- ./install.sh c1
  tenure exec db/main --wait 10m --reason \"nightly backup\" -- pg_dump -f dump.sql
  tenure exec report/daily --wait 0s -- ./report.sh      # skip if it is running elsewhere

Exit codes: that of the command, or 122 lock lost, 123 held by another, 124 time limit exceeded,
125 Tenure failed, 126 not executable, 127 not found, 128+N command killed by signal N.")]
pub(super) struct Exec {
    /// KIND/NAME or KIND/NAME#LOCK
    lock: LockPath,
    /// Maximum time to wait for the lock, and for a server that is down [default: 1d, once the
    /// server has answered]
    #[arg(long, value_parser = parse_duration, value_name = "DUR")]
    wait: Option<Duration>,
    /// Time after which the lock expires without a heartbeat
    #[arg(long, value_parser = parse_duration, value_name = "DUR", default_value = "30s")]
    ttl: Duration,
    /// Time limit of the command
    #[arg(long, value_parser = parse_duration, value_name = "DUR")]
    limit: Option<Duration>,
    /// Name of the holder, shown to others [default: HOST/PID]
    #[arg(long, value_name = "NAME")]
    holder: Option<String>,
    /// Purpose, shown to others who wait for the lock
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Age above which the held lock is reported; it stays held [default: that of its kind]
    #[arg(long, value_parser = parse_duration, value_name = "DUR")]
    max_age: Option<Duration>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Exec {
    /// Runs the command and returns the exit code.
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> u8 {
        match self.try_run(server).await {
            Ok(code) => code,
            Err(error) => {
                message::error(&error, output);
                match error.downcast_ref::<Error>().and_then(Error::code) {
                    Some(Code::Held) => exit::under_exec::HELD,
                    Some(Code::Lost) => exit::under_exec::LOST,
                    _ => exit::under_exec::FAILED,
                }
            }
        }
    }

    /// Checks what can be checked without a server.
    fn check(&self, server: &ServerArgs) -> anyhow::Result<()> {
        server.one_tenant()?;
        if self.ttl < TTL_MIN {
            let why = "so that a command can be stopped in time";
            return Err(usage_error(format!("--ttl must be at least {TTL_MIN:?}, {why}")));
        }
        if self.wait.is_some_and(|wait| wait > WAIT_MAX) {
            return Err(usage_error(format!("--wait must be at most {}", duration(WAIT_MAX))));
        }
        if self.limit.is_some_and(|limit| limit.is_zero()) {
            let why = "--limit must be more than 0s; without it there is no time limit";
            return Err(usage_error(why.to_owned()));
        }
        Ok(())
    }

    async fn try_run(&self, server: &ServerArgs) -> anyhow::Result<u8> {
        self.check(server)?;
        let terminal = Terminal::foreground();
        let mut signals = catch_signals(terminal.is_some())?;
        let (session, tenure) = tokio::select! {
            held = self.hold(server) => held.with_context(|| self.lock.to_string())?,
            // Dropping the future withdraws the request and closes the session.
            Some(signal) = signals.receiver.recv() => return Ok(signal_exit_code(signal)),
        };
        // The lock must not be released before the process tree is known to be dead, not even on a
        // panic: then it expires, after the watchdog has killed the tree.
        let held = ManuallyDrop::new((tenure, session));
        let mut messages = Messages::default();
        let run = self.run_command(&held.0, terminal.clone(), &mut signals.receiver, &mut messages);
        let ended = run.await;
        let unknown =
            |error: &anyhow::Error| matches!(error.downcast_ref(), Some(exec::Error::Scan(_)));
        if ended.as_ref().is_err_and(unknown) {
            return Ok(exit_code(
                &ended.context("cannot watch the command; its lock is left to expire")?,
            ));
        }
        let (tenure, session) = ManuallyDrop::into_inner(held);
        // The process tree is dead or never started: the next holder may start.
        let released = match tenure.check() {
            Ok(()) => tenure.release().await,
            // A lost lock is not released: another holder may have it.
            Err(_) => {
                drop(tenure);
                Ok(())
            }
        };
        if let Err(error) = released {
            say(&format!("cannot release the lock, it will expire: {error}"));
        }
        session.close().await;
        messages.flush();
        let ended = ended?;
        if terminal.is_some() {
            end_if_interrupted(&ended, &signals);
        }
        Ok(exit_code(&ended))
    }

    async fn run_command(
        &self,
        tenure: &Tenure,
        terminal: Option<Terminal>,
        signals: &mut mpsc::Receiver<i32>,
        messages: &mut Messages,
    ) -> anyhow::Result<CommandEnd> {
        let mut spec = Spec::new(self.command.clone());
        spec.env = self.environment(tenure);
        spec.env_remove = CREDENTIAL_VARIABLES.map(Into::into).into();
        spec.sole_child = true;
        spec.terminal = terminal;
        let mut lost_said = false;
        let mut notify = |notice| match notice {
            Notice::Lost(why) => {
                lost_said = true;
                messages.say(format!("the lock is lost: {why}; stopping the command"));
            }
            Notice::TimeLimit => {
                messages.say("time limit exceeded; stopping the command".to_owned());
            }
            Notice::Resume => {
                say("not suspended: there is no shell that could resume this process");
            }
            Notice::Suspend(until) => {
                let (lock, token) = (&self.lock, tenure.token());
                let left = until.remaining().as_millis().try_into().unwrap_or(u64::MAX);
                let left = format_duration(left);
                say(&format!(
                    "suspended: resume with fg within {left}, or {lock} (token {token}) is lost \
                     and the command is killed"
                ));
            }
        };
        let options = RunUnder { limit: self.limit, signals, notify: &mut notify };
        let ended = run_under(tenure, spec, options).await?;
        if ended.reason == EndReason::Lost && !lost_said {
            say("the lock was lost while this process was stopped; the command was killed");
        }
        Ok(ended)
    }

    /// Opens a session and acquires the lock. A server that restarts meanwhile does not end the
    /// wait; at the start, it must be up unless `--wait` is given.
    async fn hold(&self, server: &ServerArgs) -> anyhow::Result<(Session, Tenure)> {
        let until = BootInstant::now() + self.wait.unwrap_or(WAIT_DEFAULT);
        let mut answered = self.wait.is_some();
        let mut status = StatusLine::new();
        loop {
            // A server on this machine publishes its address when it starts.
            let client = Client::with_transport(Arc::new(server.transport()?), server.tenant());
            let error = match self.try_hold(&client, until, &mut answered, &mut status).await {
                Err(error) if is_interruption(&error) && answered && !until.has_passed() => error,
                Err(Error::Unavailable(why)) => return Err(self.unavailable(&why).into()),
                held => return Ok(held?),
            };
            status.show(&format!("waiting for {}: {error}", self.lock), "unavailable");
            tokio::time::sleep(POLL_INTERVAL.min(until.remaining())).await;
        }
    }

    /// Returns the error for a server that did not answer.
    fn unavailable(&self, why: &str) -> Error {
        Error::Unavailable(match self.wait {
            Some(wait) if !wait.is_zero() => {
                format!("{why}. It did not answer within --wait {}", duration(wait))
            }
            _ => format!("{why}. With --wait DUR this command waits for the server"),
        })
    }

    async fn try_hold(
        &self,
        client: &Client,
        until: BootInstant,
        answered: &mut bool,
        status: &mut StatusLine,
    ) -> Result<(Session, Tenure), Error> {
        let holder = self.holder.clone().unwrap_or_else(process_name);
        let session = client.session(&holder, self.ttl).await?;
        *answered = true;
        let purpose = self.reason.clone().unwrap_or_else(|| self.program_name());
        let request = session.lock(&self.lock.to_string())?.wait(until.remaining());
        let mut request = request.poll_interval(POLL_INTERVAL).purpose(&purpose);
        if let Some(max_age) = self.max_age {
            request = request.max_age(max_age);
        }
        let show = |waiting: &Waiting| self.show_waiting(waiting, status);
        let tenure = request.acquire_with_updates(show).await?;
        status.clear();
        Ok((session, tenure))
    }

    fn show_waiting(&self, waiting: &Waiting, status: &mut StatusLine) {
        let (position, length) = (waiting.position, waiting.queue_length);
        let place = format!("position {position} of {length}");
        let (mut line, mut change) = (format!("waiting for {}: ", self.lock), place.clone());
        if let Some(by) = &waiting.held_by {
            let purpose = by.purpose.as_deref().map(|text| format!(" ({})", sanitize(text)));
            let holder = format!("{}{}", sanitize(&by.holder), purpose.unwrap_or_default());
            line += &format!("held by {holder} for {}, ", format_duration(by.age_ms));
            change += &holder;
        }
        status.show(&(line + &place), &change);
    }

    /// Returns the program name as the default purpose. Arguments are left out: they may be secret.
    fn program_name(&self) -> String {
        self.command[0].to_string_lossy().chars().filter(|c| !c.is_control()).take(80).collect()
    }

    fn environment(&self, tenure: &Tenure) -> Vec<(OsString, OsString)> {
        let left = self.limit.unwrap_or_else(|| tenure.deadline().remaining());
        let vars = [
            ("TENURE_LOCK", self.lock.to_string()),
            ("TENURE_TOKEN", tenure.token().to_string()),
            ("TENURE_SESSION", tenure.session().id().to_string()),
            ("TENURE_DEADLINE", tenure_cli_kit::clock::wall_time_in(left)),
        ];
        let session = tenure.session().id();
        let upstream = TraceParent::from_env();
        let trace = upstream.unwrap_or_else(|| TraceParent::for_tenure(session, tenure.token()));
        let vars = vars.into_iter().map(|(name, value)| (name.into(), value.into()));
        vars.chain(trace.variables()).collect()
    }
}

/// Returns a duration as it is typed.
fn duration(duration: Duration) -> String {
    tenure_config::duration::format(duration.as_millis().try_into().unwrap_or(u64::MAX))
}

/// Returns whether the server was down for a while, so that another attempt may succeed.
fn is_interruption(error: &Error) -> bool {
    error.is_unavailable() || matches!(error, Error::Refused(Refusal::SessionExpired))
}

fn exit_code(ended: &CommandEnd) -> u8 {
    match (ended.reason, ended.status) {
        (EndReason::Lost, _) => exit::under_exec::LOST,
        (EndReason::Stopped(StopReason::TimeLimit), _) => exit::under_exec::TIME_LIMIT,
        (EndReason::WatchdogDied, _) => {
            say("the watchdog was killed, so the command was killed");
            exit::under_exec::FAILED
        }
        (_, ExitKind::Code(code)) => u8::try_from(code).unwrap_or(exit::under_exec::FAILED),
        (_, ExitKind::Signal(signal)) => signal_exit_code(signal),
    }
}

/// Prints a message to the user. A closed terminal must not end the supervision.
fn say(line: &str) {
    writeln!(anstream::stderr(), "tenure: {line}").ok();
}

/// Messages while the command has the terminal. Those that would stop this process, and so lose the
/// lock, are printed when the lock is released.
#[derive(Default)]
struct Messages {
    deferred: Vec<String>,
}

impl Messages {
    fn say(&mut self, line: String) {
        if Terminal::stops_output() {
            self.deferred.push(line);
        } else {
            say(&line);
        }
    }

    fn flush(self) {
        self.deferred.iter().for_each(|line| say(line));
    }
}

fn signal_exit_code(signal: i32) -> u8 {
    128 + u8::try_from(signal).unwrap_or(0)
}

/// Ends this process and interrupts the rest of its job, for example a script, if Ctrl-C or Ctrl-\
/// ended the command: the terminal sent the signal to the command's process group only. A shell
/// ends its script if it got the signal and the program that it waits for died of it.
fn end_if_interrupted(ended: &CommandEnd, signals: &Signals) {
    let CommandEnd { status: ExitKind::Signal(number), reason: EndReason::Exited } = ended else {
        return;
    };
    let keys = [PosixSignal::INT, PosixSignal::QUIT];
    let Some(signal) = keys.into_iter().find(|signal| signal.as_raw() == *number) else {
        return;
    };
    // One that this process received does not come from the command's terminal.
    if !signals.has_received(*number) {
        // This process handles the signal, and may always signal its own group.
        kill_process_group(getpgrp(), signal).ok();
    }
    // If this fails, the exit code reports the signal.
    let _error = exec::die_of(*number);
}

/// Signals that this process received, to be forwarded to the command.
struct Signals {
    receiver: mpsc::Receiver<i32>,
    /// Bit N is set once signal N was received.
    received: Arc<AtomicU64>,
}

impl Signals {
    fn has_received(&self, number: i32) -> bool {
        self.received.load(Ordering::Relaxed) & 1 << number != 0
    }
}

/// Collects the signals to forward to the command. On a terminal, Ctrl-Z suspends the command and
/// then this process; elsewhere SIGTSTP is ignored, since a stopped supervisor would lose its lock.
fn catch_signals(on_terminal: bool) -> anyhow::Result<Signals> {
    let (sender, receiver) = mpsc::channel(16);
    let received = Arc::new(AtomicU64::new(0));
    for number in forwarded_signals()? {
        let mut caught = signal(SignalKind::from_raw(number))?;
        let (sender, received) = (sender.clone(), Arc::clone(&received));
        tokio::spawn(async move {
            while caught.recv().await.is_some() {
                received.fetch_or(1 << number, Ordering::Relaxed);
                if sender.send(number).await.is_err() {
                    return;
                }
            }
        });
    }
    let signals = Signals { receiver, received };
    if on_terminal {
        return Ok(signals);
    }
    let mut stop = signal(SignalKind::from_raw(PosixSignal::TSTP.as_raw()))?;
    tokio::spawn(async move {
        while stop.recv().await.is_some() {
            say("not stopping: a stopped process would lose the lock");
        }
    });
    Ok(signals)
}
