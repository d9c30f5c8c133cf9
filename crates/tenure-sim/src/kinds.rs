//! Kinds of the simulated resources, one per feature of kinds.
//!
//! Backoffs are short and every lane can drain: no job can wait for an unreachable state, so a job
//! that still waits at the end of a run shows a bug.

use std::sync::Arc;

use tenure_core::kind::Backoff;
use tenure_core::retry::Retry;
use tenure_core::{Kind, Kinds, LockName, LockSet, Operation, Policy};

/// Names of the kinds.
pub const NAMES: [&str; 9] =
    ["cluster", "pipeline", "shoot", "report", "task", "queue", "capped", "fair", "scheduler"];
/// Failure code that is not retried.
pub const PERMANENT_CODE: &str = "QUOTA";

/// Builds all kinds.
///
/// # Panics
/// Never: the kinds are valid.
#[must_use]
pub fn kinds() -> Arc<Kinds> {
    let all =
        [cluster(), pipeline(), shoot(), report(), task(), queue(), capped(), fair(), scheduler()];
    Arc::new(Kinds::new(all).expect("the kinds are valid"))
}

fn retry_up_to(attempts: u32) -> Retry {
    let permanent = vec![PERMANENT_CODE.into()];
    Retry { attempts, initial_ms: 300, factor: 3.0, max_ms: 2_000, permanent, ..Retry::default() }
}

/// A lifecycle with intermediate states. A create may wait behind another one that is scheduled or
/// cancelling, so it may start from the state that the other leaves.
fn cluster() -> Kind {
    let states = ["PENDING", "CREATING", "READY", "DESTROYING", "DESTROYED", "FAILED"];
    let create = Operation::new("create")
        .path(&["PENDING", "READY", "DESTROYED", "FAILED"], "CREATING", "READY", "FAILED")
        .meets("create", Policy::Attach)
        .meets("destroy", Policy::Reject)
        .retry(retry_up_to(3));
    let destroy = Operation::new("destroy")
        .path(&["PENDING", "READY", "FAILED", "DESTROYED"], "DESTROYING", "DESTROYED", "FAILED")
        .meets("destroy", Policy::Attach)
        .retry(retry_up_to(2));
    Kind::new("cluster").states(&states).operation(create).operation(destroy)
}

/// Single flight.
fn pipeline() -> Kind {
    let run = Operation::new("run").meets("run", Policy::Attach).retry(retry_up_to(3));
    Kind::new("pipeline").operation(run)
}

/// A reconciler.
fn shoot() -> Kind {
    let sync = Operation::new("sync").meets("sync", Policy::Coalesce).retry(retry_up_to(3));
    Kind::new("shoot").operation(sync).reconcile("sync")
}

/// The newest job replaces waiting ones; an urgent one cancels the running one.
fn report() -> Kind {
    let build = Operation::new("build").meets("build", Policy::Replace);
    let urgent = Operation::new("urgent").meets("build", Policy::Cancel);
    Kind::new("report").operation(build).operation(urgent)
}

/// Plain queueing; other jobs may pass a job in backoff.
fn task() -> Kind {
    Kind::new("task").operation(Operation::new("work").retry(retry_up_to(2))).backoff(Backoff::Pass)
}

/// Plain queueing in strict order.
fn queue() -> Kind {
    Kind::new("queue").operation(Operation::new("work").retry(retry_up_to(3)))
}

/// At most one running job.
fn capped() -> Kind {
    Kind::new("capped")
        .operation(Operation::new("work").retry(retry_up_to(2)))
        .running_max(Some(1), None)
}

/// At most one running job per tenant.
fn fair() -> Kind {
    Kind::new("fair")
        .operation(Operation::new("work").retry(retry_up_to(2)))
        .running_max(None, Some(1))
}

/// Operations that take different sets of locks.
fn scheduler() -> Kind {
    let operation = |name: &str, locks: &[&str]| {
        let names = locks.iter().map(|lock| lock.parse::<LockName>().expect("a lock")).collect();
        Operation { locks: LockSet::new(names).expect("a set"), ..Operation::new(name) }
    };
    Kind::new("scheduler")
        .operation(operation("configure", &["config"]).retry(retry_up_to(2)))
        .operation(operation("shrink", &["panic"]).retry(retry_up_to(2)))
        .operation(operation("update", &["config", "panic"]).retry(retry_up_to(2)))
}
