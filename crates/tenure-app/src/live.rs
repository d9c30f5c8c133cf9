//! The live configuration: the part that may change while a process runs.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use tenure_config::{self as config, RetentionSettings};
use tenure_core::{Kinds, ResourceKey};
use tokio::sync::watch;

use crate::LoadedApp;
use crate::problem::Problem;

/// A version of the live configuration.
#[derive(Clone, Default)]
pub struct LiveConfig {
    /// All kinds, those of apps included.
    pub kinds: Arc<Kinds>,
    /// The apps that are configured.
    pub apps: LoadedApps,
    /// Files of apps that are invalid: what they declare is disabled.
    pub broken: Arc<[BrokenFile]>,
    /// Retention of finished jobs, dead letters and history.
    pub retention: RetentionSettings,
    /// Environment variables of the process that commands get besides the minimum: names, or
    /// prefixes followed by `*`.
    pub pass_env: Arc<[String]>,
}

/// An invalid file of an app. What it declares is disabled; everything else is in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenFile {
    /// Name of the app.
    pub app: &'static str,
    /// The file, or a directory that cannot be read.
    pub file: PathBuf,
    /// All its problems; never empty.
    pub problems: Vec<config::Problem>,
}

impl BrokenFile {
    /// Groups the problems of an app by file.
    pub(crate) fn group(app: &'static str, problems: Vec<config::Problem>) -> Vec<Self> {
        let mut by_file: BTreeMap<PathBuf, Vec<config::Problem>> = BTreeMap::new();
        for problem in problems {
            by_file.entry(problem.file.clone().unwrap_or_default()).or_default().push(problem);
        }
        by_file.into_iter().map(|(file, problems)| Self { app, file, problems }).collect()
    }
}

/// The configured apps by name; cheap to clone.
#[derive(Clone, Default)]
pub struct LoadedApps(Arc<BTreeMap<&'static str, Arc<dyn LoadedApp>>>);

impl LoadedApps {
    /// Collects loaded apps by name.
    pub fn new(apps: impl IntoIterator<Item = (&'static str, Arc<dyn LoadedApp>)>) -> Self {
        Self(Arc::new(apps.into_iter().collect()))
    }

    /// Returns the loaded app of type `T`, if it is configured.
    #[must_use]
    pub fn get<T: LoadedApp>(&self) -> Option<Arc<T>> {
        self.0.values().find_map(|app| {
            let app: Arc<dyn Any + Send + Sync> = Arc::clone(app) as _;
            app.downcast().ok()
        })
    }

    /// Returns the loaded app of that name, if it is configured.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Arc<dyn LoadedApp>> {
        self.0.get(name)
    }

    /// Iterates over the configured apps by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Arc<dyn LoadedApp>)> {
        self.0.iter().map(|(name, app)| (*name, app))
    }
}

/// A handle to the current live configuration; cheap to clone.
#[derive(Clone)]
pub struct Live(watch::Receiver<LiveConfig>);

impl Live {
    /// Creates a handle to what `sender` publishes.
    #[must_use]
    pub fn new(sender: &watch::Sender<LiveConfig>) -> Self {
        Self(sender.subscribe())
    }

    /// Creates a handle to a configuration that never changes.
    #[must_use]
    pub fn fixed(config: LiveConfig) -> Self {
        Self(watch::Sender::new(config).subscribe())
    }

    /// Returns the current configuration.
    #[must_use]
    pub fn get(&self) -> LiveConfig {
        self.0.borrow().clone()
    }

    /// Returns the current kinds.
    #[must_use]
    pub fn kinds(&self) -> Arc<Kinds> {
        Arc::clone(&self.0.borrow().kinds)
    }

    /// Returns the loaded app of type `T`, if it is configured.
    #[must_use]
    pub fn app<T: LoadedApp>(&self) -> Option<Arc<T>> {
        self.0.borrow().apps.get()
    }

    /// Validates a job that is submitted through the general API with every configured app.
    pub fn check_submit(
        &self,
        key: &ResourceKey,
        operation: &str,
        args: Option<&Value>,
    ) -> Result<(), Problem> {
        let apps = self.0.borrow().apps.clone();
        apps.iter().try_for_each(|(_, app)| app.check_submit(key, operation, args))
    }

    /// Completes when the configuration has changed since the last call; never if its sender is
    /// dropped.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
