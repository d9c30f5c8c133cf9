//! Exhaustive model check: every order of commands, duplicates and clock jumps in small scenarios,
//! on the same `step` function that production runs.
//!
//! Any command may arrive at any time and any number of times, which covers lost replies, delayed
//! duplicates and clients without state. The search is breadth first, so a counterexample is
//! shortest. The properties are in `checks` and `jobs`.

#[path = "model/checks.rs"]
mod checks;
#[path = "model/jobs.rs"]
mod jobs;
#[path = "model/scenarios.rs"]
mod scenarios;
#[path = "model/search.rs"]
mod search;
#[path = "model/state.rs"]
mod state;

use jobs::{JobScenario, claim, failed, kinds, submit};
use search::{SearchStats, search};
use state::{Action, Scenario, acquire, solo};
use tenure_core::canary::{Canary, with};
use tenure_core::retry::Retry;
use tenure_core::{Finish, Kind, Operation, Policy, Put, ResourceAction};

const MAIN: &[&str] = &["main"];
const CONFIG: &[&str] = &["config"];
const BOTH: &[&str] = &["main", "config"];

/// Two sessions compete for one lock, waiting and not waiting.
fn one_lock() -> Scenario {
    Scenario {
        sessions: 2,
        acquires: vec![
            acquire(1, 1, MAIN, 1_500),
            acquire(2, 2, MAIN, 1_500),
            acquire(3, 2, MAIN, 0),
        ],
        tokens_max: 3,
        ..Scenario::default()
    }
}

/// Two sessions, two locks, narrow and wide requests.
fn two_locks() -> Scenario {
    Scenario {
        sessions: 2,
        acquires: vec![
            acquire(1, 1, BOTH, 1_500),
            acquire(2, 2, MAIN, 1_500),
            acquire(3, 2, CONFIG, 0),
        ],
        tokens_max: 3,
        partial_releases: true,
        ..Scenario::default()
    }
}

/// Three sessions in one queue.
fn three_sessions() -> Scenario {
    let acquires =
        vec![acquire(1, 1, MAIN, 1_500), acquire(2, 2, BOTH, 1_500), acquire(3, 3, MAIN, 1_500)];
    Scenario { sessions: 3, acquires, tokens_max: 3, ..Scenario::default() }
}

/// Solo tenures compete with a tenure of a session.
fn solo_beside() -> Scenario {
    Scenario {
        sessions: 1,
        acquires: vec![acquire(1, 1, MAIN, 1_500), solo(7, MAIN, 1_500), solo(8, MAIN, 0)],
        tokens_max: 3,
        ..Scenario::default()
    }
}

fn retry_once() -> Retry {
    Retry { attempts: 2, initial_ms: 0, max_ms: 0, ..Retry::default() }
}

fn succeed() -> Finish {
    Finish::Ok { state: None, result: None }
}

/// Two workers and a single-flight operation with two attempts.
fn single_flight() -> Scenario {
    let run = Operation::new("run").meets("run", Policy::Attach).retry(retry_once());
    let jobs = JobScenario {
        kinds: kinds(Kind::new("k").operation(run)),
        submits: vec![submit(11, "run"), submit(12, "run")],
        claims: vec![claim(21, 1), claim(22, 2)],
        finishes: vec![succeed(), failed(), Finish::HandBack],
        jobs_max: 2,
        ..JobScenario::default()
    };
    Scenario { sessions: 2, tokens_max: 3, jobs, ..Scenario::default() }
}

/// One worker and a lifecycle with two opposite operations.
fn lifecycle() -> Scenario {
    let make = Operation::new("make").path(&["NEW"], "MAKING", "UP", "BROKEN").retry(retry_once());
    let clear = Operation::new("clear").path(&["UP", "BROKEN"], "CLEARING", "NEW", "BROKEN");
    let kind = Kind::new("k").states(&["NEW", "MAKING", "UP", "CLEARING", "BROKEN"]);
    let jobs = JobScenario {
        kinds: kinds(kind.operation(make).operation(clear.meets("make", Policy::Queue))),
        submits: vec![submit(11, "make"), submit(12, "clear")],
        claims: vec![claim(21, 1), claim(22, 1), claim(23, 1)],
        finishes: vec![succeed(), failed(), Finish::Cancelled],
        jobs_max: 2,
        ..JobScenario::default()
    };
    Scenario { sessions: 1, tokens_max: 3, jobs, ..Scenario::default() }
}

/// A reconciler, and spec changes while it runs.
fn reconciler() -> Scenario {
    let sync = Operation::new("sync").meets("sync", Policy::Coalesce).retry(retry_once());
    let put = |spec: &str| ResourceAction::Put(Put::new(spec.into(), "ann".into()));
    let jobs = JobScenario {
        kinds: kinds(Kind::new("k").operation(sync).reconcile("sync")),
        submits: vec![submit(11, "sync")],
        claims: vec![claim(21, 1), claim(22, 1)],
        finishes: vec![succeed(), failed()],
        actions: vec![put("1"), put("2")],
        jobs_max: 3,
        ..JobScenario::default()
    };
    Scenario { sessions: 1, tokens_max: 2, jobs, ..Scenario::default() }
}

fn assert_holds(name: &str, scenario: &Scenario, depth: usize) -> SearchStats {
    match search(scenario, depth) {
        Ok(stats) => {
            println!("{name}: {stats:?}");
            assert!(stats.states > 1_000, "{name} has only {stats:?}");
            stats
        }
        Err(counterexample) => panic!("{name}: {counterexample}"),
    }
}

#[test]
fn one_lock_between_two_sessions_satisfies_all_properties() {
    assert_holds("one lock", &one_lock(), 10);
}

#[test]
fn sets_of_two_locks_satisfy_all_properties() {
    assert_holds("two locks", &two_locks(), 9);
}

#[test]
fn three_sessions_in_one_queue_satisfy_all_properties() {
    assert_holds("three sessions", &three_sessions(), 9);
}

#[test]
fn solo_tenures_satisfy_all_properties() {
    assert_holds("solo", &solo_beside(), 10);
}

#[test]
fn single_flight_between_two_workers_satisfies_all_properties() {
    assert_holds("single flight", &single_flight(), 9);
}

#[test]
fn lifecycle_satisfies_all_properties() {
    assert_holds("lifecycle", &lifecycle(), 10);
}

#[test]
fn reconciler_satisfies_all_properties() {
    assert_holds("reconciler", &reconciler(), 7);
}

#[test]
fn status_deferral_and_timers_satisfy_all_properties() {
    assert_holds("status", &scenarios::status(), 8);
    assert_holds("deferral", &scenarios::deferral(), 9);
    assert_holds("timers", &scenarios::timers(), 8);
}

#[test]
fn conditions_transfers_and_forgetting_satisfy_all_properties() {
    assert_holds("preconditions", &scenarios::preconditions(), 8);
    assert_holds("executed once", &scenarios::executed_once(), 6);
    assert_holds("transfers", &scenarios::transfers(), 8);
    assert_holds("forgetting", &scenarios::forgetting(), 8);
}

#[test]
fn restricted_claims_deadlines_and_margins_satisfy_all_properties() {
    assert_holds("restricted claims", &scenarios::restricted_claims(), 9);
    assert_holds("reserve", &scenarios::reserve(), 9);
    assert_holds("start deadline", &scenarios::start_deadline(), 8);
    assert_holds("stale margin", &scenarios::stale_margin(), 9);
}

/// The search is effective: it finds a shortest counterexample for each planted rule bug.
#[test]
fn planted_rule_bugs_are_found_with_a_short_counterexample() {
    let bugs = [
        (Canary::MissingOwnerIsMe, one_lock()),
        (Canary::RenewByName, one_lock()),
        (Canary::ReleaseWithoutToken, one_lock()),
        (Canary::DeadWaiterGranted, one_lock()),
        (Canary::TokenStartsAgain, one_lock()),
        (Canary::RepeatedIsNew, one_lock()),
        (Canary::WithdrawLeaks, one_lock()),
        (Canary::ReleaseWakesNoWaiter, one_lock()),
        (Canary::ExpiredStillHolds, one_lock()),
        (Canary::HeartbeatRevives, one_lock()),
        (Canary::ForeignTenantHeartbeats, one_lock()),
        (Canary::SetTakenInPart, two_locks()),
        (Canary::WideStarves, two_locks()),
        (Canary::AttemptCountedTwice, single_flight()),
        (Canary::FinishWithoutToken, single_flight()),
        (Canary::RepeatedSubmitIsNew, lifecycle()),
        (Canary::RepeatedClaimIsNew, lifecycle()),
        (Canary::AttachToDying, single_flight()),
        (Canary::CompletionOverwritesCancel, single_flight()),
        (Canary::ChangeDuringSyncLost, reconciler()),
        (Canary::StatusWithoutToken, scenarios::status()),
        (Canary::DeferredCounts, scenarios::deferral()),
        (Canary::TimerFiresTwice, scenarios::timers()),
        (Canary::PreconditionIgnored, scenarios::preconditions()),
        (Canary::RepeatedOnceIsNew, scenarios::executed_once()),
        (Canary::TransferToNext, scenarios::transfers()),
        (Canary::TokenFloorForgotten, scenarios::forgetting()),
        (Canary::GroupIgnored, scenarios::restricted_claims()),
        (Canary::ReserveIgnored, scenarios::reserve()),
        (Canary::StartDeadlineIgnored, scenarios::start_deadline()),
        (Canary::MarginIgnored, scenarios::stale_margin()),
    ];
    for (canary, scenario) in bugs {
        let counterexample = with(canary, || search(&scenario, 7));
        let Err(counterexample) = counterexample else {
            panic!("the search does not find {canary:?}")
        };
        println!("{canary:?}: {counterexample}");
        assert!(counterexample.path.len() <= 7);
    }
}

#[test]
fn counterexample_lists_its_commands() {
    let counterexample = with(Canary::TokenStartsAgain, || search(&one_lock(), 7)).unwrap_err();
    assert!(
        counterexample.path.iter().any(|action| matches!(action, Action::Command(_))),
        "{counterexample}"
    );
}
