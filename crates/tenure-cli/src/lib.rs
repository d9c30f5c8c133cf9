//! The command line of Tenure: the server, locks, jobs, apps and benchmarks.
//!
//! `commands` has one file per verb; [`apps`] lists the apps, which bring their own verbs. This is
//! a library so that tests and tools use the same list of apps as the binary.

pub mod apps;
mod commands;
mod log;
#[cfg(feature = "otel")]
mod otel;
mod progress;

pub use commands::run;
