//! Rate limits: token buckets per tenant and per address.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Instant;

use tenure_core::Text;
use tenure_store::clock::stopwatch;

use super::keys::{hash, id};

/// Maximum number of buckets of one limit; beyond it, full buckets are dropped, then the oldest.
const BUCKETS_MAX: usize = 10_000;
/// Stands in for the id of the admin key, which has none.
const ADMIN_ID: &str = "";
/// Default rate of failed authentications per address, and per address and key.
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

/// An address, and the hash of what it presented: a key, or the id of a key.
type Presented = (IpAddr, [u8; 32]);

/// The rate limits of a server.
pub struct Limits {
    tenants: Option<Buckets<Text>>,
    auth_failures: Buckets<IpAddr>,
    /// Failures by the id of the key whose secret may have been guessed.
    guesses: Buckets<Presented>,
    /// Keys that were accepted.
    accepted: RwLock<HashSet<Presented>>,
}

impl Limits {
    /// Creates the limits; requests per tenant are unlimited if `tenants` is `None`.
    #[must_use]
    pub fn new(tenants: Option<Rate>, auth_failures: Rate) -> Self {
        Self {
            tenants: tenants.map(Buckets::new),
            auth_failures: Buckets::new(auth_failures),
            guesses: Buckets::new(auth_failures),
            accepted: RwLock::default(),
        }
    }

    /// Refuses to check a key after too many wrong ones with its id from its address, so that a
    /// correct guess is answered like a wrong one. Other keys are checked, and so is one that was
    /// accepted from the address before: clients behind one NAT do not lock each other out. The
    /// error is the number of seconds to wait.
    pub(crate) fn check_key(&self, address: Option<IpAddr>, key: &str) -> Result<(), u64> {
        let Some(address) = address else { return Ok(()) };
        let limit = self.guesses.check(&guess(address, key));
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
            if accepted.len() >= BUCKETS_MAX
                && let Some(any) = accepted.iter().next().copied()
            {
                accepted.remove(&any);
            }
            accepted.insert(entry);
        }
    }

    fn is_accepted(&self, entry: &Presented) -> bool {
        self.accepted.read().unwrap_or_else(PoisonError::into_inner).contains(entry)
    }

    /// Counts a request of a tenant. The error is the number of seconds to wait.
    pub(crate) fn request(&self, tenant: &Text) -> Result<(), u64> {
        self.tenants.as_ref().map_or(Ok(()), |buckets| buckets.take(tenant))
    }

    /// Counts a failed authentication with a key, or without one. The error is the number of
    /// seconds to wait.
    pub(crate) fn failure(&self, address: Option<IpAddr>, key: Option<&str>) -> Result<(), u64> {
        let Some(address) = address else { return Ok(()) };
        let of_key = key.map_or(Ok(()), |key| self.guesses.take(&guess(address, key)));
        self.auth_failures.take(&address).and(of_key)
    }
}

/// Returns the entry that all guesses of the same key share.
fn guess(address: IpAddr, key: &str) -> Presented {
    (address, hash(id(key).unwrap_or(ADMIN_ID)))
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
        if buckets.len() >= BUCKETS_MAX
            && !buckets.contains_key(key)
            && let Some(oldest) = buckets.iter().min_by_key(|(_, (_, at))| *at)
        {
            // A distributed attack: bounded memory takes precedence over limits.
            let oldest = oldest.0.clone();
            buckets.remove(&oldest);
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
        let start = stopwatch();
        for n in 0..BUCKETS_MAX + 10 {
            let at = start + Duration::from_micros(n as u64);
            assert_eq!(buckets.take_at(&n, at), Ok(()));
        }
        let buckets = buckets.buckets.lock().expect("not poisoned");
        assert_eq!(buckets.len(), BUCKETS_MAX);
        assert!(!buckets.contains_key(&9) && buckets.contains_key(&10), "the oldest are dropped");
    }

    #[test]
    fn guesses_of_one_key_do_not_affect_others() {
        let limits = Limits::new(None, Rate { burst: 2, per_s: 0 });
        let address = Some(IpAddr::from([127, 0, 0, 1]));
        for _ in 0..5 {
            limits.failure(address, None).ok();
            limits.failure(address, Some("tenure_acme_a_wrong")).ok();
        }
        assert!(limits.failure(address, None).is_err(), "the address is over its limit");
        assert!(limits.check_key(address, "tenure_acme_a_right").is_err(), "it could be a guess");
        for other in ["tenure_acme_b_right", "tenure_admin"] {
            assert_eq!(limits.check_key(address, other), Ok(()), "{other}");
        }
        let elsewhere = Some(IpAddr::from([127, 0, 0, 2]));
        assert_eq!(limits.check_key(elsewhere, "tenure_acme_a_right"), Ok(()));
        limits.failure(address, Some("tenure_wrong")).ok();
        limits.failure(address, Some("another")).ok();
        assert!(limits.check_key(address, "tenure_admin").is_err(), "keys without id share one");
    }

    #[test]
    fn accepted_keys_are_bounded() {
        let limits = Limits::new(None, AUTH_FAILURE_RATE);
        let address = Some(IpAddr::from([127, 0, 0, 1]));
        for n in 0..BUCKETS_MAX + 10 {
            limits.record_accepted(address, &n.to_string());
        }
        assert_eq!(limits.accepted.read().expect("not poisoned").len(), BUCKETS_MAX);
    }
}
