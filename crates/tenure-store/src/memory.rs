//! In-memory store, for tests and experiments, and the reference for the other stores.
//!
//! All state, including tokens, is lost when the process exits, so its safety class is "best
//! effort".

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use tenure_core::history::SealedEntry;
use tenure_core::ready::GroupCounts;
use tenure_core::verify::ChainCheckpoint;
use tenure_core::world::LogChunk;
use tenure_core::{
    Command, Incarnation, Job, JobId, JobState, Kinds, Millis, Outcome, ResourceKey, TenureView,
    Text,
};
use tokio::sync::broadcast;

use crate::census::{Census, group_of};
use crate::clock::{Clock, ServerClock};
use crate::forget;
use crate::keys::{KeyRing, MemoryKeys};
use crate::ledger::{Batch, Ledger};
use crate::observer::{Observer, Observers};
use crate::store::{
    HINTS_MAX, Hint, HistoryQuery, HistoryRow, JobPage, JobQuery, JobView, LogLine, LogQuery, Page,
    Pruned, Reads, ResourceDetail, ResourceQuery, ResourceView, Result, Retention, SafetyClass,
    Status, Store, Swept, TenureQuery, WorkerView, key_range, matches_filter,
};
use crate::view;

/// Store `memory:`.
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
    /// History by position, starting at 1 so that "after 0" selects everything.
    lines: BTreeMap<u64, (ResourceKey, SealedEntry)>,
    position: u64,
    /// Positions of the lines of each resource.
    positions: BTreeMap<ResourceKey, VecDeque<u64>>,
    /// Checkpoints of pruned history.
    checkpoints: BTreeMap<ResourceKey, ChainCheckpoint>,
    /// Finished jobs.
    finished: BTreeMap<JobId, JobView>,
    logs: BTreeMap<JobId, Vec<LogLine>>,
    log_position: u64,
}

impl Memory {
    /// Creates an empty store with the clock of the machine.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(ServerClock::starting_after(Millis::default()))
    }

    /// Creates an empty store with a custom clock.
    pub fn with_clock(clock: impl Clock) -> Self {
        let ledger = Ledger::load(Incarnation::default(), [], clock.now());
        let rows = Rows { ledger, ..Rows::default() };
        let (hints, _) = broadcast::channel(HINTS_MAX);
        let (rows, clock) = (Mutex::new(rows), Box::new(clock));
        let (keys, observers) = (MemoryKeys::default(), Observers::default());
        Self { rows, clock, hints, keys, observers }
    }

    /// Renews every session, as a durable store does when it restarts.
    pub fn grant_grace(&self) {
        self.rows().ledger.grant_grace(self.clock.now());
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().expect("no step panics: the rules are total")
    }

    fn publish(&self, rows: &mut Rows, batch: Batch) {
        rows.append(&batch);
        self.observers.notify(&batch.facts);
        for hint in batch.into_hints() {
            // There may be no receivers.
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
            if !rows.ledger.has_live_job(id)
                && let Some(JobView { key, job }) = rows.finished.get(&id).cloned()
            {
                rows.ledger.insert_finished_job(key, job);
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

    async fn prune(&self, retention: Retention) -> Result<Pruned> {
        let now = self.clock.now();
        let mut rows = self.rows();
        let jobs = rows.prune_jobs(retention, now);
        let lines = rows.prune_lines(retention, now);
        let commands = rows.forgettable(retention.rows_max, now);
        let (outcomes, batch) = rows.ledger.apply(&commands, now);
        self.publish(&mut rows, batch);
        Ok(Pruned { jobs, lines, resources: forget::count(&outcomes) })
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
            live: rows.ledger.live_count(),
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
    async fn tenures(&self, query: TenureQuery) -> Result<Page<TenureView>> {
        Ok(self.rows().ledger.tenures(&query, self.clock.now()))
    }

    async fn show(&self, key: &ResourceKey) -> Result<Option<ResourceDetail>> {
        Ok(self.rows().ledger.show(key, self.clock.now()))
    }

    async fn keys(&self, after: Option<ResourceKey>, limit: usize) -> Result<Vec<ResourceKey>> {
        let rows = self.rows();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = rows.positions.range((from, Bound::Unbounded)).take(limit);
        Ok(keys.map(|(key, _)| key.clone()).collect())
    }

    async fn history(&self, query: HistoryQuery) -> Result<Vec<HistoryRow>> {
        Ok(self.rows().history(&query))
    }

    async fn checkpoints(
        &self,
        after: Option<ResourceKey>,
        limit: usize,
    ) -> Result<Vec<(ResourceKey, ChainCheckpoint)>> {
        let rows = self.rows();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let checkpoints = rows.checkpoints.range((from, Bound::Unbounded)).take(limit);
        Ok(checkpoints.map(|(key, replay)| (key.clone(), replay.clone())).collect())
    }

    async fn checkpoint(&self, key: &ResourceKey) -> Result<Option<ChainCheckpoint>> {
        Ok(self.rows().checkpoints.get(key).cloned())
    }

    async fn job(&self, id: JobId) -> Result<Option<JobView>> {
        let rows = self.rows();
        Ok(rows.ledger.job(id).or_else(|| rows.finished.get(&id).cloned()))
    }

    async fn jobs(&self, query: JobQuery) -> Result<JobPage> {
        Ok(self.rows().jobs(&query))
    }

    async fn resources(&self, query: ResourceQuery) -> Result<Page<ResourceView>> {
        Ok(self.rows().resources(&query))
    }

    async fn group(&self, tenant: Text, kind: Text, group: Text) -> Result<GroupCounts> {
        Ok(self.rows().ledger.group(&tenant, &kind, &group))
    }

    async fn logs(&self, query: LogQuery) -> Result<Vec<LogLine>> {
        let rows = self.rows();
        let lines = rows.logs.get(&query.job).map_or(&[][..], Vec::as_slice);
        let after = lines.iter().filter(|line| line.position > query.after);
        Ok(after.take(query.limit).cloned().collect())
    }

    async fn workers(&self) -> Result<Vec<WorkerView>> {
        Ok(self.rows().ledger.workers(self.clock.now()))
    }

    async fn census(&self) -> Result<Census> {
        let rows = self.rows();
        let now = self.clock.now();
        let (mut census, mut next) = rows.ledger.census(None, now);
        while let Some(after) = next {
            let (page, following) = rows.ledger.census(Some(&after), now);
            census.merge(page);
            next = following;
        }
        for JobView { key, job } in rows.finished.values() {
            if job.state == JobState::Dead {
                census.add_dead(group_of(key), 1, job.ended_at.unwrap_or_default());
            }
        }
        Ok(census)
    }
}

impl Rows {
    fn append(&mut self, batch: &Batch) {
        for (key, _) in &batch.forgotten {
            self.checkpoints.remove(key);
            for position in self.positions.remove(key).into_iter().flatten() {
                self.lines.remove(&position);
            }
        }
        for (key, sealed) in &batch.history {
            self.position += 1;
            self.positions.entry(key.clone()).or_default().push_back(self.position);
            self.lines.insert(self.position, (key.clone(), sealed.clone()));
        }
        for key in &batch.records {
            self.positions.entry(key.clone()).or_default();
        }
        for (key, job) in &batch.finished {
            self.finished.insert(job.id, JobView { key: key.clone(), job: job.clone() });
        }
        for LogChunk { job, attempt, at, text } in &batch.logs {
            self.log_position += 1;
            let (position, attempt, at, text) = (self.log_position, *attempt, *at, text.clone());
            self.logs.entry(*job).or_default().push(LogLine { position, attempt, at, text });
        }
    }

    fn history(&self, query: &HistoryQuery) -> Vec<HistoryRow> {
        let is_before = |at: &u64, before: Option<u64>| before.is_none_or(|before| *at < before);
        match query {
            HistoryQuery::Of { key, before, limit } => {
                let positions = self.positions.get(key).into_iter().flatten();
                let newest = positions.rev().filter(|at| is_before(at, *before));
                newest.take(*limit).map(|at| self.history_row(*at)).collect()
            }
            HistoryQuery::Newest { tenant, before, limit } => {
                let newest = self.lines.iter().rev().filter(|(at, _)| is_before(at, *before));
                let newest = newest.filter(|(_, (key, _))| matches_filter(tenant, key.tenant()));
                newest.take(*limit).map(|(at, _)| self.history_row(*at)).collect()
            }
            HistoryQuery::Scan { after, limit } => {
                let lines = self.lines.range((Bound::Excluded(*after), Bound::Unbounded));
                lines.take(*limit).map(|(at, _)| self.history_row(*at)).collect()
            }
        }
    }

    fn history_row(&self, position: u64) -> HistoryRow {
        let (key, sealed) = &self.lines[&position];
        HistoryRow { position, key: key.clone(), text: sealed.line.clone(), hash: sealed.hash }
    }

    fn jobs(&self, query: &JobQuery) -> JobPage {
        let live = self.ledger.jobs(query);
        if let Some(key) = query.resource() {
            let last = self.ledger.resource(&key).and_then(|view| view.resource.last_job);
            let find = |id| Ok::<_, Infallible>(self.finished.get(&id).cloned());
            let Ok(page) = view::page_of_resource(live, last, query, find);
            return page;
        }
        let below = query.after.map_or(Bound::Unbounded, Bound::Excluded);
        let newest = self.finished.range((Bound::Unbounded, below)).rev().map(|(_, view)| view);
        let finished = newest.filter(|view| query.matches(&view.key, &view.job));
        view::merge_jobs(live, finished.take(query.limit + 1).cloned().collect(), query.limit)
    }

    fn resources(&self, query: &ResourceQuery) -> Page<ResourceView> {
        let (first, end) =
            key_range(query.tenant.as_ref(), query.kind.as_ref(), query.group.as_ref());
        let from = match &query.after {
            Some(after) if after.as_str() >= &*first => Bound::Excluded(after.as_str()),
            _ => Bound::Included(&*first),
        };
        let keys = self.positions.range::<str, _>((from, Bound::Unbounded)).map(|(key, _)| key);
        let keys = keys.take_while(|key| key.as_str() < &*end);
        let views = keys.filter_map(|key| self.ledger.resource(key));
        let matching = views.filter(|view| query.matches(&view.key, &view.resource));
        let mut items: Vec<_> = matching.take(query.limit + 1).collect();
        let more = items.len() > query.limit;
        items.truncate(query.limit);
        let next = items.last().filter(|_| more).map(|view| view.key.clone());
        Page { items, next }
    }

    /// Returns the commands that forget what is left of resources that do not exist any more.
    fn forgettable(&self, max: usize, now: Millis) -> Vec<Command> {
        let world = self.ledger.world();
        let is_idle = |record: &tenure_core::Record| record.resource.is_none() && !record.is_live();
        let idle = world.records.iter().filter(|(_, record)| is_idle(record));
        let may_forget = |key: &ResourceKey| {
            let last = self.positions.get(key).and_then(VecDeque::back);
            let last_at = last.and_then(|at| self.lines.get(at)).map(|(_, sealed)| sealed.at);
            forget::may_forget(&world.kinds, key, last_at, now)
        };
        let mut idle: Vec<_> = idle.filter(|(key, _)| may_forget(key)).collect();
        idle.sort_unstable_by_key(|(key, _)| *key);
        idle.into_iter()
            .take(max)
            .map(|(key, record)| forget::command(key, record.chain.n))
            .collect()
    }

    fn prune_jobs(&mut self, retention: Retention, now: Millis) -> usize {
        let kinds = &self.ledger.world().kinds;
        let is_expired = |key: &ResourceKey, job: &Job| {
            let dead = job.state == JobState::Dead;
            let keep_ms = if dead { retention.dead_ms } else { retention.jobs_ms };
            let keep_ms = kinds.ephemeral_ms(key).unwrap_or(keep_ms).min(keep_ms);
            job.ended_at.is_some_and(|at| now.since(at) > keep_ms)
        };
        let expired = self.finished.iter().filter(|(_, view)| is_expired(&view.key, &view.job));
        let expired: Vec<JobId> = expired.map(|(id, _)| *id).take(retention.rows_max).collect();
        for id in &expired {
            self.finished.remove(id);
            self.logs.remove(id);
        }
        expired.len()
    }

    fn prune_lines(&mut self, retention: Retention, now: Millis) -> usize {
        let mut pruned = 0;
        while pruned < retention.rows_max
            && let Some(first) = self.lines.first_entry()
            && now.since(first.get().1.at) > retention.history_ms
        {
            let (key, sealed) = first.remove();
            let checkpoint =
                self.checkpoints.entry(key.clone()).or_insert_with(|| ChainCheckpoint::new(&key));
            checkpoint.fold(&sealed.line, sealed.hash).expect("a sealed line can be parsed");
            if let Some(positions) = self.positions.get_mut(&key) {
                positions.pop_front();
            }
            pruned += 1;
        }
        pruned
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::{Claim, RequestId, ResourceAction, SessionId, Submit};

    use super::*;
    use crate::clock::ManualClock;
    use crate::scenario;

    #[tokio::test]
    async fn a_sweep_counts_a_tenure_that_ends_on_a_due_resource() {
        let clock = ManualClock::default();
        let store = Memory::with_clock(clock.clone());
        store.declare(scenario::kinds()).await.expect("memory is available");
        let submit = |request, run_at| {
            let (request, operation) = (RequestId(request), "work".into());
            let by = "ann".into();
            let submit = Submit {
                request,
                operation,
                args: None,
                priority: 0,
                run_at,
                by,
                precondition: None,
            };
            let key = "t/task/r".parse().expect("a valid key");
            Command::Resource { key, action: ResourceAction::Submit(submit) }
        };
        let (session, tenant, name) = (SessionId(1), "t".into(), "W".into());
        let claim = Claim {
            session,
            request: RequestId(3),
            kinds: vec!["task".into()],
            max: 1,
            tenant: None,
            only: None,
        };
        let commands = vec![
            Command::Open { session, tenant, name, ttl_ms: 1_000 },
            submit(1, None),
            Command::Claim(claim),
            submit(2, Some(Millis(900))),
        ];
        let outcomes = store.apply(commands).await.expect("memory is available");
        assert!(matches!(&outcomes[2], Outcome::Claimed(jobs) if jobs.len() == 1), "{outcomes:?}");
        clock.advance(1_500);
        let swept = store.sweep().await.expect("memory is available");
        assert_eq!(swept, Swept { sessions: 1, tenures: 1, due: 1 });
    }
}
