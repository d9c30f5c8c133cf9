//! Client-side lease of a session: when a holder must consider it lost.
//!
//! The holder counts from *before* its heartbeat was sent, on a clock that runs during suspend, and
//! its lease is shorter than the store's by a drift margin. So it has stopped before the store may
//! grant its locks to another holder, regardless of delayed or lost responses. The simulator drives
//! this code with skewed and stopping clocks; [`crate::session`] drives it with the real one.

use std::time::Duration;

use tenure_core::canary::{Canary, planted};
use tenure_core::limits;

use crate::clock::BootInstant;

/// Drift margin as a fraction of the time to live: clock rates may differ by a tenth before a
/// holder could outlive its lease.
const DRIFT_DIVISOR: u32 = 10;
/// Heartbeats per time to live: two may be lost without harm.
const HEARTBEATS_PER_TTL: u32 = 3;
/// Heartbeats per time to live after a failure.
const RETRIES_PER_TTL: u32 = 12;
/// Minimum interval between heartbeats.
pub const HEARTBEAT_MIN: Duration = Duration::from_millis(limits::HEARTBEAT_INTERVAL_MS_MIN);

/// Returns the maximum interval between heartbeats of a session with this time to live. One
/// heartbeat may then be lost: the next is sent before supervised commands are stopped.
#[must_use]
pub fn heartbeat_max(ttl: Duration) -> Duration {
    ttl / limits::HEARTBEATS_PER_TTL_MIN
}

/// State of a lease as its holder must assume it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Heartbeats succeed.
    Safe,
    /// Heartbeats fail, but the deadline has not passed.
    InDanger,
    /// The deadline has passed or the store ended the session: others may hold the locks.
    Lost,
}

/// Lease of a session, computed by its holder.
#[derive(Clone, Debug)]
pub struct Lease {
    ttl: Duration,
    /// Interval between heartbeats.
    interval: Duration,
    /// Send time of the last confirmed heartbeat.
    confirmed: BootInstant,
    /// Send time of the next heartbeat.
    next: BootInstant,
    lost: bool,
}

impl Lease {
    /// Creates the lease of a session whose open command was sent at `sent` and confirmed.
    #[must_use]
    pub fn new(ttl: Duration, sent: BootInstant) -> Self {
        Self::with_interval(ttl, ttl / HEARTBEATS_PER_TTL, sent)
    }

    /// Creates a lease like [`Lease::new`], with this interval between heartbeats. It changes
    /// nothing about the deadline.
    #[must_use]
    pub fn with_interval(ttl: Duration, interval: Duration, sent: BootInstant) -> Self {
        Self { ttl, interval, confirmed: sent, next: sent + interval, lost: false }
    }

    /// Records that a heartbeat sent at `sent` was confirmed at `now`.
    pub fn confirm(&mut self, sent: BootInstant, now: BootInstant) {
        // A heartbeat sent after the deadline cannot revive the lease.
        self.lost |= sent >= self.deadline();
        // The response may be late, so the lease counts from the send time.
        let start = if planted(Canary::CountFromAnswer) { now } else { sent };
        self.confirmed = self.confirmed.max(start);
        self.next = sent + self.interval;
    }

    /// Records that a heartbeat sent at `sent` failed: no response, or an invalid one.
    pub fn record_failure(&mut self, sent: BootInstant) {
        if planted(Canary::FailedHeartbeatIgnored) {
            self.confirmed = sent;
        }
        self.next = sent + self.retry_interval();
    }

    /// Records that the store has ended the session.
    pub fn mark_lost(&mut self) {
        self.lost = true;
    }

    /// Returns the instant at which the next heartbeat is due.
    #[must_use]
    pub fn next_heartbeat(&self) -> BootInstant {
        self.next
    }

    /// Returns the instant by which the holder must have stopped.
    #[must_use]
    pub fn deadline(&self) -> BootInstant {
        if planted(Canary::NoDriftMargin) {
            return self.confirmed + self.ttl;
        }
        self.confirmed + (self.ttl - self.ttl / DRIFT_DIVISOR)
    }

    /// Returns the timeout of a heartbeat sent at `now`.
    #[must_use]
    pub fn heartbeat_timeout(&self, now: BootInstant) -> Duration {
        let left = self.deadline().saturating_duration_since(now);
        // With a long interval the retry still precedes the stop of supervised commands.
        let until_retry = (self.ttl * 2 / HEARTBEATS_PER_TTL).saturating_sub(self.interval);
        left.min(self.ttl / HEARTBEATS_PER_TTL).min(until_retry)
    }

    fn retry_interval(&self) -> Duration {
        self.interval.min(self.ttl / RETRIES_PER_TTL)
    }

    /// Returns the time since the last confirmed heartbeat was sent after which heartbeats count as
    /// failing. A response may take the time of a retry.
    fn danger_after(&self) -> Duration {
        (self.ttl / 2).max(self.interval + self.retry_interval())
    }

    /// Returns the state at `now`. A lost lease stays lost.
    pub fn state(&mut self, now: BootInstant) -> LeaseState {
        self.lost |= now >= self.deadline();
        if self.lost {
            LeaseState::Lost
        } else if now.saturating_duration_since(self.confirmed) > self.danger_after() {
            LeaseState::InDanger
        } else {
            LeaseState::Safe
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
    fn the_deadline_counts_from_the_send_time_of_the_heartbeat() {
        let mut lease = Lease::new(TTL, at(0));
        lease.confirm(at(3_000), at(8_000));
        assert_eq!(lease.deadline(), at(12_000));
    }

    #[test]
    fn a_failed_heartbeat_does_not_extend_the_lease() {
        let mut lease = Lease::new(TTL, at(0));
        lease.record_failure(at(3_333));
        assert_eq!(lease.state(at(4_000)), LeaseState::Safe);
        assert_eq!(lease.state(at(6_000)), LeaseState::InDanger);
        assert_eq!(lease.state(at(9_000)), LeaseState::Lost);
    }

    #[test]
    fn the_interval_of_heartbeats_does_not_move_the_deadline() {
        for interval in [HEARTBEAT_MIN, TTL / 5, heartbeat_max(TTL)] {
            let mut lease = Lease::with_interval(TTL, interval, at(0));
            assert_eq!(lease.next_heartbeat(), at(0) + interval);
            assert_eq!(lease.deadline(), at(9_000));
            lease.confirm(at(4_000), at(4_500));
            assert_eq!(lease.next_heartbeat(), at(4_000) + interval);
            assert_eq!(lease.deadline(), at(13_000));
            lease.record_failure(at(9_000));
            let retry = lease.next_heartbeat().saturating_duration_since(at(9_000));
            assert!(retry <= interval && retry <= TTL / 12, "{interval:?}: {retry:?}");
        }
    }

    #[test]
    fn the_longest_interval_survives_one_lost_heartbeat_and_is_not_in_danger() {
        let interval = heartbeat_max(TTL);
        let mut lease = Lease::with_interval(TTL, interval, at(0));
        assert_eq!(lease.state(at(5_100)), LeaseState::Safe, "the response is on its way");
        let timeout = lease.heartbeat_timeout(at(5_000));
        lease.record_failure(at(5_000));
        assert!(at(5_000) + timeout < at(6_700) && lease.next_heartbeat() < at(6_700));
        assert_eq!(lease.state(at(6_000)), LeaseState::InDanger);
    }

    #[test]
    fn a_response_after_the_deadline_does_not_revive_the_lease() {
        let mut lease = Lease::new(TTL, at(0));
        assert_eq!(lease.state(at(9_500)), LeaseState::Lost);
        lease.confirm(at(9_400), at(9_600));
        assert_eq!(lease.state(at(9_700)), LeaseState::Lost);
    }

    #[test]
    fn a_heartbeat_times_out_before_the_deadline() {
        let lease = Lease::new(TTL, at(0));
        assert_eq!(lease.heartbeat_timeout(at(1_000)), TTL / 3);
        assert_eq!(lease.heartbeat_timeout(at(8_500)), Duration::from_millis(500));
    }
}
