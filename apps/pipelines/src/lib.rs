//! Pipelines: one run at a time per tenant and pipeline; a trigger during a run gets the id of the
//! active run.
//!
//! A pipeline is a resource of the kind `pipeline`, a run is a job of its operation `run`, which
//! meets itself with `attach`. So everything that holds for jobs holds for runs, and nothing about
//! who may run is decided here. This crate has the declaration of pipelines ([`catalog`],
//! [`declare`]), the parameters of a trigger ([`parameters`]), schedules ([`schedule`]), and the
//! steps of a run ([`run`], [`steps`]); routes are in `api`, verbs in `cli`, the
//! scenario of `tenure demo` in `demo`.
//!
//! It must never execute a step of a run whose tenure is lost, and never expose a secret.

mod api;
mod bench;
pub mod catalog;
mod cli;
pub mod declare;
mod demo;
mod duty;
mod metrics;
pub mod parameters;
pub mod precheck;
pub mod run;
mod run_args;
pub mod schedule;
pub mod secrets;
mod settings;
mod slot_selection;
pub mod slots;
pub mod steps;
pub mod template;
pub mod timeline;
pub mod wire;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tenure_app::metrics::{Definition, Registry};
use tenure_app::{
    App, AppMetrics, AppRoutes, AppWorker, Demo, Duty, LoadedApp, Problem, WorkerEnv,
};
use tenure_cli_kit::Verb;
use tenure_config::{BadConfig, Report, Section};
use tenure_core::{Kind, ResourceKey};

pub use catalog::Catalog;
pub use declare::Pipeline;
pub use run::Runner;
pub use settings::PipelineSettings;

/// Kind of pipelines.
pub const KIND: &str = "pipeline";
/// Operation that executes a run.
pub const RUN: &str = "run";

/// The pipelines app.
pub struct Pipelines;

impl App for Pipelines {
    fn name(&self) -> &'static str {
        "pipelines"
    }

    fn load(
        &self,
        section: &Section<'_>,
        dir: &Path,
        report: &mut Report<'_>,
    ) -> Option<Arc<dyn LoadedApp>> {
        let settings = settings::read(section, dir, report)?;
        match Catalog::load(&settings) {
            Ok(catalog) => {
                report.disable(catalog.problems().cloned());
                Some(Arc::new(catalog))
            }
            Err(BadConfig(problems)) => {
                report.extend(problems);
                None
            }
        }
    }

    fn routes(&self) -> AppRoutes {
        api::routes()
    }

    fn duties(&self) -> Vec<Box<dyn Duty>> {
        vec![Box::new(duty::Schedules::default())]
    }

    fn metric_definitions(&self) -> &'static [Definition] {
        metrics::ALL
    }

    fn metrics(&self, registry: &mut Registry) -> Option<Arc<dyn AppMetrics>> {
        Some(Arc::new(metrics::PipelineMetrics::new(registry)))
    }

    fn cli(&self) -> Option<Box<dyn Verb>> {
        Some(cli::verb())
    }

    fn benches(&self) -> Vec<Box<dyn Verb>> {
        vec![bench::verb()]
    }

    fn demo(&self) -> Option<Box<dyn Demo>> {
        Some(Box::new(demo::Scenario))
    }
}

impl LoadedApp for Catalog {
    fn kinds(&self) -> Vec<Kind> {
        vec![self.kind()]
    }

    fn size(&self) -> usize {
        self.len()
    }

    fn check_submit(
        &self,
        key: &ResourceKey,
        _operation: &str,
        args: Option<&Value>,
    ) -> Result<(), Problem> {
        api::check_submit(self, key, args)
    }

    fn worker(&self, env: &WorkerEnv) -> Result<Option<AppWorker>, tenure::Error> {
        let guarded = env.store == "postgres";
        let runner = Runner::new(env.live.clone(), guarded, env.span)?;
        Ok(Some(AppWorker::new(self.settings.slots).handle(KIND, runner)))
    }

    fn watched_paths(&self) -> Vec<PathBuf> {
        vec![self.settings.dir.clone()]
    }
}
