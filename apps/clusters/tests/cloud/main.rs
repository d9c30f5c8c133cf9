//! Snapshots, queues and inventories against imitations of AWS: moto and MiniStack.
//!
//! Both run on loopback, once for all tests; `cargo xtask prepare` installs them. Where they differ
//! from AWS, nothing may depend on it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bed;
mod inventory;
mod queues;
mod signatures;
mod snapshots;
mod tampering;
