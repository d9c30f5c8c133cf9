#![doc = include_str!("../README.md")]

pub mod access;
pub mod caller;
pub mod controller;
pub mod duty;
pub mod extract;
mod job_cache;
pub mod job_waits;
pub mod live;
pub mod load;
pub mod metrics;
pub mod openapi;
pub mod problem;
pub mod request_id;
mod routes;
pub mod services;
pub mod trace;
mod worker;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use tenure_cli_kit::Verb;
use tenure_config::{Report, Section};
use tenure_core::{Kind, ResourceKey};

pub use access::{Access, Rule};
pub use caller::Caller;
pub use controller::{Controller, ControllerContext, ControllerRunner};
pub use duty::{Duty, DutyContext, DutyReport};
pub use live::{Live, LiveConfig, LoadedApps};
pub use load::{Apps, Loaded};
pub use metrics::AppMetrics;
pub use problem::Problem;
pub use routes::AppRoutes;
pub use services::Services;
pub use worker::{AppWorker, WorkerEnv};

/// A system built on the engine, as one binary has it: what exists once per process, whether it is
/// configured or not.
pub trait App: Send + Sync + 'static {
    /// Name of the section in `tenure.toml`, in the plural: `pipelines`.
    fn name(&self) -> &'static str;

    /// Parses the section of `tenure.toml` and everything it refers to. Adds every problem to
    /// `report` and returns `None` if there is any. Called again when a watched file changes.
    fn load(
        &self,
        section: &Section<'_>,
        dir: &Path,
        report: &mut Report<'_>,
    ) -> Option<Arc<dyn LoadedApp>>;

    /// The HTTP routes. Handlers find the loaded app through [`Services::live`].
    fn routes(&self) -> AppRoutes {
        AppRoutes::default()
    }

    /// Housekeeping for the janitor of the server.
    fn duties(&self) -> Vec<Box<dyn Duty>> {
        Vec::new()
    }

    /// Fleet-wide singletons, run by processes with workers while the app is configured.
    fn controllers(&self) -> Vec<Arc<dyn Controller>> {
        Vec::new()
    }

    /// Definitions of all metrics that [`App::metrics`] exports.
    fn metric_definitions(&self) -> &'static [metrics::Definition] {
        &[]
    }

    /// Registers the metrics of the app with the server.
    fn metrics(&self, _registry: &mut metrics::Registry) -> Option<Arc<dyn AppMetrics>> {
        None
    }

    /// The verb of the command line: `tenure pipeline …`.
    fn cli(&self) -> Option<Box<dyn Verb>> {
        None
    }

    /// Benchmarks: `tenure bench …`.
    fn benches(&self) -> Vec<Box<dyn Verb>> {
        Vec::new()
    }
}

/// An app as configured by one version of `tenure.toml`.
pub trait LoadedApp: Any + Send + Sync {
    /// The kinds of the app's resources.
    fn kinds(&self) -> Vec<Kind>;

    /// Number of things that the configuration declares, for example pipelines.
    fn size(&self) -> usize;

    /// Validates a job that is submitted through the general API. An app refuses what it could not
    /// run, and accepts kinds that are not its own.
    fn check_submit(
        &self,
        _key: &ResourceKey,
        _operation: &str,
        _args: Option<&Value>,
    ) -> Result<(), Problem> {
        Ok(())
    }

    /// The worker for the app's kinds; `None` if its jobs are worked elsewhere. It is asked once
    /// per process and follows later changes through [`WorkerEnv::live`].
    fn worker(&self, _env: &WorkerEnv) -> Result<Option<AppWorker>, tenure::Error> {
        Ok(None)
    }

    /// Reasons why an operator should look at this app, shown by `/readyz`.
    fn ready(&self) -> Vec<String> {
        Vec::new()
    }

    /// Files and directories to watch: when one changes, the configuration is loaded again.
    fn watched_paths(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}
