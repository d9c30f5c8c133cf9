//! `tenure bench`

mod etcd;
mod floor;
mod histogram;
mod http;
mod load;
mod redis;
mod servers;
mod table;

use std::process::ExitCode;

use clap::Subcommand;

use crate::commands::Output;

/// Measure this machine, the stores and their peers
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Locks: pairs of acquire and release
    Locks,
}

impl Bench {
    pub(crate) async fn run(&self, _output: Output) -> anyhow::Result<ExitCode> {
        Ok(ExitCode::SUCCESS)
    }
}
