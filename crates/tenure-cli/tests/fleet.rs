//! Two servers on one database, four workers and four lock holders under load, while processes are
//! killed and frozen, connections are cut, and the database crashes: no acknowledged write is lost,
//! no two holders work on one resource concurrently, and the fleet recovers.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[path = "fleet/clock.rs"]
mod clock;
mod common;
#[path = "fleet/faults.rs"]
mod faults;
#[path = "fleet/incarnations.rs"]
mod incarnations;
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

/// Serializes the tests: two fleets at once would only slow each other down.
fn lock_exclusive() -> MutexGuard<'static, ()> {
    static EXCLUSIVE: Mutex<()> = Mutex::new(());
    EXCLUSIVE.lock().unwrap_or_else(PoisonError::into_inner)
}
