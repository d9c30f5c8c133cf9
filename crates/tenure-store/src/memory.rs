//! A store in memory: for tests, for trying things out, and as the yardstick of the others.
//!
//! It forgets everything when the process ends, tokens included, so its safety class is "best
//! effort".

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use tenure_core::history::Sealed;
use tenure_core::{Command, Incarnation, Millis, Outcome, ResourceKey, TenureView};
use tokio::sync::broadcast;

use crate::clock::{Clock, ServerClock};
use crate::ledger::{Batch, Ledger};
use crate::store::{
    HINTS_MAX, Hint, HistoryQuery, Line, ListQuery, Page, Result, SafetyClass, Shown, Status,
    Store, Swept,
};

/// The store `memory:`.
pub struct Memory {
    rows: Mutex<Rows>,
    clock: Box<dyn Clock>,
    hints: broadcast::Sender<Hint>,
}

#[derive(Default)]
struct Rows {
    ledger: Ledger,
    lines: Vec<(ResourceKey, Sealed)>,
    /// The positions of each resource's lines.
    lines_of: BTreeMap<ResourceKey, Vec<usize>>,
}

impl Memory {
    /// An empty store on the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(ServerClock::starting_after(Millis::default()))
    }

    /// An empty store on a clock of your choice.
    pub fn with_clock(clock: impl Clock) -> Self {
        let ledger = Ledger::load(Incarnation::default(), [], clock.now());
        let rows = Rows { ledger, ..Rows::default() };
        let (hints, _) = broadcast::channel(HINTS_MAX);
        Self { rows: Mutex::new(rows), clock: Box::new(clock), hints }
    }

    /// Gives every session its full time to live, as a durable store does when it restarts.
    pub fn grace(&self) {
        self.rows().ledger.grace(self.clock.now());
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().expect("no step panics halfway: rules are total")
    }

    fn publish(&self, rows: &mut Rows, batch: Batch) {
        for (key, sealed) in batch.history {
            let at = rows.lines.len();
            rows.lines_of.entry(key.clone()).or_default().push(at);
            rows.lines.push((key, sealed));
        }
        for tenure in batch.granted {
            // Nobody listening is fine: a hint is a hint.
            self.hints.send(Hint(Arc::new(tenure))).ok();
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Store for Memory {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        let mut rows = self.rows();
        let (outcomes, batch) = rows.ledger.apply(&commands, self.clock.now());
        self.publish(&mut rows, batch);
        Ok(outcomes)
    }

    async fn sweep(&self) -> Result<Swept> {
        let mut rows = self.rows();
        let (swept, batch) = rows.ledger.sweep(self.clock.now());
        self.publish(&mut rows, batch);
        Ok(swept)
    }

    async fn list(&self, query: ListQuery) -> Result<Page<TenureView>> {
        Ok(self.rows().ledger.list(&query, self.clock.now()))
    }

    async fn show(&self, key: &ResourceKey) -> Result<Option<Shown>> {
        Ok(self.rows().ledger.show(key, self.clock.now()))
    }

    async fn keys(&self, after: Option<ResourceKey>, limit: usize) -> Result<Vec<ResourceKey>> {
        let rows = self.rows();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = rows.lines_of.range((from, Bound::Unbounded)).take(limit);
        Ok(keys.map(|(key, _)| key.clone()).collect())
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<Line>> {
        Ok(self.rows().history(&query))
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    async fn status(&self) -> Result<Status> {
        let rows = self.rows();
        Ok(Status {
            store: "memory",
            safety: SafetyClass::BestEffort,
            incarnation: rows.ledger.world().incarnation,
            now: self.clock.now(),
            sessions: rows.ledger.world().sessions.len(),
            live: rows.ledger.live(),
        })
    }
}

impl Rows {
    fn history(&self, query: &HistoryQuery) -> Vec<Line> {
        let earlier = |at: usize, before: Option<u64>| before.is_none_or(|b| position(at) < b);
        match query {
            HistoryQuery::Of { key, before, limit } => {
                let places = self.lines_of.get(key).map_or(&[][..], Vec::as_slice);
                let newest = places.iter().rev().copied().filter(|at| earlier(*at, *before));
                newest.take(*limit).map(|at| self.line(at)).collect()
            }
            HistoryQuery::Newest { tenant, before, limit } => {
                let of = |key: &ResourceKey| tenant.as_ref().is_none_or(|t| **t == *key.tenant());
                let newest = (0..self.lines.len()).rev().filter(|at| earlier(*at, *before));
                let newest = newest.filter(|at| of(&self.lines[*at].0));
                newest.take(*limit).map(|at| self.line(at)).collect()
            }
            HistoryQuery::Scan { after, limit } => {
                let from = usize::try_from(*after).unwrap_or(usize::MAX);
                (from..self.lines.len()).take(*limit).map(|at| self.line(at)).collect()
            }
        }
    }

    fn line(&self, at: usize) -> Line {
        let (key, sealed) = &self.lines[at];
        Line {
            position: position(at),
            key: key.clone(),
            text: sealed.line.clone(),
            hash: sealed.hash,
        }
    }
}

/// Positions count from 1, so that "after 0" is all.
fn position(at: usize) -> u64 {
    at as u64 + 1
}
