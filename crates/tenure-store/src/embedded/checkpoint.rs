//! Moving pages from the log to the file, beside the writer.
//!
//! SQLite would do it in the middle of a commit, which then takes tens of milliseconds. Instead a
//! thread of its own does nearly all of it while commits go on; when it is through, one commit
//! moves the few pages that came meanwhile, and the log begins anew. Nothing depends on it for
//! safety: a page is in the log until it is in the file.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;
use rusqlite::hooks::Wal;

/// Pages of 4 KiB in the log at which the thread begins: 8 MiB.
const BEGIN_PAGES: i32 = 2_048;
/// Pages at which a commit does it all itself, should the thread not get on: 64 MiB.
const PAGES_MAX: i32 = 16_384;

const IDLE: u8 = 0;
const MOVING: u8 = 1;
const MOVED: u8 = 2;

/// The thread that moves pages.
pub(super) struct Checkpointer {
    asks: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Starts the thread and has it asked by the commits of `connection`.
    pub(super) fn start(connection: &mut Connection, path: &Path) -> rusqlite::Result<Self> {
        let phase = Arc::new(AtomicU8::new(IDLE));
        let (asks, asked) = sync_channel(1);
        let own = Connection::open(path)?;
        let thread_phase = Arc::clone(&phase);
        let thread = std::thread::Builder::new()
            .name("tenure-checkpoint".to_owned())
            .spawn(move || run(&own, &asked, &thread_phase));
        let asks_of_hook = asks.clone();
        connection.wal_hook(Some(move |wal: &mut Wal, pages| {
            committed(wal, pages, &phase, &asks_of_hook);
            Ok(())
        }))?;
        // Without a thread the commits do it themselves, later.
        let thread = thread.inspect_err(|error| tracing::warn!(%error, "no checkpoint thread"));
        Ok(Self { asks: Some(asks), thread: thread.ok() })
    }

    /// Ends the thread. The connection must not commit any more.
    pub(super) fn stop(&mut self, connection: &mut Connection) {
        // The hook has the other end of the channel.
        connection.wal_hook(None::<fn(&mut Wal, i32) -> rusqlite::Result<()>>).ok();
        drop(self.asks.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Called after each commit with the number of pages in the log.
fn committed(wal: &mut Wal, pages: i32, phase: &AtomicU8, asks: &SyncSender<()>) {
    let rest = phase.load(Ordering::Acquire) == MOVED;
    if rest || pages >= PAGES_MAX {
        if let Err(error) = wal.checkpoint() {
            tracing::debug!(%error, "cannot move the rest of the log yet");
        }
        if rest {
            phase.store(IDLE, Ordering::Release);
        }
    } else if pages >= BEGIN_PAGES && phase.load(Ordering::Acquire) == IDLE {
        phase.store(MOVING, Ordering::Release);
        if asks.try_send(()).is_err() {
            phase.store(IDLE, Ordering::Release);
        }
    }
}

fn run(connection: &Connection, asked: &Receiver<()>, phase: &AtomicU8) {
    while asked.recv().is_ok() {
        let moved = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = moved {
            tracing::warn!(%error, "cannot move the log to the file");
        }
        phase.store(MOVED, Ordering::Release);
    }
}
