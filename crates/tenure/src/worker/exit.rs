//! How a command ended, and what that means for its job.
//!
//! See `command.rs`, which runs the command, `streams.rs` for the directives in its output.

use std::time::Duration;

use tenure_core::retry::{Class, TIME_LIMIT};

use super::context::CancelReason;
use super::handler::{Done, Failure};
use super::text::{LOGGED_BYTES_MAX, truncate};
use crate::exec::{CommandEnd, EndReason, ExitKind, StopReason};

/// Exit code that requests a retry.
const EX_TEMPFAIL: i32 = 75;
/// Code of a command that was stopped because heartbeats failed for too long, although the tenure
/// was kept in the end.
pub const HEARTBEAT_LATE: &str = "HEARTBEAT_LATE";
/// Code of a command that was stopped through its watchdog.
pub const STOPPED: &str = "STOPPED";
/// Code of a command whose watchdog was killed.
pub const WATCHDOG_DIED: &str = "WATCHDOG_DIED";
/// Maximum size of [`CommandOutput::tail`].
const TAIL_BYTES_MAX: usize = 16 * 1024;

// The last line always fits.
const _: () = assert!(LOGGED_BYTES_MAX < TAIL_BYTES_MAX);

/// How a command ended, before that is mapped to the result of the attempt.
///
/// A handler that classifies exit codes itself gets it from
/// [`Command::execute`](super::Command::execute); [`Exit::into_result`] maps what it leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exit {
    /// Exit code or signal of its first process, also if it was stopped.
    pub status: ExitKind,
    /// Why it ended: by itself, or because it was stopped.
    ///
    /// [`StopReason::Requested`] is a cancelled job or a worker that shuts down:
    /// [`Context::cancel_reason`](super::Context::cancel_reason) names it. If the tenure was lost
    /// meanwhile, the reason is [`EndReason::Lost`] instead.
    pub reason: EndReason,
    /// What it printed.
    pub output: CommandOutput,
}

/// Output of a command that matters for the result of its attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommandOutput {
    /// Code and message of the last `::error` directive.
    pub error: Option<(String, String)>,
    /// Delay of the last `::defer` directive.
    pub defer: Option<Duration>,
    /// State of the last `::state` directive.
    pub state: Option<String>,
    /// JSON of the last `::result` directive.
    pub result: Option<String>,
    /// Last lines of both streams as in the log: up to 16 KiB, with secrets redacted.
    pub tail: String,
    /// Last non-empty line of stderr, used as message if there is no `::error` directive.
    pub(super) last_stderr_line: Option<String>,
}

impl CommandOutput {
    /// Appends a logged line to the tail.
    pub(super) fn push_tail(&mut self, line: &str) {
        self.tail.push_str(truncate(line, LOGGED_BYTES_MAX));
        self.tail.push('\n');
        while self.tail.len() > TAIL_BYTES_MAX {
            let end = self.tail.find('\n').map_or(self.tail.len(), |at| at + 1);
            self.tail.drain(..end);
        }
    }

    /// Returns the failure given by the `::error` directive, or one that describes the exit.
    fn failure(&self, code: &str, how: &str) -> Failure {
        match (&self.error, &self.last_stderr_line) {
            (Some((code, message)), _) => Failure::new(code, message),
            (None, Some(line)) => Failure::new(code, format!("{how}: {line}")),
            (None, None) => Failure::new(code, how),
        }
    }
}

impl Exit {
    pub(super) fn new(end: CommandEnd, output: CommandOutput) -> Self {
        Self { status: end.status, reason: end.reason, output }
    }

    /// Returns the result of the attempt as [`Command`](super::Command) reports it: exit code 0 is
    /// success, 75 a transient failure, and any other end a failure.
    ///
    /// # Errors
    ///
    /// Fails unless the command exited by itself with code 0.
    pub fn into_result(self) -> Result<Done, Failure> {
        let output = self.output;
        let failure = match (self.reason, self.status) {
            (EndReason::Exited, ExitKind::Code(0)) => {
                return Ok(Done { state: output.state, result: output.result, ..Done::default() });
            }
            (EndReason::Exited, ExitKind::Code(code)) => {
                let class = (code == EX_TEMPFAIL).then_some(Class::Transient);
                let failure =
                    output.failure(&format!("EXIT_{code}"), &format!("exited with code {code}"));
                let (delay, deferred) = (output.defer, output.defer.is_some());
                Failure { class, delay, deferred, ..failure }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(reason: EndReason, status: ExitKind) -> CommandEnd {
        CommandEnd { status, reason }
    }

    fn failure(reason: EndReason, status: ExitKind, output: CommandOutput) -> Failure {
        Exit::new(end(reason, status), output).into_result().expect_err("it failed")
    }

    #[test]
    fn the_exit_code_decides_and_directives_add_details() {
        let output = || CommandOutput {
            error: Some(("DISK_FULL".into(), "no room".into())),
            state: Some("BROKEN".into()),
            ..CommandOutput::default()
        };
        let done = Exit::new(end(EndReason::Exited, ExitKind::Code(0)), output()).into_result();
        let done = done.expect("done");
        assert_eq!(done.state.as_deref(), Some("BROKEN"));
        let failed = failure(EndReason::Exited, ExitKind::Code(3), output());
        assert_eq!((failed.code.as_str(), failed.class), ("DISK_FULL", None));
        assert_eq!(failed.state.as_deref(), Some("BROKEN"));
        let later = failure(EndReason::Exited, ExitKind::Code(75), output());
        assert_eq!((later.code.as_str(), later.class), ("DISK_FULL", Some(Class::Transient)));
        let defer = Some(Duration::from_secs(5));
        let deferring = || CommandOutput { defer, ..output() };
        let deferred = failure(EndReason::Exited, ExitKind::Code(1), deferring());
        assert_eq!((deferred.deferred, deferred.delay), (true, defer));
        let killed = failure(EndReason::Exited, ExitKind::Signal(9), deferring());
        assert!(!killed.deferred, "a crash is not a decision");
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
    fn the_tail_has_the_last_whole_lines() {
        let mut output = CommandOutput::default();
        let line = "x".repeat(1023);
        (0..20).for_each(|n| output.push_tail(&format!("{n:02}{}", &line[2..])));
        assert_eq!(output.tail.len(), TAIL_BYTES_MAX, "at its limit");
        assert!(output.tail.starts_with("04x"));
        output.push_tail(&"y".repeat(TAIL_BYTES_MAX));
        assert!(output.tail.ends_with("yy\n") && output.tail.len() <= TAIL_BYTES_MAX);
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
