//! Metrics of pipelines, labelled by tenant and pipeline.
//!
//! To bound the cardinality, only declared pipelines have labels of their own; all others are
//! `other`. `metrics = false` in `[pipelines]` disables them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use prometheus_client::metrics::family::Family;
use tenure_app::metrics::{
    Counters, Gauges, Histograms, OTHER, Registry, Sample, long_histogram, number, register,
    seconds, set_gauge,
};
use tenure_app::{AppMetrics, LoadedApps};
use tenure_core::{MetricEvent, ResourceKey, TenureView, Text};
use tenure_store::store::{PAGE_MAX, TenureQuery};
use tenure_store::{Store, StoreError};

use crate::{Catalog, KIND, Pipeline, slots};

tenure_app::define_metrics! {
    ACQUISITIONS: Counter "pipeline_lock_acquisitions_total"
        ["tenant_id,pipeline_id,result"]
        "Lock acquisitions by runs or users (success), and triggers attached to an active run \
             (conflict)";
    ACTIVE: Gauge "pipeline_active_locks" ["tenant_id,pipeline_id"]
        "Number of locks of a pipeline that are held";
    RUNNING: Gauge "pipeline_running_count" ["tenant_id,pipeline_id"]
        "Number of locks of a pipeline that are held by runs";
    DURATION: Histogram "pipeline_lock_duration_seconds" ["tenant_id,pipeline_id"]
        "Time that runs held the lock of a pipeline";
    WAITED: Histogram "pipeline_lock_wait_time_seconds" ["tenant_id,pipeline_id"]
        "Time that runs waited for the lock of a pipeline after they were due";
    AGE: Gauge "pipeline_lock_age_seconds" ["tenant_id,pipeline_id"]
        "Age of the oldest held lock of a pipeline; 0 if none is held";
    TIMEOUT: Gauge "pipeline_lock_timeout_seconds" ["tenant_id,pipeline_id"]
        "Time limit of a run of the pipeline";
    THRESHOLD: Gauge "pipeline_lock_expiration_alert_threshold" [""]
        "Fraction of the time limit at which a run should alert";
}

/// Maximum number of pipelines with labels of their own.
const PIPELINES_MAX: usize = 1_000;
/// Maximum number of pages of locks read for one scrape.
const PAGES_MAX: usize = 10;

/// Result of an acquisition.
const SUCCESS: &str = "success";
/// Result of a trigger that attached to an active run.
const CONFLICT: &str = "conflict";

/// Metrics of pipelines.
pub(crate) struct PipelineMetrics {
    acquisitions: Counters<3>,
    duration: Histograms<2>,
    waited: Histograms<2>,
    labels: RwLock<LabelSource>,
}

#[derive(Default)]
struct LabelSource {
    catalog: Option<Arc<Catalog>>,
    /// Tenants and pipelines with labels of their own.
    names: HashMap<Text, HashSet<Text>>,
}

impl PipelineMetrics {
    pub(crate) fn new(to: &mut Registry) -> Self {
        Self {
            acquisitions: register(to, ACQUISITIONS, Family::default()),
            duration: register(to, DURATION, Family::new_with_constructor(long_histogram)),
            waited: register(to, WAITED, Family::new_with_constructor(long_histogram)),
            labels: RwLock::default(),
        }
    }

    fn acquired(&self, key: &ResourceKey, result: &'static str) {
        if let Some([tenant, pipeline]) = self.labels_of(key) {
            self.acquisitions.get_or_create(&[tenant, pipeline, ("result", result.into())]).inc();
        }
    }

    /// Returns the labels of a pipeline; `None` for another kind or if the metrics are disabled.
    fn labels_of(&self, key: &ResourceKey) -> Option<[(&'static str, Text); 2]> {
        if key.kind() != KIND {
            return None;
        }
        let labels = self.labels.read().unwrap_or_else(PoisonError::into_inner);
        labels.catalog.as_ref()?;
        let named = labels.names.get_key_value(key.tenant()).and_then(|(tenant, pipelines)| {
            Some((tenant.clone(), pipelines.get(slots::pipeline(key.name()))?.clone()))
        });
        let (tenant, pipeline) = named.unwrap_or_else(|| (OTHER.into(), OTHER.into()));
        Some([("tenant_id", tenant), ("pipeline_id", pipeline)])
    }

    fn catalog(&self) -> Option<Arc<Catalog>> {
        self.labels.read().unwrap_or_else(PoisonError::into_inner).catalog.clone()
    }
}

#[async_trait]
impl AppMetrics for PipelineMetrics {
    fn reload(&self, apps: &LoadedApps) {
        let catalog = apps.get::<Catalog>().filter(|catalog| catalog.settings.metrics);
        let mut names: HashMap<Text, HashSet<Text>> = HashMap::new();
        let all = catalog.iter().flat_map(|catalog| catalog.iter(None));
        for pipeline in all.take(PIPELINES_MAX) {
            let of_tenant = names.entry(pipeline.tenant.as_str().into()).or_default();
            of_tenant.insert(pipeline.name.as_str().into());
        }
        let labels = LabelSource { catalog, names };
        *self.labels.write().unwrap_or_else(PoisonError::into_inner) = labels;
    }

    fn count(&self, event: &MetricEvent) {
        match event {
            MetricEvent::Granted { key, waited_ms } => {
                self.acquired(key, SUCCESS);
                if let Some(labels) = self.labels_of(key) {
                    self.waited.get_or_create(&labels).observe(seconds(*waited_ms));
                }
            }
            MetricEvent::Attached { key } => self.acquired(key, CONFLICT),
            MetricEvent::TenureEnded { key, held_ms, .. } => {
                if let Some(labels) = self.labels_of(key) {
                    self.duration.get_or_create(&labels).observe(seconds(*held_ms));
                }
            }
            MetricEvent::AcquireFailed { .. }
            | MetricEvent::AttemptEnded { .. }
            | MetricEvent::NotStarted { .. }
            | MetricEvent::Fenced => {}
        }
    }

    async fn sample(&self, store: &dyn Store) -> Result<Sample, StoreError> {
        let Some(catalog) = self.catalog() else { return Ok(Arc::new(|_| {})) };
        let held = held_locks(store).await?;
        Ok(Arc::new(move |registry| set_gauges(registry, &catalog, &held)))
    }
}

/// Reads the locks of pipelines that are held.
async fn held_locks(store: &dyn Store) -> Result<Vec<TenureView>, StoreError> {
    let mut held = Vec::new();
    let mut after = None;
    for _ in 0..PAGES_MAX {
        let kind = Some(KIND.into());
        let query = TenureQuery { kind, after, limit: PAGE_MAX, ..TenureQuery::default() };
        let page = store.reads().tenures(query).await?;
        held.extend(page.items);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(held)
}

/// Sets the gauges of every declared pipeline, also of those without a run.
fn set_gauges(registry: &mut Registry, catalog: &Catalog, held: &[TenureView]) {
    set_gauge(registry, THRESHOLD, catalog.settings.alert_threshold);
    let mut by_pipeline: HashMap<(&str, &str), Vec<&TenureView>> = HashMap::new();
    for view in held {
        by_pipeline
            .entry((view.key.tenant(), slots::pipeline(view.key.name())))
            .or_default()
            .push(view);
    }
    let [active, running, age, timeout] = [ACTIVE, RUNNING, AGE, TIMEOUT]
        .map(|definition| register(registry, definition, Gauges::default()));
    for pipeline in catalog.iter(None).take(PIPELINES_MAX) {
        let Pipeline { tenant, name, limit_ms, .. } = &**pipeline;
        let held = by_pipeline.remove(&(tenant.as_str(), name.as_str())).unwrap_or_default();
        let labels =
            vec![("tenant_id", tenant.as_str().into()), ("pipeline_id", name.as_str().into())];
        let set = |family: &Gauges, value| {
            family.get_or_create(&labels).set(value);
        };
        set(&active, number(held.len()));
        set(&running, number(held.iter().filter(|view| view.job.is_some()).count()));
        let oldest = held.iter().map(|view| view.age_ms).max();
        set(&age, seconds(oldest.unwrap_or(0)));
        set(&timeout, seconds(*limit_ms));
    }
}
