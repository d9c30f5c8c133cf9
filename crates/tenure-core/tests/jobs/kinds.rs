//! Kinds for the job properties: one per feature of kinds, with short backoffs so that time jumps
//! of a second matter.

use std::sync::Arc;

use tenure_core::kind::{Backoff, OperationOverride};
use tenure_core::retry::Retry;
use tenure_core::{Kind, Kinds, LockName, LockSet, Operation, Policy};

pub(crate) fn kinds() -> Arc<Kinds> {
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
    ];
    Arc::new(Kinds::new(all).expect("valid kinds"))
}

fn times(attempts: u32) -> Retry {
    Retry { attempts, initial_ms: 800, factor: 2.0, max_ms: 3_000, ..Retry::default() }
}

/// A lifecycle with transitional states.
fn cluster() -> Kind {
    let states = ["PENDING", "CREATING", "READY", "DESTROYING", "DESTROYED", "FAILED", "DEGRADED"];
    let mut create = Operation::new("create")
        .path(&["PENDING", "DESTROYED"], "CREATING", "READY", "FAILED")
        .meets("create", Policy::Attach)
        .meets("destroy", Policy::Reject)
        .retry(Retry { permanent: vec!["QUOTA".into()], ..times(3) });
    create.ends = vec!["DEGRADED".into()];
    let mut destroy = Operation::new("destroy")
        .path(&["READY", "FAILED", "DEGRADED"], "DESTROYING", "DESTROYED", "FAILED")
        .retry(times(2));
    destroy.cancelled = Some("DEGRADED".into());
    Kind::new("cluster").states(&states).operation(create).operation(destroy)
}

/// Single flight; one resource overrides the number of attempts.
fn pipeline() -> Kind {
    let run = Operation::new("run").meets("run", Policy::Attach).retry(times(2));
    let key = "t/pipeline/a".parse().expect("a good name");
    let rule = OperationOverride { limit_ms: Some(1_000), retry: times(4) };
    Kind::new("pipeline").operation(run).with_override(key, "run", rule)
}

/// A reconciler.
fn shoot() -> Kind {
    let sync = Operation::new("sync").meets("sync", Policy::Coalesce).retry(times(3));
    Kind::new("shoot").operation(sync).operation(Operation::new("other")).reconcile("sync")
}

/// The newest submit wins; an urgent one cancels the running job.
fn report() -> Kind {
    let build = Operation::new("build").meets("build", Policy::Replace);
    let urgent = Operation::new("urgent").meets("build", Policy::Cancel);
    Kind::new("report").operation(build).operation(urgent)
}

/// Plain queueing; jobs may pass one in backoff.
fn task() -> Kind {
    Kind::new("task").operation(Operation::new("work").retry(times(2))).backoff(Backoff::Pass)
}

/// Plain queueing in strict order.
fn queue() -> Kind {
    Kind::new("queue").operation(Operation::new("work").retry(times(3)))
}

/// At most one job runs at a time.
fn capped() -> Kind {
    Kind::new("capped").operation(Operation::new("work").retry(times(2))).running_max(Some(1), None)
}

/// At most one job per tenant runs at a time.
fn fair() -> Kind {
    Kind::new("fair").operation(Operation::new("work").retry(times(2))).running_max(None, Some(1))
}

fn with(name: &str, locks: &[&str]) -> Operation {
    let names = locks.iter().map(|lock| lock.parse::<LockName>().expect("a lock")).collect();
    Operation { locks: LockSet::new(names).expect("a set"), ..Operation::new(name) }
}

/// Resources in groups, with a stale margin.
fn check() -> Kind {
    let run = Operation::new("run").retry(times(2));
    Kind::new("check").operation(run).grouped().stale_margin_ms(700)
}

/// A job in backoff reserves its locks; jobs must start in time.
fn roller() -> Kind {
    Kind::new("roller")
        .operation(with("roll", &["config"]).retry(times(3)).start_deadline_ms(1_500))
        .operation(with("scale", &["main"]).retry(times(2)))
        .operation(with("update", &["config", "main"]).start_deadline_ms(4_000))
        .backoff(Backoff::Reserve)
}

/// Operations with different lock sets, some overlapping.
fn scheduler() -> Kind {
    Kind::new("scheduler")
        .operation(with("configure", &["config"]))
        .operation(with("shrink", &["main"]))
        .operation(with("update", &["config", "main"]))
}
