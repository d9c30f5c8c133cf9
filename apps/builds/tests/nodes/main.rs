//! Nodes as real processes: `tenure build run` on the embedded store and on PostgreSQL, killed,
//! frozen and cut off.

mod bed;
#[path = "../../../../crates/tenure-cli/tests/common/mod.rs"]
mod common;
mod ends;
mod faults;
mod runs;
