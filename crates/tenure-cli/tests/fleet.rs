//! Two servers on one database, four workers and four holders of locks under load, while processes
//! are killed and frozen, connections are cut, and the database crashes: nothing that was
//! acknowledged is lost, no two ever work on one resource, and everything goes on afterwards.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[path = "fleet/clock.rs"]
mod clock;
mod common;
#[path = "fleet/faults.rs"]
mod faults;
#[path = "fleet/lives.rs"]
mod lives;
#[path = "fleet/load.rs"]
mod load;
#[path = "fleet/process.rs"]
mod process;
#[path = "fleet/recovery.rs"]
mod recovery;
#[path = "fleet/site.rs"]
mod site;
#[path = "fleet/trace.rs"]
mod trace;

/// Whoever has this is the only fleet: two at once would only slow each other down.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
