//! The client library of Tenure.
//!
#![doc = include_str!("../README.md")]

pub mod client;
pub mod clock;
pub mod error;
pub mod exec;
mod heartbeat;
#[cfg(feature = "http")]
pub mod http;
pub mod lease;
pub mod session;
pub mod submit;
pub mod tenure;
pub mod trace;
pub mod transport;
pub mod worker;

pub use tenure_wire as wire;

pub use client::Client;
pub use error::Error;
pub use session::Session;
pub use tenure::{Lost, Tenure};
pub use transport::Transport;
pub use worker::{Context, Done, Failure, Handler, Worker};
