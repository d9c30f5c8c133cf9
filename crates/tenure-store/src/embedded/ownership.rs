//! Exclusive ownership of a store file, and detection of restored files.
//!
//! `FILE.lock` is locked while the store is open. `FILE.life` records, outside the database, how
//! often the database was opened and the last position of its history. A database that is behind
//! this record was restored from a backup and starts a new incarnation, so that no token is issued
//! twice.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock, statfs};
use serde::{Deserialize, Serialize};
use tenure_core::Incarnation;

use super::error::Error;
use crate::private_file;

/// Magic numbers of network file systems: NFS, SMB, CIFS, SMB2, AFS, Ceph, 9P.
const NETWORK_FILE_SYSTEMS: [i64; 7] =
    [0x6969, 0x517B, 0xFF53_4D42, 0xFE53_4D42, 0x5346_414F, 0x00C3_6400, 0x0102_1997];

/// Exclusive ownership of a store file.
#[derive(Debug)]
pub(crate) struct Ownership {
    lock: File,
    record_path: PathBuf,
}

/// Incarnation of a store, recorded in the database and in the file next to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IncarnationRecord {
    /// Random id, drawn when the store was created.
    #[serde(rename = "store")]
    pub(crate) store_id: String,
    /// Incarnation.
    pub(crate) incarnation: Incarnation,
    /// Number of times the store was opened.
    #[serde(rename = "opened")]
    pub(crate) open_count: u64,
    /// Position of a durable history line. Updated several times a second and on a clean shutdown.
    #[serde(rename = "seen", default)]
    pub(crate) position: i64,
}

impl Ownership {
    pub(crate) fn acquire(path: &Path) -> Result<Self, Error> {
        let lock_path = with_suffix(path, "lock");
        let io = |what| move |source| Error::Io { what, path: path.to_path_buf(), source };
        let lock = private_file::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(io("create the lock file of"))?;
        private_file::restrict(&lock_path).map_err(io("restrict the lock file of"))?;
        let stat = statfs(&lock_path).map_err(|e| io("inspect the file system of")(e.into()))?;
        if NETWORK_FILE_SYSTEMS.contains(&stat.f_type) {
            return Err(Error::Network(path.to_path_buf()));
        }
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { lock, record_path: with_suffix(path, "life") }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::InUse(path.to_path_buf())),
            Err(errno) => Err(io("lock")(errno.into())),
        }
    }

    /// Reads the record. An unreadable one counts as missing.
    pub(crate) fn read_record(&self) -> Result<Option<IncarnationRecord>, Error> {
        match fs::read_to_string(&self.record_path) {
            Ok(text) => Ok(serde_json::from_str(&text).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Io { what: "read", path: self.record_path.clone(), source }),
        }
    }

    /// Writes the record durably.
    pub(crate) fn write_record_durably(&self, record: &IncarnationRecord) -> Result<(), Error> {
        let write = || -> std::io::Result<()> {
            self.write_record(record)?.sync_all()?;
            let dir = self.record_path.parent().filter(|dir| !dir.as_os_str().is_empty());
            File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
        };
        write().map_err(|source| Error::Io {
            what: "write",
            path: self.record_path.clone(),
            source,
        })
    }

    /// Writes the record without flushing it. After a power failure it may be unreadable, which
    /// counts as missing and is safe.
    pub(crate) fn write_record(&self, record: &IncarnationRecord) -> std::io::Result<File> {
        let text = serde_json::to_string(record).expect("it serializes to JSON");
        private_file::replace(&self.record_path, &text)
    }
}

impl Drop for Ownership {
    /// Unlocks explicitly: a child process between fork and exec still has the file open, so
    /// closing it would not release the lock.
    fn drop(&mut self) {
        if let Err(error) = flock(&self.lock, FlockOperation::Unlock) {
            tracing::warn!(%error, "cannot unlock the store file");
        }
    }
}

/// Returns the record of a store that is being opened, given the record in the database, the last
/// position of its history, and the record in the file next to it.
pub(crate) fn next_incarnation(
    stored: Option<IncarnationRecord>,
    last_position: i64,
    sidecar: Option<&IncarnationRecord>,
    new_id: String,
) -> IncarnationRecord {
    let Some(mut record) = stored else {
        // The database was removed: new tokens must be above those that guards have seen.
        let incarnation = sidecar.map_or(Incarnation::default(), |old| old.incarnation.next());
        return IncarnationRecord { store_id: new_id, incarnation, open_count: 1, position: 0 };
    };
    let same_store = sidecar.filter(|sidecar| sidecar.store_id == record.store_id);
    let is_ahead = |sidecar: &IncarnationRecord| {
        sidecar.open_count > record.open_count || sidecar.position > last_position
    };
    let restored = same_store.is_none_or(is_ahead);
    if restored {
        // Tokens of the incarnation in the sidecar may be in use, even if it is another store.
        let known = sidecar.map_or(record.incarnation, |sidecar| sidecar.incarnation);
        let highest = known.max(record.incarnation);
        record.incarnation = highest.next();
        record.open_count = same_store.map_or(record.open_count, |sidecar| sidecar.open_count);
        tracing::warn!(
            incarnation = record.incarnation.0,
            "the store was restored or moved: a new incarnation begins, above all old tokens"
        );
    }
    record.open_count += 1;
    record.position = last_position;
    record
}

/// Returns `PATH.SUFFIX`.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// Takes the access to the files of a store away from other users: they contain a secret. Done
/// after the format is checked, because a file of another program keeps its mode.
pub(super) fn restrict_files(path: &Path) -> Result<(), Error> {
    for suffix in ["", "-wal", "-shm", "-journal", ".life"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        let path = PathBuf::from(name);
        private_file::restrict(&path).map_err(|source| Error::Exposed { path, source })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_unlocks_although_a_child_process_has_the_lock_file_open() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("tenure.db");
        let ownership = Ownership::acquire(&path).unwrap();
        let _inherited = ownership.lock.try_clone().unwrap();
        assert!(matches!(Ownership::acquire(&path), Err(Error::InUse(_))));
        drop(ownership);
        Ownership::acquire(&path).unwrap();
    }

    fn record(open_count: u64, incarnation: u32) -> IncarnationRecord {
        let (store_id, incarnation) = ("s".to_owned(), Incarnation(incarnation));
        IncarnationRecord { store_id, incarnation, open_count, position: 0 }
    }

    fn next(
        stored: Option<IncarnationRecord>,
        sidecar: Option<&IncarnationRecord>,
    ) -> IncarnationRecord {
        next_incarnation(stored, 0, sidecar, "s".to_owned())
    }

    #[test]
    fn a_database_that_lost_history_was_restored() {
        let sidecar = IncarnationRecord { position: 10, ..record(4, 0) };
        let next =
            |last| next_incarnation(Some(record(4, 0)), last, Some(&sidecar), "s".to_owned());
        assert_eq!(next(10).incarnation, Incarnation(0));
        assert_eq!(next(9).incarnation, Incarnation(1));
    }

    #[test]
    fn a_reopened_store_keeps_its_incarnation() {
        assert_eq!(next(None, None), record(1, 0));
        assert_eq!(next(Some(record(1, 0)), Some(&record(1, 0))), record(2, 0));
    }

    #[test]
    fn a_crash_between_the_two_writes_is_not_a_restore() {
        assert_eq!(next(Some(record(5, 0)), Some(&record(4, 0))), record(6, 0));
    }

    #[test]
    fn a_database_behind_its_sidecar_was_restored() {
        assert_eq!(next(Some(record(3, 0)), Some(&record(7, 2))), record(8, 3));
    }

    #[test]
    fn a_database_that_replaces_another_starts_above_both_incarnations() {
        let other = IncarnationRecord { store_id: "other".to_owned(), ..record(1, 5) };
        assert_eq!(next(Some(record(3, 1)), Some(&other)).incarnation, Incarnation(6));
    }

    #[test]
    fn a_database_without_its_sidecar_was_moved_or_restored() {
        assert_eq!(next(Some(record(3, 1)), None), record(4, 2));
    }

    #[test]
    fn a_recreated_database_starts_above_the_removed_one() {
        assert_eq!(next(None, Some(&record(9, 1))), record(1, 2));
    }
}
