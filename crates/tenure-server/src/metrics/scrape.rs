//! What there is when somebody scrapes: counted from rows, never kept as a number of its own.
//!
//! The store is asked for a census and its status; the answer is kept for a moment, and for longer
//! the longer it took, so that however often somebody scrapes the store spends little on it. While
//! the store does not answer, `tenure_store_up` is 0 and what there is is left out: a number that
//! is not known is not told. Nor is one that takes too long to count.

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
    ACTIVE, DEAD, DEAD_OLDEST, DEPTH, JANITOR_AGE, JANITOR_ERRORS, JANITOR_FOUND, JANITOR_HERE,
    JANITOR_ITEMS, JANITOR_LAG, JANITOR_RUNS, JANITOR_TOOK, JOBS, Metrics, OLDEST, RATIO, RUNNING,
    SESSIONS, STALE, STORE_UP, WAITERS,
};
use crate::janitor::Board;

/// How long a look at the store is good for.
const GOOD_FOR: Duration = Duration::from_secs(1);
/// It is good for so many times as long as it took: the store spends no more than that part on it.
const SPARE: u32 = 20;
/// A store that needs longer than this is away.
const ANSWER_MAX: Duration = Duration::from_secs(4);
/// The states that are told: all but those in which a job is over and well.
const STATES: [JobState; 5] =
    [JobState::Queued, JobState::Backoff, JobState::Running, JobState::Cancelling, JobState::Dead];

/// The last look at the store.
#[derive(Default)]
pub(super) struct Sight {
    seen: Arc<Seen>,
    good_until: Option<Instant>,
}

/// What was seen.
#[derive(Default)]
struct Seen {
    status: Option<Status>,
    census: Option<Census>,
    /// What apps read.
    apps: Vec<Sample>,
}

impl Metrics {
    /// Labels what some metrics count by tenant, too, from now on, or does not.
    pub fn per_tenant(&self, on: bool) {
        self.per_tenant.store(on, Ordering::Relaxed);
    }

    /// All metrics, as text.
    pub async fn scrape(&self, store: &dyn Store, board: &Board, kinds: &Kinds) -> String {
        let seen = self.look(store).await;
        let mut now = Registry::default();
        set_gauge(&mut now, STORE_UP, if seen.status.is_some() { 1.0 } else { 0.0 });
        if let Some(status) = &seen.status {
            set_gauge(&mut now, SESSIONS, number(status.sessions));
        }
        if let Some(census) = &seen.census {
            self.tell(&mut now, census, kinds);
        }
        for sample in &seen.apps {
            sample(&mut now);
        }
        duties(&mut now, board);
        let mut text = String::new();
        for registry in [&self.registry, &now] {
            encode_registry(&mut text, registry).expect("a string takes everything");
        }
        encode_eof(&mut text).expect("a string takes everything");
        text
    }

    /// What the store has, as it was a moment ago. Whoever asks at once shares the answer.
    async fn look(&self, store: &dyn Store) -> Arc<Seen> {
        let mut sight = self.sight.lock().await;
        let started = stopwatch();
        if sight.good_until.is_some_and(|until| started < until) {
            return Arc::clone(&sight.seen);
        }
        let status = in_time(store.status()).await;
        // Who cannot say how it is cannot say what there is, and nobody should wait twice for it.
        let census = if status.is_some() { in_time(store.reads().census()).await } else { None };
        let mut apps = Vec::new();
        for app in self.apps.iter().filter(|_| census.is_some()) {
            apps.extend(in_time(app.sample(store)).await);
        }
        sight.seen = Arc::new(Seen { status, census, apps });
        let now = stopwatch();
        sight.good_until = Some(now + GOOD_FOR.max((now - started) * SPARE));
        Arc::clone(&sight.seen)
    }

    fn tell(&self, to: &mut Registry, census: &Census, kinds: &Kinds) {
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
        let counted = self.counted(census, &by_kind);
        let count = |definition: Definition, to: &mut Registry, value: fn(&Group) -> f64| {
            let family = register(to, definition, Gauges::default());
            for (labels, group) in &counted {
                family.get_or_create(labels).set(value(group));
            }
        };
        count(ACTIVE, to, |group| number(group.locks));
        count(DEPTH, to, |group| number(group.queued()));
        count(DEAD, to, |group| number(group.jobs(JobState::Dead)));
        self.tell_jobs(to, &by_kind, kinds);
    }

    /// Kinds without jobs are left out, unless they are declared.
    fn tell_jobs(&self, to: &mut Registry, by_kind: &BTreeMap<Text, Group>, kinds: &Kinds) {
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
                let operation = self.names.operations.label(operation);
                let labels = vec![("kind", kind.clone()), ("operation", operation)];
                let gauge = running.get_or_create(&labels);
                gauge.set(seconds(*longest_ms).max(gauge.get()));
            }
        }
    }

    /// What there is of each kind, those included that are declared and have nothing.
    fn by_kind(&self, census: &Census, kinds: &Kinds) -> BTreeMap<Text, Group> {
        let declared = kinds.iter().map(|kind| (kind.name.clone(), Group::default()));
        let mut by_kind: BTreeMap<Text, Group> = declared.collect();
        for (_, kind, group) in census.groups() {
            by_kind.entry(self.names.kinds.label(kind)).or_default().merge(group);
        }
        by_kind
    }

    /// What there is by kind, and by tenant if that is wanted, with the labels.
    fn counted(&self, census: &Census, by_kind: &BTreeMap<Text, Group>) -> Labelled {
        if !self.per_tenant.load(Ordering::Relaxed) {
            let labelled =
                |(kind, group): (&Text, &Group)| (vec![("kind", kind.clone())], group.clone());
            return by_kind.iter().map(labelled).collect();
        }
        let mut counted = Labelled::new();
        let tenants: BTreeSet<&str> = census.groups().map(|(tenant, _, _)| tenant).collect();
        let names: BTreeMap<&str, Text> =
            tenants.into_iter().map(|tenant| (tenant, self.names.tenants.label(tenant))).collect();
        for (tenant, kind, group) in census.groups() {
            let kind = self.names.kinds.label(kind);
            let labels = vec![("tenant", names[tenant].clone()), ("kind", kind)];
            counted.entry(labels).or_default().merge(group);
        }
        counted
    }
}

/// An answer that comes soon enough.
async fn in_time<T>(ask: impl Future<Output = Result<T, StoreError>>) -> Option<T> {
    tokio::time::timeout(ANSWER_MAX, ask).await.ok()?.ok()
}

type Labelled = BTreeMap<Vec<(&'static str, Text)>, Group>;

/// What the janitor of this server has done.
fn duties(to: &mut Registry, board: &Board) {
    set_gauge(to, JANITOR_HERE, if board.here() { 1.0 } else { 0.0 });
    let runs: Counters<1> = register(to, JANITOR_RUNS, Family::default());
    let errors: Counters<1> = register(to, JANITOR_ERRORS, Family::default());
    let items: Counters<1> = register(to, JANITOR_ITEMS, Family::default());
    let (found, age) = (gauges(to, JANITOR_FOUND), gauges(to, JANITOR_AGE));
    let (lag, took) = (gauges(to, JANITOR_LAG), gauges(to, JANITOR_TOOK));
    for tally in board.tallies() {
        let duty = Text::from(tally.duty);
        let count = |counters: &Counters<1>, value: u64| -> Counter {
            let counter = counters.get_or_create(&[("duty", duty.clone())]).clone();
            counter.inc_by(value);
            counter
        };
        count(&runs, tally.runs);
        count(&errors, tally.errors);
        count(&items, tally.items);
        let set = |gauges: &Gauges, value: f64| {
            gauges.get_or_create(&vec![("duty", duty.clone())]).set(value);
        };
        set(&found, number(tally.found));
        set(&lag, tally.lag.as_secs_f64());
        set(&took, tally.took.as_secs_f64());
        if let Some(ago) = tally.ago {
            set(&age, ago.as_secs_f64());
        }
    }
}

fn gauges(to: &mut Registry, definition: Definition) -> Gauges {
    register(to, definition, Gauges::default())
}
