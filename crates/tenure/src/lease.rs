//! What a holder may believe about its own session, as plain arithmetic.
//!
//! The holder counts from *before* its heartbeat left, on a clock that runs during suspend, and its
//! time is shorter than the store's by a drift margin. So it has stopped before the store may grant
//! its locks to another, whatever became of the answers on the way. The simulator drives this code
//! with skewed and stopping clocks; [`crate::session`] drives it with the real one.

use std::time::Duration;

use tenure_core::canary::{Canary, planted};

use crate::clock::BootInstant;

/// Clocks may differ in speed by a tenth before a holder could outlive its lease.
const DRIFT_SHARE: u32 = 10;
/// Heartbeats in one time to live: two may be lost without harm.
const BEATS_PER_TTL: u32 = 3;
/// After a failed heartbeat the next one comes sooner.
const RETRIES_PER_TTL: u32 = 12;

/// What the holder may believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Heartbeats come through.
    Safe,
    /// Heartbeats fail, but there is time left.
    InDanger,
    /// It must be assumed that another has the locks, or soon will.
    Lost,
}

/// The holder's own account of its session's time.
#[derive(Clone, Debug)]
pub struct Lease {
    ttl: Duration,
    /// When the last heartbeat that was answered had left.
    confirmed: BootInstant,
    /// When the next heartbeat should leave.
    next: BootInstant,
    lost: bool,
}

impl Lease {
    /// The lease of a session whose opening left at `sent` and was answered.
    #[must_use]
    pub fn new(ttl: Duration, sent: BootInstant) -> Self {
        Self { ttl, confirmed: sent, next: sent + ttl / BEATS_PER_TTL, lost: false }
    }

    /// A heartbeat that had left at `sent` was answered with "alive" at `now`.
    pub fn answered(&mut self, sent: BootInstant, now: BootInstant) {
        // A question that left too late was asked by nobody any more.
        self.lost |= sent >= self.deadline();
        // The answer may be late: what counts is when the question left.
        let from = if planted(Canary::CountFromAnswer) { now } else { sent };
        self.confirmed = self.confirmed.max(from);
        self.next = sent + self.ttl / BEATS_PER_TTL;
    }

    /// A heartbeat that had left at `sent` failed: no answer, or none that could be understood.
    pub fn failed(&mut self, sent: BootInstant) {
        if planted(Canary::FailedBeatIsFine) {
            self.confirmed = sent;
        }
        self.next = sent + self.ttl / RETRIES_PER_TTL;
    }

    /// The store said that the session is over.
    pub fn refused(&mut self) {
        self.lost = true;
    }

    /// When the next heartbeat should leave.
    #[must_use]
    pub fn next_beat(&self) -> BootInstant {
        self.next
    }

    /// When the holder must have stopped.
    #[must_use]
    pub fn deadline(&self) -> BootInstant {
        if planted(Canary::NoDriftMargin) {
            return self.confirmed + self.ttl;
        }
        self.confirmed + (self.ttl - self.ttl / DRIFT_SHARE)
    }

    /// How long a heartbeat that leaves at `now` may take before the holder gives up on it.
    #[must_use]
    pub fn patience(&self, now: BootInstant) -> Duration {
        let left = self.deadline().saturating_duration_since(now);
        left.min(self.ttl / BEATS_PER_TTL)
    }

    /// What the holder may believe at `now`. Once lost, always lost.
    pub fn standing(&mut self, now: BootInstant) -> Standing {
        self.lost |= now >= self.deadline();
        if self.lost {
            Standing::Lost
        } else if now.saturating_duration_since(self.confirmed) > self.ttl / 2 {
            Standing::InDanger
        } else {
            Standing::Safe
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn at(ms: u64) -> BootInstant {
        BootInstant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn the_deadline_counts_from_before_the_heartbeat_left() {
        let mut lease = Lease::new(TTL, at(0));
        lease.answered(at(3_000), at(8_000));
        assert_eq!(lease.deadline(), at(12_000));
    }

    #[test]
    fn a_failed_heartbeat_is_a_state_and_prolongs_nothing() {
        let mut lease = Lease::new(TTL, at(0));
        lease.failed(at(3_333));
        assert_eq!(lease.standing(at(4_000)), Standing::Safe);
        assert_eq!(lease.standing(at(6_000)), Standing::InDanger);
        assert_eq!(lease.standing(at(9_000)), Standing::Lost);
    }

    #[test]
    fn an_answer_that_comes_after_the_deadline_brings_nothing_back() {
        let mut lease = Lease::new(TTL, at(0));
        assert_eq!(lease.standing(at(9_500)), Standing::Lost);
        lease.answered(at(9_400), at(9_600));
        assert_eq!(lease.standing(at(9_700)), Standing::Lost);
    }

    #[test]
    fn a_heartbeat_never_hangs_past_the_deadline() {
        let lease = Lease::new(TTL, at(0));
        assert_eq!(lease.patience(at(1_000)), TTL / 3);
        assert_eq!(lease.patience(at(8_500)), Duration::from_millis(500));
    }
}
