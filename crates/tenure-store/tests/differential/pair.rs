//! The two stores side by side: everything happens to both, and everything that can be read from
//! them is compared.

use std::sync::Arc;

use tenure_core::{
    Command, JobId, JobState, Kinds, Millis, Outcome, ResourceKey, SessionId, Token,
};
use tenure_store::clock::{Clock, ManualClock};
use tenure_store::scenario::kinds;
use tenure_store::store::{
    HistoryQuery, JobQuery, JobShown, LogQuery, PAGE_MAX, Pruned, ResourceQuery, ResourceShown,
    Retention,
};
use tenure_store::verify::verify;
use tenure_store::{Memory, Store};

use crate::jobs::Wish;
use crate::place::Place;

/// One thing that happens to both stores.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Apply(Vec<Command>),
    Wish(Vec<Wish>),
    Pass(u64),
    Sweep,
    /// Ends well and starts again.
    Restart,
    /// Ends at once, with whatever is in the file, and starts again.
    Crash,
    /// Drops what is older than so many milliseconds: jobs, dead letters, history.
    Prune(u64, u64, u64),
}

/// The store in memory and a durable one.
pub(crate) struct Pair {
    memory: Memory,
    durable: Vec<Box<dyn Store>>,
    clock: ManualClock,
    place: Place,
    /// Counts what is done, so that stores that share a place take turns.
    turn: usize,
    pub(crate) kinds: Arc<Kinds>,
    pub(crate) restarts: u128,
    jobs: Vec<JobId>,
    taken: Vec<(JobId, Token)>,
}

impl Pair {
    pub(crate) async fn new(place: Place) -> Self {
        let clock = ManualClock::default();
        let memory = Memory::with_clock(clock.clone());
        let mut pair = Self {
            memory,
            durable: Vec::new(),
            clock,
            place,
            turn: 0,
            kinds: kinds(),
            restarts: 0,
            jobs: Vec::new(),
            taken: Vec::new(),
        };
        pair.memory.declare(Arc::clone(&pair.kinds)).await.expect("memory");
        for _ in 0..pair.place.stores() {
            pair.open().await;
        }
        pair
    }

    async fn open(&mut self) {
        let durable = self.place.open(&self.clock).await;
        let status = durable.status().await.expect("durable");
        assert_eq!(status.incarnation.0, 0, "nobody has restored anything");
        durable.declare(Arc::clone(&self.kinds)).await.expect("durable");
        self.durable.push(durable);
    }

    /// What a crash at this moment leaves is opened again.
    async fn crash(&mut self) {
        let left = self.place.as_a_crash_leaves_it();
        drop(self.durable.remove(0));
        self.place = left;
        self.open().await;
    }

    /// The store whose turn it is.
    fn durable(&self) -> &dyn Store {
        &*self.durable[self.turn % self.durable.len()]
    }

    /// Whether the durable store is one that processes share.
    pub(crate) fn is_shared(&self) -> bool {
        self.place.is_shared()
    }

    pub(crate) fn now(&self) -> Millis {
        self.clock.now()
    }

    /// One of the latest jobs, or one that never was.
    pub(crate) fn job(&self, pick: usize) -> JobId {
        self.jobs.iter().rev().nth(pick).copied().unwrap_or(JobId(pick as u128))
    }

    /// One of the latest attempts.
    pub(crate) fn taken(&self, pick: usize) -> (JobId, Token) {
        self.taken.iter().rev().nth(pick).copied().unwrap_or((self.job(pick), Token(1)))
    }

    pub(crate) async fn act(&mut self, act: Act) {
        match act {
            Act::Apply(commands) => self.apply(commands).await,
            Act::Wish(wishes) => {
                self.apply(wishes.iter().map(|wish| self.command(wish)).collect()).await;
            }
            Act::Pass(ms) => self.pass(ms).await,
            Act::Sweep => self.sweep().await,
            Act::Restart | Act::Crash => {
                self.restarts += 1;
                if !self.is_shared() {
                    // A restart gives full grace; for the store in memory a stall does the same.
                    self.memory.grace();
                }
                if matches!(act, Act::Crash) {
                    self.crash().await;
                } else {
                    drop(self.durable.remove(0));
                    self.open().await;
                }
                // Who starts sees at once what has come due; the one in memory with the sweep.
                self.sweep().await;
            }
            Act::Prune(jobs_ms, dead_ms, history_ms) => {
                self.prune(Retention { jobs_ms, dead_ms, history_ms, rows_max: 50 }).await;
            }
        }
    }

    /// Lets time pass. Stores that share a place only know of each other's looks by what they
    /// write, so something is written: a stall must be one for all.
    async fn pass(&mut self, ms: u64) {
        if self.is_shared() {
            let (session, tenant) = (SessionId(u128::MAX), "nobody".into());
            let open = Command::Open { session, tenant, name: "nobody".into(), ttl_ms: 3_600_000 };
            self.apply(vec![open, Command::Heartbeat { session, seen: 0 }]).await;
        }
        self.clock.advance(ms);
    }

    async fn apply(&mut self, commands: Vec<Command>) {
        self.turn += 1;
        let ours = self.memory.apply(commands.clone()).await.expect("memory");
        let theirs = self.durable().apply(commands.clone()).await.expect("durable");
        for (at, ours) in ours.iter().enumerate() {
            assert_eq!(told(ours), told(&theirs[at]), "to {:?}", commands[at]);
            self.note(ours);
        }
    }

    fn note(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Submitted { job, .. } | Outcome::Put { job: Some(job), .. } => {
                self.jobs.push(*job);
            }
            Outcome::Claimed(jobs) => {
                self.taken.extend(jobs.iter().map(|a| (a.job.id, a.tenure.token)));
            }
            _ => {}
        }
    }

    async fn sweep(&mut self) {
        self.turn += 1;
        let mut ours = self.memory.sweep().await.expect("memory");
        let mut theirs = self.durable().sweep().await.expect("durable");
        if self.restarts > 0 || self.is_shared() {
            // What came due was seen to by a restart, or by another store.
            (ours.due, theirs.due) = (0, 0);
        }
        assert_eq!(ours, theirs);
    }

    /// The embedded store only drops lines that its rows know of: it is left in peace first, so
    /// that it writes them.
    async fn prune(&mut self, keep: Retention) {
        for _ in 0..3 {
            self.sweep().await;
        }
        let ours: Pruned = self.memory.prune(keep).await.expect("memory");
        assert_eq!(ours, self.durable().prune(keep).await.expect("durable"));
    }

    pub(crate) async fn all_agrees(&self) {
        self.histories_agree().await;
        for kind in [None, Some("task".into())] {
            for state in [None, Some("READY".into()), Some("FAILED".into())] {
                let query = ResourceQuery { kind: kind.clone(), state, ..ResourceQuery::default() };
                let ours = resources(&self.memory, query.clone()).await;
                assert_eq!(ours, resources(self.durable(), query.clone()).await, "{query:?}");
            }
        }
        for tenant in [None, Some("t".into())] {
            for state in [None, Some(JobState::Dead), Some(JobState::Queued)] {
                let query = JobQuery { tenant: tenant.clone(), state, ..JobQuery::default() };
                let ours = jobs(&self.memory, query.clone()).await;
                assert_eq!(ours, jobs(self.durable(), query.clone()).await, "{query:?}");
            }
        }
        for id in &self.jobs {
            self.logs_agree(*id).await;
        }
        let keys = self.memory.reads().keys(None, PAGE_MAX).await.expect("memory");
        let theirs = self.durable().reads().keys(None, PAGE_MAX).await.expect("durable");
        // The store in memory does not count what left no line of history.
        assert!(keys.iter().all(|key| theirs.contains(key)), "{keys:?} {theirs:?}");
        for key in keys {
            self.records_agree(&key).await;
        }
    }

    async fn histories_agree(&self) {
        let all = || HistoryQuery::Scan { after: 0, limit: PAGE_MAX };
        let ours = self.memory.reads().history(all()).await.expect("memory");
        let theirs = self.durable().reads().history(all()).await.expect("durable");
        assert_eq!(ours, theirs);
        for store in [&self.memory as &dyn Store, self.durable()] {
            assert_eq!(verify(store).await.expect("it reads").problems, []);
        }
    }

    async fn logs_agree(&self, job: JobId) {
        let query = LogQuery { job, after: 0, limit: PAGE_MAX };
        let ours = self.memory.reads().logs(query).await.expect("memory");
        let theirs = self.durable().reads().logs(query).await.expect("durable");
        let texts = |lines: Vec<tenure_store::store::LogLine>| -> Vec<_> {
            lines.into_iter().map(|line| (line.attempt, line.at, line.text)).collect()
        };
        assert_eq!(texts(ours), texts(theirs));
    }

    async fn records_agree(&self, key: &ResourceKey) {
        let ours = self.memory.reads().show(key).await.expect("memory");
        let theirs = self.durable().reads().show(key).await.expect("durable");
        let (mut ours, mut theirs) = (ours.expect("it is known"), theirs.expect("it is known"));
        for shown in [&mut ours, &mut theirs].into_iter().filter(|_| !self.is_shared()) {
            let lane = shown.record.resource.iter_mut().flat_map(|resource| &mut resource.lane);
            lane.for_each(|job| (job.progress, job.log_bytes) = (None, 0));
        }
        assert_eq!(ours.record, theirs.record);
        assert_eq!(ours.tenures, theirs.tenures);
        assert_eq!(ours.queue, theirs.queue);
        assert_eq!(ours.around.running, theirs.around.running);
        let named = |limit| {
            let (tenant, kind) = (Some(key.tenant().into()), Some(key.kind().into()));
            JobQuery { tenant, kind, name: Some(key.name().into()), limit, ..JobQuery::default() }
        };
        let ours = jobs(&self.memory, named(0)).await;
        assert_eq!(ours, jobs(self.durable(), named(0)).await, "of {key}");
    }
}

/// An answer without what a restart forgets: how far attempts had come.
fn told(outcome: &Outcome) -> Outcome {
    let mut told = outcome.clone();
    if let Outcome::Claimed(jobs) = &mut told {
        jobs.iter_mut().for_each(|a| (a.job.progress, a.job.log_bytes) = (None, 0));
    }
    told
}

/// All jobs that a query wants, page by page.
async fn jobs(store: &dyn Store, mut query: JobQuery) -> Vec<JobShown> {
    let mut all = Vec::new();
    query.limit = 3;
    loop {
        let page = store.reads().jobs(query.clone()).await.expect("it reads");
        all.extend(page.items);
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    all.iter_mut().for_each(|shown| (shown.job.progress, shown.job.log_bytes) = (None, 0));
    all
}

/// All resources that a query wants, page by page.
async fn resources(store: &dyn Store, mut query: ResourceQuery) -> Vec<ResourceShown> {
    let mut all = Vec::new();
    query.limit = 2;
    loop {
        let page = store.reads().resources(query.clone()).await.expect("it reads");
        all.extend(page.items);
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    let lanes = all.iter_mut().flat_map(|shown| &mut shown.resource.lane);
    lanes.for_each(|job| (job.progress, job.log_bytes) = (None, 0));
    all
}
