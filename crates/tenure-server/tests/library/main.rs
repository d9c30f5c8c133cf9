//! The library over HTTP.

#[path = "../common/mod.rs"]
mod common;

mod batch;
mod handles;
mod updates;
mod worker;
