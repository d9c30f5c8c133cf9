//! What `tenure exec` and `tenure elect` share: a command that runs under a lock, the signals that
//! it gets, and the messages about it.

use std::ffi::OsString;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Signal as PosixSignal, getpgrp, kill_process_group};
use tenure::exec::{
    self, CommandEnd, EndReason, ExitKind, Notice, RunUnder, Spec, StopReason, Terminal,
    forwarded_signals, run_under,
};
use tenure::tenure::Waiting;
use tenure::trace::TraceParent;
use tenure::{Error, Tenure};
use tenure_core::limits::CREDENTIAL_VARIABLES;
use tenure_core::{Code, LockPath};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use tenure_cli_kit::exit;
use tenure_cli_kit::status_line::StatusLine;
use tenure_cli_kit::text::{format_duration, sanitize};

/// A command to run under a lock.
pub(super) struct LockedCommand<'a> {
    pub(super) lock: &'a LockPath,
    /// What the lock is called in messages.
    pub(super) noun: &'static str,
    pub(super) command: &'a [OsString],
    /// Time limit.
    pub(super) limit: Option<Duration>,
    /// Variables besides those that describe the lock.
    pub(super) env: Vec<(OsString, OsString)>,
    /// Signals after which the command is stopped if it does not end by itself.
    pub(super) stop_signals: &'a [i32],
}

impl LockedCommand<'_> {
    /// Runs the command until it and all its processes are dead. See [`may_be_alive`] for the
    /// error after which they may not be.
    pub(super) async fn run(
        mut self,
        tenure: &Tenure,
        terminal: Option<Terminal>,
        signals: &mut mpsc::Receiver<i32>,
        messages: &mut Messages,
    ) -> anyhow::Result<CommandEnd> {
        let mut spec = Spec::new(self.command.to_vec());
        spec.env = self.environment(tenure);
        spec.env_remove = CREDENTIAL_VARIABLES.map(Into::into).into();
        spec.sole_child = true;
        spec.terminal = terminal;
        let (noun, mut lost_said) = (self.noun, false);
        let mut notify = |notice| match notice {
            Notice::Lost(why) => {
                lost_said = true;
                messages.say(format!("the {noun} is lost: {why}; stopping the command"));
            }
            Notice::TimeLimit => {
                messages.say("time limit exceeded; stopping the command".to_owned());
            }
            Notice::Resume => {
                say("not suspended: there is no shell that could resume this process");
            }
            Notice::Suspend(until) => {
                let (lock, token) = (self.lock, tenure.token());
                let left = until.remaining().as_millis().try_into().unwrap_or(u64::MAX);
                let left = format_duration(left);
                say(&format!(
                    "suspended: resume with fg within {left}, or {lock} (token {token}) is lost \
                     and the command is killed"
                ));
            }
        };
        let (limit, stop_signals) = (self.limit, self.stop_signals);
        let options = RunUnder { limit, signals, stop_signals, notify: &mut notify };
        let ended = run_under(tenure, spec, options).await?;
        if ended.reason == EndReason::Lost && !lost_said {
            // The watchdog stops the command before the deadline of the session.
            say(&format!(
                "the {noun} is lost: no heartbeat was answered in time, or this process was \
                 stopped; the command was killed"
            ));
        }
        Ok(ended)
    }

    fn environment(&mut self, tenure: &Tenure) -> Vec<(OsString, OsString)> {
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
        vars.chain(trace.variables()).chain(self.env.drain(..)).collect()
    }
}

/// Returns whether the command may be alive although its end was awaited: its lock has to expire.
pub(super) fn may_be_alive(ended: &anyhow::Result<CommandEnd>) -> bool {
    let is_unknown = |error: &anyhow::Error| {
        matches!(error.downcast_ref::<exec::Error>(), Some(exec::Error::Scan(_)))
    };
    ended.as_ref().is_err_and(is_unknown)
}

/// Returns the program name as the default purpose. Arguments are left out: they may be secret.
pub(super) fn program_name(command: &[OsString]) -> String {
    command[0].to_string_lossy().chars().filter(|c| !c.is_control()).take(80).collect()
}

/// Shows what a request waits for.
pub(super) fn show_waiting(lock: &LockPath, waiting: &Waiting, status: &mut StatusLine) {
    let (position, length) = (waiting.position, waiting.queue_length);
    let place = format!("position {position} of {length}");
    let (mut line, mut change) = (format!("waiting for {lock}: "), place.clone());
    if let Some(by) = &waiting.held_by {
        let purpose = by.purpose.as_deref().map(|text| format!(" ({})", sanitize(text)));
        let holder = format!("{}{}", sanitize(&by.holder), purpose.unwrap_or_default());
        line += &format!("held by {holder} for {}, ", format_duration(by.age_ms));
        change += &holder;
    }
    status.show(&(line + &place), &change);
}

/// Returns the exit code of an error before, or instead of, the command.
pub(super) fn error_exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<Error>().and_then(Error::code) {
        Some(Code::Held) => exit::under_exec::HELD,
        Some(Code::Lost) => exit::under_exec::LOST,
        _ => exit::under_exec::FAILED,
    }
}

/// Returns the exit code of an ended command.
pub(super) fn exit_code(ended: &CommandEnd) -> u8 {
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
pub(super) fn say(line: &str) {
    writeln!(anstream::stderr(), "tenure: {line}").ok();
}

/// Messages while the command has the terminal. Those that would stop this process, and so lose the
/// lock, are printed when the lock is released.
#[derive(Default)]
pub(super) struct Messages {
    deferred: Vec<String>,
}

impl Messages {
    pub(super) fn say(&mut self, line: String) {
        if Terminal::stops_output() {
            self.deferred.push(line);
        } else {
            say(&line);
        }
    }

    pub(super) fn flush(self) {
        self.deferred.iter().for_each(|line| say(line));
    }
}

pub(super) fn signal_exit_code(signal: i32) -> u8 {
    128 + u8::try_from(signal).unwrap_or(0)
}

/// Ends this process and interrupts the rest of its job, for example a script, if Ctrl-C or Ctrl-\
/// ended the command: the terminal sent the signal to the command's process group only. A shell
/// ends its script if it got the signal and the program that it waits for died of it.
pub(super) fn end_if_interrupted(ended: &CommandEnd, signals: &Signals) {
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
pub(super) struct Signals {
    pub(super) receiver: mpsc::Receiver<i32>,
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
pub(super) fn catch_signals(on_terminal: bool) -> anyhow::Result<Signals> {
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
