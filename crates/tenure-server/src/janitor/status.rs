//! Status of the janitor: last run, duration, result and lag of each duty.
//!
//! The janitor's thread writes it, handlers read it; the mutex is never held for long.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tenure_core::Millis;
use tenure_store::StoreError;
use tenure_store::clock::stopwatch;
use tenure_wire::{DutyInfo, instant};

use tenure_app::{Duty, DutyReport};
use tenure_store::committer::SWEEP_INTERVAL;

use super::{HistoryStatus, expiry, retries};

/// Number of intervals of lag after which a duty is late.
const LATE_AFTER_INTERVALS: u32 = 5;
/// Lag after which any duty is late, however long its interval.
const LATE_AFTER_MAX: Duration = Duration::from_secs(60);

/// Status of the janitor of this server.
pub struct JanitorStatus {
    state: Mutex<State>,
    history: Arc<HistoryStatus>,
}

struct State {
    holds_lock: bool,
    duties: Vec<DutyState>,
}

/// Status of one duty.
struct DutyState {
    duty: &'static str,
    interval: Duration,
    /// Start of the last run, or when this server became responsible; `None` if it is not.
    due_since: Option<Instant>,
    last_run: Option<Millis>,
    last_end: Option<Instant>,
    runs: u64,
    errors: u64,
    duration: Duration,
    count: u64,
    total: u64,
    error: Option<String>,
    note: Option<String>,
}

/// Statistics of a duty on this server, for metrics.
pub struct DutyStats {
    /// The duty.
    pub duty: &'static str,
    /// Number of completed runs.
    pub runs: u64,
    /// Number of failed runs.
    pub errors: u64,
    /// Number of items handled, or found for the first time.
    pub items: u64,
    /// Number of items that the last run found.
    pub found: u64,
    /// Duration of the last run.
    pub duration: Duration,
    /// Time since the end of the last run.
    pub age: Option<Duration>,
    /// Time by which the next run is overdue.
    pub lag: Duration,
}

/// A run in progress.
pub(super) struct DutyRun {
    duty: &'static str,
    started: Instant,
}

impl JanitorStatus {
    /// Creates the status of expiry, retries and `duties`, none of which has run yet.
    #[must_use]
    pub fn new(duties: &[Box<dyn Duty>], history: Arc<HistoryStatus>) -> Self {
        let sweeping = [expiry::NAME, retries::NAME].map(|it| DutyState::new(it, SWEEP_INTERVAL));
        let locked = duties.iter().map(|duty| DutyState::new(duty.name(), duty.interval()));
        let duties = sweeping.into_iter().chain(locked).collect();
        Self { state: Mutex::new(State { holds_lock: false, duties }), history }
    }

    /// Returns what the verification of the history has found.
    #[must_use]
    pub fn history(&self) -> &HistoryStatus {
        &self.history
    }

    /// Returns whether this server holds the janitor's lock.
    #[must_use]
    pub fn holds_lock(&self) -> bool {
        self.state().holds_lock
    }

    /// Returns the status of all duties for the API.
    #[must_use]
    pub fn duties(&self) -> Vec<DutyInfo> {
        self.state().duties.iter().map(DutyState::answer).collect()
    }

    /// Returns the statistics of all duties.
    #[must_use]
    pub fn stats(&self) -> Vec<DutyStats> {
        self.state().duties.iter().map(DutyState::stats).collect()
    }

    /// Describes each late duty.
    #[must_use]
    pub fn late_duties(&self) -> Vec<String> {
        let state = self.state();
        let late = state.duties.iter().filter(|state| state.lag() > state.late_after());
        late.map(|state| {
            let (duty, lag) = (state.duty, state.lag());
            let why = state.error.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            format!("janitor duty {duty} is {lag:.1?} late{why}")
        })
        .collect()
    }

    /// Makes this server responsible for `duties` from now on.
    pub(super) fn expect_runs(&self, duties: &[&str]) {
        let now = stopwatch();
        for state in self.state().duties.iter_mut().filter(|it| duties.contains(&it.duty)) {
            state.due_since = Some(now);
        }
    }

    /// Records that this server holds the lock, until the guard is dropped.
    pub(super) fn mark_lock_held<'a>(&'a self, duties: &'a [&'static str]) -> LockHeld<'a> {
        self.state().holds_lock = true;
        self.expect_runs(duties);
        LockHeld { status: self, duties }
    }

    /// Records the start of a run.
    pub(super) fn start_run(&self, duty: &'static str, now: Option<Millis>) -> DutyRun {
        let started = stopwatch();
        if let Some(state) = self.state().duties.iter_mut().find(|state| state.duty == duty) {
            state.due_since = Some(started);
            state.last_run = now.or(state.last_run);
        }
        DutyRun { duty, started }
    }

    /// Records the result of a run.
    pub(super) fn finish_run(&self, run: &DutyRun, result: Result<DutyReport, StoreError>) {
        let mut guard = self.state();
        let state = guard.duties.iter_mut().find(|state| state.duty == run.duty);
        let Some(state) = state else { return };
        state.duration = run.started.elapsed();
        state.last_end = Some(stopwatch());
        state.runs += 1;
        state.errors += u64::from(result.is_err());
        match result {
            Ok(report) => {
                state.count = report.count as u64;
                state.total += report.new as u64;
                state.note = report.note;
                if state.error.take().is_some() {
                    tracing::info!(duty = state.duty, "janitor duty recovered");
                }
            }
            Err(error) => {
                // Logged once: an unavailable store fails ten times a second.
                if state.error.replace(error.to_string()).is_none() {
                    tracing::warn!(duty = state.duty, %error, "janitor duty failed");
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("not poisoned")
    }
}

/// Guard that marks the janitor's lock as held by this server.
pub(super) struct LockHeld<'a> {
    status: &'a JanitorStatus,
    duties: &'a [&'static str],
}

impl Drop for LockHeld<'_> {
    fn drop(&mut self) {
        let mut state = self.status.state();
        state.holds_lock = false;
        for state in state.duties.iter_mut().filter(|it| self.duties.contains(&it.duty)) {
            state.due_since = None;
        }
    }
}

impl DutyState {
    fn new(duty: &'static str, interval: Duration) -> Self {
        Self {
            duty,
            interval,
            due_since: None,
            last_run: None,
            last_end: None,
            runs: 0,
            errors: 0,
            duration: Duration::ZERO,
            count: 0,
            total: 0,
            error: None,
            note: None,
        }
    }

    /// Returns how long the next run is overdue; zero if another server is responsible.
    fn lag(&self) -> Duration {
        let since = self.due_since.map_or(Duration::ZERO, |since| since.elapsed());
        since.saturating_sub(self.interval)
    }

    fn stats(&self) -> DutyStats {
        DutyStats {
            duty: self.duty,
            runs: self.runs,
            errors: self.errors,
            items: self.total,
            found: self.count,
            duration: self.duration,
            age: self.last_end.map(|end| end.elapsed()),
            lag: self.lag(),
        }
    }

    fn late_after(&self) -> Duration {
        (self.interval * LATE_AFTER_INTERVALS).min(LATE_AFTER_MAX)
    }

    fn answer(&self) -> DutyInfo {
        DutyInfo {
            duty: self.duty.to_owned(),
            every_ms: millis(self.interval),
            last_run: self.last_run.map(instant),
            duration_ms: millis(self.duration),
            count: self.count,
            total: self.total,
            lag_ms: millis(self.lag()),
            error: self.error.clone(),
            note: self.note.clone(),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
