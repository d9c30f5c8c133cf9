//! What the supervisor S and the watchdog W say to each other: lines of words on a unix socket.
//!
//! ```text
//! S: start TERM_AT KILL_AT GRACE     once, first; instants and times in nanoseconds of boot time
//! W:   started PID                   the command runs; or
//! W:   late                          TERM_AT had passed, so nothing was started; or
//! W:   failed ERRNO                  the launcher could not be started
//! S: extend TERM_AT KILL_AT          a heartbeat succeeded; never takes time away
//! S: signal NUMBER                   for the command's process group
//! S: stop lost|time-limit|asked      TERM now, KILL after GRACE
//! W: exited code|signal NUMBER WHY   the first process ended; WHY is by-itself or a word of stop
//! W: killing                         the first KILL is being sent
//! W: survives PID                    this process does not die of KILL; W keeps trying
//! W: gone                            last line: no process of the command exists any more
//! ```
//!
//! The end of the stream, in either direction, means that the other one is dead: both then kill.
//! A line that cannot be read means the same, so nothing here may be lenient.
//!
//! Next: `watchdog.rs` and `supervisor.rs`, the two ends.

use std::os::fd::AsFd;
use std::str::FromStr;
use std::time::Duration;
use std::{fmt, io};

use rustix::net::SendFlags;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::UnixStream;

use super::{Deadlines, Ended, ExitKind, Stop, Why};
use crate::clock::BootInstant;

/// What S tells W.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Start { first: Deadlines, grace: Duration },
    Extend(Deadlines),
    Signal(i32),
    Stop(Stop),
}

/// What W tells S.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    Started(i32),
    Late,
    Failed(i32),
    Exited(Ended),
    Killing,
    Survives(i32),
    Gone,
}

/// A line that is not part of the protocol.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not understand the line {0:?}")]
pub(super) struct Garbled(String);

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { first, grace } => {
                write!(f, "start {} {}", instants(*first), grace.as_nanos())
            }
            Self::Extend(deadlines) => write!(f, "extend {}", instants(*deadlines)),
            Self::Signal(number) => write!(f, "signal {number}"),
            Self::Stop(stop) => write!(f, "stop {}", word(Why::from(*stop))),
        }
    }
}

impl FromStr for Order {
    type Err = Garbled;

    fn from_str(line: &str) -> Result<Self, Garbled> {
        let words: Vec<&str> = line.split(' ').collect();
        let order = match words.as_slice() {
            ["start", term, kill, grace] => deadlines(term, kill).and_then(|first| {
                Some(Self::Start { first, grace: Duration::from_nanos(grace.parse().ok()?) })
            }),
            ["extend", term, kill] => deadlines(term, kill).map(Self::Extend),
            ["signal", number] => number.parse().ok().map(Self::Signal),
            ["stop", why] => stop(why).map(Self::Stop),
            _ => None,
        };
        order.ok_or_else(|| Garbled(line.to_owned()))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(pid) => write!(f, "started {pid}"),
            Self::Late => f.write_str("late"),
            Self::Failed(errno) => write!(f, "failed {errno}"),
            Self::Exited(Ended { status: ExitKind::Code(code), why }) => {
                write!(f, "exited code {code} {}", word(*why))
            }
            Self::Exited(Ended { status: ExitKind::Signal(signal), why }) => {
                write!(f, "exited signal {signal} {}", word(*why))
            }
            Self::Killing => f.write_str("killing"),
            Self::Survives(pid) => write!(f, "survives {pid}"),
            Self::Gone => f.write_str("gone"),
        }
    }
}

impl FromStr for Report {
    type Err = Garbled;

    fn from_str(line: &str) -> Result<Self, Garbled> {
        let words: Vec<&str> = line.split(' ').collect();
        let report = match words.as_slice() {
            ["started", pid] => pid.parse().ok().map(Self::Started),
            ["late"] => Some(Self::Late),
            ["failed", errno] => errno.parse().ok().map(Self::Failed),
            ["exited", kind, number, cause] => exit_kind(kind, number)
                .and_then(|status| Some(Self::Exited(Ended { status, why: why(cause)? }))),
            ["killing"] => Some(Self::Killing),
            ["survives", pid] => pid.parse().ok().map(Self::Survives),
            ["gone"] => Some(Self::Gone),
            _ => None,
        };
        report.ok_or_else(|| Garbled(line.to_owned()))
    }
}

/// Sends one line without waiting; a peer that does not read for long will miss lines.
///
/// The kernel takes such a short line whole or not at all, so lines of several threads do not mix.
pub(super) fn send(socket: impl AsFd, line: &impl fmt::Display) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::send(socket, format!("{line}\n").as_bytes(), flags)?;
    Ok(())
}

/// The receiving side of the socket.
pub(super) type Inbox = Lines<BufReader<UnixStream>>;

pub(super) fn inbox(socket: std::os::unix::net::UnixStream) -> io::Result<Inbox> {
    Ok(BufReader::new(UnixStream::from_std(socket)?).lines())
}

/// The next line; none if the other end is gone or does not make sense. May be cancelled.
pub(super) async fn receive<Line: FromStr>(inbox: &mut Inbox) -> Option<Line> {
    inbox.next_line().await.ok().flatten()?.parse().ok()
}

fn instants(deadlines: Deadlines) -> String {
    format!("{} {}", deadlines.term_at.as_nanos(), deadlines.kill_at.as_nanos())
}

fn deadlines(term: &str, kill: &str) -> Option<Deadlines> {
    let instant = |word: &str| word.parse().ok().map(BootInstant::from_nanos);
    Some(Deadlines { term_at: instant(term)?, kill_at: instant(kill)? })
}

fn exit_kind(kind: &str, number: &str) -> Option<ExitKind> {
    let number = number.parse().ok()?;
    match kind {
        "code" => Some(ExitKind::Code(number)),
        "signal" => Some(ExitKind::Signal(number)),
        _ => None,
    }
}

fn word(why: Why) -> &'static str {
    match why {
        Why::ByItself => "by-itself",
        Why::Lost | Why::Stopped(Stop::Lost) => "lost",
        Why::Stopped(Stop::TimeLimit) => "time-limit",
        Why::Stopped(Stop::Asked) => "asked",
        Why::WatchdogDied => "watchdog-died",
    }
}

fn why(word: &str) -> Option<Why> {
    if word == "by-itself" { Some(Why::ByItself) } else { stop(word).map(Why::from) }
}

fn stop(word: &str) -> Option<Stop> {
    match word {
        "lost" => Some(Stop::Lost),
        "time-limit" => Some(Stop::TimeLimit),
        "asked" => Some(Stop::Asked),
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

    #[test]
    fn every_order_survives_the_wire() {
        let orders = [
            Order::Start { first: DEADLINES, grace: Duration::from_nanos(3) },
            Order::Extend(DEADLINES),
            Order::Signal(15),
            Order::Stop(Stop::Lost),
            Order::Stop(Stop::TimeLimit),
            Order::Stop(Stop::Asked),
        ];
        for order in orders {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
    }

    #[test]
    fn every_report_survives_the_wire() {
        let ended = |status, why| Report::Exited(Ended { status, why });
        let reports = [
            Report::Started(1),
            Report::Late,
            Report::Failed(2),
            ended(ExitKind::Code(3), Why::ByItself),
            ended(ExitKind::Signal(9), Why::Lost),
            ended(ExitKind::Signal(9), Why::Stopped(Stop::TimeLimit)),
            ended(ExitKind::Signal(9), Why::Stopped(Stop::Asked)),
            Report::Killing,
            Report::Survives(4),
            Report::Gone,
        ];
        for report in reports {
            assert_eq!(report.to_string().parse(), Ok(report));
        }
    }

    #[test]
    fn anything_else_is_garbled() {
        for line in ["", "start 1 2", "extend 1 -2", "stop by-itself", "signal 1 2", "gone"] {
            assert!(line.parse::<Order>().is_err(), "{line:?}");
        }
        for line in ["", "gone ", "exited code 1", "exited fine 1 lost", "start 1 2 3"] {
            assert!(line.parse::<Report>().is_err(), "{line:?}");
        }
    }
}
