//! Pipelines: one run at a time for each tenant and pipeline; whoever triggers meanwhile gets the
//! id of the run that goes on.
//!
//! A pipeline is a resource of the kind `pipeline`, a run is a job of its operation `run`, which
//! meets itself with `attach`. So everything that is promised of jobs is promised of runs, and
//! nothing about who may run is decided here. What is here: how pipelines are declared
//! ([`catalog`], [`declare`]), what a trigger may say ([`parameters`]), when they run by themselves
//! ([`schedule`]), and how a run does its steps ([`run`], [`steps`]).
//!
//! It must never do a step of a run that is lost, and never put a secret where others can see it.

pub mod catalog;
pub mod declare;
pub mod parameters;
pub mod run;
pub mod schedule;
pub mod secrets;
pub mod slots;
pub mod steps;
pub mod template;
pub mod timeline;

pub use catalog::{BadCatalog, Catalog};
pub use declare::Pipeline;
pub use run::Runner;

/// The kind of pipelines.
pub const KIND: &str = "pipeline";
/// Their operation.
pub const RUN: &str = "run";
