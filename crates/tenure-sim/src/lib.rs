//! The seeded simulation of Tenure with its oracle. Not shipped.
//!
//! The real ledger, the real rules and the real lease run here under crashes, stalls, frozen
//! holders, lost and doubled messages and skewed clocks, in virtual time and on one thread, all
//! decided by one seed. A failing seed replays exactly. It must never use a real clock, a thread,
//! or the order of a hash table.
//!
//! Start at [`sim`], which says what happens next; [`server`] and [`holder`] are the two sides,
//! [`faults`] what befalls them, and [`oracle`] what may never happen.

pub mod answers;
pub mod books;
pub mod chore;
pub mod disk;
pub mod fair;
pub mod faults;
pub mod guard;
pub mod holder;
pub mod kinds;
pub mod labour;
pub mod lanes;
pub mod liveness;
pub mod message;
pub mod oracle;
pub mod plan;
pub mod rng;
pub mod server;
mod serving;
pub mod sim;
pub mod skew;
pub mod stats;
mod story;
pub mod task;
pub mod told;
pub mod trace;
mod turns;
pub mod want;
mod wish;

pub use sim::{Violation, run};
pub use stats::Stats;
