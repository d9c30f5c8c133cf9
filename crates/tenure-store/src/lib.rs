//! Where it is kept: stores make the steps of `tenure-core` atomic and durable.
//!
//! A store loads rows, calls `tenure_core::step`, and writes back what changed. It must never
//! decide anything itself: no rule of the model lives in SQL or here.
//!
//! [`Store`] is the trait; [`memory`], [`embedded`] and [`postgres`] keep it; [`faulty`] and
//! [`metered`] stand in front of any of them; [`observer`] is who counts what happens, [`census`]
//! what there is; [`committer`] turns single commands into batches; [`conformance`] is the suite
//! that each of them passes.

pub mod census;
pub mod clock;
pub mod committer;
pub mod conformance;
#[cfg(feature = "embedded")]
pub mod embedded;
pub mod faulty;
mod fences;
pub mod keys;
pub mod ledger;
pub mod memory;
pub mod metered;
pub mod observer;
#[cfg(feature = "postgres")]
pub mod postgres;
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
