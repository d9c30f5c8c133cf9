//! Rate limits: token buckets per tenant and per address.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Instant;

use tenure_core::Text;
use tenure_store::clock::stopwatch;

use super::keys::hash;

/// Maximum number of buckets of one limit; beyond it, full buckets are dropped.
const BUCKETS_MAX: usize = 10_000;
/// Default rate of failed authentications per address.
pub const AUTH_FAILURE_RATE: Rate = Rate { burst: 20, per_s: 1 };

/// Size and refill rate of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Size of the bucket.
    pub burst: u32,
    /// Tokens added per second.
    pub per_s: u32,
}

impl Rate {
    /// Creates a rate of `per_s` per second with a burst of twice that.
    #[must_use]
    pub fn per_s(per_s: u32) -> Self {
        Self { burst: per_s.saturating_mul(2), per_s }
    }
}

/// The rate limits of a server.
pub struct Limits {
    tenants: Option<Buckets<Text>>,
    auth_failures: Buckets<IpAddr>,
    /// Hashes of the keys that were accepted, with the addresses they came from.
    accepted: RwLock<HashSet<(IpAddr, [u8; 32])>>,
}

impl Limits {
    /// Creates the limits; requests per tenant are unlimited if `tenants` is `None`.
    #[must_use]
    pub fn new(tenants: Option<Rate>, auth_failures: Rate) -> Self {
        let (tenants, auth_failures) = (tenants.map(Buckets::new), Buckets::new(auth_failures));
        Self { tenants, auth_failures, accepted: RwLock::default() }
    }

    /// Refuses to check a key while its address is over the limit of failures, so that a correct
    /// guess is answered like a wrong one. A key that was accepted from the address before is
    /// checked: others behind the same NAT keep working. The error is the number of seconds to
    /// wait.
    pub(crate) fn check_key(&self, address: Option<IpAddr>, key: &str) -> Result<(), u64> {
        let Some(address) = address else { return Ok(()) };
        let limit = self.auth_failures.check(&address);
        if limit.is_ok() || self.is_accepted(&(address, hash(key))) {
            return Ok(());
        }
        limit
    }

    /// Records that a key was accepted.
    pub(crate) fn record_accepted(&self, address: Option<IpAddr>, key: &str) {
        let Some(address) = address else { return };
        let entry = (address, hash(key));
        if !self.is_accepted(&entry) {
            let mut accepted = self.accepted.write().unwrap_or_else(PoisonError::into_inner);
            if accepted.len() >= BUCKETS_MAX {
                accepted.clear();
            }
            accepted.insert(entry);
        }
    }

    fn is_accepted(&self, entry: &(IpAddr, [u8; 32])) -> bool {
        self.accepted.read().unwrap_or_else(PoisonError::into_inner).contains(entry)
    }

    /// Counts a request of a tenant. The error is the number of seconds to wait.
    pub(crate) fn request(&self, tenant: &Text) -> Result<(), u64> {
        self.tenants.as_ref().map_or(Ok(()), |buckets| buckets.take(tenant))
    }

    /// Counts a failed authentication. The error is the number of seconds to wait.
    pub(crate) fn failure(&self, address: Option<IpAddr>) -> Result<(), u64> {
        address.map_or(Ok(()), |address| self.auth_failures.take(&address))
    }
}

/// Token buckets by key: the remaining tokens, and when they were counted.
pub(crate) struct Buckets<K> {
    rate: Rate,
    buckets: Mutex<HashMap<K, (f64, Instant)>>,
}

impl<K: Hash + Eq + Clone> Buckets<K> {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { rate, buckets: Mutex::default() }
    }

    /// Takes a token. The error is the number of seconds to wait.
    pub(crate) fn take(&self, key: &K) -> Result<(), u64> {
        self.take_at(key, stopwatch())
    }

    /// Returns whether a token is left, and takes none.
    fn check(&self, key: &K) -> Result<(), u64> {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(bucket) = buckets.get(key) else { return Ok(()) };
        let left = self.refilled(*bucket, stopwatch());
        if left >= 1.0 { Ok(()) } else { Err(self.wait_s(left)) }
    }

    /// Returns the tokens of a bucket at this time.
    fn refilled(&self, (left, at): (f64, Instant), now: Instant) -> f64 {
        let (burst, per_s) = (f64::from(self.rate.burst), f64::from(self.rate.per_s));
        (left + now.saturating_duration_since(at).as_secs_f64() * per_s).min(burst)
    }

    /// Returns the seconds until a bucket has a token.
    fn wait_s(&self, left: f64) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
        let seconds = ((1.0 - left) / f64::from(self.rate.per_s)).ceil().max(1.0) as u64;
        seconds
    }

    fn take_at(&self, key: &K, now: Instant) -> Result<(), u64> {
        let burst = f64::from(self.rate.burst);
        let refilled = |bucket| self.refilled(bucket, now);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= BUCKETS_MAX && !buckets.contains_key(key) {
            buckets.retain(|_, bucket| refilled(*bucket) < burst);
        }
        if buckets.len() >= BUCKETS_MAX && !buckets.contains_key(key) {
            // A distributed attack: bounded memory takes precedence over limits.
            buckets.clear();
        }
        let left = buckets.get(key).map_or(burst, |bucket| refilled(*bucket));
        if left >= 1.0 {
            buckets.insert(key.clone(), (left - 1.0, now));
            return Ok(());
        }
        buckets.insert(key.clone(), (left, now));
        Err(self.wait_s(left))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_empties_and_refills() {
        let buckets = Buckets::new(Rate { burst: 2, per_s: 1 });
        let start = stopwatch();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(buckets.take_at(&"a", at(0)), Ok(()));
        assert_eq!(buckets.take_at(&"a", at(0)), Ok(()));
        assert_eq!(buckets.take_at(&"a", at(0)), Err(1));
        assert_eq!(buckets.take_at(&"b", at(0)), Ok(()), "keys have separate buckets");
        assert_eq!(buckets.take_at(&"a", at(500)), Err(1));
        assert_eq!(buckets.take_at(&"a", at(1_000)), Ok(()));
        assert_eq!(buckets.take_at(&"a", at(1_000)), Err(1));
    }

    #[test]
    fn buckets_are_bounded() {
        let buckets = Buckets::new(Rate { burst: 2, per_s: 1 });
        let now = stopwatch();
        for n in 0..3 * BUCKETS_MAX {
            assert_eq!(buckets.take_at(&n, now), Ok(()));
        }
        assert!(buckets.buckets.lock().expect("not poisoned").len() <= BUCKETS_MAX);
    }
}
