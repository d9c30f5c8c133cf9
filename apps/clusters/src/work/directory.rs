//! Private install directories.
//!
//! Each attempt has a directory of its own, with a lock file beside it that the kernel unlocks when
//! the worker dies. So a worker can remove what dead workers of its host have left, and never the
//! directory of a living one. Nothing in a directory is needed after its attempt: the status of the
//! cluster and the snapshots have it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tenure_core::{JobId, Token};

/// Ending of lock files.
const LOCK: &str = "lock";
/// File that a destroy needs.
pub(crate) const METADATA: &str = "metadata.json";

/// The install directory of one attempt; removed when dropped.
pub(crate) struct InstallDirectory {
    path: PathBuf,
    lock_path: PathBuf,
    /// Holds the lock until the directory is removed.
    _lock: File,
}

impl InstallDirectory {
    /// Creates the directory of an attempt below `work_dir`. `part` distinguishes several of one
    /// attempt.
    pub(crate) fn create(
        work_dir: &Path,
        job: JobId,
        token: Token,
        part: &str,
    ) -> io::Result<Self> {
        create_private(work_dir)?;
        let path = work_dir.join(format!("{job}-{token}-{part}"));
        let lock_path = path.with_extension(LOCK);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock_path)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        // An attempt whose answer was lost may have begun in this process.
        remove(&path)?;
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path, lock_path, _lock: lock })
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file with mode 0600.
    pub(crate) fn write(&self, name: &str, text: &str) -> io::Result<()> {
        let path = self.path.join(name);
        fs::write(&path, text)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))
    }

    /// Reads a file, if it exists.
    pub(crate) fn read(&self, name: &str) -> io::Result<Option<String>> {
        match fs::read_to_string(self.path.join(name)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for InstallDirectory {
    fn drop(&mut self) {
        let removed = remove(&self.path).and_then(|()| fs::remove_file(&self.lock_path));
        if let Err(error) = removed {
            tracing::warn!(directory = %self.path.display(), %error,
                "cannot remove an install directory; the next worker that starts here removes it");
        }
    }
}

/// Removes the directories of workers that have died, and returns their number.
pub(crate) fn remove_abandoned(work_dir: &Path) -> io::Result<usize> {
    let entries = match fs::read_dir(work_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut removed = 0;
    for entry in entries {
        let lock_path = entry?.path();
        if lock_path.extension().is_none_or(|extension| extension != LOCK) {
            continue;
        }
        let lock = match File::open(&lock_path) {
            Ok(lock) => lock,
            // Another worker has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove(&lock_path.with_extension(""))?;
            fs::remove_file(&lock_path)?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn create_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(at: &Path, token: u64) -> InstallDirectory {
        InstallDirectory::create(at, JobId(7), Token(token), "install").unwrap()
    }

    #[test]
    fn a_directory_is_private_and_removed_with_its_attempt() {
        let at = tempfile::tempdir().unwrap();
        let one = directory(at.path(), 1);
        one.write(METADATA, "{}").unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(one.path()), 0o700);
        assert_eq!(mode(&one.path().join(METADATA)), 0o600);
        assert_eq!(one.read(METADATA).unwrap().as_deref(), Some("{}"));
        drop(one);
        assert_eq!(fs::read_dir(at.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_directories_of_dead_workers_are_removed() {
        let at = tempfile::tempdir().unwrap();
        let living = directory(at.path(), 1);
        let dead = at.path().join("0-2-install");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join(METADATA), "{}").unwrap();
        fs::write(at.path().join("0-2-install.lock"), "").unwrap();
        fs::write(at.path().join("notes.txt"), "of an operator").unwrap();
        assert_eq!(remove_abandoned(at.path()).unwrap(), 1);
        assert!(living.path().exists() && !dead.exists());
        assert!(at.path().join("notes.txt").exists());
        assert_eq!(remove_abandoned(&at.path().join("missing")).unwrap(), 0);
    }
}
