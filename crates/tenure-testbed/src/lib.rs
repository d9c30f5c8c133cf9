//! Private database servers for tests and benchmarks: real ones, on free loopback ports, with files
//! of their own.
//!
//! Must never touch a server it did not start, never listen beyond loopback, and leave nothing
//! behind: a server goes when its handle is dropped, or with the process when that is killed; the
//! directory of a process that was killed is removed by the next one.

mod bouncer;
mod clock;
mod postgres;
mod process;
mod proxy;

pub use bouncer::{PgBouncer, shared_bouncer};
pub use postgres::{Backup, Durability, Postgres, shared};
pub use proxy::{Fault, Proxy};
