//! Kinds of the scenarios, property tests and simulations, which cover the options of a kind.

use std::sync::Arc;

use tenure_core::kind::{Backoff, OperationOverride};
use tenure_core::retry::{Retry, TIME_LIMIT};
use tenure_core::{Kind, Kinds, LockName, LockSet, Operation, Policy, ResourceKey};

/// Returns the kinds.
///
/// # Panics
/// Never: they are valid.
#[must_use]
pub fn kinds() -> Arc<Kinds> {
    let all = [
        cluster(),
        pipeline(),
        shoot(),
        report(),
        task(),
        capped(),
        scheduler(),
        roller(),
        check(),
        careful(),
        lease(),
    ];
    Arc::new(Kinds::new(all).expect("valid kinds"))
}

fn three_attempts() -> Retry {
    Retry { attempts: 3, initial_ms: 10_000, factor: 2.0, max_ms: 60_000, ..Retry::default() }
}

/// Lifecycle: a repeated create attaches, a contradicting one is rejected, a destroy queues.
fn cluster() -> Kind {
    let states = ["PENDING", "CREATING", "READY", "DESTROYING", "DESTROYED", "FAILED", "DEGRADED"];
    let mut create = Operation::new("create")
        .path(&["PENDING", "DESTROYED"], "CREATING", "READY", "FAILED")
        .meets("create", Policy::Attach)
        .meets("destroy", Policy::Reject)
        .limit_ms(60_000)
        .retry(Retry { permanent: vec!["QUOTA".into()], ..three_attempts() });
    create.ends = vec!["DEGRADED".into()];
    let destroy = Operation::new("destroy").path(
        &["READY", "FAILED", "DEGRADED"],
        "DESTROYING",
        "DESTROYED",
        "FAILED",
    );
    Kind::new("cluster").states(&states).operation(create).operation(destroy)
}

/// Single flight. One resource overrides the rules.
fn pipeline() -> Kind {
    let run = Operation::new("run").meets("run", Policy::Attach);
    let key = ResourceKey::new("t", "pipeline", "patient").expect("a valid name");
    let retry = Retry { permanent: vec![TIME_LIMIT.into()], ..three_attempts() };
    Kind::new("pipeline").operation(run).with_override(
        key,
        "run",
        OperationOverride { limit_ms: Some(60_000), retry },
    )
}

/// Reconciler.
fn shoot() -> Kind {
    let sync = Operation::new("sync").meets("sync", Policy::Coalesce).retry(three_attempts());
    let hibernate = Operation::new("hibernate");
    Kind::new("shoot").operation(sync).operation(hibernate).reconcile("sync")
}

/// The newest submit replaces queued ones; an urgent one cancels the running one.
fn report() -> Kind {
    let build = Operation::new("build").meets("build", Policy::Replace);
    let urgent = Operation::new("urgent").meets("build", Policy::Cancel);
    Kind::new("report").operation(build).operation(urgent)
}

/// Plain queueing, where later jobs may pass a job in backoff.
fn task() -> Kind {
    let work = Operation::new("work").retry(Retry { attempts: 2, ..three_attempts() });
    Kind::new("task").operation(work).backoff(Backoff::Pass)
}

/// At most two running jobs, and one per tenant.
fn capped() -> Kind {
    Kind::new("capped").operation(Operation::new("work")).running_max(Some(2), Some(1))
}

/// A job in backoff reserves its locks; jobs must start within a minute.
fn roller() -> Kind {
    let operation = |name: &str, lock: &str| {
        let lock: LockName = lock.parse().expect("a lock");
        Operation { locks: lock.into(), ..Operation::new(name) }.retry(three_attempts())
    };
    Kind::new("roller")
        .operation(operation("roll", "config").start_deadline_ms(60_000))
        .operation(operation("scale", "downscaling"))
        .backoff(Backoff::Reserve)
}

/// Grouped and ephemeral.
fn check() -> Kind {
    let run = Operation::new("run").retry(Retry { attempts: 2, ..three_attempts() });
    Kind::new("check").operation(run).grouped().ephemeral_ms(600_000)
}

/// A stale margin.
fn careful() -> Kind {
    Kind::new("careful").operation(Operation::new("work")).stale_margin_ms(5_000)
}

/// Timers end what is in use, but not while it is paused for maintenance.
fn lease() -> Kind {
    Kind::new("lease")
        .states(&["FREE", "IN_USE", "RENEWING", "ENDED"])
        .operation(Operation { ok: Some("IN_USE".into()), ..Operation::new("use") })
        .operation(
            Operation::new("renew")
                .path(&["IN_USE"], "RENEWING", "IN_USE", "IN_USE")
                .meets("end", Policy::Reject),
        )
        .operation(
            Operation { ok: Some("ENDED".into()), ..Operation::new("end") }
                .meets("renew", Policy::Reject)
                .meets("end", Policy::Attach),
        )
}

/// Operations with one or several locks.
fn scheduler() -> Kind {
    let operation = |name: &str, locks: &[&str]| {
        let names = locks.iter().map(|lock| lock.parse::<LockName>().expect("a lock")).collect();
        Operation { locks: LockSet::new(names).expect("a set"), ..Operation::new(name) }
    };
    Kind::new("scheduler")
        .operation(operation("configure", &["config"]))
        .operation(operation("shrink", &["downscaling"]))
        .operation(operation("update", &["config", "downscaling"]))
}
