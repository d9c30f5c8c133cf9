//! A store in memory: for tests, for trying things out, and as the yardstick of the others.
//!
//! It forgets everything when the process ends, tokens included, so its safety class is "best
//! effort".

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use tenure_core::history::SealedEntry;
use tenure_core::verify::ChainCheckpoint;
use tenure_core::world::LogChunk;
use tenure_core::{
    Command, Incarnation, Job, JobId, JobState, Kinds, Millis, Outcome, ResourceKey, SessionId,
    TenureView, Text,
};
use tokio::sync::broadcast;

use crate::census::{Census, group_of};
use crate::clock::{Clock, ServerClock};
use crate::keys::{KeyRing, MemoryKeys};
use crate::ledger::{Batch, Ledger};
use crate::observer::{Observer, Observers};
use crate::store::{
    HINTS_MAX, Hint, HistoryQuery, JobPage, JobQuery, JobShown, Line, ListQuery, LogLine, LogQuery,
    Page, Pruned, Reads, ResourceQuery, ResourceShown, Result, Retention, SafetyClass, Shown,
    Status, Store, Swept, WorkerShown,
};
use crate::view;

/// The store `memory:`.
pub struct Memory {
    rows: Mutex<Rows>,
    clock: Box<dyn Clock>,
    hints: broadcast::Sender<Hint>,
    keys: MemoryKeys,
    observers: Observers,
}

#[derive(Default)]
struct Rows {
    ledger: Ledger,
    /// History by position, counted from 1 so that "after 0" is all.
    lines: BTreeMap<u64, (ResourceKey, SealedEntry)>,
    position: u64,
    /// The positions of each resource's lines.
    lines_of: BTreeMap<ResourceKey, VecDeque<u64>>,
    /// What stands in place of pruned history.
    bases: BTreeMap<ResourceKey, ChainCheckpoint>,
    /// Jobs that are over.
    past: BTreeMap<JobId, JobShown>,
    logs: BTreeMap<JobId, Vec<LogLine>>,
    log_position: u64,
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
        let (rows, clock) = (Mutex::new(rows), Box::new(clock));
        let (keys, observers) = (MemoryKeys::default(), Observers::default());
        Self { rows, clock, hints, keys, observers }
    }

    /// Gives every session its full time to live, as a durable store does when it restarts.
    pub fn grace(&self) {
        self.rows().ledger.grace(self.clock.now());
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().expect("no step panics halfway: rules are total")
    }

    fn publish(&self, rows: &mut Rows, batch: Batch) {
        rows.keep(&batch);
        self.observers.tell(&batch.facts);
        for hint in batch.into_hints() {
            // Nobody listening is fine: a hint is a hint.
            self.hints.send(hint).ok();
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
        for id in commands.iter().filter_map(Command::job) {
            if !rows.ledger.has_job(id)
                && let Some(JobShown { key, job }) = rows.past.get(&id).cloned()
            {
                rows.ledger.recall(key, job);
            }
        }
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

    async fn prune(&self, keep: Retention) -> Result<Pruned> {
        let now = self.clock.now();
        let mut rows = self.rows();
        let jobs = rows.prune_jobs(keep, now);
        Ok(Pruned { jobs, lines: rows.prune_lines(keep, now) })
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        let mut rows = self.rows();
        let ready = rows.ledger.declare(kinds, self.clock.now());
        self.publish(&mut rows, Batch { ready, ..Batch::default() });
        Ok(())
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.observers.add(observer);
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
            wakeups: None,
        })
    }

    fn reads(&self) -> &dyn Reads {
        self
    }

    fn key_ring(&self) -> &dyn KeyRing {
        &self.keys
    }
}

#[async_trait]
impl Reads for Memory {
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

    async fn bases(
        &self,
        after: Option<ResourceKey>,
        limit: usize,
    ) -> Result<Vec<(ResourceKey, ChainCheckpoint)>> {
        let rows = self.rows();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let bases = rows.bases.range((from, Bound::Unbounded)).take(limit);
        Ok(bases.map(|(key, replay)| (key.clone(), replay.clone())).collect())
    }

    async fn job(&self, id: JobId) -> Result<Option<JobShown>> {
        let rows = self.rows();
        Ok(rows.ledger.job(id).or_else(|| rows.past.get(&id).cloned()))
    }

    async fn jobs(&self, query: JobQuery) -> Result<JobPage> {
        Ok(self.rows().jobs(&query))
    }

    async fn resources(&self, query: ResourceQuery) -> Result<Page<ResourceShown>> {
        Ok(self.rows().resources(&query))
    }

    async fn logs(&self, query: LogQuery) -> Result<Vec<LogLine>> {
        let rows = self.rows();
        let lines = rows.logs.get(&query.job).map_or(&[][..], Vec::as_slice);
        let after = lines.iter().filter(|line| line.position > query.after);
        Ok(after.take(query.limit).cloned().collect())
    }

    async fn session(&self, id: SessionId) -> Result<Option<Text>> {
        Ok(self.rows().ledger.tenant_of(id))
    }

    async fn workers(&self) -> Result<Vec<WorkerShown>> {
        Ok(self.rows().ledger.workers(self.clock.now()))
    }

    async fn census(&self) -> Result<Census> {
        let rows = self.rows();
        let now = self.clock.now();
        let (mut census, mut next) = rows.ledger.census(None, now);
        while let Some(after) = next {
            let (part, further) = rows.ledger.census(Some(&after), now);
            census.merge(part);
            next = further;
        }
        for JobShown { key, job } in rows.past.values() {
            if job.state == JobState::Dead {
                census.add_dead(group_of(key), 1, job.ended_at.unwrap_or_default());
            }
        }
        Ok(census)
    }
}

impl Rows {
    fn keep(&mut self, batch: &Batch) {
        for (key, sealed) in &batch.history {
            self.position += 1;
            self.lines_of.entry(key.clone()).or_default().push_back(self.position);
            self.lines.insert(self.position, (key.clone(), sealed.clone()));
        }
        for (key, job) in &batch.finished {
            self.past.insert(job.id, JobShown { key: key.clone(), job: job.clone() });
        }
        for LogChunk { job, attempt, at, text } in &batch.logs {
            self.log_position += 1;
            let (position, attempt, at, text) = (self.log_position, *attempt, *at, text.clone());
            self.logs.entry(*job).or_default().push(LogLine { position, attempt, at, text });
        }
    }

    fn history(&self, query: &HistoryQuery) -> Vec<Line> {
        let earlier = |at: &u64, before: Option<u64>| before.is_none_or(|before| *at < before);
        match query {
            HistoryQuery::Of { key, before, limit } => {
                let places = self.lines_of.get(key).into_iter().flatten();
                let newest = places.rev().filter(|at| earlier(at, *before));
                newest.take(*limit).map(|at| self.line(*at)).collect()
            }
            HistoryQuery::Newest { tenant, before, limit } => {
                let of = |key: &ResourceKey| tenant.as_ref().is_none_or(|t| **t == *key.tenant());
                let newest = self.lines.iter().rev().filter(|(at, _)| earlier(at, *before));
                let newest = newest.filter(|(_, (key, _))| of(key));
                newest.take(*limit).map(|(at, _)| self.line(*at)).collect()
            }
            HistoryQuery::Scan { after, limit } => {
                let lines = self.lines.range((Bound::Excluded(*after), Bound::Unbounded));
                lines.take(*limit).map(|(at, _)| self.line(*at)).collect()
            }
        }
    }

    fn line(&self, position: u64) -> Line {
        let (key, sealed) = &self.lines[&position];
        Line { position, key: key.clone(), text: sealed.line.clone(), hash: sealed.hash }
    }

    fn jobs(&self, query: &JobQuery) -> JobPage {
        let live = self.ledger.jobs(query);
        if let Some(key) = query.resource() {
            let last = self.ledger.resource(&key).and_then(|shown| shown.resource.last_job);
            let find = |id| Ok::<_, Infallible>(self.past.get(&id).cloned());
            let Ok(page) = view::walk(live, last, query, find);
            return page;
        }
        let below = query.after.map_or(Bound::Unbounded, Bound::Excluded);
        let newest = self.past.range((Bound::Unbounded, below)).rev().map(|(_, shown)| shown);
        let past = newest.filter(|shown| query.wants(&shown.key, &shown.job));
        view::page(live, past.take(query.limit + 1).cloned().collect(), query.limit)
    }

    fn resources(&self, query: &ResourceQuery) -> Page<ResourceShown> {
        let from = query.after.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let keys = self.lines_of.range((from, Bound::Unbounded)).map(|(key, _)| key);
        let shown = keys.filter_map(|key| self.ledger.resource(key));
        let wanted = shown.filter(|shown| query.wants(&shown.key, &shown.resource));
        let mut items: Vec<_> = wanted.take(query.limit + 1).collect();
        let more = items.len() > query.limit;
        items.truncate(query.limit);
        let next = items.last().filter(|_| more).map(|shown| shown.key.clone());
        Page { items, next }
    }

    fn prune_jobs(&mut self, keep: Retention, now: Millis) -> usize {
        let old = |job: &Job| {
            let dead = job.state == JobState::Dead;
            let keep_ms = if dead { keep.dead_ms } else { keep.jobs_ms };
            job.ended_at.is_some_and(|at| now.since(at) > keep_ms)
        };
        let gone = self.past.iter().filter(|(_, shown)| old(&shown.job));
        let gone: Vec<JobId> = gone.map(|(id, _)| *id).take(keep.rows_max).collect();
        for id in &gone {
            self.past.remove(id);
            self.logs.remove(id);
        }
        gone.len()
    }

    fn prune_lines(&mut self, keep: Retention, now: Millis) -> usize {
        let mut gone = 0;
        while gone < keep.rows_max
            && let Some(first) = self.lines.first_entry()
            && now.since(first.get().1.at) > keep.history_ms
        {
            let (key, sealed) = first.remove();
            let base = self.bases.entry(key.clone()).or_insert_with(|| ChainCheckpoint::new(&key));
            base.fold(&sealed.line, sealed.hash).expect("a line that was sealed reads back");
            if let Some(places) = self.lines_of.get_mut(&key) {
                places.pop_front();
            }
            gone += 1;
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::{Claim, RequestId, ResourceAction, SessionId, Submit};

    use super::*;
    use crate::clock::ManualClock;
    use crate::scenario;

    #[tokio::test]
    async fn a_tenure_counts_that_ends_where_something_comes_due() {
        let clock = ManualClock::default();
        let store = Memory::with_clock(clock.clone());
        store.declare(scenario::kinds()).await.expect("it is there");
        let submit = |request, run_at| {
            let (request, operation) = (RequestId(request), "work".into());
            let by = "ann".into();
            let ask = Submit { request, operation, args: None, priority: 0, run_at, by };
            let key = "t/task/r".parse().expect("a good name");
            Command::Resource { key, action: ResourceAction::Submit(ask) }
        };
        let (session, tenant, name) = (SessionId(1), "t".into(), "W".into());
        let claim = Claim { session, request: RequestId(3), kinds: vec!["task".into()], max: 1 };
        let commands = vec![
            Command::Open { session, tenant, name, ttl_ms: 1_000 },
            submit(1, None),
            Command::Claim(claim),
            submit(2, Some(Millis(900))),
        ];
        let outcomes = store.apply(commands).await.expect("it is there");
        assert!(matches!(&outcomes[2], Outcome::Claimed(jobs) if jobs.len() == 1), "{outcomes:?}");
        clock.advance(1_500);
        let swept = store.sweep().await.expect("it is there");
        assert_eq!(swept, Swept { sessions: 1, tenures: 1, due: 1 });
    }
}
