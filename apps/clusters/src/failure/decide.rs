//! Decides whether a failed job is tried again, and when.
//!
//! The base rule is that of the settings: so many attempts, with a backoff that doubles. A class
//! may allow fewer retries, a longer first delay, or retries that do not count as attempts.

use std::collections::BTreeMap;

use super::class::Class;
use super::classify::Classified;
use crate::settings::Settings;

/// Attempts of a job so far.
#[derive(Clone, Copy, Debug)]
pub struct Attempts<'a> {
    /// Number of counted attempts, with the one that failed.
    pub attempt: u32,
    /// Number of earlier failures of the job by the name of their class, without this one.
    pub failures: &'a BTreeMap<String, u32>,
    /// Whether leftovers of the same cluster were removed after this failure.
    pub leftovers_removed: bool,
}

/// What happens after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is tried again.
    Retry {
        /// Delay before the next attempt.
        delay_ms: u64,
        /// Whether the failed attempt counts as one of those that the settings allow.
        counted: bool,
    },
    /// It is not tried again.
    Final,
}

/// Decides what happens after a failure.
#[must_use]
pub fn decide(classified: &Classified, attempts: &Attempts<'_>, settings: &Settings) -> Decision {
    let (class, policy) = (classified.class, classified.policy);
    let earlier = attempts.failures.get(class.as_str()).copied().unwrap_or(0);
    let is_exhausted = policy.counted && attempts.attempt >= settings.attempts;
    let is_foreign = class == Class::Conflict && !attempts.leftovers_removed;
    if earlier >= policy.retries || is_exhausted || is_foreign {
        return Decision::Final;
    }
    let first_ms = settings.backoff_ms.saturating_mul(policy.backoffs);
    let delay_ms = match classified.retry_delay_ms {
        Some(delay_ms) => delay_ms,
        None => {
            let of_class = doubled(first_ms, earlier, settings.backoff_max_ms.max(first_ms));
            // Failures of different classes have to back off as well.
            let of_job = if policy.counted {
                let earlier = attempts.attempt.saturating_sub(1);
                doubled(settings.backoff_ms, earlier, settings.backoff_max_ms)
            } else {
                0
            };
            of_class.max(of_job)
        }
    };
    Decision::Retry { delay_ms, counted: policy.counted }
}

/// Returns a delay that has doubled so many times, up to a maximum.
fn doubled(first_ms: u64, times: u32, max_ms: u64) -> u64 {
    2_u64.checked_pow(times).map_or(max_ms, |factor| first_ms.saturating_mul(factor).min(max_ms))
}
