//! Free room on the disk of the store.
//!
//! After a crash on a full disk the write-ahead log has pages that the file lacks. The store opens
//! with the little room of [`OPEN_BYTES`]: copying the pages and preallocating the log are skipped
//! unless there is room for them.

use std::path::Path;
use std::sync::Arc;

use super::error::Error;

/// Free bytes that are needed to open a store: some pages of the log, its index and the sidecar.
const OPEN_BYTES: u64 = 512 * 1024;

/// Returns the number of free bytes on the disk.
pub type FreeBytes = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Free room on the disk of a store; cheap to clone.
#[derive(Clone)]
pub(super) struct Room(FreeBytes);

impl Room {
    /// Uses `free_bytes`, or asks the file system of `path`.
    pub(super) fn new(path: &Path, free_bytes: Option<FreeBytes>) -> Self {
        let directory = path.parent().unwrap_or(Path::new("/")).to_path_buf();
        Self(free_bytes.unwrap_or_else(|| Arc::new(move || free_bytes_of(&directory))))
    }

    /// Fails if there is too little room to open the store in `path`.
    pub(super) fn check_open(&self, path: &Path) -> Result<(), Error> {
        match (self.0)() {
            free if free >= OPEN_BYTES => Ok(()),
            free => Err(Error::NoRoom { path: path.to_path_buf(), free, needed: OPEN_BYTES }),
        }
    }

    /// Returns how many bytes are missing to write `bytes` and still open the store later; 0 if
    /// there is room.
    pub(super) fn shortage(&self, bytes: u64) -> u64 {
        (bytes + OPEN_BYTES).saturating_sub((self.0)())
    }
}

fn free_bytes_of(directory: &Path) -> u64 {
    // Without an answer, a write that finds no room fails.
    let Ok(disk) = rustix::fs::statvfs(directory) else { return u64::MAX };
    if disk.f_blocks == 0 {
        // Some file systems do not tell.
        return u64::MAX;
    }
    let root = rustix::process::geteuid().is_root();
    let blocks = if root { disk.f_bfree } else { disk.f_bavail };
    blocks.saturating_mul(disk.f_frsize)
}
