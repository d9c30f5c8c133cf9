//! The metrics of pipelines, in the names of their users and with their labels: tenant and
//! pipeline. Only what is declared has labels of its own, so they are bounded; the rest is `other`.
//! `metrics = false` in `[pipelines]` switches them off.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tenure_apps::pipelines::{Catalog, KIND, Pipeline, slots};
use tenure_core::{Fact, ResourceKey, TenureView, Text};
use tenure_store::census::seconds;
use tenure_store::store::{ListQuery, PAGE_MAX};
use tenure_store::{Store, StoreError};

use super::names::OTHER;
use super::scrape::{Many, number, one};
use super::{
    Counters, Histograms, PIPELINE_ACQUISITIONS, PIPELINE_ACTIVE, PIPELINE_AGE, PIPELINE_DURATION,
    PIPELINE_RUNNING, PIPELINE_THRESHOLD, PIPELINE_TIMEOUT, PIPELINE_WAITED, add, long,
};

/// Most pipelines that are told apart.
const PIPELINES_MAX: usize = 1_000;
/// Most pages of locks that are looked at for one scrape.
const PAGES_MAX: usize = 10;

/// A trigger that began a run, and one that met another.
const SUCCESS: &str = "success";
const CONFLICT: &str = "conflict";

/// What is counted of pipelines.
pub(super) struct Pipelines {
    acquisitions: Counters<3>,
    duration: Histograms<2>,
    waited: Histograms<2>,
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    catalog: Option<Arc<Catalog>>,
    /// Tenants with their pipelines that are told apart.
    names: HashMap<Text, HashSet<Text>>,
}

impl Pipelines {
    pub(super) fn new(to: &mut Registry) -> Self {
        Self {
            acquisitions: add(to, PIPELINE_ACQUISITIONS, Family::default()),
            duration: add(to, PIPELINE_DURATION, Family::new_with_constructor(long)),
            waited: add(to, PIPELINE_WAITED, Family::new_with_constructor(long)),
            known: RwLock::default(),
        }
    }

    /// These pipelines are told apart from now on.
    pub(super) fn know(&self, catalog: Option<&Arc<Catalog>>) {
        let catalog = catalog.filter(|catalog| catalog.settings.metrics);
        let mut names: HashMap<Text, HashSet<Text>> = HashMap::new();
        let all = catalog.iter().flat_map(|catalog| catalog.iter(None));
        for pipeline in all.take(PIPELINES_MAX) {
            let of_tenant = names.entry(pipeline.tenant.as_str().into()).or_default();
            of_tenant.insert(pipeline.name.as_str().into());
        }
        let known = Known { catalog: catalog.cloned(), names };
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
    }

    /// Counts what happened to a pipeline.
    pub(super) fn count(&self, fact: &Fact) {
        match fact {
            Fact::Granted { key, waited_ms } => {
                self.acquired(key, SUCCESS);
                if let Some(labels) = self.labels(key) {
                    self.waited.get_or_create(&labels).observe(seconds(*waited_ms));
                }
            }
            Fact::Joined { key } => self.acquired(key, CONFLICT),
            Fact::Ended { key, held_ms, .. } => {
                if let Some(labels) = self.labels(key) {
                    self.duration.get_or_create(&labels).observe(seconds(*held_ms));
                }
            }
            Fact::Failed { .. } | Fact::Tried { .. } | Fact::Fenced => {}
        }
    }

    fn acquired(&self, key: &ResourceKey, result: &'static str) {
        if let Some([tenant, pipeline]) = self.labels(key) {
            self.acquisitions.get_or_create(&[tenant, pipeline, ("result", result.into())]).inc();
        }
    }

    /// What to call a pipeline; nothing for what is none, or while nobody wants to know.
    fn labels(&self, key: &ResourceKey) -> Option<[(&'static str, Text); 2]> {
        if key.kind() != KIND {
            return None;
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.catalog.as_ref()?;
        let named = known.names.get_key_value(key.tenant()).and_then(|(tenant, pipelines)| {
            Some((tenant.clone(), pipelines.get(slots::pipeline(key.name()))?.clone()))
        });
        let (tenant, pipeline) = named.unwrap_or_else(|| (OTHER.into(), OTHER.into()));
        Some([("tenant_id", tenant), ("pipeline_id", pipeline)])
    }

    fn catalog(&self) -> Option<Arc<Catalog>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).catalog.clone()
    }

    /// The locks of pipelines, if anybody wants to know.
    pub(super) async fn look(&self, store: &dyn Store) -> Result<Vec<TenureView>, StoreError> {
        let mut held = Vec::new();
        let mut after = None;
        for _ in 0..if self.catalog().is_some() { PAGES_MAX } else { 0 } {
            let query = ListQuery {
                kind: Some(KIND.into()),
                after,
                limit: PAGE_MAX,
                ..ListQuery::default()
            };
            let page = store.reads().list(query).await?;
            held.extend(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(held)
    }

    /// Tells what there is of each pipeline, those included that nobody runs.
    pub(super) fn tell(&self, to: &mut Registry, held: &[TenureView]) {
        let Some(catalog) = self.catalog() else { return };
        one(to, PIPELINE_THRESHOLD, catalog.settings.alert_threshold);
        let mut of: HashMap<(&str, &str), Vec<&TenureView>> = HashMap::new();
        for view in held {
            of.entry((view.key.tenant(), slots::pipeline(view.key.name()))).or_default().push(view);
        }
        let [active, running, age, timeout] =
            [PIPELINE_ACTIVE, PIPELINE_RUNNING, PIPELINE_AGE, PIPELINE_TIMEOUT]
                .map(|definition| add(to, definition, Many::default()));
        for pipeline in catalog.iter(None).take(PIPELINES_MAX) {
            let Pipeline { tenant, name, limit_ms, .. } = &**pipeline;
            let held = of.remove(&(tenant.as_str(), name.as_str())).unwrap_or_default();
            let labels =
                vec![("tenant_id", tenant.as_str().into()), ("pipeline_id", name.as_str().into())];
            let set = |family: &Many, value| {
                family.get_or_create(&labels).set(value);
            };
            set(&active, number(held.len()));
            set(&running, number(held.iter().filter(|view| view.job.is_some()).count()));
            let oldest = held.iter().map(|view| view.age_ms).max();
            set(&age, seconds(oldest.unwrap_or(0)));
            set(&timeout, seconds(*limit_ms));
        }
    }
}
