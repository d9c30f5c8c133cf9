//! Pipelines with the real binary over HTTP, on the embedded store and on PostgreSQL: one run for
//! each tenant and pipeline, whatever happens to servers, workers and stores.

#[path = "pipelines/bed.rs"]
mod bed;
mod common;
#[path = "pipelines/faults.rs"]
mod faults;
#[path = "pipelines/files.rs"]
mod files;
#[path = "fleet/process.rs"]
mod process;
#[path = "pipelines/rules.rs"]
mod rules;
#[path = "pipelines/scenarios.rs"]
mod scenarios;
#[path = "pipelines/steps.rs"]
mod steps;
