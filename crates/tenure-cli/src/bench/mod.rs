//! `tenure bench`: measures this deployment beside what the machine and its peers can do.
//!
//! Every figure stands beside a floor or a peer that was measured in the same run, because absolute
//! times mean little on shared machines. `locks`, `jobs` and `pipelines` are the programs; `local`
//! and `remote` drive pairs of lock and release, `cycles`, `calls` and `remote_cycles` jobs;
//! `shared` has two servers on one database, `beside` a transaction of somebody else on it; `redis`
//! and `etcd` are peers; `floor` asks the machine; `load` counts.

mod beside;
mod calls;
mod claims;
mod cycles;
mod etcd;
mod floor;
mod handover;
mod histogram;
mod http;
mod jobs;
mod kept;
mod load;
mod local;
mod locks;
mod memory;
mod pipelines;
mod redis;
mod remote;
mod remote_cycles;
mod servers;
mod shared;
mod table;

use std::process::ExitCode;

use clap::Subcommand;

use crate::commands::Output;
use crate::context::Reach;

/// Measure this machine, the stores and their peers
#[derive(Subcommand)]
pub(crate) enum Bench {
    // Each says itself what it is for: what stood here would take the place of all of that.
    Locks(locks::Locks),
    Jobs(jobs::Jobs),
    Pipelines(pipelines::Pipelines),
}

impl Bench {
    pub(crate) async fn run(&self, reach: &Reach, output: Output) -> anyhow::Result<ExitCode> {
        match self {
            Self::Locks(locks) => locks.run(reach, output).await,
            Self::Jobs(jobs) => jobs.run(reach, output).await,
            Self::Pipelines(pipelines) => pipelines.run(reach, output).await,
        }
    }
}
