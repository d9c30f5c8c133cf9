//! `tenure.toml`: the kinds of a deployment, and a few settings, as people write them.
//!
//! Reading names every problem at once, each with its line and a remedy, and gives a [`Config`]
//! only when there is none: nothing downstream checks again. What a kind may say is decided by
//! [`Kinds::new`] in the core; here is only how it is spelt. Nothing here has an effect.
//!
//! Next: `kinds.rs` for the tables of a kind, `section.rs` for how a table is read.

pub mod duration;
mod kinds;
mod pipelines;
pub mod report;
pub mod section;
mod settings;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_core::Kinds;

pub use kinds::{command as read_command, retry as read_retry};
pub use pipelines::{PipelineSettings, run_limit as read_run_limit};
use report::Report;
pub use report::{BadConfig, Problem};
use section::Section;
pub use settings::{AuditSetting, Keep, MetricsSettings, ServerSettings, WorkerSettings};

/// The name of the file that is looked for when nobody names one.
pub const FILE_NAME: &str = "tenure.toml";
/// The largest file that is read, in bytes.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// What a `tenure.toml` says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// The kinds.
    pub kinds: Arc<Kinds>,
    /// How the worker works that runs commands.
    pub worker: WorkerSettings,
    /// How long things are kept after they are over.
    pub retention: Keep,
    /// How the server deals with those who ask; read when it starts.
    pub server: ServerSettings,
    /// What is told of it to those who watch.
    pub metrics: MetricsSettings,
    /// Where pipelines are declared, if there are any.
    pub pipelines: Option<PipelineSettings>,
}

/// Why there is no config.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {}: {why}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The file says something that it must not.
    #[error(transparent)]
    Bad(#[from] BadConfig),
}

impl Config {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = read_text(path)?;
        let unreadable = |why: String| Error::Unreadable { path: path.to_owned(), why };
        let whole = std::path::absolute(path).map_err(|error| unreadable(error.to_string()))?;
        let dir = whole.parent().unwrap_or(Path::new("/"));
        Ok(Self::parse(&text, dir)?)
    }

    /// Reads a text. Relative paths of commands are below `dir`.
    pub fn parse(text: &str, dir: &Path) -> Result<Self, BadConfig> {
        let mut report = Report::new(text);
        let table = report.table()?;
        let root = Section::root(table.get_ref());
        root.known(
            &["kinds", "worker", "retention", "server", "metrics", "pipelines"],
            &mut report,
        );
        let worker = settings::worker(&root, &mut report);
        let retention = settings::retention(&root, &mut report);
        let server = settings::server(&root, dir, &mut report);
        let metrics = settings::metrics(&root, &mut report);
        let pipelines = pipelines::read(&root, dir, &mut report);
        let kinds = kinds::read(&root, dir, &mut report);
        match kinds {
            Some(kinds) if report.is_empty() => {
                Ok(Self { kinds: Arc::new(kinds), worker, retention, server, metrics, pipelines })
            }
            _ => Err(report.into_bad()),
        }
    }

    /// How many operations there are in all.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.kinds.iter().map(|kind| kind.operations.len()).sum()
    }

    /// The kinds that are worked by running commands.
    #[must_use]
    pub fn run_kinds(&self) -> Vec<tenure_core::Text> {
        let runs = |kind: &&Arc<tenure_core::Kind>| {
            kind.operations.values().any(|operation| !operation.run.is_empty())
        };
        self.kinds.iter().filter(runs).map(|kind| kind.name.clone()).collect()
    }
}

/// Reads a file of a size that a person may have written.
pub fn read_text(path: &Path) -> Result<String, Error> {
    let unreadable = |why: String| Error::Unreadable { path: path.to_owned(), why };
    let data = path.metadata().map_err(|error| unreadable(error.to_string()))?;
    if !data.is_file() {
        // To read from a pipe would last until somebody writes.
        return Err(unreadable("it is no file".to_owned()));
    }
    let size = data.len();
    if size > FILE_BYTES_MAX {
        let why = format!("it has {size} bytes; at most {FILE_BYTES_MAX} are read");
        return Err(unreadable(why));
    }
    std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))
}
