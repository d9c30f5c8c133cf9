//! Gauges that are computed from the store at each scrape.
//!
//! A scrape reads the status and a census of the store and caches both, for longer the longer the
//! read took, so that frequent scrapes cost the store little. While the store does not answer in
//! time, `tenure_store_up` is 0 and the gauges of the store are absent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tenure_app::metrics::{Counters, Definition, Gauges, Sample, number, register, set_gauge};
use tenure_core::{JobState, Kinds, Text};
use tenure_store::census::{Census, Group, seconds};
use tenure_store::clock::stopwatch;
use tenure_store::store::Status;
use tenure_store::{Store, StoreError};

use super::{
    ACTIVE, DEAD, DEAD_OLDEST, DEPTH, HISTORY_UNVERIFIED, HISTORY_VIOLATIONS, JANITOR_AGE,
    JANITOR_DURATION, JANITOR_ERRORS, JANITOR_FOUND, JANITOR_HOLDS_LOCK, JANITOR_ITEMS,
    JANITOR_LAG, JANITOR_RUNS, JOBS, LOCK_AGE, LOCK_RATIO, LOCK_UNLIMITED_AGE, Metrics, OLDEST,
    RATIO, RUNNING, SESSIONS, STALE, STORE_UP, WAITERS,
};
use crate::janitor::JanitorStatus;

/// Minimum time that a snapshot of the store is cached.
const CACHE_TTL_MIN: Duration = Duration::from_secs(1);
/// A snapshot is cached for this many times its duration: a bound on the share of the store's time.
const CACHE_TTL_FACTOR: u32 = 20;
/// Time after which a read of the store counts as failed.
const STORE_TIMEOUT: Duration = Duration::from_secs(4);
/// The exported job states: unfinished, and dead.
const STATES: [JobState; 5] =
    [JobState::Queued, JobState::Backoff, JobState::Running, JobState::Cancelling, JobState::Dead];

/// The last snapshot of the store.
#[derive(Default)]
pub(super) struct SnapshotCache {
    snapshot: Arc<Snapshot>,
    valid_until: Option<Instant>,
}

/// What one scrape reads from the store; `None` if the read failed.
#[derive(Default)]
struct Snapshot {
    status: Option<Status>,
    census: Option<Census>,
    /// Samples of apps.
    apps: Vec<Sample>,
}

impl Metrics {
    /// Turns the label `tenant` of some gauges on or off.
    pub fn set_per_tenant(&self, on: bool) {
        self.per_tenant.store(on, Ordering::Relaxed);
    }

    /// Returns all metrics in the OpenMetrics text format.
    pub async fn scrape(
        &self,
        store: &dyn Store,
        janitor: &JanitorStatus,
        kinds: &Kinds,
    ) -> String {
        let snapshot = self.snapshot(store).await;
        let mut now = Registry::default();
        set_gauge(&mut now, STORE_UP, if snapshot.status.is_some() { 1.0 } else { 0.0 });
        if let Some(status) = &snapshot.status {
            set_gauge(&mut now, SESSIONS, number(status.sessions));
        }
        if let Some(census) = &snapshot.census {
            self.export_census(&mut now, census, kinds);
        }
        for sample in &snapshot.apps {
            sample(&mut now);
        }
        export_janitor(&mut now, janitor);
        let mut text = String::new();
        for registry in [&self.registry, &now] {
            encode_registry(&mut text, registry).expect("writing to a string cannot fail");
        }
        encode_eof(&mut text).expect("writing to a string cannot fail");
        text
    }

    /// Returns the status and the census of the snapshot that scrapes use; `None` while the store
    /// does not answer in time.
    pub(crate) async fn census(&self, store: &dyn Store) -> Option<(Status, Census)> {
        let snapshot = self.snapshot(store).await;
        snapshot.status.clone().zip(snapshot.census.clone())
    }

    /// Returns the cached snapshot, or reads a new one. Concurrent scrapes share one read.
    async fn snapshot(&self, store: &dyn Store) -> Arc<Snapshot> {
        let mut cache = self.snapshots.lock().await;
        let started = stopwatch();
        if cache.valid_until.is_some_and(|until| started < until) {
            return Arc::clone(&cache.snapshot);
        }
        let status = in_time(store.status()).await;
        // Skipped if the status failed, so that a scrape waits for one timeout only.
        let census = if status.is_some() { in_time(store.reads().census()).await } else { None };
        let mut apps = Vec::new();
        for app in self.apps.iter().filter(|_| census.is_some()) {
            apps.extend(in_time(app.sample(store)).await);
        }
        cache.snapshot = Arc::new(Snapshot { status, census, apps });
        let now = stopwatch();
        cache.valid_until = Some(now + CACHE_TTL_MIN.max((now - started) * CACHE_TTL_FACTOR));
        Arc::clone(&cache.snapshot)
    }

    fn export_census(&self, to: &mut Registry, census: &Census, kinds: &Kinds) {
        let by_kind = self.by_kind(census, kinds);
        let set = |definition: Definition, to: &mut Registry, value: fn(&Group) -> f64| {
            let family = register(to, definition, Gauges::default());
            for (kind, group) in &by_kind {
                family.get_or_create(&vec![("kind", kind.clone())]).set(value(group));
            }
        };
        set(STALE, to, |group| number(group.stale));
        set(WAITERS, to, |group| number(group.waiters));
        set(OLDEST, to, |group| seconds(group.queue_oldest_ms));
        set(DEAD_OLDEST, to, |group| seconds(group.dead_oldest_ms));
        set(RATIO, to, |group| group.age_ratio.unwrap_or(0.0));
        set(LOCK_UNLIMITED_AGE, to, |group| seconds(group.lock_unlimited_oldest_ms));
        set(LOCK_RATIO, to, |group| group.lock_max_age_ratio.unwrap_or(0.0));
        let labelled = self.with_labels(census, &by_kind);
        let count = |definition: Definition, to: &mut Registry, value: fn(&Group) -> f64| {
            let family = register(to, definition, Gauges::default());
            for (labels, group) in &labelled {
                family.get_or_create(labels).set(value(group));
            }
        };
        count(ACTIVE, to, |group| number(group.locks));
        count(LOCK_AGE, to, |group| seconds(group.lock_oldest_ms));
        count(DEPTH, to, |group| number(group.queued()));
        count(DEAD, to, |group| number(group.jobs(JobState::Dead)));
        self.export_jobs(to, &by_kind, kinds);
    }

    /// Exports the gauges of jobs. Undeclared kinds without jobs are left out.
    fn export_jobs(&self, to: &mut Registry, by_kind: &BTreeMap<Text, Group>, kinds: &Kinds) {
        let jobs = register(to, JOBS, Gauges::default());
        let running = register(to, RUNNING, Gauges::default());
        for (kind, group) in by_kind {
            if group.jobs.is_empty() && kinds.get(kind).is_none() {
                continue;
            }
            for state in STATES {
                let labels = vec![("kind", kind.clone()), ("state", state.as_str().into())];
                jobs.get_or_create(&labels).set(number(group.jobs(state)));
            }
            for (operation, longest_ms) in &group.running_ms {
                let operation = self.labels.operations.label(operation);
                let labels = vec![("kind", kind.clone()), ("operation", operation)];
                let gauge = running.get_or_create(&labels);
                gauge.set(seconds(*longest_ms).max(gauge.get()));
            }
        }
    }

    /// Groups the census by kind, including declared kinds that have no rows.
    fn by_kind(&self, census: &Census, kinds: &Kinds) -> BTreeMap<Text, Group> {
        let declared = kinds.iter().map(|kind| (kind.name.clone(), Group::default()));
        let mut by_kind: BTreeMap<Text, Group> = declared.collect();
        for (_, kind, group) in census.groups() {
            by_kind.entry(self.labels.kinds.label(kind)).or_default().merge(group);
        }
        by_kind
    }

    /// Groups the census by kind, and by tenant if that label is on, with the labels.
    fn with_labels(&self, census: &Census, by_kind: &BTreeMap<Text, Group>) -> Labelled {
        if !self.per_tenant.load(Ordering::Relaxed) {
            let labelled =
                |(kind, group): (&Text, &Group)| (vec![("kind", kind.clone())], group.clone());
            return by_kind.iter().map(labelled).collect();
        }
        let mut counted = Labelled::new();
        let tenants: BTreeSet<&str> = census.groups().map(|(tenant, _, _)| tenant).collect();
        let names: BTreeMap<&str, Text> =
            tenants.into_iter().map(|tenant| (tenant, self.labels.tenants.label(tenant))).collect();
        for (tenant, kind, group) in census.groups() {
            let kind = self.labels.kinds.label(kind);
            let labels = vec![("tenant", names[tenant].clone()), ("kind", kind)];
            counted.entry(labels).or_default().merge(group);
        }
        counted
    }
}

/// Returns the result of a read, if it succeeds within [`STORE_TIMEOUT`].
pub(crate) async fn in_time<T>(read: impl Future<Output = Result<T, StoreError>>) -> Option<T> {
    tokio::time::timeout(STORE_TIMEOUT, read).await.ok()?.ok()
}

type Labelled = BTreeMap<Vec<(&'static str, Text)>, Group>;

/// Exports the metrics of the janitor of this server.
fn export_janitor(to: &mut Registry, janitor: &JanitorStatus) {
    set_gauge(to, JANITOR_HOLDS_LOCK, if janitor.holds_lock() { 1.0 } else { 0.0 });
    let history = janitor.history();
    let violations: Counter = register(to, HISTORY_VIOLATIONS, Counter::default());
    violations.inc_by(history.violations());
    if let Some(unverified) = history.unverified().filter(|_| janitor.holds_lock()) {
        set_gauge(to, HISTORY_UNVERIFIED, number(unverified));
    }
    let runs: Counters<1> = register(to, JANITOR_RUNS, Family::default());
    let errors: Counters<1> = register(to, JANITOR_ERRORS, Family::default());
    let items: Counters<1> = register(to, JANITOR_ITEMS, Family::default());
    let (found, age) = (gauges(to, JANITOR_FOUND), gauges(to, JANITOR_AGE));
    let (lag, duration) = (gauges(to, JANITOR_LAG), gauges(to, JANITOR_DURATION));
    for stats in janitor.stats() {
        let duty = Text::from(stats.duty);
        let count = |counters: &Counters<1>, value: u64| -> Counter {
            let counter = counters.get_or_create(&[("duty", duty.clone())]).clone();
            counter.inc_by(value);
            counter
        };
        count(&runs, stats.runs);
        count(&errors, stats.errors);
        count(&items, stats.items);
        let set = |gauges: &Gauges, value: f64| {
            gauges.get_or_create(&vec![("duty", duty.clone())]).set(value);
        };
        set(&found, number(stats.found));
        set(&lag, stats.lag.as_secs_f64());
        set(&duration, stats.duration.as_secs_f64());
        if let Some(since) = stats.age {
            set(&age, since.as_secs_f64());
        }
    }
}

fn gauges(to: &mut Registry, definition: Definition) -> Gauges {
    register(to, definition, Gauges::default())
}
