//! Retry rule of an operation: which failures are retried, when, and how often.
//!
//! Jitter is derived from the job id instead of a random source, so steps are reproducible while
//! jobs that failed together are still spread out.

use crate::id::JobId;
use crate::key::Text;
use crate::limits;

/// The worker's session expired during the attempt: it crashed, froze or lost the network.
pub const WORKER_TIMEOUT: &str = "WORKER_TIMEOUT";
/// The worker closed its session during the attempt.
pub const WORKER_CLOSED: &str = "WORKER_CLOSED";
/// An operator broke the lock of the job.
pub const LOCK_BROKEN: &str = "LOCK_BROKEN";
/// A running job has no tenure because the store was restored or damaged. Its effects are unknown.
pub const LOCK_STATE_LOST: &str = "LOCK_STATE_LOST";
/// The job had not started by its start deadline.
pub const NOT_STARTED: &str = "NOT_STARTED";
/// The attempt exceeded its time limit and was stopped by its worker.
pub const TIME_LIMIT: &str = "TIME_LIMIT";

/// Number of attempts and backoff between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// Maximum number of attempts; 1 for no retry.
    pub attempts: u32,
    /// Backoff after the first failure.
    pub initial_ms: u64,
    /// Factor by which each further backoff grows.
    pub factor: f64,
    /// Maximum backoff.
    pub max_ms: u64,
    /// Failure codes that are always transient.
    pub transient: Vec<Text>,
    /// Failure codes that are always permanent.
    pub permanent: Vec<Text>,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 1,
            initial_ms: 1_000,
            factor: 2.0,
            max_ms: 60 * 60 * 1_000,
            transient: Vec::new(),
            permanent: Vec::new(),
        }
    }
}

/// Whether a retry may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// It may.
    Transient,
    /// It cannot.
    Permanent,
}

impl Retry {
    /// Returns all problems of the rule, as suffixes of its config key: `.key must …`.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !(1..=limits::ATTEMPTS_MAX).contains(&self.attempts) {
            problems.push(format!(".attempts must be between 1 and {}", limits::ATTEMPTS_MAX));
        }
        if !(1.0..=100.0).contains(&self.factor) {
            problems.push(".factor must be between 1 and 100".to_owned());
        }
        if self.initial_ms > self.max_ms {
            problems.push(".initial is longer than retry.max".to_owned());
        }
        if let Some(code) = self.transient.iter().find(|code| self.permanent.contains(code)) {
            problems.push(format!(" lists {code} as transient and as permanent"));
        }
        problems
    }

    /// Classifies a failure: by the lists of the rule, then by the class that the worker reported,
    /// then by the meaning of a built-in code. Any other code is transient if the rule allows
    /// retries.
    #[must_use]
    pub fn class(&self, code: &str, reported: Option<Class>) -> Class {
        if self.permanent.iter().any(|listed| **listed == *code) {
            return Class::Permanent;
        }
        if self.transient.iter().any(|listed| **listed == *code) {
            return Class::Transient;
        }
        if let Some(reported) = reported {
            return reported;
        }
        match code {
            WORKER_TIMEOUT | WORKER_CLOSED | LOCK_BROKEN => Class::Transient,
            LOCK_STATE_LOST => Class::Permanent,
            _ if self.attempts > 1 => Class::Transient,
            _ => Class::Permanent,
        }
    }

    /// Returns the backoff after failed attempt number `attempt`: exponential up to the maximum,
    /// minus up to 20 % of jitter so that jobs which failed together do not retry together.
    #[must_use]
    pub fn backoff_ms(&self, job: JobId, attempt: u32) -> u64 {
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let grown = self.initial_ms as f64 * self.factor.powi(exponent);
        let capped =
            if grown.is_finite() { grown.min(self.max_ms as f64) } else { self.max_ms as f64 };
        let jitter = jitter(job, attempt);
        // Bounded by `max_ms`, so it fits; fractions of a millisecond do not matter.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bounded above"
        )]
        let backoff = (capped * (1.0 - 0.2 * jitter)) as u64;
        backoff
    }
}

/// Returns a number from 0 to 1 that depends on the job and the attempt.
fn jitter(job: JobId, attempt: u32) -> f64 {
    let bytes = (job.0 ^ (u128::from(attempt) << 64)).to_le_bytes();
    let half = |at: usize| bytes[at..at + 8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    let mixed = (half(0) ^ half(8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> Retry {
        Retry { attempts: 3, initial_ms: 100, factor: 2.0, max_ms: 1_000, ..Retry::default() }
    }

    #[test]
    fn backoff_doubles_up_to_the_maximum_with_limited_jitter() {
        for (attempt, full) in [(1, 100), (2, 200), (3, 400), (5, 1_000), (500, 1_000)] {
            for id in 0..200 {
                let backoff = rule().backoff_ms(JobId((id << 70) | id), attempt);
                assert!(
                    (full * 8 / 10..=full).contains(&backoff),
                    "{backoff} after attempt {attempt}"
                );
            }
        }
    }

    #[test]
    fn jitter_spreads_jobs_that_failed_together() {
        let backoffs: std::collections::BTreeSet<_> =
            (0..100).map(|id| rule().backoff_ms(JobId((id << 80) | (7 * id)), 4)).collect();
        assert!(backoffs.len() > 50, "{} different backoffs", backoffs.len());
    }

    #[test]
    fn lists_of_the_rule_override_the_reported_class() {
        let mut rule = rule();
        rule.permanent = vec!["QUOTA".into()];
        rule.transient = vec!["BUSY".into()];
        assert_eq!(rule.class("QUOTA", Some(Class::Transient)), Class::Permanent);
        assert_eq!(rule.class("BUSY", Some(Class::Permanent)), Class::Transient);
        assert_eq!(rule.class("ELSE", Some(Class::Permanent)), Class::Permanent);
        assert_eq!(rule.class("ELSE", None), Class::Transient);
    }

    #[test]
    fn without_retries_failures_are_permanent_but_a_lost_worker_is_transient() {
        let none = Retry::default();
        assert_eq!(none.class("ELSE", None), Class::Permanent);
        assert_eq!(none.class(WORKER_TIMEOUT, None), Class::Transient);
    }
}
