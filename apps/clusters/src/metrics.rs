//! Metrics of clusters. They keep the names that older systems have used.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tenure_app::AppMetrics;
use tenure_app::metrics::{
    Counters, Gauges, Histograms, OTHER, Registry, Sample, long_histogram, number, register,
    seconds, set_gauge,
};
use tenure_core::record::EndKind;
use tenure_core::retry::{LOCK_STATE_LOST, WORKER_TIMEOUT};
use tenure_core::{MetricEvent, Text};
use tenure_store::{Store, StoreError};

use crate::failure::Rules;
use crate::names::{CLUSTER, OPERATIONS};
use crate::queue::dead_messages;

tenure_app::define_metrics! {
    ACQUISITION_FAILURES: Counter "ocpctl_lock_acquisition_failures_total" ["reason"]
        "Refused requests for the lock of a cluster, by reason";
    HELD: Histogram "ocpctl_lock_held_duration_seconds" ["job_type"]
        "Time for which jobs had the lock of their cluster, by operation";
    STALE: Counter "ocpctl_stale_locks_cleaned_total" [""]
        "Locks of clusters that were freed because the heartbeats of their worker stopped";
    RUNNING: Gauge "ocpctl_jobs_running_duration_seconds" ["job_type"]
        "Time for which the oldest running job has been running, by operation; 0 if none does";
    FAILURES: Counter "ocpctl_job_failures_total" ["job_type,reason"]
        "Failed attempts, by operation and reason";
    DEAD_MESSAGES: Gauge "ocpctl_dlq_messages" [""]
        "Messages in the dead-letter queue on SQS, as of the last look of the controller";
}

/// Metrics of clusters.
pub(crate) struct ClusterMetrics {
    acquisition_failures: Counters<1>,
    held: Histograms<1>,
    stale: Counter,
    failures: Counters<2>,
}

impl ClusterMetrics {
    pub(crate) fn new(to: &mut Registry) -> Self {
        let held: Histograms<1> = Family::new_with_constructor(long_histogram);
        let metrics = Self {
            acquisition_failures: register(to, ACQUISITION_FAILURES, Family::default()),
            held: register(to, HELD, held),
            stale: register(to, STALE, Counter::default()),
            failures: register(to, FAILURES, Family::default()),
        };
        // All series exist from the start, so that the first event is an increase, too.
        drop(metrics.acquisition_failures.get_or_create(&[("reason", "held".into())]));
        for operation in OPERATIONS {
            drop(metrics.held.get_or_create(&[("job_type", operation.into())]));
            let lost = [("job_type", operation.into()), ("reason", WORKER_TIMEOUT.into())];
            drop(metrics.failures.get_or_create(&lost));
        }
        metrics
    }
}

/// Returns the label of an operation.
fn job_type(operation: Option<&Text>) -> (&'static str, Text) {
    let known = operation.filter(|operation| OPERATIONS.contains(&&***operation));
    ("job_type", known.cloned().unwrap_or_else(|| OTHER.into()))
}

/// Returns the label of the reason of a failure.
fn reason(code: &Text) -> (&'static str, Text) {
    static REASONS: OnceLock<BTreeSet<String>> = OnceLock::new();
    let reasons =
        REASONS.get_or_init(|| Rules::load(None).0.reasons().map(str::to_owned).collect());
    let known = reasons.contains(&**code) || [WORKER_TIMEOUT, LOCK_STATE_LOST].contains(&&**code);
    ("reason", if known { code.clone() } else { OTHER.into() })
}

#[async_trait]
impl AppMetrics for ClusterMetrics {
    fn count(&self, event: &MetricEvent) {
        match event {
            MetricEvent::AcquireFailed { key, reason } if key.kind() == CLUSTER => {
                self.acquisition_failures.get_or_create(&[("reason", (*reason).into())]).inc();
            }
            MetricEvent::TenureEnded { key, operation, held_ms, how } if key.kind() == CLUSTER => {
                let labels = [job_type(operation.as_ref())];
                self.held.get_or_create(&labels).observe(seconds(*held_ms));
                if *how == EndKind::Expired {
                    self.stale.inc();
                }
            }
            MetricEvent::AttemptEnded { key, operation, code: Some(code), .. }
                if key.kind() == CLUSTER =>
            {
                let labels = [job_type(Some(operation)), reason(code)];
                self.failures.get_or_create(&labels).inc();
            }
            _ => {}
        }
    }

    async fn sample(&self, store: &dyn Store) -> Result<Sample, StoreError> {
        let census = store.reads().census().await?;
        let mut running = BTreeMap::<Text, u64>::new();
        for (_, _, group) in census.groups().filter(|(_, kind, _)| *kind == CLUSTER) {
            for (operation, ms) in &group.running_ms {
                let oldest = running.entry(operation.clone()).or_default();
                *oldest = (*oldest).max(*ms);
            }
        }
        let dead = dead_messages(store).await?;
        Ok(Arc::new(move |registry| {
            let gauges = register(registry, RUNNING, Gauges::default());
            for operation in OPERATIONS {
                let ms = running.get(operation).copied().unwrap_or(0);
                gauges.get_or_create(&vec![("job_type", operation.into())]).set(seconds(ms));
            }
            set_gauge(registry, DEAD_MESSAGES, number(dead));
        }))
    }
}
