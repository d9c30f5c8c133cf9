//! What most apps need: `use tenure_app::prelude::*;`.
//!
//! With it an app depends on `tenure-app`, on `axum` and `utoipa` for its routes, and on `clap` for
//! its verb. The crates below are re-exported, for example as `tenure_app::tenure_core`.

pub use async_trait::async_trait;
pub use axum::Json;
pub use axum::extract::State;
pub use serde_json::{Value, json};
pub use tenure::{self, Context, Done, Failure, Handler};
pub use tenure_cli_kit::{CliContext, Done as VerbResult, ParsedVerb, RunVerb, Verb, print_json};
pub use tenure_config::{Report, Section};
pub use tenure_core::{
    Command, Kind, MetricEvent, Operation, Policy, ResourceAction, ResourceKey, Role, Submit,
};
pub use tenure_store::{Store, StoreError};
pub use tenure_wire::SubmitResponse;
pub use utoipa_axum::routes;

pub use crate::extract::{Body, Idempotency, OnJob, OnName, OnResource};
pub use crate::metrics::{self, Counters, register};
pub use crate::{
    Access, App, AppMetrics, AppRoutes, AppWorker, Caller, Controller, ControllerContext, Demo,
    DemoServer, Duty, DutyContext, DutyReport, LoadedApp, Problem, Rule, Services, WorkerEnv,
};
