//! What a failure of the installer means: the rule that matches, whether another attempt may help,
//! and when.

use std::time::Duration;

use tenure::{Class, Failure, Update};

use super::attempt::{Attempt, STOPPED};
use super::installer::Ended;
use crate::failure::{Attempts, Classified, Decision, Evidence, Source, Step, decide};
use crate::status::{Failures, LastError};

/// A classified failure, and what follows from it.
pub(crate) struct Verdict {
    classified: Classified,
    decision: Decision,
    /// Whether the job has used up its attempts.
    is_last: bool,
}

/// Classifies a run of the installer that failed. `removes_leftovers` tells whether what this
/// cluster has left is removed before another attempt.
pub(crate) fn classify(
    attempt: &Attempt<'_>,
    step: Step,
    ended: &Ended,
    removes_leftovers: bool,
) -> Verdict {
    let evidence = Evidence {
        exit_code: ended.code,
        console: &ended.console,
        step,
        infra_started: ended.infra_started,
        source: Source::Installer,
        timed_out: ended.timed_out,
    };
    let classified = attempt.app.rules().classify(&evidence);
    let failures = attempt.status.failures_of(attempt.job.id());
    let attempts = Attempts {
        attempt: attempt.job.attempt(),
        failures: &failures,
        leftovers_removed: removes_leftovers,
    };
    let decision = decide(&classified, &attempts, &attempt.app.settings);
    let is_last = attempt.job.attempt() >= attempt.job.attempts_max();
    Verdict { classified, decision, is_last }
}

impl Verdict {
    /// Returns whether no further attempt follows.
    pub(crate) fn is_final(&self) -> bool {
        match self.decision {
            Decision::Retry { counted, .. } => counted && self.is_last,
            Decision::Final => true,
        }
    }

    /// Records the failure in the status of the cluster, and returns the update that writes it.
    pub(crate) fn record(&self, attempt: &mut Attempt<'_>) -> Result<Update, Failure> {
        let job = attempt.job;
        let error = LastError {
            operation: job.operation().to_owned(),
            job: job.id(),
            attempt: job.attempt(),
            code: self.classified.reason.clone(),
            class: Some(self.classified.class.as_str().to_owned()),
            message: job.redact(&self.message()),
            fingerprint: self.classified.fingerprint.as_deref().map(|text| job.redact(text)),
        };
        let mut by_class = attempt.status.failures_of(job.id());
        *by_class.entry(self.classified.class.as_str().to_owned()).or_default() += 1;
        attempt.change(|status| {
            status.failures = Some(Failures { job: job.id(), by_class });
            status.last_error = Some(error);
        })
    }

    /// Returns the failure of the attempt. One that retries could not resolve leaves a dead letter.
    pub(crate) fn failure(&self) -> Failure {
        let (reason, message) = (&self.classified.reason, self.message());
        let is_retryable = self.classified.policy.retries > 0;
        match self.decision {
            Decision::Final if self.is_last && is_retryable => Failure::transient(reason, message),
            Decision::Final => Failure::permanent(reason, message),
            Decision::Retry { delay_ms, counted: true } => {
                Failure::transient(reason, message).retry_after(Duration::from_millis(delay_ms))
            }
            Decision::Retry { delay_ms, counted: false } => {
                Failure::deferred(Duration::from_millis(delay_ms), reason, message)
            }
        }
    }

    /// Returns one line for the log of the job.
    pub(crate) fn line(&self) -> String {
        let Classified { reason, class, rule, .. } = &self.classified;
        let then = match self.decision {
            Decision::Retry { delay_ms, counted } if !self.is_final() => {
                let seconds = delay_ms / 1_000;
                let counted = if counted { "" } else { ", not counted as an attempt" };
                format!("next attempt in {seconds} s{counted}")
            }
            _ => "no further attempt".to_owned(),
        };
        let by = rule.as_deref().unwrap_or("the exit code");
        format!("failed: {reason} ({class}, by {by}): {}; {then}", self.message())
    }

    fn message(&self) -> String {
        let Classified { message, excerpt, .. } = &self.classified;
        match excerpt {
            Some(excerpt) => format!("{message} ({excerpt})"),
            None => message.clone(),
        }
    }
}

/// Returns the backoff of the settings after the current attempt.
fn backoff(attempt: &Attempt<'_>) -> Duration {
    let settings = &attempt.app.settings;
    let doublings = attempt.job.attempt().saturating_sub(1).min(32);
    let backoff_ms = settings.backoff_ms.saturating_mul(1 << doublings);
    Duration::from_millis(backoff_ms.min(settings.backoff_max_ms.max(settings.backoff_ms)))
}

/// Records the failure of an attempt in the status of the cluster, unless it was recorded before,
/// or is no failure: the attempt was stopped.
pub(crate) fn record(attempt: &mut Attempt<'_>, mut failure: Failure) -> Failure {
    let job = attempt.job;
    if failure.class != Some(Class::Permanent) && failure.delay.is_none() {
        failure.delay = Some(backoff(attempt));
    }
    let is_recorded = attempt
        .status
        .last_error
        .as_ref()
        .is_some_and(|error| error.job == job.id() && error.attempt == job.attempt());
    if failure.code == STOPPED || is_recorded || failure.update != Update::new() {
        return failure;
    }
    let error = LastError {
        operation: job.operation().to_owned(),
        job: job.id(),
        attempt: job.attempt(),
        code: failure.code.clone(),
        class: None,
        message: job.redact(&failure.message),
        fingerprint: None,
    };
    match attempt.change(|status| status.last_error = Some(error)) {
        Ok(update) => failure.update(update),
        Err(_) => failure,
    }
}
