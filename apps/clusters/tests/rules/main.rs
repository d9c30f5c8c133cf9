//! The rules of clusters over HTTP, on a store whose clock the test moves: transitions, what
//! happens when operations meet, the time to live, access; and the duties, run by the test. The
//! workers of these tests have no installer.

mod access;
mod bed;
#[path = "../../../../crates/tenure-server/tests/common/mod.rs"]
mod common;
mod damage;
mod duties;
mod expiry;
mod lists;
mod races;
mod requests;
mod transitions;
