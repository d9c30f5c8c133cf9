//! The kinds that scenarios, properties and simulations work with: one for each thing that kinds
//! can differ in.

use std::sync::Arc;

use tenure_core::kind::{Backoff, OperationOverride};
use tenure_core::retry::{Retry, TIME_LIMIT};
use tenure_core::{Kind, Kinds, LockName, LockSet, Operation, Policy, ResourceKey};

/// The kinds.
///
/// # Panics
/// Never: they make sense.
#[must_use]
pub fn kinds() -> Arc<Kinds> {
    let all = [cluster(), pipeline(), shoot(), report(), task(), capped(), scheduler()];
    Arc::new(Kinds::new(all).expect("they make sense"))
}

fn three_times() -> Retry {
    Retry { attempts: 3, initial_ms: 10_000, factor: 2.0, max_ms: 60_000, ..Retry::default() }
}

/// A lifecycle: attach to a twin, refuse what contradicts, queue behind what must come first.
fn cluster() -> Kind {
    let states = ["PENDING", "CREATING", "READY", "DESTROYING", "DESTROYED", "FAILED", "DEGRADED"];
    let mut create = Operation::new("create")
        .path(&["PENDING", "DESTROYED"], "CREATING", "READY", "FAILED")
        .meets("create", Policy::Attach)
        .meets("destroy", Policy::Reject)
        .limit_ms(60_000)
        .retry(Retry { permanent: vec!["QUOTA".into()], ..three_times() });
    create.ends = vec!["DEGRADED".into()];
    let destroy = Operation::new("destroy").path(
        &["READY", "FAILED", "DEGRADED"],
        "DESTROYING",
        "DESTROYED",
        "FAILED",
    );
    Kind::new("cluster").states(&states).operation(create).operation(destroy)
}

/// Single flight. One of them has rules of its own.
fn pipeline() -> Kind {
    let run = Operation::new("run").meets("run", Policy::Attach);
    let key = ResourceKey::new("t", "pipeline", "patient").expect("a good name");
    let retry = Retry { permanent: vec![TIME_LIMIT.into()], ..three_times() };
    Kind::new("pipeline").operation(run).with_override(
        key,
        "run",
        OperationOverride { limit_ms: Some(60_000), retry },
    )
}

/// A reconciler.
fn shoot() -> Kind {
    let sync = Operation::new("sync").meets("sync", Policy::Coalesce).retry(three_times());
    let hibernate = Operation::new("hibernate");
    Kind::new("shoot").operation(sync).operation(hibernate).reconcile("sync")
}

/// The newest wish wins; an urgent one stops the running one.
fn report() -> Kind {
    let build = Operation::new("build").meets("build", Policy::Replace);
    let urgent = Operation::new("urgent").meets("build", Policy::Cancel);
    Kind::new("report").operation(build).operation(urgent)
}

/// Plain queueing, where others may pass a job that rests.
fn task() -> Kind {
    let work = Operation::new("work").retry(Retry { attempts: 2, ..three_times() });
    Kind::new("task").operation(work).backoff(Backoff::Pass)
}

/// At most two run at once, and one for each tenant.
fn capped() -> Kind {
    Kind::new("capped").operation(Operation::new("work")).running_max(Some(2), Some(1))
}

/// Operations with locks of their own, some wide, some narrow.
fn scheduler() -> Kind {
    let with = |name: &str, locks: &[&str]| {
        let names = locks.iter().map(|lock| lock.parse::<LockName>().expect("a lock")).collect();
        Operation { locks: LockSet::new(names).expect("a set"), ..Operation::new(name) }
    };
    Kind::new("scheduler")
        .operation(with("configure", &["config"]))
        .operation(with("shrink", &["downscaling"]))
        .operation(with("update", &["config", "downscaling"]))
}
