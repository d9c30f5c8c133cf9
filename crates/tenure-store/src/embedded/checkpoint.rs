//! Background checkpoints of the write-ahead log.
//!
//! By default SQLite checkpoints within a commit, which then takes tens of milliseconds. Instead, a
//! background thread copies nearly all pages while commits continue; the next commit then copies
//! the remaining few, and the log restarts. Safety does not depend on this: a page stays in the log
//! until it is in the file.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;
use rusqlite::hooks::Wal;

/// Log size at which a background checkpoint starts, in pages of 4 KiB: 8 MiB.
const BACKGROUND_PAGES: i32 = 2_048;
/// Log size at which a commit checkpoints itself because the thread is too slow: 64 MiB.
const PAGES_MAX: i32 = 16_384;

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
    pub(super) fn start(connection: &mut Connection, path: &Path) -> rusqlite::Result<Self> {
        let phase = Arc::new(AtomicU8::new(IDLE));
        let (requests, receiver) = sync_channel(1);
        let thread_connection = Connection::open(path)?;
        let thread_phase = Arc::clone(&phase);
        let thread = std::thread::Builder::new()
            .name("tenure-checkpoint".to_owned())
            .spawn(move || run(&thread_connection, &receiver, &thread_phase));
        let hook_requests = requests.clone();
        connection.wal_hook(Some(move |wal: &mut Wal, pages| {
            on_commit(wal, pages, &phase, &hook_requests);
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
fn on_commit(wal: &mut Wal, pages: i32, phase: &AtomicU8, requests: &SyncSender<()>) {
    let copied = phase.load(Ordering::Acquire) == COPIED;
    if copied || pages >= PAGES_MAX {
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

fn run(connection: &Connection, requests: &Receiver<()>, phase: &AtomicU8) {
    while requests.recv().is_ok() {
        let copied = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = copied {
            tracing::warn!(%error, "background checkpoint failed");
        }
        phase.store(COPIED, Ordering::Release);
    }
}
