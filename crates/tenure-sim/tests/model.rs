//! The model check: every order of commands, repetitions and clock jumps in small worlds, on the
//! same `step` that production runs.
//!
//! Any command may come at any time and any number of times, so lost replies, late duplicates and
//! clients that know nothing are all included. States are explored breadth first, so a
//! counterexample is the shortest. The worlds are in `worlds`, the questions in `questions`.

#[path = "model/jobs.rs"]
mod jobs;
#[path = "model/questions.rs"]
mod questions;
#[path = "model/search.rs"]
mod search;
#[path = "model/state.rs"]
mod state;

use jobs::{Work, claim, failed, kinds, submit};
use search::{Searched, search};
use state::{Act, Small, acquire, solo};
use tenure_core::canary::{Canary, with};
use tenure_core::retry::Retry;
use tenure_core::{Finish, Kind, Operation, Policy};

const MAIN: &[&str] = &["main"];
const CONFIG: &[&str] = &["config"];
const BOTH: &[&str] = &["main", "config"];

/// Two sessions and one lock, each with a try and a wait.
fn one_lock() -> Small {
    Small {
        sessions: 2,
        acquires: vec![
            acquire(1, 1, MAIN, 1_500),
            acquire(2, 2, MAIN, 1_500),
            acquire(3, 2, MAIN, 0),
        ],
        tokens_max: 3,
        ..Small::default()
    }
}

/// Two sessions, two locks, narrow and wide requests.
fn two_locks() -> Small {
    Small {
        sessions: 2,
        acquires: vec![
            acquire(1, 1, BOTH, 1_500),
            acquire(2, 2, MAIN, 1_500),
            acquire(3, 2, CONFIG, 0),
        ],
        tokens_max: 3,
        locks_apart: true,
        ..Small::default()
    }
}

/// Three sessions in one queue.
fn three_sessions() -> Small {
    let acquires =
        vec![acquire(1, 1, MAIN, 1_500), acquire(2, 2, BOTH, 1_500), acquire(3, 3, MAIN, 1_500)];
    Small { sessions: 3, acquires, tokens_max: 3, ..Small::default() }
}

/// A tenure with a session of its own beside one of a session.
fn solo_beside() -> Small {
    Small {
        sessions: 1,
        acquires: vec![acquire(1, 1, MAIN, 1_500), solo(7, MAIN, 1_500), solo(8, MAIN, 0)],
        tokens_max: 3,
        ..Small::default()
    }
}

fn twice() -> Retry {
    Retry { attempts: 2, initial_ms: 0, max_ms: 0, ..Retry::default() }
}

fn done() -> Finish {
    Finish::Ok { state: None, result: None }
}

/// Two workers, and a single flight that is tried twice.
fn single_flight() -> Small {
    let run = Operation::new("run").meets("run", Policy::Attach).retry(twice());
    let work = Work {
        kinds: kinds(Kind::new("k").operation(run)),
        submits: vec![submit(11, "run"), submit(12, "run")],
        claims: vec![claim(21, 1), claim(22, 2)],
        finishes: vec![done(), failed(), Finish::HandBack],
        jobs_max: 2,
        ..Work::default()
    };
    Small { sessions: 2, tokens_max: 3, work, ..Small::default() }
}

/// One worker, a lifecycle, and two operations that lead to and fro.
fn lifecycle() -> Small {
    let make = Operation::new("make").path(&["NEW"], "MAKING", "UP", "BROKEN").retry(twice());
    let clear = Operation::new("clear").path(&["UP", "BROKEN"], "CLEARING", "NEW", "BROKEN");
    let kind = Kind::new("k").states(&["NEW", "MAKING", "UP", "CLEARING", "BROKEN"]);
    let work = Work {
        kinds: kinds(kind.operation(make).operation(clear.meets("make", Policy::Queue))),
        submits: vec![submit(11, "make"), submit(12, "clear")],
        claims: vec![claim(21, 1), claim(22, 1), claim(23, 1)],
        finishes: vec![done(), failed(), Finish::Cancelled],
        jobs_max: 2,
        ..Work::default()
    };
    Small { sessions: 1, tokens_max: 3, work, ..Small::default() }
}

/// A reconciler, and changes that come while it runs.
fn reconciler() -> Small {
    let sync = Operation::new("sync").meets("sync", Policy::Coalesce).retry(twice());
    let work = Work {
        kinds: kinds(Kind::new("k").operation(sync).reconcile("sync")),
        submits: vec![submit(11, "sync")],
        claims: vec![claim(21, 1), claim(22, 1)],
        finishes: vec![done(), failed()],
        specs: vec!["1".into(), "2".into()],
        jobs_max: 3,
    };
    Small { sessions: 1, tokens_max: 2, work, ..Small::default() }
}

fn holds(name: &str, small: &Small, depth: usize) -> Searched {
    match search(small, depth) {
        Ok(searched) => {
            println!("{name}: {searched:?}");
            assert!(searched.states > 1_000, "{name} has only {searched:?}");
            searched
        }
        Err(found) => panic!("{name}: {found}"),
    }
}

#[test]
fn one_lock_between_two_sessions_keeps_every_promise() {
    holds("one lock", &one_lock(), 10);
}

#[test]
fn sets_of_two_locks_keep_every_promise() {
    holds("two locks", &two_locks(), 9);
}

#[test]
fn three_sessions_in_one_queue_keep_every_promise() {
    holds("three sessions", &three_sessions(), 9);
}

#[test]
fn a_tenure_with_a_session_of_its_own_keeps_every_promise() {
    holds("solo", &solo_beside(), 10);
}

#[test]
fn a_single_flight_between_two_workers_keeps_every_promise() {
    holds("single flight", &single_flight(), 9);
}

#[test]
fn a_lifecycle_keeps_every_promise() {
    holds("lifecycle", &lifecycle(), 10);
}

#[test]
fn a_reconciler_keeps_every_promise() {
    holds("reconciler", &reconciler(), 7);
}

/// The search is not blind: it finds the shortest way to each bug of the rules.
#[test]
fn planted_bugs_of_the_rules_are_found_with_a_short_counterexample() {
    let bugs = [
        (Canary::MissingOwnerIsMe, one_lock()),
        (Canary::RenewByName, one_lock()),
        (Canary::ReleaseWithoutToken, one_lock()),
        (Canary::DeadWaiterGranted, one_lock()),
        (Canary::TokenStartsAgain, one_lock()),
        (Canary::RepeatedIsNew, one_lock()),
        (Canary::WithdrawLeaks, one_lock()),
        (Canary::ReleaseWakesNobody, one_lock()),
        (Canary::LapsedStillHolds, one_lock()),
        (Canary::BeatRevives, one_lock()),
        (Canary::SetTakenInPart, two_locks()),
        (Canary::WideStarves, two_locks()),
        (Canary::AttemptCountedTwice, single_flight()),
        (Canary::FinishWithoutToken, single_flight()),
        (Canary::RepeatedSubmitIsNew, lifecycle()),
        (Canary::RepeatedClaimIsNew, lifecycle()),
        (Canary::AttachToDying, single_flight()),
        (Canary::CompletionOverwritesCancel, single_flight()),
        (Canary::ChangeDuringSyncLost, reconciler()),
    ];
    for (canary, small) in bugs {
        let found = with(canary, || search(&small, 7));
        let Err(found) = found else { panic!("the search does not find {canary:?}") };
        println!("{canary:?}: {found}");
        assert!(found.path.len() <= 7);
    }
}

#[test]
fn a_counterexample_names_its_steps() {
    let found = with(Canary::TokenStartsAgain, || search(&one_lock(), 7)).unwrap_err();
    assert!(found.path.iter().any(|act| matches!(act, Act::Do(_))), "{found}");
}
