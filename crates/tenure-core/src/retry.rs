//! The retry rule of an operation: which failures are tried again, when, and how often.
//!
//! There is no randomness here: jitter comes from the job's own id, so that a step can be repeated
//! and still spreads a herd of jobs that failed together.

use crate::id::JobId;
use crate::key::Text;
use crate::limits;

/// The worker's session lapsed while it worked: it crashed, froze or lost the network.
pub const WORKER_TIMEOUT: &str = "WORKER_TIMEOUT";
/// The worker closed its session while it worked.
pub const WORKER_CLOSED: &str = "WORKER_CLOSED";
/// An operator broke the lock under the job.
pub const LOCK_BROKEN: &str = "LOCK_BROKEN";
/// A running job has no tenure: the store was restored or damaged. Nobody knows what it has done.
pub const LOCK_STATE_LOST: &str = "LOCK_STATE_LOST";
/// The attempt took longer than its limit and was stopped by its worker.
pub const TIME_LIMIT: &str = "TIME_LIMIT";

/// How many attempts a job has, and how long it rests between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// Attempts in all; 1 for none but the first.
    pub attempts: u32,
    /// The rest after the first failure.
    pub initial_ms: u64,
    /// What each further rest is multiplied by.
    pub factor: f64,
    /// The longest rest.
    pub max_ms: u64,
    /// Codes of failures that are tried again, whatever else holds.
    pub transient: Vec<Text>,
    /// Codes of failures that are final at once.
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

/// Whether trying again may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// It may.
    Transient,
    /// It will not.
    Permanent,
}

impl Retry {
    /// Everything about it that makes no sense: `.key must …`.
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

    /// The class of a failure: the lists of the rule first, then what the worker said of it, then
    /// what the code means, and for any other code whether there is a retry rule at all.
    #[must_use]
    pub fn class(&self, code: &str, said: Option<Class>) -> Class {
        if self.permanent.iter().any(|listed| **listed == *code) {
            return Class::Permanent;
        }
        if self.transient.iter().any(|listed| **listed == *code) {
            return Class::Transient;
        }
        if let Some(said) = said {
            return said;
        }
        match code {
            WORKER_TIMEOUT | WORKER_CLOSED | LOCK_BROKEN => Class::Transient,
            LOCK_STATE_LOST => Class::Permanent,
            _ if self.attempts > 1 => Class::Transient,
            _ => Class::Permanent,
        }
    }

    /// How long a job rests after its failed attempt number `attempt`: exponential with a cap, and
    /// up to a fifth less so that jobs which failed together do not come back together.
    #[must_use]
    pub fn rest_ms(&self, job: JobId, attempt: u32) -> u64 {
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let grown = self.initial_ms as f64 * self.factor.powi(exponent);
        let capped =
            if grown.is_finite() { grown.min(self.max_ms as f64) } else { self.max_ms as f64 };
        let spread = spread(job, attempt);
        // Within the cap, so it fits; a fraction of a millisecond does not matter.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bounded above"
        )]
        let rest = (capped * (1.0 - 0.2 * spread)) as u64;
        rest
    }
}

/// A number from 0 to 1 that differs from job to job and attempt to attempt.
fn spread(job: JobId, attempt: u32) -> f64 {
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
    fn rests_double_up_to_the_cap_and_spread_by_a_fifth_at_most() {
        for (attempt, full) in [(1, 100), (2, 200), (3, 400), (5, 1_000), (500, 1_000)] {
            for id in 0..200 {
                let rest = rule().rest_ms(JobId((id << 70) | id), attempt);
                assert!((full * 8 / 10..=full).contains(&rest), "{rest} after attempt {attempt}");
            }
        }
    }

    #[test]
    fn jobs_that_failed_together_do_not_come_back_together() {
        let rests: std::collections::BTreeSet<_> =
            (0..100).map(|id| rule().rest_ms(JobId((id << 80) | (7 * id)), 4)).collect();
        assert!(rests.len() > 50, "{} different rests", rests.len());
    }

    #[test]
    fn the_lists_of_the_rule_come_before_what_the_worker_says() {
        let mut rule = rule();
        rule.permanent = vec!["QUOTA".into()];
        rule.transient = vec!["BUSY".into()];
        assert_eq!(rule.class("QUOTA", Some(Class::Transient)), Class::Permanent);
        assert_eq!(rule.class("BUSY", Some(Class::Permanent)), Class::Transient);
        assert_eq!(rule.class("ELSE", Some(Class::Permanent)), Class::Permanent);
        assert_eq!(rule.class("ELSE", None), Class::Transient);
    }

    #[test]
    fn without_a_rule_a_failure_is_final_but_a_lost_worker_is_not_the_jobs_fault() {
        let none = Retry::default();
        assert_eq!(none.class("ELSE", None), Class::Permanent);
        assert_eq!(none.class(WORKER_TIMEOUT, None), Class::Transient);
    }
}
