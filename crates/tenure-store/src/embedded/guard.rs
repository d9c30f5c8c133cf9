//! One server per file, and one life of the file at a time.
//!
//! `FILE.lock` is locked for as long as the store is open. `FILE.life` remembers, outside the
//! database, how often it was opened and how far its history had come: a database that is behind
//! its own life was restored from a backup, and begins a new incarnation so that no token comes
//! back.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock, statfs};
use serde::{Deserialize, Serialize};
use tenure_core::Incarnation;

use super::error::Error;

/// File systems of other machines, by the numbers the kernel gives them: NFS, SMB, CIFS, SMB2, AFS,
/// Ceph, 9P.
const NETWORK: [i64; 7] =
    [0x6969, 0x517B, 0xFF53_4D42, 0xFE53_4D42, 0x5346_414F, 0x00C3_6400, 0x0102_1997];

/// Holds the lock on a store's file.
#[derive(Debug)]
pub(crate) struct Guard {
    lock: File,
    life: PathBuf,
}

/// One life of a store, as the file beside it remembers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Life {
    /// Drawn when the store was made.
    pub(crate) store: String,
    /// The life between two restores.
    pub(crate) incarnation: Incarnation,
    /// How often it was opened.
    pub(crate) opened: u64,
    /// A line of history that was durable. Noted a few times a second, and at a clean end.
    #[serde(default)]
    pub(crate) seen: i64,
}

impl Guard {
    pub(crate) fn take(path: &Path) -> Result<Self, Error> {
        let lock_path = beside(path, "lock");
        let io = |what| move |source| Error::Io { what, path: path.to_path_buf(), source };
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(io("create the lock file of"))?;
        let kind = statfs(&lock_path).map_err(|e| io("look at the file system of")(e.into()))?;
        if NETWORK.contains(&kind.f_type) {
            return Err(Error::Network(path.to_path_buf()));
        }
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { lock, life: beside(path, "life") }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::InUse(path.to_path_buf())),
            Err(errno) => Err(io("lock")(errno.into())),
        }
    }

    /// The life that is remembered, if any. What cannot be read counts as forgotten.
    pub(crate) fn remembered(&self) -> Result<Option<Life>, Error> {
        match fs::read_to_string(&self.life) {
            Ok(text) => Ok(serde_json::from_str(&text).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Io { what: "read", path: self.life.clone(), source }),
        }
    }

    /// Remembers a life, durably.
    pub(crate) fn remember(&self, life: &Life) -> Result<(), Error> {
        let write = || -> std::io::Result<()> {
            self.note(life)?.sync_all()?;
            let dir = self.life.parent().filter(|dir| !dir.as_os_str().is_empty());
            File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
        };
        write().map_err(|source| Error::Io { what: "write", path: self.life.clone(), source })
    }

    /// Remembers a life, as long as the machine runs. What a power failure leaves of it counts as
    /// forgotten, which is safe.
    pub(crate) fn note(&self, life: &Life) -> std::io::Result<File> {
        let text = serde_json::to_string(life).expect("a life has no map with odd keys");
        let fresh = self.life.with_extension("life-new");
        let mut file = File::create(&fresh)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&fresh, &self.life)?;
        Ok(file)
    }
}

impl Drop for Guard {
    /// Closing the file is not enough: a process that this one is just starting has the same file
    /// open until it becomes another program.
    fn drop(&mut self) {
        if let Err(error) = flock(&self.lock, FlockOperation::Unlock) {
            tracing::warn!(%error, "cannot unlock the file of the store");
        }
    }
}

/// The life that begins now, given what the database (with its last line of history) and the file
/// beside it say.
pub(crate) fn next_life(
    database: Option<Life>,
    last: i64,
    beside: Option<&Life>,
    fresh_id: String,
) -> Life {
    let Some(mut life) = database else {
        // A database that was removed: whoever guards with its tokens must see higher ones.
        let incarnation = beside.map_or(Incarnation::default(), |life| life.incarnation.next());
        return Life { store: fresh_id, incarnation, opened: 1, seen: 0 };
    };
    let same = beside.filter(|other| other.store == life.store);
    let behind = |other: &Life| other.opened > life.opened || other.seen > last;
    let restored = same.is_none_or(behind);
    if restored {
        // Whatever store the file beside it speaks of: its tokens are out in the world.
        let known = beside.map_or(life.incarnation, |other| other.incarnation);
        let highest = known.max(life.incarnation);
        life.incarnation = highest.next();
        life.opened = same.map_or(life.opened, |other| other.opened);
        tracing::warn!(
            incarnation = life.incarnation.0,
            "the store was restored or moved: a new incarnation begins, above all old tokens"
        );
    }
    life.opened += 1;
    life.seen = last;
    life
}

/// `FILE.EXTENSION`.
fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_free_again_although_a_process_that_begins_has_its_lock_open() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("tenure.db");
        let guard = Guard::take(&path).unwrap();
        let _of_a_fork = guard.lock.try_clone().unwrap();
        assert!(matches!(Guard::take(&path), Err(Error::InUse(_))));
        drop(guard);
        Guard::take(&path).unwrap();
    }

    fn life(opened: u64, incarnation: u32) -> Life {
        Life { store: "s".to_owned(), incarnation: Incarnation(incarnation), opened, seen: 0 }
    }

    fn next(database: Option<Life>, beside: Option<&Life>) -> Life {
        next_life(database, 0, beside, "s".to_owned())
    }

    #[test]
    fn a_database_that_has_lost_lines_was_restored() {
        let beside = Life { seen: 10, ..life(4, 0) };
        let next = |last| next_life(Some(life(4, 0)), last, Some(&beside), "s".to_owned());
        assert_eq!(next(10).incarnation, Incarnation(0));
        assert_eq!(next(9).incarnation, Incarnation(1));
    }

    #[test]
    fn a_store_that_is_opened_again_goes_on() {
        assert_eq!(next(None, None), life(1, 0));
        assert_eq!(next(Some(life(1, 0)), Some(&life(1, 0))), life(2, 0));
    }

    #[test]
    fn a_crash_between_the_two_writes_is_not_a_restore() {
        assert_eq!(next(Some(life(5, 0)), Some(&life(4, 0))), life(6, 0));
    }

    #[test]
    fn a_database_behind_its_life_was_restored() {
        assert_eq!(next(Some(life(3, 0)), Some(&life(7, 2))), life(8, 3));
    }

    #[test]
    fn a_database_that_replaces_another_is_above_that_one_too() {
        let other = Life { store: "other".to_owned(), ..life(1, 5) };
        assert_eq!(next(Some(life(3, 1)), Some(&other)).incarnation, Incarnation(6));
    }

    #[test]
    fn a_database_without_its_life_was_moved_or_restored() {
        assert_eq!(next(Some(life(3, 1)), None), life(4, 2));
    }

    #[test]
    fn a_database_that_was_removed_does_not_bring_tokens_back() {
        assert_eq!(next(None, Some(&life(9, 1))), life(1, 2));
    }
}
