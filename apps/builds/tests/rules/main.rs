//! The rules of builds over HTTP, on a store whose clock the test moves: elections, publication,
//! reservations, limits. Tests are named after the scenarios C1 to C27 that a distributed test
//! queue has to get right.

mod bed;
mod cleanup;
#[path = "../../../../crates/tenure-server/tests/common/mod.rs"]
mod common;
mod elections;
mod results;
mod validation;
