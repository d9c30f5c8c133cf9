//! The form in which data is printed.

use clap::ValueEnum;
use serde::Serialize;

/// The form in which data is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Human-readable
    Table,
    /// Machine-readable
    Json,
}

/// Prints data as indented JSON.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    crate::text::print_line(&serde_json::to_string_pretty(value)?)
}
