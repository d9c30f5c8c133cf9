//! Kinds of the simulated resources, one per feature of kinds.
//!
//! Backoffs are short and every lane can drain: no job can wait for an unreachable state, so a job
//! that still waits at the end of a run shows a bug.

use std::sync::Arc;

use tenure_core::kind::Backoff;
use tenure_core::retry::Retry;
use tenure_core::{Kind, Kinds, LockName, LockSet, Operation, Policy, limits};

/// Names of the kinds.
pub const NAMES: [&str; 12] = [
    "cluster",
    "pipeline",
    "shoot",
    "report",
    "task",
    "queue",
    "capped",
    "fair",
    "scheduler",
    GROUPED,
    "roller",
    CAREFUL,
];
/// Kind whose names have the form `GROUP:REST`.
pub const GROUPED: &str = "check";
/// Kind with a stale margin.
pub const CAREFUL: &str = "careful";
/// Stale margin of [`CAREFUL`].
const MARGIN_MS: u64 = 1_700;
/// Failure code that is not retried.
pub const PERMANENT_CODE: &str = "QUOTA";

/// Builds all kinds.
///
/// # Panics
/// Never: the kinds are valid.
#[must_use]
pub fn kinds() -> Arc<Kinds> {
    let all = [
        cluster(),
        pipeline(),
        shoot(),
        report(),
        task(),
        queue(),
        capped(),
        fair(),
        scheduler(),
        check(),
        roller(),
        careful(),
    ];
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

fn with_locks(name: &str, locks: &[&str]) -> Operation {
    let names = locks.iter().map(|lock| lock.parse::<LockName>().expect("a lock")).collect();
    let locks = LockSet::new(names).expect("a set");
    Operation { locks, ..Operation::new(name) }.retry(retry_up_to(2))
}

/// Operations that take different sets of locks.
fn scheduler() -> Kind {
    Kind::new("scheduler")
        .operation(with_locks("configure", &["config"]))
        .operation(with_locks("shrink", &["panic"]))
        .operation(with_locks("update", &["config", "panic"]))
}

/// Resources in groups, deleted often and then forgotten.
fn check() -> Kind {
    Kind::new(GROUPED)
        .operation(Operation::new("run").retry(retry_up_to(2)))
        .grouped()
        .ephemeral_ms(limits::RECENT_TTL_MS)
}

/// A job in backoff reserves its locks, and jobs must start in time.
fn roller() -> Kind {
    Kind::new("roller")
        .operation(with_locks("roll", &["config"]).start_deadline_ms(4_000))
        .operation(with_locks("scale", &["panic"]).start_deadline_ms(9_000))
        .operation(with_locks("replace", &["config", "panic"]))
        .backoff(Backoff::Reserve)
}

/// Locks stay held for a while after the session of their holder has expired.
fn careful() -> Kind {
    Kind::new(CAREFUL)
        .operation(Operation::new("work").retry(retry_up_to(2)))
        .stale_margin_ms(MARGIN_MS)
}
