//! Why an embedded store could not be opened, each with its remedy.

use std::path::PathBuf;

/// Why an embedded store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has it open.
    #[error(
        "{0} is in use by another server; stop that one, or choose another file with --store \
         embedded:PATH or another directory with --data DIR"
    )]
    InUse(PathBuf),
    /// A file of something else.
    #[error("{0} is not a Tenure store; choose another file with --store embedded:PATH")]
    Foreign(PathBuf),
    /// Written by a later version.
    #[error("{path} has format {found}, this program reads up to {known}; use a newer tenure")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// A file system whose locks and flushes cannot be trusted.
    #[error(
        "{0} is on a network file system, whose locks and flushes cannot be trusted; use a local \
         directory with --data DIR, or a database server for many hosts"
    )]
    Network(PathBuf),
    /// The operating system said no.
    #[error("cannot {what} {path}; check that the directory exists and is writable")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// SQLite said no.
    #[error("cannot read or write {path}")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: rusqlite::Error,
    },
    /// The file is damaged.
    #[error("{path} is damaged ({what}); restore it from a backup, and keep this file for study")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
}
