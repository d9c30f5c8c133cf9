//! Storage for Tenure: stores make the steps of `tenure-core` atomic and durable.
//!
//! A store loads rows, calls `tenure_core::step`, and writes back what changed. It makes no
//! decisions: every rule of the model lives in `tenure-core`, none in SQL or in this crate.
//!
//! [`Store`] is the trait. [`memory`], [`embedded`] and [`postgres`] implement it;
//! [`fault_injector`] and [`metered`] decorate any implementation. [`committer`] groups single
//! commands into batches, [`observer`] receives facts for metrics, [`census`] counts the current
//! rows, [`private_file`] creates files for one user, and [`conformance`] is the test suite that
//! every store passes.

pub mod audit;
pub mod census;
pub mod clock;
pub mod committer;
pub mod conformance;
#[cfg(feature = "embedded")]
pub mod embedded;
pub mod fault_injector;
mod fences;
mod filters;
mod forget;
pub mod keys;
pub mod ledger;
pub mod memory;
pub mod metered;
pub mod observer;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod private_file;
pub mod queries;
pub mod random;
pub mod scenario;
pub mod store;
pub mod verify;
mod view;

pub use committer::Committer;
#[cfg(feature = "embedded")]
pub use embedded::Embedded;
pub use keys::{ApiKey, KeyRing};
pub use memory::Memory;
#[cfg(feature = "postgres")]
pub use postgres::Postgres;
pub use store::{Reads, Store, StoreError};
