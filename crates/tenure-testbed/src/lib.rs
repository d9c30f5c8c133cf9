//! Private database servers for tests and benchmarks: real servers on free loopback ports, with
//! their own data directories.
//!
//! Must never touch a server it did not start, never listen beyond loopback, and clean up after
//! itself: a server stops when its handle is dropped or the process is killed; the directories of a
//! killed process are removed by the next one.

mod bouncer;
mod clock;
mod postgres;
mod process;
mod proxy;

pub use bouncer::{PgBouncer, shared_bouncer};
pub use postgres::{Backup, Durability, Postgres, shared};
pub use proxy::{Fault, Proxy};
