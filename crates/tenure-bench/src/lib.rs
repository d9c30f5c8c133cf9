//! `tenure bench`: measures this deployment in comparison with the machine and with other systems.
//!
//! Every figure is compared with a limit of the machine or with another system measured in the same
//! run, because absolute times mean little on shared machines. `locks`, `jobs` and `batches` are
//! the commands; apps add their own. `local` and `remote` generate pairs of acquire and release;
//! `cycles`, `batched_cycles` and `remote_cycles` generate jobs; `claims` and `group_claims`
//! measure claims; `shared_database` runs two servers on one database, `idle_transaction` opens a
//! foreign transaction on it; `redis` and `etcd` are the other systems; `floor` measures the
//! machine; `load` drives and counts.

mod batched_cycles;
mod batches;
mod claims;
pub mod clock;
mod cycles;
mod etcd;
pub mod floor;
mod group_claims;
mod handover;
pub mod histogram;
pub mod http;
mod idle_transaction;
pub mod in_process;
mod jobs;
pub mod load;
mod local;
mod locks;
mod memory;
mod redis;
mod remote;
mod remote_cycles;
pub mod servers;
mod shared_database;
pub mod store_args;
pub mod table;

use clap::{Args as _, Command};
use tenure_cli_kit::{ParsedVerb, Verb};

/// Returns the benchmarks of the engine: `tenure bench locks`, `tenure bench jobs`, `tenure bench
/// batch`.
#[must_use]
pub fn verbs() -> Vec<Box<dyn Verb>> {
    let locks = ParsedVerb::<locks::LocksBench>::new(|| {
        locks::LocksBench::augment_args(Command::new("locks"))
    });
    let jobs =
        ParsedVerb::<jobs::JobsBench>::new(|| jobs::JobsBench::augment_args(Command::new("jobs")));
    let batch = ParsedVerb::<batches::BatchBench>::new(|| {
        batches::BatchBench::augment_args(Command::new("batch"))
    });
    vec![Box::new(locks), Box::new(jobs), Box::new(batch)]
}
