//! The app contract: what an app implements, and what its HTTP handlers share with the server.
//!
#![doc = include_str!("../README.md")]

pub mod access;
pub mod bodies;
pub mod caller;
pub mod controller;
mod demo;
pub mod duty;
pub mod extract;
mod job_cache;
pub mod job_waits;
pub mod live;
pub mod load;
pub mod metrics;
pub mod openapi;
pub mod pages;
mod position_cipher;
pub mod prelude;
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

pub use {tenure, tenure_cli_kit, tenure_config, tenure_core, tenure_store, tenure_wire};

pub use access::{Access, Rule};
pub use caller::Caller;
pub use controller::{Controller, ControllerContext, ControllerRunner};
pub use demo::{Demo, DemoServer};
pub use duty::{Duty, DutyContext, DutyReport, Violations};
pub use live::{BrokenFile, Live, LiveConfig, LoadedApps};
pub use load::{Apps, Loaded};
pub use metrics::AppMetrics;
pub use position_cipher::PositionCipher;
pub use problem::Problem;
pub use routes::AppRoutes;
pub use services::Services;
pub use worker::{AppWorker, WorkerEnv};

/// A system built on the engine: the parts that exist once per process, whether the app is
/// configured or not.
pub trait App: Send + Sync + 'static {
    /// Name of the section in `tenure.toml`, in the plural: `pipelines`.
    fn name(&self) -> &'static str;

    /// Parses the section of `tenure.toml` and everything it refers to. Called again when a watched
    /// file changes.
    ///
    /// Adds every problem of the section to `report` and returns `None` if there is any: the whole
    /// configuration is then rejected. Problems of the app's own files go to [`Report::disable`];
    /// the app is loaded without what those files declare, and the server reports them in its log,
    /// by `/readyz` and as a metric until they are fixed.
    fn load(
        &self,
        section: &Section<'_>,
        dir: &Path,
        report: &mut Report<'_>,
    ) -> Option<Arc<dyn LoadedApp>>;

    /// Returns the HTTP routes. Handlers find the loaded app through
    /// [`Services::live`](services::Inner::live).
    fn routes(&self) -> AppRoutes {
        AppRoutes::default()
    }

    /// Returns the duties for the janitor of the server.
    fn duties(&self) -> Vec<Box<dyn Duty>> {
        Vec::new()
    }

    /// Returns fleet-wide singletons, run by processes with workers while the app is configured.
    fn controllers(&self) -> Vec<Arc<dyn Controller>> {
        Vec::new()
    }

    /// Returns the definitions of all metrics that [`App::metrics`] registers.
    fn metric_definitions(&self) -> &'static [metrics::Definition] {
        &[]
    }

    /// Registers the metrics of the app with the server.
    fn metrics(&self, _registry: &mut metrics::Registry) -> Option<Arc<dyn AppMetrics>> {
        None
    }

    /// Returns the CLI subcommand, for example `tenure pipeline …`.
    fn cli(&self) -> Option<Box<dyn Verb>> {
        None
    }

    /// Returns the benchmarks: `tenure bench …`.
    fn benches(&self) -> Vec<Box<dyn Verb>> {
        Vec::new()
    }

    /// Returns the demo: `tenure demo NAME`.
    fn demo(&self) -> Option<Box<dyn Demo>> {
        None
    }
}

/// An app as configured by one version of `tenure.toml`.
pub trait LoadedApp: Any + Send + Sync {
    /// Returns the kinds of the app's resources.
    fn kinds(&self) -> Vec<Kind>;

    /// Returns the number of items that the configuration declares, for example pipelines.
    fn size(&self) -> usize {
        1
    }

    /// Validates a job that is submitted through the general API. An app refuses jobs that it could
    /// not run, and accepts all jobs of other kinds.
    fn check_submit(
        &self,
        _key: &ResourceKey,
        _operation: &str,
        _args: Option<&Value>,
    ) -> Result<(), Problem> {
        Ok(())
    }

    /// Returns the worker for the app's kinds; `None` if its jobs run elsewhere. Called once per
    /// process; the worker sees later changes through [`WorkerEnv::live`].
    fn worker(&self, _env: &WorkerEnv) -> Result<Option<AppWorker>, tenure::Error> {
        Ok(None)
    }

    /// Returns warnings for an operator, shown by `/readyz`.
    fn readiness_warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns files and directories to watch: when one changes, the configuration is reloaded.
    fn watched_paths(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}
