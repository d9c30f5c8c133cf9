//! Deterministic simulation of Tenure and its oracle. Not shipped.
//!
//! Runs the real ledger, rules and lease under crashes, stalls, frozen holders, lost and duplicated
//! messages and skewed clocks, in virtual time on one thread, driven by one seed. A failing seed
//! replays exactly. The simulation must never use a real clock, a thread or hash table order.
//!
//! Start at [`sim`], the scheduler; [`server`] and [`holder`] are the two sides, [`faults`] injects
//! faults, and [`oracle`] checks the properties.

pub mod answers;
mod claim_order;
mod count;
mod describe;
pub mod disk;
pub mod fairness;
pub mod faults;
pub mod guard;
pub mod history_model;
pub mod holder;
mod holder_events;
pub mod job_checks;
pub mod job_model;
pub mod kinds;
mod lane_checks;
pub mod liveness;
pub mod lock_request;
pub mod message;
pub mod oracle;
pub mod outbox;
pub mod plan;
pub mod reply_checks;
pub mod resource_checks;
pub mod resource_model;
pub mod rng;
pub mod server;
mod server_events;
pub mod sim;
pub mod skewed_clock;
pub mod stats;
pub mod task;
pub mod trace;
mod updates;
mod user_commands;
pub mod worker;

pub use sim::{Violation, run};
pub use stats::Stats;
