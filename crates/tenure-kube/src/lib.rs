//! Kubernetes for the apps: a client from the text of a kubeconfig, and the worker pools of
//! OpenShift clusters.
//!
//! The only crate that may name `kube`. Must never write without the token of a tenure and the
//! version that was read, retry without a bound, or show a secret of a kubeconfig in an error, a
//! log line or `Debug` output. It reads no environment variable.
//!
//! `client.rs` connects, `transport.rs` sends requests and repeats them, `pools.rs` scales,
//! `plan.rs` decides how, `ready.rs` waits for the result.

mod client;
mod error;
mod machine_set;
mod plan;
mod pools;
mod ready;
mod retry;
mod transport;

pub use client::{Kube, KubeOptions};
pub use error::Error;
pub use machine_set::MachineSet;
pub use plan::{Change, plan};
pub use pools::{Fence, JOB_ANNOTATION, Scaled, TOKEN_ANNOTATION, WORKERS_MAX, WorkerPools};
pub use ready::{Progress, WAITING_FOR_MAX};
