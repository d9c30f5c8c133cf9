//! A memory store and a durable store that receive the same commands and are compared.

use std::sync::Arc;

use tenure_core::{
    Command, Job, JobId, JobState, Kinds, Millis, Outcome, Record, ResourceKey, SessionId, Text,
    Token,
};
use tenure_store::clock::{Clock, ManualClock};
use tenure_store::scenario::kinds;
use tenure_store::store::{
    HistoryQuery, JobQuery, JobView, LogQuery, PAGE_MAX, Pruned, ResourceQuery, ResourceView,
    Retention,
};
use tenure_store::verify::verify;
use tenure_store::{Memory, Store};

use crate::backend::Backend;
use crate::jobs::Template;

/// Action on both stores.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Apply(Vec<Command>),
    ApplyTemplates(Vec<Template>),
    Advance(u64),
    Sweep,
    /// Clean shutdown and restart.
    Restart,
    /// Crash with the current content of the file, and restart.
    Crash,
    /// Prunes with these retention periods in milliseconds: jobs, dead letters, history.
    Prune(u64, u64, u64),
}

/// Memory store and durable stores on one backend.
pub(crate) struct Pair {
    memory: Memory,
    durable: Vec<Box<dyn Store>>,
    clock: ManualClock,
    backend: Backend,
    /// Number of calls, for alternating between stores that share a backend.
    calls: usize,
    pub(crate) kinds: Arc<Kinds>,
    pub(crate) restarts: u128,
    jobs: Vec<JobId>,
    attempts: Vec<(JobId, Token)>,
}

impl Pair {
    pub(crate) async fn new(backend: Backend) -> Self {
        let clock = ManualClock::default();
        let memory = Memory::with_clock(clock.clone());
        let mut pair = Self {
            memory,
            durable: Vec::new(),
            clock,
            backend,
            calls: 0,
            kinds: kinds(),
            restarts: 0,
            jobs: Vec::new(),
            attempts: Vec::new(),
        };
        pair.memory.declare(Arc::clone(&pair.kinds)).await.expect("memory");
        for _ in 0..pair.backend.store_count() {
            pair.open().await;
        }
        pair
    }

    async fn open(&mut self) {
        let durable = self.backend.open(&self.clock).await;
        let status = durable.status().await.expect("durable");
        assert_eq!(status.incarnation.0, 0, "nothing was restored");
        durable.declare(Arc::clone(&self.kinds)).await.expect("durable");
        self.durable.push(durable);
    }

    /// Reopens the state that a crash leaves.
    async fn crash(&mut self) {
        let image = self.backend.crash_image();
        drop(self.durable.remove(0));
        self.backend = image;
        self.open().await;
    }

    /// Returns the durable store for the current call.
    fn durable(&self) -> &dyn Store {
        &*self.durable[self.calls % self.durable.len()]
    }

    /// Returns whether several processes share the durable store.
    pub(crate) fn is_shared(&self) -> bool {
        self.backend.is_shared()
    }

    pub(crate) fn now(&self) -> Millis {
        self.clock.now()
    }

    /// Returns one of the latest jobs, or one that does not exist.
    pub(crate) fn job(&self, pick: usize) -> JobId {
        self.jobs.iter().rev().nth(pick).copied().unwrap_or(JobId(pick as u128))
    }

    /// Returns one of the latest attempts.
    pub(crate) fn attempt(&self, pick: usize) -> (JobId, Token) {
        self.attempts.iter().rev().nth(pick).copied().unwrap_or((self.job(pick), Token(1)))
    }

    pub(crate) async fn apply_action(&mut self, action: Action) {
        match action {
            Action::Apply(commands) => self.apply(commands).await,
            Action::ApplyTemplates(templates) => {
                let commands = templates.iter().map(|template| self.command(template));
                self.apply(commands.collect()).await;
            }
            Action::Advance(ms) => self.advance(ms).await,
            Action::Sweep => self.sweep().await,
            Action::Restart | Action::Crash => {
                self.restarts += 1;
                if !self.is_shared() {
                    // A restart renews every session of the durable store.
                    self.memory.grant_grace();
                }
                if matches!(action, Action::Crash) {
                    self.crash().await;
                } else {
                    drop(self.durable.remove(0));
                    self.open().await;
                }
                // A restart processes what is due at once, the memory store with the next sweep.
                self.sweep().await;
            }
            Action::Prune(jobs_ms, dead_ms, history_ms) => {
                // Large if calls are added up: no history is left to a resource that is forgotten.
                let rows_max = if self.is_shared() { PAGE_MAX } else { 50 };
                self.prune(Retention { jobs_ms, dead_ms, history_ms, rows_max }).await;
            }
        }
    }

    /// Advances the clock. Stores that share a backend learn of each other's activity only from
    /// writes, so write something: a stall must be seen by all stores or by none.
    async fn advance(&mut self, ms: u64) {
        if self.is_shared() {
            let (session, tenant) = (SessionId(u128::MAX), "nobody".into());
            let open = Command::Open { session, tenant, name: "nobody".into(), ttl_ms: 3_600_000 };
            self.apply(vec![open, Command::Heartbeat { session, seen: 0, tenant: None }]).await;
        }
        self.clock.advance(ms);
    }

    async fn apply(&mut self, commands: Vec<Command>) {
        self.calls += 1;
        let memory = self.memory.apply(commands.clone()).await.expect("memory");
        let durable = self.durable().apply(commands.clone()).await.expect("durable");
        for (index, outcome) in memory.iter().enumerate() {
            let (expected, actual) = (normalize(outcome), normalize(&durable[index]));
            assert_eq!(expected, actual, "reply to {:?}", commands[index]);
            self.record(outcome);
        }
    }

    fn record(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Submitted { job, .. } | Outcome::Put { job: Some(job), .. } => {
                self.jobs.push(*job);
            }
            Outcome::Claimed(jobs) => {
                self.attempts.extend(jobs.iter().map(|a| (a.job.id, a.tenure.token)));
            }
            _ => {}
        }
    }

    async fn sweep(&mut self) {
        self.calls += 1;
        let mut memory = self.memory.sweep().await.expect("memory");
        let mut durable = self.durable().sweep().await.expect("durable");
        if self.restarts > 0 || self.is_shared() {
            // A restart or another store may have processed what was due.
            (memory.due, durable.due) = (0, 0);
        }
        assert_eq!(memory, durable);
    }

    /// Prunes both stores, after idle sweeps: the embedded store prunes only lines whose records
    /// are written back.
    async fn prune(&mut self, retention: Retention) {
        for _ in 0..3 {
            self.sweep().await;
        }
        if self.is_shared() {
            // It examines a range of rows per call, in rotation, so its calls are added up. Jobs of
            // forgotten resources are not counted; what is left of them is compared at the end.
            let memory = prune_all(&self.memory, retention).await;
            let durable = prune_all(self.durable(), retention).await;
            assert_eq!((memory.lines, memory.resources), (durable.lines, durable.resources));
            return;
        }
        let memory: Pruned = self.memory.prune(retention).await.expect("memory");
        assert_eq!(memory, self.durable().prune(retention).await.expect("durable"));
    }

    /// Compares everything that can be read from both stores.
    pub(crate) async fn assert_equal(&self) {
        self.compare_histories().await;
        for kind in [None, Some("task".into())] {
            for state in [None, Some("READY".into()), Some("FAILED".into())] {
                let query = ResourceQuery { kind: kind.clone(), state, ..ResourceQuery::default() };
                let memory = resources(&self.memory, query.clone()).await;
                assert_eq!(memory, resources(self.durable(), query.clone()).await, "{query:?}");
            }
        }
        for tenant in [None, Some("t".into())] {
            for state in [None, Some(JobState::Dead), Some(JobState::Queued)] {
                let query = JobQuery { tenant: tenant.clone(), state, ..JobQuery::default() };
                let memory = jobs(&self.memory, query.clone()).await;
                assert_eq!(memory, jobs(self.durable(), query.clone()).await, "{query:?}");
            }
        }
        self.compare_groups().await;
        for id in &self.jobs {
            self.compare_logs(*id).await;
        }
        let keys = self.memory.reads().keys(None, PAGE_MAX).await.expect("memory");
        let durable = self.durable().reads().keys(None, PAGE_MAX).await.expect("durable");
        // The memory store does not list resources without history.
        assert!(keys.iter().all(|key| durable.contains(key)), "{keys:?} {durable:?}");
        for key in keys {
            self.compare_records(&key).await;
        }
    }

    async fn compare_groups(&self) {
        let kind = || Some("check".into());
        for group in ["g", "h"] {
            for tenant in [None, Some("t"), Some("u")] {
                let tenant: Option<Text> = tenant.map(Into::into);
                let group: Option<Text> = Some(group.into());
                let query = ResourceQuery {
                    tenant: tenant.clone(),
                    kind: kind(),
                    group: group.clone(),
                    ..ResourceQuery::default()
                };
                let memory = resources(&self.memory, query.clone()).await;
                assert_eq!(memory, resources(self.durable(), query.clone()).await, "{query:?}");
                let query = JobQuery { tenant, kind: kind(), group, ..JobQuery::default() };
                let memory = jobs(&self.memory, query.clone()).await;
                assert_eq!(memory, jobs(self.durable(), query.clone()).await, "{query:?}");
            }
            for tenant in ["t", "u"] {
                // Not those that are ready: a store that has restarted since looks at once which
                // jobs have become due, the other one with its next sweep.
                let counts = async |store: &dyn Store| {
                    let counts = store.reads().group(tenant.into(), "check".into(), group.into());
                    let counts = counts.await.expect("readable");
                    (counts.running, counts.waiting)
                };
                assert_eq!(counts(&self.memory).await, counts(self.durable()).await, "{tenant}");
            }
        }
    }

    async fn compare_histories(&self) {
        let all = || HistoryQuery::Scan { after: 0, limit: PAGE_MAX };
        let memory = self.memory.reads().history(all()).await.expect("memory");
        let durable = self.durable().reads().history(all()).await.expect("durable");
        assert_eq!(memory, durable);
        for store in [&self.memory as &dyn Store, self.durable()] {
            assert_eq!(verify(store).await.expect("readable").problems, []);
        }
    }

    async fn compare_logs(&self, job: JobId) {
        let query = LogQuery { job, after: 0, limit: PAGE_MAX };
        let memory = self.memory.reads().logs(query).await.expect("memory");
        let durable = self.durable().reads().logs(query).await.expect("durable");
        let texts = |lines: Vec<tenure_store::store::LogLine>| -> Vec<_> {
            lines.into_iter().map(|line| (line.attempt, line.at, line.text)).collect()
        };
        assert_eq!(texts(memory), texts(durable));
    }

    async fn compare_records(&self, key: &ResourceKey) {
        let memory = self.memory.reads().show(key).await.expect("memory");
        let durable = self.durable().reads().show(key).await.expect("durable");
        let (mut memory, mut durable) = (memory.expect("a record"), durable.expect("a record"));
        for detail in [&mut memory, &mut durable].into_iter().filter(|_| !self.is_shared()) {
            let lane = detail.record.resource.iter_mut().flat_map(|resource| &mut resource.lane);
            lane.for_each(|job| (job.progress, job.log_bytes) = (None, 0));
        }
        if !self.is_shared() {
            // Remembered answers show the progress of attempts, which a restart loses.
            let answers = |record: &mut Record| std::mem::take(&mut record.recent_answers).len();
            assert_eq!(answers(&mut memory.record), answers(&mut durable.record));
        }
        assert_eq!(memory.record, durable.record);
        assert_eq!(memory.tenures, durable.tenures);
        assert_eq!(memory.queue, durable.queue);
        assert_eq!(memory.context.running, durable.context.running);
        let query = |limit| {
            let (tenant, kind) = (Some(key.tenant().into()), Some(key.kind().into()));
            JobQuery { tenant, kind, name: Some(key.name().into()), limit, ..JobQuery::default() }
        };
        let memory = jobs(&self.memory, query(0)).await;
        assert_eq!(memory, jobs(self.durable(), query(0)).await, "jobs of {key}");
    }
}

/// Prunes until nothing is left to prune. Returns the sums.
async fn prune_all(store: &dyn Store, retention: Retention) -> Pruned {
    let (mut sum, mut idle_calls) = (Pruned { jobs: 0, lines: 0, resources: 0 }, 0);
    while idle_calls < 3 {
        let pruned = store.prune(retention).await.expect("the store is available");
        let idle = pruned.jobs + pruned.lines + pruned.resources == 0;
        idle_calls = if idle { idle_calls + 1 } else { 0 };
        sum.jobs += pruned.jobs;
        sum.lines += pruned.lines;
        sum.resources += pruned.resources;
    }
    sum
}

/// Removes what a restart loses from an outcome: the progress of attempts.
fn normalize(outcome: &Outcome) -> Outcome {
    let mut normalized = outcome.clone();
    let reset = |job: &mut Box<Job>| (job.progress, job.log_bytes) = (None, 0);
    match &mut normalized {
        Outcome::Claimed(jobs) => jobs.iter_mut().for_each(|a| reset(&mut a.job)),
        Outcome::Submitted { snapshot: Some(job), .. } => reset(job),
        Outcome::Put { snapshot: Some(resource), .. }
        | Outcome::TimersSet { snapshot: Some(resource) } => {
            resource.lane.iter_mut().for_each(reset);
        }
        _ => {}
    }
    normalized
}

/// Reads all pages of a list of jobs.
async fn jobs(store: &dyn Store, mut query: JobQuery) -> Vec<JobView> {
    let mut all = Vec::new();
    query.limit = 3;
    loop {
        let page = store.reads().jobs(query.clone()).await.expect("readable");
        all.extend(page.items);
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    all.iter_mut().for_each(|view| (view.job.progress, view.job.log_bytes) = (None, 0));
    all
}

/// Reads all pages of a list of resources.
async fn resources(store: &dyn Store, mut query: ResourceQuery) -> Vec<ResourceView> {
    let mut all = Vec::new();
    query.limit = 2;
    loop {
        let page = store.reads().resources(query.clone()).await.expect("readable");
        all.extend(page.items);
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    let lanes = all.iter_mut().flat_map(|view| &mut view.resource.lane);
    lanes.for_each(|job| (job.progress, job.log_bytes) = (None, 0));
    all
}
