//! Scenarios about status, deferral, timers, conditions, transfers, forgetting and margins.

use tenure_core::kind::Backoff;
use tenure_core::retry::Retry;
use tenure_core::{
    Claim, ClaimScope, Finish, Kind, LockName, LockSet, Operation, Policy, Precondition, Put,
    RequestId, ResourceAction, SessionId, StatusUpdate, Submit, TimerChange, TimerSetting,
};

use crate::jobs::{JobScenario, claim, failed, kinds, submit};
use crate::state::{Scenario, acquire, solo};
use crate::{MAIN, retry_once, succeed};

fn run() -> Operation {
    Operation::new("run").retry(retry_once())
}

fn patch(merge: &str) -> StatusUpdate {
    StatusUpdate { merge: Some(merge.into()), timers: Vec::new() }
}

fn timer(operation: &str, setting: TimerSetting) -> TimerChange {
    TimerChange { operation: operation.into(), setting }
}

/// Two workers write the status of a resource, also in the step that finishes its job.
pub(crate) fn status() -> Scenario {
    let jobs = JobScenario {
        kinds: kinds(Kind::new("k").operation(run())),
        submits: vec![submit(11, "run")],
        claims: vec![claim(21, 1), claim(22, 2)],
        finishes: vec![failed(), Finish::HandBack],
        updates: vec![patch(r#"{"a":{"b":1}}"#), patch(r#"{"a":{"c":2,"b":null}}"#)],
        jobs_max: 1,
        ..JobScenario::default()
    };
    Scenario { sessions: 2, tokens_max: 3, jobs, ..Scenario::default() }
}

/// A worker defers a job, fails it, hands it back and loses it.
pub(crate) fn deferral() -> Scenario {
    let deferred =
        |delay_ms| Finish::Deferred { delay_ms, code: "NOT_YET".into(), message: "".into() };
    let own_delay = Finish::Failed {
        code: "BUSY".into(),
        message: "".into(),
        class: None,
        state: None,
        delay_ms: Some(500),
    };
    let jobs = JobScenario {
        kinds: kinds(Kind::new("k").operation(run())),
        submits: vec![submit(11, "run")],
        claims: vec![claim(21, 1), claim(22, 1), claim(23, 1), claim(24, 1)],
        finishes: vec![deferred(0), deferred(900), failed(), own_delay],
        jobs_max: 1,
        ..JobScenario::default()
    };
    Scenario { sessions: 1, tokens_max: 4, jobs, ..Scenario::default() }
}

/// Timers of two operations, one of which is refused while the other one is in the lane.
pub(crate) fn timers() -> Scenario {
    let end = Operation::new("end").meets("run", Policy::Reject);
    let set =
        |timers| ResourceAction::SetTimers { timers, by: "timer ann".into(), precondition: None };
    let put = Put {
        timers: vec![timer("end", TimerSetting::After(500))],
        ..Put::new("1".into(), "timer ann".into())
    };
    let jobs = JobScenario {
        kinds: kinds(Kind::new("k").operation(run()).operation(end)),
        claims: vec![claim(21, 1)],
        finishes: vec![succeed()],
        actions: vec![
            ResourceAction::Put(put),
            set(vec![timer("run", TimerSetting::After(500))]),
            set(vec![timer("run", TimerSetting::After(1_000)), timer("end", TimerSetting::Remove)]),
            set(vec![timer("run", TimerSetting::Remove)]),
        ],
        jobs_max: 3,
        ..JobScenario::default()
    };
    Scenario { sessions: 1, tokens_max: 2, jobs, ..Scenario::default() }
}

/// Conditional puts, submits and deletes between unconditional ones.
pub(crate) fn preconditions() -> Scenario {
    let by = |condition: &str| format!("ann{condition}").into();
    let put = |request, spec: &str, condition: &str, precondition| {
        let request = Some(RequestId(request));
        let put = Put::new(spec.into(), by(condition));
        ResourceAction::Put(Put { request, precondition, ..put })
    };
    let delete =
        |condition: &str, precondition| ResourceAction::Delete { by: by(condition), precondition };
    let at = |n| Some(Precondition::Generation(n));
    let conditional = Submit { precondition: at(1), by: by(" if 1"), ..submit(12, "run") };
    let jobs = JobScenario {
        kinds: kinds(Kind::new("k").operation(run())),
        submits: vec![submit(11, "run"), conditional],
        claims: vec![claim(21, 1)],
        finishes: vec![succeed()],
        actions: vec![
            put(31, "1", "", None),
            put(32, "2", " if absent", Some(Precondition::Absent)),
            put(33, "3", " if 1", at(1)),
            put(34, "4", " if 0", at(0)),
            delete("", None),
            delete(" if 2", at(2)),
        ],
        jobs_max: 2,
        ..JobScenario::default()
    };
    Scenario { sessions: 1, tokens_max: 2, jobs, ..Scenario::default() }
}

/// Requests of a batch that undo each other, between those of others.
pub(crate) fn executed_once() -> Scenario {
    let by = || "ann".into();
    let put = |spec: &str| ResourceAction::Put(Put::new(spec.into(), by()));
    let delete = || ResourceAction::Delete { by: by(), precondition: None };
    let pause = ResourceAction::Pause { by: by(), reason: "so".into() };
    let resume = ResourceAction::Resume { by: by(), reason: "so".into() };
    let jobs = JobScenario {
        kinds: kinds(Kind::new("k").operation(run())),
        submits: vec![submit(11, "run")],
        claims: vec![claim(21, 1)],
        finishes: vec![succeed()],
        actions: vec![put("0"), delete()],
        once: vec![delete(), put("1"), pause, resume, put("2")],
        jobs_max: 1,
        ..JobScenario::default()
    };
    Scenario { sessions: 1, tokens_max: 2, jobs, ..Scenario::default() }
}

/// A holder transfers its lock to the second of two waiting sessions, or to itself.
pub(crate) fn transfers() -> Scenario {
    Scenario {
        sessions: 2,
        acquires: vec![
            acquire(1, 1, MAIN, 1_500),
            acquire(2, 1, MAIN, 1_500),
            acquire(3, 2, MAIN, 1_500),
        ],
        tokens_max: 3,
        transfers: vec![SessionId(1).to_string().into(), SessionId(2).to_string().into()],
        ..Scenario::default()
    }
}

/// A resource is forgotten, and its name is used again.
pub(crate) fn forgetting() -> Scenario {
    Scenario {
        sessions: 1,
        acquires: vec![solo(7, MAIN, 1_500), acquire(1, 1, MAIN, 0)],
        tokens_max: 4,
        forgets: true,
        ..Scenario::default()
    }
}

/// Claims that are restricted to this resource, to another one and to a group.
pub(crate) fn restricted_claims() -> Scenario {
    let only = |request, only| Claim { only: Some(only), ..claim(request, 1) };
    let resource = |name: &str| ClaimScope::Resource { tenant: "t".into(), name: name.into() };
    let group = ClaimScope::Group { tenant: "t".into(), group: "n".into() };
    let jobs = JobScenario {
        kinds: kinds(Kind::new("k").operation(run())),
        submits: vec![submit(11, "run"), submit(12, "run")],
        claims: vec![only(21, resource("n")), only(22, resource("other")), only(23, group)],
        finishes: vec![succeed(), failed()],
        jobs_max: 2,
        ..JobScenario::default()
    };
    Scenario { sessions: 1, tokens_max: 3, jobs, ..Scenario::default() }
}

/// A job in backoff reserves its locks against the jobs behind it.
pub(crate) fn reserve() -> Scenario {
    let with_locks = |name: &str, locks: &[&str]| {
        let names = locks.iter().map(|lock| lock.parse::<LockName>().expect("a plain name"));
        let locks = LockSet::new(names.collect()).expect("a set");
        Operation { locks, ..Operation::new(name) }
    };
    let slow = Retry { attempts: 2, initial_ms: 900, max_ms: 900, ..Retry::default() };
    let kind = Kind::new("k")
        .operation(with_locks("wide", &["main", "config"]).retry(slow))
        .operation(with_locks("narrow", &["config"]))
        .operation(with_locks("beside", &["panic"]))
        .backoff(Backoff::Reserve);
    let jobs = JobScenario {
        kinds: kinds(kind),
        submits: vec![submit(11, "wide"), submit(12, "narrow"), submit(13, "beside")],
        claims: vec![claim(21, 1), claim(22, 1)],
        finishes: vec![failed(), Finish::HandBack],
        jobs_max: 3,
        ..JobScenario::default()
    };
    Scenario { sessions: 1, tokens_max: 3, jobs, ..Scenario::default() }
}

/// Jobs of one lane must start in time.
pub(crate) fn start_deadline() -> Scenario {
    let jobs = JobScenario {
        kinds: kinds(Kind::new("k").operation(run().start_deadline_ms(1_000))),
        submits: vec![submit(11, "run"), submit(12, "run")],
        claims: vec![claim(21, 1), claim(22, 1)],
        finishes: vec![succeed(), failed(), Finish::HandBack],
        jobs_max: 2,
        ..JobScenario::default()
    };
    Scenario { sessions: 1, tokens_max: 3, jobs, ..Scenario::default() }
}

/// A lock whose kind has a stale margin passes from one session to another.
pub(crate) fn stale_margin() -> Scenario {
    let kind = Kind::new("k").operation(run()).stale_margin_ms(400);
    Scenario {
        sessions: 2,
        acquires: vec![acquire(1, 1, MAIN, 1_500), acquire(2, 2, MAIN, 1_500)],
        tokens_max: 3,
        jobs: JobScenario { kinds: kinds(kind), ..JobScenario::default() },
        ..Scenario::default()
    }
}
