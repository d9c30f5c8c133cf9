//! Errors of opening an embedded store, with their remedies.

use std::path::PathBuf;

/// Error of opening an embedded store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has the file open.
    #[error(
        "{0} is in use by another server; stop that one, or choose another file with --store \
         embedded:PATH or another directory with --data DIR"
    )]
    InUse(PathBuf),
    /// The file belongs to another program.
    #[error("{0} is not a Tenure store; choose another file with --store embedded:PATH")]
    Foreign(PathBuf),
    /// The file was written by a newer version.
    #[error("{path} has format {found}, this program reads up to {known}; use a newer tenure")]
    Newer {
        /// File.
        path: PathBuf,
        /// Format of the file.
        found: i64,
        /// Newest format that this version supports.
        known: i64,
    },
    /// The file is on a network file system, whose locks and flushes are unreliable.
    #[error(
        "{0} is on a network file system, whose locks and flushes cannot be trusted; use a local \
         directory with --data DIR, or a database server for many hosts"
    )]
    Network(PathBuf),
    /// A file operation failed.
    #[error("cannot {what} {path}; check that the directory exists and is writable")]
    Io {
        /// Operation.
        what: &'static str,
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// Other users can access the file, and it is not ours to change.
    #[error(
        "{path} can be accessed by other users, and its mode cannot be changed; run `chmod 600` \
         on it as its owner"
    )]
    Exposed {
        /// File.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The disk is full.
    #[error(
        "{path} cannot be opened: the disk has {free} bytes left and {needed} are needed; make \
         room. Nothing was written"
    )]
    NoRoom {
        /// File.
        path: PathBuf,
        /// Free bytes.
        free: u64,
        /// Free bytes that are needed.
        needed: u64,
    },
    /// SQLite reported an error.
    #[error("cannot read or write {path}")]
    Sqlite {
        /// File.
        path: PathBuf,
        /// Cause.
        source: rusqlite::Error,
    },
    /// The file is damaged.
    #[error("{path} is damaged ({what}); restore it from a backup, and keep a copy for analysis")]
    Damaged {
        /// File.
        path: PathBuf,
        /// Damage.
        what: String,
    },
}
