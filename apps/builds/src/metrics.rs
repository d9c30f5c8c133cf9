//! Metrics of builds. They have no labels for builds or tests, whose number has no bound.

use std::sync::Arc;

use async_trait::async_trait;
use prometheus_client::metrics::family::Family;
use tenure_app::AppMetrics;
use tenure_app::metrics::{Counters, Registry, Sample, number, register, seconds, set_gauge};
use tenure_core::job::AttemptOutcome;
use tenure_core::{JobState, MetricEvent};
use tenure_store::census::Group;
use tenure_store::{Store, StoreError};

use crate::names::{BUILD, NODE, SETUP, TEST};

tenure_app::define_metrics! {
    TESTS: Counter "build_tests_total" ["outcome"]
        "Runs of tests that ended, by outcome: ok, failed, lost, deferred, handed_back, cancelled";
    SETUPS: Counter "build_setups_total" ["outcome"]
        "Terms of leaders that ended before or with the publication of the tests, by outcome";
    SETUP_AGE: Gauge "build_setup_age_seconds" [""]
        "Time for which the oldest leader has been preparing tests; 0 if none does";
    UNFINISHED: Gauge "build_tests_unfinished" [""]
        "Number of tests without a final result";
    RUNNING: Gauge "build_tests_running" [""]
        "Number of tests that are running";
    QUEUE_AGE: Gauge "build_tests_queue_age_seconds" [""]
        "Time for which the oldest waiting test could have run";
    NODES: Gauge "build_nodes" [""]
        "Number of nodes that work on builds";
}

/// Metrics of builds.
pub(crate) struct BuildMetrics {
    tests: Counters<1>,
    setups: Counters<1>,
}

impl BuildMetrics {
    pub(crate) fn new(to: &mut Registry) -> Self {
        let metrics = Self {
            tests: register(to, TESTS, Family::default()),
            setups: register(to, SETUPS, Family::default()),
        };
        // All series exist from the start, so that the first loss is an increase, too.
        for outcome in AttemptOutcome::ALL {
            for counters in [&metrics.tests, &metrics.setups] {
                drop(counters.get_or_create(&[("outcome", outcome.as_str().into())]));
            }
        }
        metrics
    }
}

#[async_trait]
impl AppMetrics for BuildMetrics {
    fn count(&self, event: &MetricEvent) {
        let MetricEvent::AttemptEnded { key, outcome, .. } = event else { return };
        let counters = match key.kind() {
            TEST => &self.tests,
            BUILD => &self.setups,
            _ => return,
        };
        counters.get_or_create(&[("outcome", outcome.as_str().into())]).inc();
    }

    async fn sample(&self, store: &dyn Store) -> Result<Sample, StoreError> {
        let census = store.reads().census().await?;
        let of_kind = |wanted: &str| {
            let mut all = Group::default();
            let groups = census.groups().filter(|(_, kind, _)| *kind == wanted);
            groups.for_each(|(_, _, group)| all.merge(group));
            all
        };
        let (builds, tests, nodes) = (of_kind(BUILD), of_kind(TEST), of_kind(NODE));
        let running = tests.jobs(JobState::Running) + tests.jobs(JobState::Cancelling);
        let setup_ms = builds.running_ms.get(SETUP).copied().unwrap_or(0);
        let unfinished = running + tests.queued();
        Ok(Arc::new(move |registry| {
            set_gauge(registry, SETUP_AGE, seconds(setup_ms));
            set_gauge(registry, UNFINISHED, number(unfinished));
            set_gauge(registry, RUNNING, number(running));
            set_gauge(registry, QUEUE_AGE, seconds(tests.queue_oldest_ms));
            set_gauge(registry, NODES, number(nodes.locks));
        }))
    }
}
