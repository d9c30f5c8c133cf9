//! How much anybody may ask: buckets that fill up again.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tenure_core::Text;
use tenure_store::clock::stopwatch;

/// Most buckets of a kind; when there are more, those that are full are forgotten.
const BUCKETS_MAX: usize = 10_000;
/// Wrong keys that an address may send at once, and how many more each second, unless told
/// otherwise.
pub const WRONG_KEYS: Rate = Rate { burst: 20, per_s: 1 };

/// How much, and how fast it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// At once.
    pub burst: u32,
    /// Again each second.
    pub per_s: u32,
}

impl Rate {
    /// So many a second, and twice as many at once.
    #[must_use]
    pub fn per_s(per_s: u32) -> Self {
        Self { burst: per_s.saturating_mul(2), per_s }
    }
}

/// The limits of a server.
pub struct Limits {
    tenants: Option<Buckets<Text>>,
    failures: Buckets<IpAddr>,
}

impl Limits {
    /// Requests of each tenant, bounded or not; wrong keys from one address always are.
    #[must_use]
    pub fn new(tenants: Option<Rate>, wrong_keys: Rate) -> Self {
        Self { tenants: tenants.map(Buckets::new), failures: Buckets::new(wrong_keys) }
    }

    /// A request of a tenant, or after how many seconds it may be sent again.
    pub(crate) fn request(&self, tenant: &Text) -> Result<(), u64> {
        self.tenants.as_ref().map_or(Ok(()), |buckets| buckets.take(tenant))
    }

    /// A wrong key from an address, or after how many seconds it may send another.
    pub(crate) fn failure(&self, address: Option<IpAddr>) -> Result<(), u64> {
        address.map_or(Ok(()), |address| self.failures.take(&address))
    }
}

struct Buckets<K> {
    rate: Rate,
    left: Mutex<HashMap<K, (f64, Instant)>>,
}

impl<K: Hash + Eq + Clone> Buckets<K> {
    fn new(rate: Rate) -> Self {
        Self { rate, left: Mutex::default() }
    }

    fn take(&self, whose: &K) -> Result<(), u64> {
        self.take_at(whose, stopwatch())
    }

    fn take_at(&self, whose: &K, now: Instant) -> Result<(), u64> {
        let (burst, per_s) = (f64::from(self.rate.burst), f64::from(self.rate.per_s));
        let refilled = |(left, at): (f64, Instant)| {
            (left + now.saturating_duration_since(at).as_secs_f64() * per_s).min(burst)
        };
        let mut buckets = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= BUCKETS_MAX && !buckets.contains_key(whose) {
            buckets.retain(|_, bucket| refilled(*bucket) < burst);
        }
        if buckets.len() >= BUCKETS_MAX && !buckets.contains_key(whose) {
            // So many at once is an attack from everywhere: nobody is remembered for a moment.
            buckets.clear();
        }
        let left = buckets.get(whose).map_or(burst, |bucket| refilled(*bucket));
        if left >= 1.0 {
            buckets.insert(whose.clone(), (left - 1.0, now));
            return Ok(());
        }
        buckets.insert(whose.clone(), (left, now));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
        Err(((1.0 - left) / per_s).ceil().max(1.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bucket_empties_and_fills_up_again() {
        let buckets = Buckets::new(Rate { burst: 2, per_s: 1 });
        let start = stopwatch();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(buckets.take_at(&"a", at(0)), Ok(()));
        assert_eq!(buckets.take_at(&"a", at(0)), Ok(()));
        assert_eq!(buckets.take_at(&"a", at(0)), Err(1));
        assert_eq!(buckets.take_at(&"b", at(0)), Ok(()), "others are not bounded by it");
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
        assert!(buckets.left.lock().expect("nobody panics").len() <= BUCKETS_MAX);
    }
}
