//! The kinds of the simulated resources: one for each thing that kinds can differ in.
//!
//! Rests are short and every lane can run dry: no job ends up waiting for a state that nothing
//! leads to, so that whatever waits at the end of a run waits because of a bug.

use std::sync::Arc;

use tenure_core::kind::Backoff;
use tenure_core::retry::Retry;
use tenure_core::{Kind, Kinds, LockName, LockSet, Operation, Policy};

/// The names of the kinds.
pub const NAMES: [&str; 9] =
    ["cluster", "pipeline", "shoot", "report", "task", "queue", "capped", "fair", "scheduler"];
/// The code of failures that are final at once.
pub const FINAL: &str = "QUOTA";

/// All of them.
///
/// # Panics
/// Never: they make sense.
#[must_use]
pub fn kinds() -> Arc<Kinds> {
    let all =
        [cluster(), pipeline(), shoot(), report(), task(), queue(), capped(), fair(), scheduler()];
    Arc::new(Kinds::new(all).expect("they make sense"))
}

fn times(attempts: u32) -> Retry {
    let permanent = vec![FINAL.into()];
    Retry { attempts, initial_ms: 300, factor: 3.0, max_ms: 2_000, permanent, ..Retry::default() }
}

/// A lifecycle with states on the way. A create may wait behind another one that is scheduled or
/// asked to stop, so it may start from the state that the other leaves.
fn cluster() -> Kind {
    let states = ["PENDING", "CREATING", "READY", "DESTROYING", "DESTROYED", "FAILED"];
    let create = Operation::new("create")
        .path(&["PENDING", "READY", "DESTROYED", "FAILED"], "CREATING", "READY", "FAILED")
        .meets("create", Policy::Attach)
        .meets("destroy", Policy::Reject)
        .retry(times(3));
    let destroy = Operation::new("destroy")
        .path(&["PENDING", "READY", "FAILED", "DESTROYED"], "DESTROYING", "DESTROYED", "FAILED")
        .meets("destroy", Policy::Attach)
        .retry(times(2));
    Kind::new("cluster").states(&states).operation(create).operation(destroy)
}

/// Single flight.
fn pipeline() -> Kind {
    let run = Operation::new("run").meets("run", Policy::Attach).retry(times(3));
    Kind::new("pipeline").operation(run)
}

/// A reconciler.
fn shoot() -> Kind {
    let sync = Operation::new("sync").meets("sync", Policy::Coalesce).retry(times(3));
    Kind::new("shoot").operation(sync).reconcile("sync")
}

/// The newest wish wins; an urgent one stops the running one.
fn report() -> Kind {
    let build = Operation::new("build").meets("build", Policy::Replace);
    let urgent = Operation::new("urgent").meets("build", Policy::Cancel);
    Kind::new("report").operation(build).operation(urgent)
}

/// Plain queueing, where others may pass a job that rests.
fn task() -> Kind {
    Kind::new("task").operation(Operation::new("work").retry(times(2))).backoff(Backoff::Pass)
}

/// Plain queueing, where nobody may.
fn queue() -> Kind {
    Kind::new("queue").operation(Operation::new("work").retry(times(3)))
}

/// At most one runs at once.
fn capped() -> Kind {
    Kind::new("capped").operation(Operation::new("work").retry(times(2))).running_max(Some(1), None)
}

/// At most one runs at once for each tenant.
fn fair() -> Kind {
    Kind::new("fair").operation(Operation::new("work").retry(times(2))).running_max(None, Some(1))
}

/// Operations with locks of their own, some wide, some narrow.
fn scheduler() -> Kind {
    let with = |name: &str, locks: &[&str]| {
        let names = locks.iter().map(|lock| lock.parse::<LockName>().expect("a lock")).collect();
        Operation { locks: LockSet::new(names).expect("a set"), ..Operation::new(name) }
    };
    Kind::new("scheduler")
        .operation(with("configure", &["config"]).retry(times(2)))
        .operation(with("shrink", &["panic"]).retry(times(2)))
        .operation(with("update", &["config", "panic"]).retry(times(2)))
}
