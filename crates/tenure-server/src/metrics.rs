//! The metrics of the server: their definitions, and the counting of events.
//!
//! Events are counted when the store reports them as durable (`Observer`), so a counter is never
//! ahead of the store. Levels are not counted up and down but read from the store at each scrape:
//! see `scrape.rs`. Every label is bounded: see `labels.rs`. There is no global state, and no
//! decision may depend on a metric.
//!
//! A new metric needs a definition below and a row in `docs/guide/metrics.md`, which a test
//! compares.

mod http;
mod labels;
mod scrape;
mod text_format;

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
use labels::LabelValues;
use scrape::SnapshotCache;

use crate::audit::{AuditClass, DROP_REASONS, dropped_labels};
pub(crate) use scrape::in_time;
pub(crate) use text_format::to_prometheus_text;

tenure_app::define_metrics! {
    BUILD: Gauge "tenure_build_info" ["version"]
        "Always 1; the label has the version of the server";
    ACQUISITIONS: Counter "tenure_lock_acquisitions_total" ["kind,result"]
        "Completed lock requests, including those of jobs: granted or failed";
    FAILURES: Counter "tenure_lock_acquisition_failures_total" ["reason"]
        "Failed lock requests: held, gave_up after waiting, or the reason of the refusal";
    ACTIVE: Gauge "tenure_active_locks" ["kind"]
        "Locks currently held";
    STALE: Gauge "tenure_stale_locks" ["kind"]
        "Locks of expired sessions that have not been swept yet";
    LOCK_AGE: Gauge "tenure_lock_age_seconds" ["kind"]
        "Age of the oldest held lock, including those of jobs; 0 if none is held";
    LOCK_UNLIMITED_AGE: Gauge "tenure_lock_unlimited_age_seconds" ["kind"]
        "Age of the oldest held lock that has no maximum age; 0 if none is held";
    LOCK_RATIO: Gauge "tenure_lock_max_age_ratio" ["kind"]
        "Highest ratio of the age of a held lock to its maximum age; 0 if none has one";
    WAITERS: Gauge "tenure_lock_waiters" ["kind"]
        "Requests waiting for a lock";
    HELD: Histogram "tenure_lock_held_duration_seconds" ["kind,operation"]
        "Duration of tenures, from grant to end; the operation is empty without a job";
    WAITED: Histogram "tenure_lock_wait_time_seconds" ["kind"]
        "Wait before a grant: in the queue, or for a job since it could have started";
    CLEANED: Counter "tenure_stale_locks_cleaned_total" [""]
        "Tenures ended by the expiry of their session";
    RATIO: Gauge "tenure_lock_age_ratio" ["kind"]
        "Highest ratio of the age of a running attempt to its limit";
    LOST: Counter "tenure_lost_total" ["reason"]
        "Tenures lost by their holder: expired, closed with the session, or broken";
    FENCED: Counter "tenure_fenced_writes_total" [""]
        "Writes refused because their token belongs to an ended tenure";
    SESSIONS: Gauge "tenure_sessions" [""]
        "Open sessions";
    JOBS: Gauge "tenure_jobs" ["kind,state"]
        "Unfinished and dead jobs by state";
    RUNNING: Gauge "tenure_jobs_running_duration_seconds" ["kind,operation"]
        "Age of the longest-running attempt";
    ATTEMPTS: Counter "tenure_job_attempts_total" ["kind,operation,outcome,code"]
        "Ended attempts; the code has the reason of those that did not succeed";
    NOT_STARTED: Counter "tenure_jobs_not_started_total" ["kind,operation"]
        "Jobs that failed because they had not started by their start deadline";
    DEPTH: Gauge "tenure_queue_depth" ["kind"]
        "Jobs queued or in backoff";
    OLDEST: Gauge "tenure_queue_oldest_seconds" ["kind"]
        "Time since the longest-waiting job became due";
    DEAD: Gauge "tenure_dead_letters" ["kind"]
        "Dead jobs: out of attempts, waiting for an operator";
    DEAD_OLDEST: Gauge "tenure_dead_letter_oldest_seconds" ["kind"]
        "Age of the oldest dead job";
    JANITOR_HOLDS_LOCK: Gauge "tenure_janitor_here" [""]
        "1 on the server that holds the janitor's lock, 0 on the others";
    JANITOR_RUNS: Counter "tenure_janitor_runs_total" ["duty"]
        "Completed runs of a duty on this server";
    JANITOR_ERRORS: Counter "tenure_janitor_errors_total" ["duty"]
        "Failed runs of a duty on this server";
    JANITOR_ITEMS: Counter "tenure_janitor_items_total" ["duty"]
        "Items that a duty handled, or found for the first time";
    JANITOR_FOUND: Gauge "tenure_janitor_found" ["duty"]
        "Items found by the last run of a duty";
    JANITOR_AGE: Gauge "tenure_janitor_last_run_age_seconds" ["duty"]
        "Time since the end of the last run of a duty on this server; absent before the first";
    JANITOR_LAG: Gauge "tenure_janitor_lag_seconds" ["duty"]
        "Time by which the next run of a duty on this server is overdue";
    JANITOR_DURATION: Gauge "tenure_janitor_run_duration_seconds" ["duty"]
        "Duration of the last run of a duty";
    HISTORY_VIOLATIONS: Counter "tenure_history_violations_total" [""]
        "Contradictions that this server has found in the history, each counted once";
    HISTORY_UNVERIFIED: Gauge "tenure_history_unverified_entries" [""]
        "History entries not verified yet; only on the server that holds the janitor's lock";
    STORE_UP: Gauge "tenure_store_up" [""]
        "1 if the store answers; 0 if not, and then its gauges are absent";
    STORE_BATCH: Histogram "tenure_store_batch_seconds" [""]
        "Duration of command batches in the store, including the flush";
    STORE_COMMANDS: Histogram "tenure_store_batch_commands" [""]
        "Number of commands per batch";
    STORE_SWEEP: Histogram "tenure_store_sweep_seconds" [""]
        "Duration of sweeps";
    STORE_ERRORS: Counter "tenure_store_errors_total" ["call"]
        "Failed calls of the store";
    BROKEN_FILES: Gauge "tenure_config_broken_files" ["app"]
        "Invalid files of an app on this server; what they declare is disabled";
    HTTP_REQUESTS: Counter "tenure_http_requests_total" ["method,route,status"]
        "Completed requests, including those of batches; the route is the pattern, or none if no \
         route matches";
    HTTP_DURATION: Histogram "tenure_http_request_duration_seconds" ["route"]
        "Duration of requests, including intentional waits";
    HTTP_IN_FLIGHT: Gauge "tenure_http_in_flight" [""]
        "Requests in progress";
    AUDIT_DROPPED: Counter "tenure_audit_dropped_total" ["class,reason"]
        "Audit entries lost (queue_full, file_failed), evicted (size, age) or not shared \
         (store_failed, denied_rate)";
}

/// Buckets for store calls, in seconds: from a batch in memory to an overloaded database.
const STORE_BUCKETS: [f64; 14] =
    [0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
/// Buckets for requests, in seconds: up to the maximum time that a response is held back.
const REQUEST_BUCKETS: [f64; 13] =
    [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 15.0, 30.0, 60.0];
/// Buckets for commands per batch: up to the largest batch.
const COMMANDS_BUCKETS: [f64; 9] = [1.0, 2.0, 4.0, 16.0, 64.0, 256.0, 1_024.0, 2_048.0, 4_096.0];

/// The metrics of one server.
pub struct Metrics {
    registry: Registry,
    labels: LabelValues,
    per_tenant: AtomicBool,
    snapshots: tokio::sync::Mutex<SnapshotCache>,
    acquisitions: Counters<2>,
    failures: Counters<1>,
    held: Histograms<2>,
    waited: Histograms<1>,
    cleaned: Counter,
    lost: Counters<1>,
    fenced: Counter,
    attempts: Counters<4>,
    not_started: Counters<2>,
    store_batch: Histogram,
    store_commands: Histogram,
    store_sweep: Histogram,
    store_errors: Counters<1>,
    broken_files: Family<Labels<1>, Gauge>,
    http_requests: Counters<3>,
    http_duration: Histograms<1>,
    http_in_flight: Gauge,
    audit_dropped: Counters<2>,
    apps: Vec<Arc<dyn AppMetrics>>,
    app_names: Vec<&'static str>,
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
        // Start at zero, so that the first event is seen as an increase.
        for how in [EndKind::Expired, EndKind::Closed, EndKind::Broken] {
            drop(lost.get_or_create(&[("reason", how.as_str().into())]));
        }
        let audit_dropped: Counters<2> = register(to, AUDIT_DROPPED, Family::default());
        for class in AuditClass::ALL.map(AuditClass::as_str) {
            for reason in DROP_REASONS {
                drop(audit_dropped.get_or_create(&dropped_labels(class, reason)));
            }
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
            not_started: register(to, NOT_STARTED, Family::default()),
            store_batch: register(to, STORE_BATCH, Histogram::new(STORE_BUCKETS)),
            store_commands: register(to, STORE_COMMANDS, Histogram::new(COMMANDS_BUCKETS)),
            store_sweep: register(to, STORE_SWEEP, Histogram::new(STORE_BUCKETS)),
            store_errors,
            broken_files: register(to, BROKEN_FILES, Family::default()),
            http_requests: register(to, HTTP_REQUESTS, Family::default()),
            http_duration: register(
                to,
                HTTP_DURATION,
                Family::new_with_constructor(request_histogram),
            ),
            http_in_flight: register(to, HTTP_IN_FLIGHT, Gauge::default()),
            audit_dropped,
            apps: apps.iter().filter_map(|app| app.metrics(to)).collect(),
            app_names: apps.iter().map(|app| app.name()).collect(),
            registry,
            labels: LabelValues::default(),
            per_tenant: AtomicBool::new(false),
            snapshots: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the counters of audit entries that were dropped, by class and reason.
    pub(crate) fn audit_dropped(&self) -> &Counters<2> {
        &self.audit_dropped
    }

    /// Applies a change of the live configuration: declared kinds and operations are always label
    /// values.
    pub fn reload(&self, live: &LiveConfig) {
        self.labels.declare(&live.kinds);
        for &app in &self.app_names {
            let count = live.broken.iter().filter(|broken| broken.app == app).count();
            let gauge = self.broken_files.get_or_create(&[("app", app.into())]);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        for app in &self.apps {
            app.reload(&live.apps);
        }
    }

    fn count_grant(&self, kind: &Text, waited_ms: u64) {
        self.count_acquisition(kind, &self.labels.granted);
        self.waited.get_or_create(&[("kind", kind.clone())]).observe(seconds(waited_ms));
    }

    fn count_acquisition(&self, kind: &Text, result: &Text) {
        let labels = [("kind", kind.clone()), ("result", result.clone())];
        self.acquisitions.get_or_create(&labels).inc();
    }

    fn count_tenure(&self, kind: Text, operation: Text, held_ms: u64, how: EndKind) {
        let labels = [("kind", kind), ("operation", operation)];
        self.held.get_or_create(&labels).observe(seconds(held_ms));
        match how {
            EndKind::Released | EndKind::Finished | EndKind::Withdrawn => return,
            EndKind::Expired => drop(self.cleaned.inc()),
            EndKind::Closed | EndKind::Broken => {}
        }
        self.lost.get_or_create(&[("reason", how.as_str().into())]).inc();
    }

    fn count(&self, event: &MetricEvent) {
        for app in &self.apps {
            app.count(event);
        }
        let labels = &self.labels;
        let operation_label = |operation: &Option<Text>| match operation {
            Some(operation) => labels.operations.label(operation),
            None => labels.empty.clone(),
        };
        match event {
            MetricEvent::Granted { key, waited_ms } => {
                self.count_grant(&labels.kinds.label(key.kind()), *waited_ms);
            }
            MetricEvent::AcquireFailed { key, reason } => {
                self.count_acquisition(&labels.kinds.label(key.kind()), &labels.failed);
                self.failures.get_or_create(&[("reason", (*reason).into())]).inc();
            }
            MetricEvent::TenureEnded { key, operation, held_ms, how } => {
                let (kind, operation) =
                    (labels.kinds.label(key.kind()), operation_label(operation));
                self.count_tenure(kind, operation, *held_ms, *how);
            }
            MetricEvent::AttemptEnded { key, operation, outcome, code } => {
                let code = code.as_ref().map_or(labels.empty.clone(), |c| labels.codes.label(c));
                let labels = [
                    ("kind", labels.kinds.label(key.kind())),
                    ("operation", labels.operations.label(operation)),
                    ("outcome", outcome.as_str().into()),
                    ("code", code),
                ];
                self.attempts.get_or_create(&labels).inc();
            }
            MetricEvent::NotStarted { key, operation } => {
                let labels = [
                    ("kind", labels.kinds.label(key.kind())),
                    ("operation", labels.operations.label(operation)),
                ];
                self.not_started.get_or_create(&labels).inc();
            }
            MetricEvent::Fenced => drop(self.fenced.inc()),
            // Not a lock request.
            MetricEvent::Attached { .. } => {}
        }
    }
}

impl Observer for Metrics {
    fn on_facts(&self, events: &[MetricEvent]) {
        for event in events {
            self.count(event);
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

fn request_histogram() -> Histogram {
    Histogram::new(REQUEST_BUCKETS)
}
