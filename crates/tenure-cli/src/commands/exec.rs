//! `tenure exec`: runs a command under a lock, like `flock` across machines.

use std::ffi::OsString;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tenure::clock::BootInstant;
use tenure::exec::{TTL_MIN, Terminal};
use tenure::tenure::Waiting;
use tenure::{Client, Error, Session, SessionOptions, Tenure};
use tenure_core::{LockPath, Refusal, limits};

use tenure_cli_kit::document::usage_error;
use tenure_cli_kit::status_line::StatusLine;
use tenure_cli_kit::text::parse_duration;
use tenure_cli_kit::{Output, ServerArgs, message, process_name};

use super::under_lock::{
    LockedCommand, Messages, catch_signals, end_if_interrupted, error_exit_code, exit_code,
    may_be_alive, program_name, say, show_waiting, signal_exit_code,
};

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
    /// Interval between heartbeats, at most half of the TTL [default: a third of it]
    #[arg(long, value_parser = parse_duration, value_name = "DUR")]
    heartbeat: Option<Duration>,
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
                error_exit_code(&error)
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
        let command = LockedCommand {
            lock: &self.lock,
            noun: "lock",
            command: &self.command,
            limit: self.limit,
            env: Vec::new(),
            stop_signals: &[],
        };
        let run = command.run(&held.0, terminal.clone(), &mut signals.receiver, &mut messages);
        let ended = run.await;
        if may_be_alive(&ended) {
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
        let mut options = SessionOptions::new(&holder, self.ttl);
        if let Some(interval) = self.heartbeat {
            options = options.heartbeat(interval);
        }
        let session = client.open_session(&options).await?;
        *answered = true;
        let purpose = self.reason.clone().unwrap_or_else(|| program_name(&self.command));
        let request = session.lock(&self.lock.to_string())?.wait(until.remaining());
        let mut request = request.poll_interval(POLL_INTERVAL).purpose(&purpose);
        if let Some(max_age) = self.max_age {
            request = request.max_age(max_age);
        }
        let show = |waiting: &Waiting| show_waiting(&self.lock, waiting, status);
        let tenure = request.acquire_with_updates(show).await?;
        status.clear();
        Ok((session, tenure))
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
