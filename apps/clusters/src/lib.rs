//! Clusters: creates, scales and destroys OpenShift clusters, one operation at a time per cluster,
//! and leaves no infrastructure behind.
//!
//! A cluster is a resource of the kind `cluster`, named by what would collide in the cloud:
//! platform, name and base domain. `kind.rs` declares its states and operations, and what happens
//! when they meet. `work` runs them with the installer, `status.rs` is what survives a worker.
//!
//! `api` has the routes, `cli` the verbs, `queue` the transport over SQS, `artifacts` the snapshots
//! of install directories, `inventory` the queries for what exists in the cloud.

mod advisory;
mod api;
pub mod artifacts;
pub mod aws;
mod cli;
mod cluster;
pub mod config;
mod demo;
mod duty;
pub mod failure;
pub mod install_config;
pub mod inventory;
mod kind;
mod metrics;
pub mod names;
pub mod profile;
pub mod progress;
mod queue;
pub mod request;
mod retention;
pub mod settings;
pub mod state;
pub mod status;
pub mod wire;
mod work;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::Value;
use tenure_app::metrics::{Definition, Registry};
use tenure_app::{
    App, AppMetrics, AppRoutes, AppWorker, Controller, Demo, Duty, LoadedApp, Problem, WorkerEnv,
};
use tenure_cli_kit::Verb;
use tenure_config::{Report, Section};
use tenure_core::{Kind, ResourceKey};

use artifacts::Artifacts;
use config::ClusterConfig;
use failure::Rules;
use inventory::Inventory;
use names::CLUSTER;
use profile::Profiles;
pub use settings::Settings;

/// The clusters app.
pub struct Clusters;

impl App for Clusters {
    fn name(&self) -> &'static str {
        "clusters"
    }

    fn load(
        &self,
        section: &Section<'_>,
        dir: &Path,
        report: &mut Report<'_>,
    ) -> Option<Arc<dyn LoadedApp>> {
        let settings = Settings::read(section, dir, report);
        let (profiles, problems) = Profiles::load(&settings.profiles);
        report.disable(problems);
        let (rules, problems) = Rules::load(settings.failure_rules.as_deref());
        report.disable(problems);
        Some(Arc::new(LoadedClusters::new(settings, profiles, rules)))
    }

    fn routes(&self) -> AppRoutes {
        api::routes()
    }

    fn duties(&self) -> Vec<Box<dyn Duty>> {
        vec![Box::new(duty::DuplicateHolders), Box::new(retention::Retention::default())]
    }

    fn controllers(&self) -> Vec<Arc<dyn Controller>> {
        vec![Arc::new(queue::DeadLetterWatch)]
    }

    fn metric_definitions(&self) -> &'static [Definition] {
        metrics::ALL
    }

    fn metrics(&self, registry: &mut Registry) -> Option<Arc<dyn AppMetrics>> {
        Some(Arc::new(metrics::ClusterMetrics::new(registry)))
    }

    fn cli(&self) -> Option<Box<dyn Verb>> {
        Some(cli::verb())
    }

    fn demo(&self) -> Option<Box<dyn Demo>> {
        Some(Box::new(demo::Scenario))
    }
}

/// The app as configured by one version of `tenure.toml`.
pub struct LoadedClusters {
    /// The settings.
    pub settings: Settings,
    /// The profiles.
    pub profiles: Profiles,
    rules: Rules,
    artifacts: OnceLock<Result<Arc<Artifacts>, String>>,
    inventory: OnceLock<Result<Option<Arc<dyn Inventory>>, String>>,
}

impl LoadedClusters {
    fn new(settings: Settings, profiles: Profiles, rules: Rules) -> Self {
        let (artifacts, inventory) = (OnceLock::new(), OnceLock::new());
        Self { settings, profiles, rules, artifacts, inventory }
    }

    /// Returns the rules that classify failures.
    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the store of snapshots.
    pub(crate) fn artifacts(&self) -> Result<Arc<Artifacts>, String> {
        let open = || {
            let opened = Artifacts::from_settings(&self.settings);
            opened.map(Arc::new).map_err(|error| error.to_string())
        };
        self.artifacts.get_or_init(open).clone()
    }

    /// Returns what lists the resources of an installation; `None` if destroys are not verified.
    pub(crate) fn inventory(&self) -> Result<Option<Arc<dyn Inventory>>, String> {
        let open = || inventory::open(&self.settings).map_err(|error| error.to_string());
        self.inventory.get_or_init(open).clone()
    }

    /// Returns the path of the installer that destroys a cluster. Its profile may be gone.
    pub(crate) fn destroyer(&self, config: Option<&ClusterConfig>) -> String {
        let Some(config) = config else { return self.settings.installer.clone() };
        match self.profiles.get(&config.profile) {
            Ok(profile) => profile.installer(&config.version, &self.settings),
            Err(_) => self.settings.installer.replace("{version}", &config.version),
        }
    }
}

impl LoadedApp for LoadedClusters {
    fn kinds(&self) -> Vec<Kind> {
        vec![kind::kind(&self.settings), queue::kind()]
    }

    fn size(&self) -> usize {
        self.profiles.iter().count()
    }

    fn check_submit(
        &self,
        key: &ResourceKey,
        operation: &str,
        _args: Option<&Value>,
    ) -> Result<(), Problem> {
        api::check_submit(key, operation)
    }

    fn worker(&self, env: &WorkerEnv) -> Result<Option<AppWorker>, tenure::Error> {
        let settings = &self.settings;
        if settings.slots > 0 {
            work::remove_abandoned(&settings.work_dir);
        }
        let handler = work::ClusterWorker::new(env.live.clone(), env.span);
        let mut worker = AppWorker::new(settings.slots).handle(CLUSTER, handler);
        let ms = Duration::from_millis;
        worker.session = Some((ms(settings.lock_ttl_ms), ms(settings.heartbeat_ms)));
        worker.wakeups = queue::wakeups(settings);
        Ok(Some(worker))
    }

    fn readiness_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.settings.verification == settings::Verification::None {
            let why = "clusters: destroys are not verified; set `verify` in [clusters]";
            warnings.push(why.to_owned());
        }
        warnings
    }

    fn watched_paths(&self) -> Vec<PathBuf> {
        let rules = self.settings.failure_rules.clone();
        std::iter::once(self.settings.profiles.clone()).chain(rules).collect()
    }
}
