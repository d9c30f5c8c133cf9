//! Every metric of the server: its name, its labels, what it says, and where it is counted.
//!
//! What happens is counted when the store says that it is durable (`Observer`), so a number here is
//! never ahead of the truth. What there *is* is not counted up and down but looked up when somebody
//! scrapes: see `scrape.rs`. Every label has a bound: see `names.rs`. Nothing here is global, and
//! nothing may ever be decided by a metric.
//!
//! A new metric is a [`Definition`] below and a row in `docs/guide/metrics.md`, which a test
//! compares.

mod http;
mod names;
mod scrape;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tenure_app::metrics::{Counters, Histograms, Labels, long_histogram, register};
use tenure_app::{AppMetrics, Apps, LiveConfig};
use tenure_core::record::EndKind;
use tenure_core::{MetricEvent, Text};
use tenure_store::StoreError;
use tenure_store::census::seconds;
use tenure_store::metered::CALLS;
use tenure_store::observer::Observer;
use tenure_store::store::Swept;

pub(crate) use http::measure;
use names::Names;
use scrape::Sight;

tenure_app::define_metrics! {
    BUILD: Gauge "tenure_build_info" ["version"]
        "Always 1; the version of the server is its label";
    ACQUISITIONS: Counter "tenure_lock_acquisitions_total" ["kind,result"]
        "Requests for locks that came to an end: granted, also to a job, or failed";
    FAILURES: Counter "tenure_lock_acquisition_failures_total" ["reason"]
        "Requests for locks that failed: held, gave_up after waiting, or the reason of the refusal";
    ACTIVE: Gauge "tenure_active_locks" ["kind"]
        "Locks that are held now";
    STALE: Gauge "tenure_stale_locks" ["kind"]
        "Locks whose holder's session is dead and that nobody has cleaned up yet";
    WAITERS: Gauge "tenure_lock_waiters" ["kind"]
        "Requests that wait for locks now";
    HELD: Histogram "tenure_lock_held_duration_seconds" ["kind,operation"]
        "How long tenures lasted, from the grant to the end; the operation is empty without a job";
    WAITED: Histogram "tenure_lock_wait_time_seconds" ["kind"]
        "How long grants had waited: in the queue, or, for a job, since it could have started";
    CLEANED: Counter "tenure_stale_locks_cleaned_total" [""]
        "Tenures that were ended because their session had lapsed";
    RATIO: Gauge "tenure_lock_age_ratio" ["kind"]
        "Age of the running attempt closest to its operation's limit, as a part of the limit";
    LOST: Counter "tenure_lost_total" ["reason"]
        "Tenures that ended against their holder's will: expired, closed with its session, broken";
    FENCED: Counter "tenure_fenced_writes_total" [""]
        "Writes with the token of a tenure that was over, each of them refused";
    SESSIONS: Gauge "tenure_sessions" [""]
        "Sessions that there are now";
    JOBS: Gauge "tenure_jobs" ["kind,state"]
        "Jobs that are not over, and dead ones, by their state";
    RUNNING: Gauge "tenure_jobs_running_duration_seconds" ["kind,operation"]
        "How long the longest attempt has been under way";
    ATTEMPTS: Counter "tenure_job_attempts_total" ["kind,operation,outcome,code"]
        "Attempts that ended: ok, failed, cancelled, handed_back or lost; the code says why";
    DEPTH: Gauge "tenure_queue_depth" ["kind"]
        "Jobs that wait for their turn or rest between two attempts";
    OLDEST: Gauge "tenure_queue_oldest_seconds" ["kind"]
        "How long the job has been due that waits longest";
    DEAD: Gauge "tenure_dead_letters" ["kind"]
        "Jobs in quarantine: their attempts are used up, and a person should look";
    DEAD_OLDEST: Gauge "tenure_dead_letter_oldest_seconds" ["kind"]
        "For how long the oldest dead letter is dead";
    JANITOR_HERE: Gauge "tenure_janitor_here" [""]
        "1 on the server that holds the janitor's lock, 0 on the others";
    JANITOR_RUNS: Counter "tenure_janitor_runs_total" ["duty"]
        "Runs of a duty on this server that ended";
    JANITOR_ERRORS: Counter "tenure_janitor_errors_total" ["duty"]
        "Those of them that failed";
    JANITOR_ITEMS: Counter "tenure_janitor_items_total" ["duty"]
        "Things that a duty has dealt with or found for the first time";
    JANITOR_FOUND: Gauge "tenure_janitor_found" ["duty"]
        "Things that the last run of a duty found";
    JANITOR_AGE: Gauge "tenure_janitor_last_run_age_seconds" ["duty"]
        "How long ago a duty last ended on this server, once it has";
    JANITOR_LAG: Gauge "tenure_janitor_lag_seconds" ["duty"]
        "How late a duty is that is due on this server";
    JANITOR_TOOK: Gauge "tenure_janitor_run_duration_seconds" ["duty"]
        "How long the last run of a duty took";
    STORE_UP: Gauge "tenure_store_up" [""]
        "1 while the store answers, 0 while it does not; then what there is is not known";
    STORE_BATCH: Histogram "tenure_store_batch_seconds" [""]
        "How long batches of commands took in the store, flush included";
    STORE_COMMANDS: Histogram "tenure_store_batch_commands" [""]
        "How many commands batches had";
    STORE_SWEEP: Histogram "tenure_store_sweep_seconds" [""]
        "How long sweeps took";
    STORE_ERRORS: Counter "tenure_store_errors_total" ["call"]
        "Calls that the store failed";
    HTTP_REQUESTS: Counter "tenure_http_requests_total" ["method,route,status"]
        "Requests that were answered; the route is the pattern, none for what matches no route";
    HTTP_DURATION: Histogram "tenure_http_request_duration_seconds" ["route"]
        "How long requests took, the time that they waited on purpose included";
    HTTP_IN_FLIGHT: Gauge "tenure_http_in_flight" [""]
        "Requests that are being answered now";
}

/// From a batch in memory to a database that is hardly there.
const SHORT: [f64; 14] =
    [0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
/// To the longest that an answer is held back.
const ANSWER: [f64; 13] =
    [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 15.0, 30.0, 60.0];
/// To the largest batch.
const COMMANDS: [f64; 9] = [1.0, 2.0, 4.0, 16.0, 64.0, 256.0, 1_024.0, 2_048.0, 4_096.0];

/// What one server counts.
pub struct Metrics {
    registry: Registry,
    names: Names,
    per_tenant: AtomicBool,
    sight: tokio::sync::Mutex<Sight>,
    acquisitions: Counters<2>,
    failures: Counters<1>,
    held: Histograms<2>,
    waited: Histograms<1>,
    cleaned: Counter,
    lost: Counters<1>,
    fenced: Counter,
    attempts: Counters<4>,
    store_batch: Histogram,
    store_commands: Histogram,
    store_sweep: Histogram,
    store_errors: Counters<1>,
    http_requests: Counters<3>,
    http_duration: Histograms<1>,
    http_in_flight: Gauge,
    apps: Vec<Arc<dyn AppMetrics>>,
}

impl Metrics {
    /// Registers the metrics of the server and of `apps`.
    #[must_use]
    pub fn new(apps: &Apps) -> Self {
        let mut registry = Registry::default();
        let to = &mut registry;
        let build: Family<Labels<1>, Gauge> = register(to, BUILD, Family::default());
        build.get_or_create(&[("version", env!("CARGO_PKG_VERSION").into())]).set(1);
        let lost: Counters<1> = register(to, LOST, Family::default());
        let store_errors: Counters<1> = register(to, STORE_ERRORS, Family::default());
        // What never happened is zero, so that the first time is seen as a rise.
        for how in [EndKind::Expired, EndKind::Closed, EndKind::Broken] {
            drop(lost.get_or_create(&[("reason", how.as_str().into())]));
        }
        for call in CALLS {
            drop(store_errors.get_or_create(&[("call", call.into())]));
        }
        Self {
            acquisitions: register(to, ACQUISITIONS, Family::default()),
            failures: register(to, FAILURES, Family::default()),
            held: register(to, HELD, Family::new_with_constructor(long_histogram)),
            waited: register(to, WAITED, Family::new_with_constructor(long_histogram)),
            cleaned: register(to, CLEANED, Counter::default()),
            lost,
            fenced: register(to, FENCED, Counter::default()),
            attempts: register(to, ATTEMPTS, Family::default()),
            store_batch: register(to, STORE_BATCH, Histogram::new(SHORT)),
            store_commands: register(to, STORE_COMMANDS, Histogram::new(COMMANDS)),
            store_sweep: register(to, STORE_SWEEP, Histogram::new(SHORT)),
            store_errors,
            http_requests: register(to, HTTP_REQUESTS, Family::default()),
            http_duration: register(to, HTTP_DURATION, Family::new_with_constructor(answer)),
            http_in_flight: register(to, HTTP_IN_FLIGHT, Gauge::default()),
            apps: apps.iter().filter_map(|app| app.metrics(to)).collect(),
            registry,
            names: Names::default(),
            per_tenant: AtomicBool::new(false),
            sight: tokio::sync::Mutex::default(),
        }
    }

    /// Follows a change of the live configuration: declared kinds and operations always have labels
    /// of their own.
    pub fn reload(&self, live: &LiveConfig) {
        self.names.know(&live.kinds);
        for app in &self.apps {
            app.reload(&live.apps);
        }
    }

    fn granted(&self, kind: &Text, waited_ms: u64) {
        self.acquired(kind, &self.names.granted);
        self.waited.get_or_create(&[("kind", kind.clone())]).observe(seconds(waited_ms));
    }

    fn acquired(&self, kind: &Text, result: &Text) {
        let labels = [("kind", kind.clone()), ("result", result.clone())];
        self.acquisitions.get_or_create(&labels).inc();
    }

    fn ended(&self, kind: Text, operation: Text, held_ms: u64, how: EndKind) {
        let labels = [("kind", kind), ("operation", operation)];
        self.held.get_or_create(&labels).observe(seconds(held_ms));
        match how {
            EndKind::Released | EndKind::Finished | EndKind::Withdrawn => return,
            EndKind::Expired => drop(self.cleaned.inc()),
            EndKind::Closed | EndKind::Broken => {}
        }
        self.lost.get_or_create(&[("reason", how.as_str().into())]).inc();
    }

    fn count(&self, fact: &MetricEvent) {
        for app in &self.apps {
            app.count(fact);
        }
        let names = &self.names;
        let verb = |operation: &Option<Text>| match operation {
            Some(operation) => names.operations.label(operation),
            None => names.nothing.clone(),
        };
        match fact {
            MetricEvent::Granted { key, waited_ms } => {
                self.granted(&names.kinds.label(key.kind()), *waited_ms);
            }
            MetricEvent::AcquireFailed { key, reason } => {
                self.acquired(&names.kinds.label(key.kind()), &names.failed);
                self.failures.get_or_create(&[("reason", (*reason).into())]).inc();
            }
            MetricEvent::TenureEnded { key, operation, held_ms, how } => {
                self.ended(names.kinds.label(key.kind()), verb(operation), *held_ms, *how);
            }
            MetricEvent::AttemptEnded { key, operation, outcome, code } => {
                let code = code.as_ref().map_or(names.nothing.clone(), |c| names.codes.label(c));
                let labels = [
                    ("kind", names.kinds.label(key.kind())),
                    ("operation", names.operations.label(operation)),
                    ("outcome", outcome.as_str().into()),
                    ("code", code),
                ];
                self.attempts.get_or_create(&labels).inc();
            }
            MetricEvent::Fenced => drop(self.fenced.inc()),
            // Not a request for a lock: nobody was refused anything.
            MetricEvent::Attached { .. } => {}
        }
    }
}

impl Observer for Metrics {
    fn on_facts(&self, facts: &[MetricEvent]) {
        for fact in facts {
            self.count(fact);
        }
    }

    fn on_apply(&self, commands: usize, took: Duration) {
        self.store_batch.observe(took.as_secs_f64());
        let commands = u32::try_from(commands).unwrap_or(u32::MAX);
        self.store_commands.observe(f64::from(commands));
    }

    fn on_sweep(&self, _: &Swept, took: Duration) {
        self.store_sweep.observe(took.as_secs_f64());
    }

    fn on_failure(&self, call: &'static str, _: &StoreError) {
        self.store_errors.get_or_create(&[("call", call.into())]).inc();
    }
}

fn answer() -> Histogram {
    Histogram::new(ANSWER)
}
