//! The client library of Tenure.
//!
#![doc = include_str!("../README.md")]

pub mod batch;
pub mod client;
pub mod clock;
pub mod election;
pub mod error;
#[cfg(feature = "exec")]
pub mod exec;
mod heartbeat;
#[cfg(feature = "http")]
pub mod http;
pub mod items;
pub mod job;
pub mod lease;
#[cfg(feature = "local")]
pub mod local;
mod random;
pub mod resource;
pub mod session;
mod session_options;
#[cfg(feature = "local")]
pub mod status;
pub mod submit;
pub mod tenure;
pub mod trace;
pub mod transport;
pub mod update;
#[cfg(feature = "worker")]
pub mod worker;

/// The types of the model; the common ones are also at the root of this crate.
pub use tenure_core as model;
pub use tenure_core::key::InvalidName;
pub use tenure_core::retry::{Class, Retry};
pub use tenure_core::{
    Code, Job, JobId, JobState, Kind, Kinds, LockName, LockPath, LockSet, Millis, Operation,
    Policy, Precondition, Refusal, RequestId, ResourceKey, SessionId, TenureView, Text, Token,
    Verdict,
};
/// The JSON types of the HTTP API.
pub use tenure_wire as wire;

pub use batch::{Batch, BatchResult};
pub use client::Client;
pub use election::{Election, Leadership};
pub use error::Error;
pub use items::Items;
pub use job::JobHandle;
pub use resource::{Put, ResourceHandle};
pub use session::Session;
pub use session_options::SessionOptions;
pub use submit::{Submission, Submitted};
pub use tenure::{Lost, Tenure};
pub use transport::Transport;
pub use update::Update;
#[cfg(feature = "worker")]
pub use worker::{Context, Done, Failure, Handler, Worker};
