//! What is seen of the janitor: for each duty when it ran, how long it took, what it came to, and
//! how late it is.
//!
//! It is written by the janitor's thread and read by handlers; nobody waits for anybody here.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tenure_core::Millis;
use tenure_store::StoreError;
use tenure_store::clock::stopwatch;
use tenure_wire::{DutyAnswer, instant};

use tenure_app::{Duty, DutyReport};
use tenure_store::committer::SWEEP_INTERVAL;

use super::{expiry, retries};

/// A duty is late when it is behind by so many of its periods.
const LATE_PERIODS: u32 = 5;
/// A duty is late when it is behind by so long, however rare it is.
const LATE_MAX: Duration = Duration::from_secs(60);

/// What is seen of the janitor.
pub struct Board(Mutex<State>);

struct State {
    here: bool,
    rows: Vec<Row>,
}

/// One duty.
struct Row {
    duty: &'static str,
    every: Duration,
    /// Since when it is expected to run on this server, or when it last began.
    expected: Option<Instant>,
    last_run: Option<Millis>,
    /// When it last ended.
    ended: Option<Instant>,
    runs: u64,
    errors: u64,
    duration: Duration,
    count: u64,
    total: u64,
    error: Option<String>,
    note: Option<String>,
}

/// What a duty has come to on this server.
pub struct Tally {
    /// The duty.
    pub duty: &'static str,
    /// Runs that ended.
    pub runs: u64,
    /// Those of them that failed.
    pub errors: u64,
    /// Things that it has dealt with or found for the first time.
    pub items: u64,
    /// Things that its last run found.
    pub found: u64,
    /// How long its last run took.
    pub took: Duration,
    /// How long ago its last run ended.
    pub ago: Option<Duration>,
    /// How late it is.
    pub lag: Duration,
}

/// A run that is under way.
pub(super) struct Begun {
    duty: &'static str,
    at: Instant,
}

impl Board {
    /// Creates the board for expiry, retries and these duties; nothing has run yet.
    #[must_use]
    pub fn new(duties: &[Box<dyn Duty>]) -> Self {
        let own = [expiry::NAME, retries::NAME].map(|name| Row::new(name, SWEEP_INTERVAL));
        let held = duties.iter().map(|duty| Row::new(duty.name(), duty.interval()));
        Self(Mutex::new(State { here: false, rows: own.into_iter().chain(held).collect() }))
    }

    /// Whether this server holds the janitor's lock.
    #[must_use]
    pub fn here(&self) -> bool {
        self.state().here
    }

    /// All duties, as the API shows them.
    #[must_use]
    pub fn duties(&self) -> Vec<DutyAnswer> {
        self.state().rows.iter().map(Row::answer).collect()
    }

    /// All duties, for those who count.
    #[must_use]
    pub fn tallies(&self) -> Vec<Tally> {
        self.state().rows.iter().map(Row::tally).collect()
    }

    /// What a person should look at.
    #[must_use]
    pub fn late(&self) -> Vec<String> {
        let state = self.state();
        let late = state.rows.iter().filter(|row| row.lag() > row.late_after());
        late.map(|row| {
            let (duty, lag) = (row.duty, row.lag());
            let why = row.error.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            format!("the janitor's duty {duty} is {lag:.1?} late{why}")
        })
        .collect()
    }

    /// From now on these duties are expected to run on this server.
    pub(super) fn begin_to_count(&self, duties: &[&str]) {
        let now = stopwatch();
        for row in self.state().rows.iter_mut().filter(|row| duties.contains(&row.duty)) {
            row.expected = Some(now);
        }
    }

    /// This server holds the lock until the answer is dropped.
    pub(super) fn work_here<'a>(&'a self, duties: &'a [&'static str]) -> Here<'a> {
        self.state().here = true;
        self.begin_to_count(duties);
        Here { board: self, duties }
    }

    pub(super) fn begin(&self, duty: &'static str, now: Option<Millis>) -> Begun {
        let at = stopwatch();
        if let Some(row) = self.state().rows.iter_mut().find(|row| row.duty == duty) {
            row.expected = Some(at);
            row.last_run = now.or(row.last_run);
        }
        Begun { duty, at }
    }

    pub(super) fn end(&self, begun: &Begun, result: Result<DutyReport, StoreError>) {
        let mut state = self.state();
        let row = state.rows.iter_mut().find(|row| row.duty == begun.duty);
        let Some(row) = row else { return };
        row.duration = begun.at.elapsed();
        row.ended = Some(stopwatch());
        row.runs += 1;
        row.errors += u64::from(result.is_err());
        match result {
            Ok(found) => {
                row.count = found.count as u64;
                row.total += found.new as u64;
                row.note = found.note;
                if row.error.take().is_some() {
                    tracing::info!(duty = row.duty, "the janitor's duty succeeds again");
                }
            }
            Err(error) => {
                // A store that is away fails ten times a second: said once is enough.
                if row.error.replace(error.to_string()).is_none() {
                    tracing::warn!(duty = row.duty, %error, "the janitor's duty failed");
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while it is locked")
    }
}

/// This server holds the janitor's lock.
pub(super) struct Here<'a> {
    board: &'a Board,
    duties: &'a [&'static str],
}

impl Drop for Here<'_> {
    fn drop(&mut self) {
        let mut state = self.board.state();
        state.here = false;
        for row in state.rows.iter_mut().filter(|row| self.duties.contains(&row.duty)) {
            row.expected = None;
        }
    }
}

impl Row {
    fn new(duty: &'static str, every: Duration) -> Self {
        Self {
            duty,
            every,
            expected: None,
            last_run: None,
            ended: None,
            runs: 0,
            errors: 0,
            duration: Duration::ZERO,
            count: 0,
            total: 0,
            error: None,
            note: None,
        }
    }

    /// How long it is overdue. What another server does is not late here.
    fn lag(&self) -> Duration {
        let since = self.expected.map_or(Duration::ZERO, |expected| expected.elapsed());
        since.saturating_sub(self.every)
    }

    fn tally(&self) -> Tally {
        Tally {
            duty: self.duty,
            runs: self.runs,
            errors: self.errors,
            items: self.total,
            found: self.count,
            took: self.duration,
            ago: self.ended.map(|ended| ended.elapsed()),
            lag: self.lag(),
        }
    }

    fn late_after(&self) -> Duration {
        (self.every * LATE_PERIODS).min(LATE_MAX)
    }

    fn answer(&self) -> DutyAnswer {
        DutyAnswer {
            duty: self.duty.to_owned(),
            every_ms: millis(self.every),
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
