//! `tenure bench`: measures this deployment beside what the machine and its peers can do.
//!
//! Every figure stands beside a floor or a peer that was measured in the same run, because absolute
//! times mean little on shared machines. `locks` and `jobs` are the programs, apps add theirs;
//! `local` and `remote` drive pairs of lock and release, `cycles`, `calls` and `remote_cycles`
//! jobs; `shared` has two servers on one database, `beside` a transaction of somebody else on it;
//! `redis` and `etcd` are peers; `floor` asks the machine; `load` counts.

mod beside;
mod calls;
mod claims;
mod cycles;
mod etcd;
pub mod floor;
mod handover;
pub mod histogram;
pub mod http;
pub mod in_process;
mod jobs;
pub mod kept;
pub mod load;
mod local;
mod locks;
mod memory;
mod redis;
mod remote;
mod remote_cycles;
pub mod servers;
mod shared;
pub mod table;

use clap::{Args as _, Command};
use tenure_cli_kit::{ParsedVerb, Verb};

/// The benchmarks of the engine: `tenure bench locks`, `tenure bench jobs`.
#[must_use]
pub fn verbs() -> Vec<Box<dyn Verb>> {
    let locks =
        ParsedVerb::<locks::Locks>::new(|| locks::Locks::augment_args(Command::new("locks")));
    let jobs = ParsedVerb::<jobs::Jobs>::new(|| jobs::Jobs::augment_args(Command::new("jobs")));
    vec![Box::new(locks), Box::new(jobs)]
}
