//! Pipelines with the real binary over HTTP, on the embedded store and on PostgreSQL: one run per
//! tenant and pipeline, despite faults of servers, workers and stores.

#[path = "../../../../crates/tenure-cli/tests/common/mod.rs"]
mod common;
mod faults;
mod files;
mod hang_ups;
mod prechecks;
#[path = "../../../../crates/tenure-cli/tests/fleet/process.rs"]
mod process;
mod rules;
mod scenarios;
mod steps;
mod testbed;
