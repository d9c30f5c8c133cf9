//! How the work of a node ends, and the exit codes that CI scripts rely on.

use std::fmt;

use tenure::Error;
use tenure_core::Code;

/// Every test passed.
pub(crate) const PASSED: u8 = 0;
/// A test failed.
pub(crate) const FAILED: u8 = 1;

/// Why a node stops before the build is finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// No node leads.
    NoLeader(String),
    /// The heartbeats of too many leaders stopped.
    HeartbeatDied(String),
    /// The store or the server cannot be reached, or the node itself failed.
    Application(String),
    /// The time is over.
    TimedOut(String),
    /// Too many tests failed.
    TooManyFailures(String),
    /// Tests are left, and no node works on the build.
    WorkersDied(String),
    /// This signal was received.
    Interrupted(i32),
}

impl Stopped {
    /// Returns the exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::NoLeader(_) => 40,
            Self::HeartbeatDied(_) => 41,
            Self::Application(_) => 42,
            Self::TimedOut(_) => 43,
            Self::TooManyFailures(_) => 44,
            Self::WorkersDied(_) => 45,
            Self::Interrupted(signal) => 128 + u8::try_from(*signal).unwrap_or(0),
        }
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLeader(why)
            | Self::HeartbeatDied(why)
            | Self::Application(why)
            | Self::TimedOut(why)
            | Self::TooManyFailures(why)
            | Self::WorkersDied(why) => f.write_str(why),
            Self::Interrupted(signal) => write!(f, "interrupted by signal {signal}"),
        }
    }
}

/// Why a part of the work of a node ended.
#[derive(Debug)]
pub(crate) enum Interruption {
    /// The node stops.
    Stop(Stopped),
    /// The session or the term is lost: the node joins the build again.
    Lost(String),
}

impl From<Stopped> for Interruption {
    fn from(stopped: Stopped) -> Self {
        Self::Stop(stopped)
    }
}

impl From<Error> for Interruption {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error.code() {
            Some(Code::Lost | Code::Conflict) => Self::Lost(text),
            _ => Self::Stop(Stopped::Application(text)),
        }
    }
}

/// Describes an error of this machine.
pub(crate) fn failed(what: &str, error: &dyn std::error::Error) -> Stopped {
    Stopped::Application(format!("cannot {what}: {error}"))
}
