//! Classifies failures of the installer, and decides whether a job is tried again.
//!
//! An exit code says little, so the text decides: an ordered table of rules names the reason of a
//! failure and its class, and the class has the policy. The table is the file `failure/rules.toml`;
//! operators extend it with a file of their own.
//!
//! `failure/class.rs` has the classes, `failure/rules.rs` loads the tables, `failure/console.rs`
//! splits the text, `failure/classify.rs` applies the rules, and `failure/decide.rs` decides.

mod class;
mod classify;
mod console;
mod decide;
mod exit;
mod read;
mod rules;
#[cfg(test)]
mod tests;

pub use class::{Actor, Class, Cleanup, Policy};
pub use classify::{Classified, Evidence, RuleMatch, Source, Step};
pub use console::CONSOLE_BYTES_MAX;
pub use decide::{Attempts, Decision, decide};
pub use exit::exit_code;
pub use rules::{RULES_MAX, Rule, Rules};
