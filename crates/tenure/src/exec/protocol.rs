//! Protocol between the supervisor S and the watchdog W: lines of text over a unix socket.
//!
//! ```text
//! S: start TERM_AT KILL_AT GRACE     once, first; in nanoseconds of CLOCK_BOOTTIME
//! W:   started PID                   the command runs; or
//! W:   late                          TERM_AT had passed, so nothing was started; or
//! W:   failed ERRNO                  the launcher could not be started
//! S: extend TERM_AT KILL_AT          a heartbeat succeeded; never shortens
//! S: signal NUMBER                   to the command's process group
//! S: stop lost|time-limit|asked [GRACE]   TERM now, KILL after this GRACE, or that of `start`
//! W: suspended NUMBER                the command was stopped by this signal; only on a terminal
//! W: exited code|signal NUMBER WHY   the first process ended; WHY is by-itself or a word of stop
//! W: killing                         the first KILL is being sent
//! W: survives PID                    this process survives KILL; W keeps trying
//! W: gone                            last line: no process of the command exists any more
//! ```
//!
//! End of stream, in either direction, means that the peer is dead: both sides then kill the
//! command. An invalid line means the same, so parsing must be strict.
//!
//! See `watchdog.rs` and `supervisor.rs` for the two ends.

use std::os::fd::AsFd;
use std::str::FromStr;
use std::time::Duration;
use std::{fmt, io};

use rustix::net::SendFlags;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::UnixStream;

use super::{CommandEnd, Deadlines, EndReason, ExitKind, StopReason};
use crate::clock::BootInstant;

/// Message from S to W.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ControlMessage {
    Start {
        first: Deadlines,
        grace: Duration,
    },
    Extend(Deadlines),
    Signal(i32),
    /// Without a grace period of its own, that of `Start` applies.
    Stop {
        reason: StopReason,
        grace: Option<Duration>,
    },
}

/// Message from W to S.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatchdogReport {
    Started(i32),
    Late,
    Failed(i32),
    Suspended(i32),
    Exited(CommandEnd),
    Killing,
    Survives(i32),
    Gone,
}

/// Error of parsing a line that is not part of the protocol.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid protocol line {0:?}")]
pub(super) struct MalformedLine(String);

impl fmt::Display for ControlMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { first, grace } => {
                write!(f, "start {} {}", format_deadlines(*first), nanos(*grace))
            }
            Self::Extend(deadlines) => write!(f, "extend {}", format_deadlines(*deadlines)),
            Self::Signal(number) => write!(f, "signal {number}"),
            Self::Stop { reason, grace: None } => write!(f, "stop {}", stop_word(*reason)),
            Self::Stop { reason, grace: Some(grace) } => {
                write!(f, "stop {} {}", stop_word(*reason), nanos(*grace))
            }
        }
    }
}

impl FromStr for ControlMessage {
    type Err = MalformedLine;

    fn from_str(line: &str) -> Result<Self, MalformedLine> {
        let words: Vec<&str> = line.split(' ').collect();
        let message = match words.as_slice() {
            ["start", term, kill, grace] => parse_deadlines(term, kill)
                .and_then(|first| Some(Self::Start { first, grace: parse_grace(grace)? })),
            ["extend", term, kill] => parse_deadlines(term, kill).map(Self::Extend),
            ["signal", number] => number.parse().ok().map(Self::Signal),
            ["stop", reason] => parse_stop(reason).map(|reason| Self::Stop { reason, grace: None }),
            ["stop", reason, grace] => parse_stop(reason)
                .and_then(|reason| Some(Self::Stop { reason, grace: Some(parse_grace(grace)?) })),
            _ => None,
        };
        message.ok_or_else(|| MalformedLine(line.to_owned()))
    }
}

impl fmt::Display for WatchdogReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(pid) => write!(f, "started {pid}"),
            Self::Late => f.write_str("late"),
            Self::Failed(errno) => write!(f, "failed {errno}"),
            Self::Suspended(signal) => write!(f, "suspended {signal}"),
            Self::Exited(CommandEnd { status: ExitKind::Code(code), reason }) => {
                write!(f, "exited code {code} {}", reason_word(*reason))
            }
            Self::Exited(CommandEnd { status: ExitKind::Signal(signal), reason }) => {
                write!(f, "exited signal {signal} {}", reason_word(*reason))
            }
            Self::Killing => f.write_str("killing"),
            Self::Survives(pid) => write!(f, "survives {pid}"),
            Self::Gone => f.write_str("gone"),
        }
    }
}

impl FromStr for WatchdogReport {
    type Err = MalformedLine;

    fn from_str(line: &str) -> Result<Self, MalformedLine> {
        let words: Vec<&str> = line.split(' ').collect();
        let report = match words.as_slice() {
            ["started", pid] => pid.parse().ok().map(Self::Started),
            ["late"] => Some(Self::Late),
            ["suspended", signal] => signal.parse().ok().map(Self::Suspended),
            ["failed", errno] => errno.parse().ok().map(Self::Failed),
            ["exited", kind, number, cause] => parse_exit_kind(kind, number).and_then(|status| {
                Some(Self::Exited(CommandEnd { status, reason: parse_reason(cause)? }))
            }),
            ["killing"] => Some(Self::Killing),
            ["survives", pid] => pid.parse().ok().map(Self::Survives),
            ["gone"] => Some(Self::Gone),
            _ => None,
        };
        report.ok_or_else(|| MalformedLine(line.to_owned()))
    }
}

/// Sends one line without blocking; a peer that does not read for long misses lines.
///
/// The kernel writes such a short line whole or not at all, so lines of concurrent threads do not
/// mix.
pub(super) fn send(socket: impl AsFd, line: &impl fmt::Display) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::send(socket, format!("{line}\n").as_bytes(), flags)?;
    Ok(())
}

/// Receiving half of the socket.
pub(super) type LineReader = Lines<BufReader<UnixStream>>;

pub(super) fn line_reader(socket: std::os::unix::net::UnixStream) -> io::Result<LineReader> {
    Ok(BufReader::new(UnixStream::from_std(socket)?).lines())
}

/// Receives the next message; `None` if the peer is gone or the line is invalid. Cancellation safe.
pub(super) async fn receive<M: FromStr>(line_reader: &mut LineReader) -> Option<M> {
    line_reader.next_line().await.ok().flatten()?.parse().ok()
}

fn format_deadlines(deadlines: Deadlines) -> String {
    format!("{} {}", deadlines.term_at.as_nanos(), deadlines.kill_at.as_nanos())
}

fn parse_deadlines(term: &str, kill: &str) -> Option<Deadlines> {
    let instant = |word: &str| word.parse().ok().map(BootInstant::from_nanos);
    Some(Deadlines { term_at: instant(term)?, kill_at: instant(kill)? })
}

/// Returns the nanoseconds of a grace period, saturating.
fn nanos(grace: Duration) -> u64 {
    u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX)
}

fn parse_grace(word: &str) -> Option<Duration> {
    word.parse().ok().map(Duration::from_nanos)
}

fn parse_exit_kind(kind: &str, number: &str) -> Option<ExitKind> {
    let number = number.parse().ok()?;
    match kind {
        "code" => Some(ExitKind::Code(number)),
        "signal" => Some(ExitKind::Signal(number)),
        _ => None,
    }
}

fn reason_word(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Exited => "by-itself",
        EndReason::Lost | EndReason::Stopped(StopReason::Lost) => "lost",
        EndReason::Stopped(StopReason::TimeLimit) => "time-limit",
        EndReason::Stopped(StopReason::Requested) => "asked",
        EndReason::WatchdogDied => "watchdog-died",
    }
}

fn stop_word(reason: StopReason) -> &'static str {
    reason_word(reason.into())
}

fn parse_reason(word: &str) -> Option<EndReason> {
    if word == "by-itself" {
        Some(EndReason::Exited)
    } else {
        parse_stop(word).map(EndReason::from)
    }
}

fn parse_stop(word: &str) -> Option<StopReason> {
    match word {
        "lost" => Some(StopReason::Lost),
        "time-limit" => Some(StopReason::TimeLimit),
        "asked" => Some(StopReason::Requested),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINES: Deadlines = Deadlines {
        term_at: BootInstant::from_nanos(7),
        kill_at: BootInstant::from_nanos(u64::MAX),
    };

    fn stop(reason: StopReason, grace: Option<Duration>) -> ControlMessage {
        ControlMessage::Stop { reason, grace }
    }

    #[test]
    fn every_control_message_round_trips() {
        let messages = [
            ControlMessage::Start { first: DEADLINES, grace: Duration::from_nanos(3) },
            ControlMessage::Extend(DEADLINES),
            ControlMessage::Signal(15),
            stop(StopReason::Lost, None),
            stop(StopReason::TimeLimit, None),
            stop(StopReason::Requested, Some(Duration::from_nanos(4))),
        ];
        for message in messages {
            assert_eq!(message.to_string().parse(), Ok(message));
        }
    }

    #[test]
    fn an_endless_grace_period_is_sent_as_the_longest() {
        let endless = stop(StopReason::Requested, Some(Duration::MAX));
        let longest = stop(StopReason::Requested, Some(Duration::from_nanos(u64::MAX)));
        assert_eq!(endless.to_string().parse(), Ok(longest));
    }

    #[test]
    fn every_report_round_trips() {
        let ended = |status, reason| WatchdogReport::Exited(CommandEnd { status, reason });
        let reports = [
            WatchdogReport::Started(1),
            WatchdogReport::Late,
            WatchdogReport::Failed(2),
            WatchdogReport::Suspended(20),
            ended(ExitKind::Code(3), EndReason::Exited),
            ended(ExitKind::Signal(9), EndReason::Lost),
            ended(ExitKind::Signal(9), EndReason::Stopped(StopReason::TimeLimit)),
            ended(ExitKind::Signal(9), EndReason::Stopped(StopReason::Requested)),
            WatchdogReport::Killing,
            WatchdogReport::Survives(4),
            WatchdogReport::Gone,
        ];
        for report in reports {
            assert_eq!(report.to_string().parse(), Ok(report));
        }
    }

    #[test]
    fn malformed_lines_are_rejected() {
        let lines = [
            "",
            "start 1 2",
            "extend 1 -2",
            "stop by-itself",
            "stop lost -1",
            "signal 1 2",
            "gone",
        ];
        for line in lines {
            assert!(line.parse::<ControlMessage>().is_err(), "{line:?}");
        }
        for line in ["", "gone ", "exited code 1", "exited fine 1 lost", "start 1 2 3"] {
            assert!(line.parse::<WatchdogReport>().is_err(), "{line:?}");
        }
    }
}
