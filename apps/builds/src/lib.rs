//! Builds: the tests of a CI build, spread over nodes. One node is elected, orders the tests and
//! publishes them; every node reserves tests and acknowledges their results, each of which counts
//! once.
//!
//! A build is a resource of the kind `build`. Its operation `setup` is the election: every node
//! claims the job, one gets it, and its token is the term. The tests of a term are resources of the
//! kind `build-test` in a group of their own; which term counts is decided by the step that
//! finishes the setup. So a leader that was replaced changes nothing, whatever it still writes.
//!
//! `api` has the routes, which contain every rule about the queue; `node` runs tests on a machine;
//! `cli` has the verbs, `demo` the scenario of `tenure demo`.

mod api;
mod bench;
mod build;
mod cli;
mod demo;
mod duty;
mod junit;
mod metrics;
pub mod names;
mod node;
pub mod order;
mod ready;
mod results;
pub mod settings;
pub mod state;
mod tally;
pub mod wire;

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tenure_app::metrics::{Definition, Registry};
use tenure_app::{App, AppMetrics, AppRoutes, Demo, Duty, LoadedApp, Problem};
use tenure_cli_kit::Verb;
use tenure_config::{Report, Section};
use tenure_core::{Kind, ResourceKey};

use ready::ReadyBuilds;
pub use settings::Settings;

/// The builds app.
pub struct Builds;

impl App for Builds {
    fn name(&self) -> &'static str {
        "builds"
    }

    fn load(
        &self,
        section: &Section<'_>,
        _dir: &Path,
        report: &mut Report<'_>,
    ) -> Option<Arc<dyn LoadedApp>> {
        Some(Arc::new(LoadedBuilds {
            settings: Settings::read(section, report),
            ready: ReadyBuilds::default(),
        }))
    }

    fn routes(&self) -> AppRoutes {
        api::routes()
    }

    fn duties(&self) -> Vec<Box<dyn Duty>> {
        vec![Box::new(duty::Cleanup)]
    }

    fn metric_definitions(&self) -> &'static [Definition] {
        metrics::ALL
    }

    fn metrics(&self, registry: &mut Registry) -> Option<Arc<dyn AppMetrics>> {
        Some(Arc::new(metrics::BuildMetrics::new(registry)))
    }

    fn cli(&self) -> Option<Box<dyn Verb>> {
        Some(cli::verb())
    }

    fn demo(&self) -> Option<Box<dyn Demo>> {
        Some(Box::new(demo::Scenario))
    }

    fn benches(&self) -> Vec<Box<dyn Verb>> {
        vec![bench::verb()]
    }
}

/// The app as configured by one version of `tenure.toml`.
pub struct LoadedBuilds {
    /// The settings.
    pub settings: Settings,
    ready: ReadyBuilds,
}

impl LoadedApp for LoadedBuilds {
    fn kinds(&self) -> Vec<Kind> {
        self.settings.kinds()
    }

    fn check_submit(
        &self,
        key: &ResourceKey,
        _operation: &str,
        _args: Option<&Value>,
    ) -> Result<(), Problem> {
        api::check_submit(key)
    }
}
