//! Background checkpoints of the write-ahead log, and its preallocation.
//!
//! By default SQLite checkpoints within a commit, which then takes tens of milliseconds. Instead, a
//! background thread copies nearly all pages while commits continue; the next commit then copies
//! the remaining few, and the log restarts. Safety does not depend on this: a page stays in the log
//! until it is in the file. A checkpoint that has too little room on the disk is skipped: it would
//! take the room that commits still have.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;
use rusqlite::hooks::Wal;

use super::room::Room;

/// Log size at which a background checkpoint starts, in pages of 4 KiB: 8 MiB.
const BACKGROUND_PAGES: i32 = 2_048;
/// Log size at which a commit checkpoints itself because the thread is too slow: 64 MiB.
const PAGES_MAX: i32 = 16_384;
/// Preallocated size of the log in bytes: twice its usual maximum.
const PREALLOCATED_BYTES: u64 = 4_096 * 4_096;

const IDLE: u8 = 0;
const COPYING: u8 = 1;
const COPIED: u8 = 2;

/// Handle of the checkpoint thread.
pub(super) struct Checkpointer {
    requests: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Starts the thread, triggered by the commits of `connection`.
    pub(super) fn start(
        connection: &mut Connection,
        path: &Path,
        room: &Room,
    ) -> rusqlite::Result<Self> {
        let phase = Arc::new(AtomicU8::new(IDLE));
        let (requests, receiver) = sync_channel(1);
        let thread_connection = Connection::open(path)?;
        let (thread_phase, path) = (Arc::clone(&phase), path.to_path_buf());
        let (thread_room, hook_room) = (room.clone(), room.clone());
        let thread = std::thread::Builder::new()
            .name("tenure-checkpoint".to_owned())
            .spawn(move || run(&thread_connection, &path, &thread_room, &receiver, &thread_phase));
        let hook_requests = requests.clone();
        connection.wal_hook(Some(move |wal: &mut Wal, pages| {
            on_commit(wal, pages, &phase, &hook_requests, &hook_room);
            Ok(())
        }))?;
        // Without the thread, commits checkpoint at `PAGES_MAX`.
        let thread = thread
            .inspect_err(|error| tracing::warn!(%error, "cannot start the checkpoint thread"));
        Ok(Self { requests: Some(requests), thread: thread.ok() })
    }

    /// Stops the thread. The connection must not commit any more.
    pub(super) fn stop(&mut self, connection: &mut Connection) {
        // The hook owns a clone of the sender.
        connection.wal_hook(None::<fn(&mut Wal, i32) -> rusqlite::Result<()>>).ok();
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Called after each commit with the number of pages in the log.
fn on_commit(wal: &mut Wal, pages: i32, phase: &AtomicU8, requests: &SyncSender<()>, room: &Room) {
    let copied = phase.load(Ordering::Acquire) == COPIED;
    // The file grows by at most the pages of the log.
    let has_room = || room.shortage(u64::from(pages.unsigned_abs()) * 4_096) == 0;
    if copied || pages >= PAGES_MAX && has_room() {
        if let Err(error) = wal.checkpoint() {
            tracing::debug!(%error, "cannot finish the checkpoint yet");
        }
        if copied {
            phase.store(IDLE, Ordering::Release);
        }
    } else if pages >= BACKGROUND_PAGES && phase.load(Ordering::Acquire) == IDLE {
        phase.store(COPYING, Ordering::Release);
        if requests.try_send(()).is_err() {
            phase.store(IDLE, Ordering::Release);
        }
    }
}

fn run(
    connection: &Connection,
    path: &Path,
    room: &Room,
    requests: &Receiver<()>,
    phase: &AtomicU8,
) {
    let mut skipped = false;
    while requests.recv().is_ok() {
        let missing = checkpoint(connection, path, room, "PASSIVE").unwrap_or_else(|error| {
            tracing::warn!(%error, "background checkpoint failed");
            0
        });
        if missing > 0 && !skipped {
            tracing::warn!(missing, "no room on the disk for a checkpoint: make room");
        }
        skipped = missing > 0;
        phase.store(if skipped { IDLE } else { COPIED }, Ordering::Release);
    }
}

/// Copies the pages of the log to the file, unless the disk has too little room. Returns the number
/// of bytes that are missing.
fn checkpoint(
    connection: &Connection,
    path: &Path,
    room: &Room,
    mode: &str,
) -> rusqlite::Result<u64> {
    let sql = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size";
    let bytes: i64 = connection.query_row(sql, [], |row| row.get(0))?;
    let bytes = u64::try_from(bytes).unwrap_or(0);
    let missing = room.shortage(bytes.saturating_sub(file_bytes(path)));
    if missing == 0 {
        connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(()))?;
    }
    Ok(missing)
}

/// Restarts the log, and grows it to its full size by spilling a transaction and rolling it back.
/// Leaves it as it is if the disk has too little room.
pub(super) fn preallocate(
    connection: &Connection,
    path: &Path,
    room: &Room,
) -> rusqlite::Result<()> {
    let missing = checkpoint(connection, path, room, "RESTART")?;
    if missing > 0 {
        tracing::warn!(missing, "no room on the disk for the pages of the log: make room");
        return Ok(());
    }
    let growth = PREALLOCATED_BYTES.saturating_sub(file_bytes(&log_path(path)));
    if growth == 0 || room.shortage(growth) > 0 {
        return Ok(());
    }
    connection.execute_batch(&format!(
        "PRAGMA cache_size = 16; BEGIN IMMEDIATE; CREATE TABLE room (bytes BLOB);
         INSERT INTO room VALUES (zeroblob({PREALLOCATED_BYTES})); ROLLBACK;
         PRAGMA cache_size = -8192;"
    ))
}

fn log_path(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

/// Returns the size of a file; 0 if there is none.
fn file_bytes(path: &Path) -> u64 {
    path.metadata().map_or(0, |metadata| metadata.len())
}
