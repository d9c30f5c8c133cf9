//! `tenure.toml`: the kinds and settings of a deployment.
//!
//! Parsing reports every problem at once, each with its line and a remedy, and returns a [`Config`]
//! only if there is none: code downstream does not validate again. What a kind may declare is
//! decided by [`Kinds::new`] in the core; this crate only knows the spelling. Tables that belong to
//! apps are parsed by the apps, through [`AppSections`].
//!
//! See `kinds.rs` for the tables of a kind, `section.rs` for how a table is read.

pub mod duration;
mod kinds;
pub mod report;
pub mod section;
mod settings;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_core::Kinds;

pub use kinds::{command as read_command, path as read_path, retry as read_retry};
pub use report::{BadConfig, Problem, Report};
pub use section::Section;
pub use settings::{
    AuditLimits, AuditSetting, MetricsSettings, RetentionSettings, RunnerSettings, ServerSettings,
    WorkerSettings, check_variable,
};

/// Name of the file that is used by default.
pub const FILE_NAME: &str = "tenure.toml";
/// Maximum size of a configuration file, in bytes.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Top-level tables of `tenure.toml` that are always known.
const TABLES: [&str; 7] = ["kinds", "worker", "runner", "retention", "server", "audit", "metrics"];

/// A parsed `tenure.toml`, without the tables of apps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// The declared kinds.
    pub kinds: Arc<Kinds>,
    /// Settings of the worker that runs commands.
    pub worker: WorkerSettings,
    /// Settings of all commands.
    pub runner: RunnerSettings,
    /// Retention periods of finished jobs, dead letters and history.
    pub retention: RetentionSettings,
    /// Settings of the HTTP server, read when it starts.
    pub server: ServerSettings,
    /// How much of the audit log is kept, read when the server starts.
    pub audit: AuditLimits,
    /// Settings of the metrics endpoint.
    pub metrics: MetricsSettings,
}

/// Error returned when a configuration file cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {}: {reason}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        reason: String,
    },
    /// The file has problems.
    #[error(transparent)]
    Bad(#[from] BadConfig),
}

/// Parses the top-level tables that belong to apps.
pub trait AppSections {
    /// Returns the names of the tables.
    fn names(&self) -> Vec<&'static str>;

    /// Returns whether other tables that are unknown here are ignored instead of reported.
    fn ignores_unknown(&self) -> bool {
        false
    }

    /// Parses one of them, which the file has. Relative paths in it are below `dir`.
    fn parse(&mut self, section: &Section<'_>, dir: &Path, report: &mut Report<'_>);
}

/// No app is installed.
struct NoApps;

impl AppSections for NoApps {
    fn names(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn parse(&mut self, _: &Section<'_>, _: &Path, _: &mut Report<'_>) {}
}

impl Config {
    /// Loads a file with the tables of `apps`.
    pub fn load(path: &Path, apps: &mut dyn AppSections) -> Result<Self, Error> {
        let text = read_text(path)?;
        let unreadable = |reason: String| Error::Unreadable { path: path.to_owned(), reason };
        let absolute = std::path::absolute(path).map_err(|error| unreadable(error.to_string()))?;
        let dir = absolute.parent().unwrap_or(Path::new("/"));
        Ok(Self::parse_with(&text, dir, apps).map_err(|bad| bad.in_file(path))?)
    }

    /// Parses a text without tables of apps. Relative paths of commands are below `dir`.
    pub fn parse(text: &str, dir: &Path) -> Result<Self, BadConfig> {
        Self::parse_with(text, dir, &mut NoApps)
    }

    /// Parses a text with the tables of `apps`.
    pub fn parse_with(
        text: &str,
        dir: &Path,
        apps: &mut dyn AppSections,
    ) -> Result<Self, BadConfig> {
        let mut report = Report::new(text);
        let table = report.table()?;
        let root = Section::root(table.get_ref());
        if apps.ignores_unknown() {
            root.check_keys(&root.keys().collect::<Vec<_>>(), &mut report);
        } else {
            root.check_keys(&[&TABLES[..], &apps.names()].concat(), &mut report);
        }
        let worker = settings::worker(&root, &mut report);
        let runner = settings::runner(&root, &mut report);
        let retention = settings::retention(&root, &mut report);
        let server = settings::server(&root, dir, &mut report);
        let audit = settings::audit(&root, &mut report);
        let metrics = settings::metrics(&root, &mut report);
        for name in apps.names() {
            if let Some(section) = root.section(name, &mut report) {
                apps.parse(&section, dir, &mut report);
            }
        }
        let kinds = kinds::read(&root, dir, &mut report);
        match kinds {
            Some(kinds) if report.is_empty() => {
                let kinds = Arc::new(kinds);
                Ok(Self { kinds, worker, runner, retention, server, audit, metrics })
            }
            _ => Err(report.into_error()),
        }
    }

    /// Returns the total number of operations.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.kinds.iter().map(|kind| kind.operations.len()).sum()
    }

    /// Returns the kinds with at least one operation that runs a command.
    #[must_use]
    pub fn command_kinds(&self) -> Vec<tenure_core::Text> {
        let has_command = |kind: &&Arc<tenure_core::Kind>| {
            kind.operations.values().any(|operation| !operation.run.is_empty())
        };
        self.kinds.iter().filter(has_command).map(|kind| kind.name.clone()).collect()
    }
}

/// Reads a regular file of at most [`FILE_BYTES_MAX`] bytes.
pub fn read_text(path: &Path) -> Result<String, Error> {
    let unreadable = |reason: String| Error::Unreadable { path: path.to_owned(), reason };
    let data = path.metadata().map_err(|error| unreadable(error.to_string()))?;
    if !data.is_file() {
        // Reading a FIFO would block until something writes to it.
        return Err(unreadable("not a regular file".to_owned()));
    }
    let size = data.len();
    if size > FILE_BYTES_MAX {
        let reason = format!("it has {size} bytes; the maximum is {FILE_BYTES_MAX}");
        return Err(unreadable(reason));
    }
    std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))
}
