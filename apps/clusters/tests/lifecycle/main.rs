//! Clusters through the real binary: a server, workers that are killed and frozen, a stand-in for
//! the installer, and a cloud that behaves like AWS.

mod bed;
mod belt;
mod chaos;
mod cloud;
#[path = "../../../../crates/tenure-cli/tests/common/mod.rs"]
mod common;
mod crashes;
mod life;
mod meets;
mod queue;
mod scale;
mod sqs;
mod views;
