//! Options of a session: its name, its time to live, and the interval of its heartbeats.

use std::time::Duration;

use tenure_core::{Refusal, Text};

use crate::clock::BootInstant;
use crate::error::Error;
use crate::lease::{HEARTBEAT_MIN, Lease, heartbeat_max};

/// Options of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    pub(crate) name: Text,
    pub(crate) ttl: Duration,
    pub(crate) heartbeat: Option<Duration>,
}

impl SessionOptions {
    /// Creates options of a session that expires after `ttl` without a heartbeat.
    #[must_use]
    pub fn new(name: &str, ttl: Duration) -> Self {
        Self { name: name.into(), ttl, heartbeat: None }
    }

    /// Sets the interval between heartbeats, at most half the time to live. The default is a third
    /// of it.
    ///
    /// A holder that is locked out of the store still stops by a deadline that depends on the time
    /// to live only. A long time to live with a short interval shows within seconds that a process
    /// is gone, while its lock outlives long outages.
    #[must_use]
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = Some(interval);
        self
    }

    /// Returns the lease of a session whose open command was sent at `sent`.
    pub(crate) fn lease(&self, sent: BootInstant) -> Lease {
        match self.heartbeat {
            Some(interval) => Lease::with_interval(self.ttl, interval, sent),
            None => Lease::new(self.ttl, sent),
        }
    }

    /// Checks the interval. The store checks the rest.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let (min, max) = (HEARTBEAT_MIN, heartbeat_max(self.ttl));
        match self.heartbeat {
            Some(interval) if !(min..=max).contains(&interval) => {
                let ttl = self.ttl;
                let why = format!(
                    "the heartbeat interval is {interval:?}; it must be between {min:?} and \
                     {max:?}, half of the ttl of {ttl:?}, so that one heartbeat may be lost"
                );
                Err(Error::Refused(Refusal::Invalid(why)))
            }
            _ => Ok(()),
        }
    }
}
