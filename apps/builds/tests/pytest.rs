//! The pytest plugin with real nodes.

#[path = "../../../crates/tenure-cli/tests/common/mod.rs"]
mod common;
