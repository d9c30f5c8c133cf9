//! A repeated request gets the same answer, and another request with its id is refused.

use std::sync::Arc;

use tenure_core::{
    Acquire, Claim, Claimant, Command, Finish, JobAction, JobId, Kind, Kinds, LockAction, LockName,
    LockSet, Millis, Operation, Outcome, Policy, Refusal, RequestId, ResourceAction, ResourceKey,
    SessionId, Submit, Token, World, step,
};

const NOW: Millis = Millis(1_000_000_000);

fn world() -> World {
    let kind = Kind::new("task")
        .operation(Operation::new("work"))
        .operation(Operation::new("rest"))
        .operation(Operation::new("join").meets("work", Policy::Attach));
    let mut world = World::default();
    world.declare(Arc::new(Kinds::new([kind]).expect("valid kinds")), NOW);
    let (session, tenant, name) = (SessionId(1), "t".into(), "w".into());
    step(&mut world, &Command::Open { session, tenant, name, ttl_ms: 60_000 }, NOW);
    world
}

fn key() -> ResourceKey {
    ResourceKey::new("t", "task", "one").expect("a plain name")
}

fn submit(world: &mut World, submit: Submit, now: Millis) -> Outcome {
    step(world, &Command::Resource { key: key(), action: ResourceAction::Submit(submit) }, now)
}

#[track_caller]
fn job(outcome: &Outcome) -> JobId {
    let Outcome::Submitted { job, .. } = outcome else { panic!("{outcome:?}") };
    *job
}

/// Submits other requests with the id of `first`, which must be refused, and `first` again.
#[track_caller]
fn check_reused_submits(world: &mut World, first: &Submit, id: JobId, now: Millis) {
    let others = [
        Submit { operation: "rest".into(), ..first.clone() },
        Submit { args: Some("{\"n\":2}".into()), ..first.clone() },
        Submit { args: None, ..first.clone() },
        Submit { priority: 3, ..first.clone() },
        Submit { run_at: Some(NOW.plus(60_000)), ..first.clone() },
    ];
    for other in others {
        let outcome = submit(world, other.clone(), now);
        assert_eq!(outcome, Outcome::Refused(Refusal::RequestReused), "{other:?}");
    }
    assert_eq!(job(&submit(world, first.clone(), now)), id);
}

#[test]
fn a_submit_with_the_id_of_another_is_refused() {
    let mut world = world();
    let first = Submit {
        args: Some("{\"n\":1}".into()),
        run_at: Some(NOW.plus(5)),
        ..Submit::new(RequestId(1), "work", "ann".into())
    };
    let id = job(&submit(&mut world, first.clone(), NOW));
    check_reused_submits(&mut world, &first, id, NOW);
    let later = NOW.plus(10);
    check_reused_submits(&mut world, &first, id, later);

    let (session, request, kinds) = (SessionId(1), RequestId(2), vec!["task".into()]);
    let claim = Claim { session, request, kinds, max: 1, tenant: None, only: None };
    let Outcome::Claimed(claimed) = step(&mut world, &Command::Claim(claim), later) else {
        panic!("not claimed")
    };
    check_reused_submits(&mut world, &first, id, later);
    let (token, finish) = (claimed[0].tenure.token, Finish::Ok { state: None, result: None });
    let action = JobAction::Finish { token, finish, update: None };
    let finished = step(&mut world, &Command::Job { id, action }, later);
    assert!(matches!(finished, Outcome::Finished { .. }), "{finished:?}");
    // The job has left the lane.
    check_reused_submits(&mut world, &first, id, later);
}

#[test]
fn a_waiting_job_is_compared_after_its_submit_left_the_cache() {
    let mut world = world();
    let first = Submit {
        args: Some("{\"n\":1}".into()),
        ..Submit::new(RequestId(1), "work", "ann".into())
    };
    let id = job(&submit(&mut world, first.clone(), NOW));
    for request in 2..300 {
        submit(&mut world, Submit::new(RequestId(request), "work", "ann".into()), NOW);
    }
    let others = [
        Submit { operation: "rest".into(), ..first.clone() },
        Submit { args: None, ..first.clone() },
        Submit { priority: 3, ..first.clone() },
    ];
    for other in others {
        let outcome = submit(&mut world, other.clone(), NOW);
        assert_eq!(outcome, Outcome::Refused(Refusal::RequestReused), "{other:?}");
    }
    assert_eq!(job(&submit(&mut world, first, NOW)), id);
}

#[test]
fn a_submit_with_the_id_of_one_that_attached_is_refused() {
    let mut world = world();
    let work = Submit::new(RequestId(1), "work", "ann".into());
    let id = job(&submit(&mut world, work, NOW));
    let joined = Submit {
        args: Some("{\"n\":1}".into()),
        run_at: Some(NOW.plus(5)),
        ..Submit::new(RequestId(2), "join", "bob".into())
    };
    assert_eq!(job(&submit(&mut world, joined.clone(), NOW)), id);
    check_reused_submits(&mut world, &joined, id, NOW.plus(10));
}

fn lock_set(names: &[&str]) -> LockSet {
    let names = names.iter().map(|name| name.parse::<LockName>().expect("a plain name"));
    LockSet::new(names.collect()).expect("a few names")
}

fn acquire(locks: &[&str], request: u128, wait_ms: u64) -> Acquire {
    Acquire {
        locks: lock_set(locks),
        claimant: Claimant::Solo { name: "ann".into(), ttl_ms: 60_000 },
        request: RequestId(request),
        wait_ms,
        purpose: Some("repair".into()),
        max_age_ms: None,
        tenant: None,
    }
}

fn lock(world: &mut World, action: LockAction) -> Outcome {
    step(world, &Command::Lock { key: key(), action }, NOW)
}

/// Sends other acquires with the id of `first`, which must be refused.
#[track_caller]
fn check_reused_acquires(world: &mut World, first: &Acquire) {
    let others = [
        Acquire { locks: lock_set(&["a"]), ..first.clone() },
        Acquire { locks: lock_set(&["a", "c"]), ..first.clone() },
        Acquire { locks: lock_set(&["a", "b", "c"]), ..first.clone() },
        Acquire { purpose: None, ..first.clone() },
        Acquire { purpose: Some("play".into()), ..first.clone() },
        Acquire { max_age_ms: Some(60_000), ..first.clone() },
        Acquire { claimant: Claimant::Session(SessionId(1)), ..first.clone() },
        Acquire {
            claimant: Claimant::Solo { name: "bob".into(), ttl_ms: 60_000 },
            ..first.clone()
        },
    ];
    for other in others {
        let outcome = lock(world, LockAction::Acquire(other.clone()));
        assert_eq!(outcome, Outcome::Refused(Refusal::RequestReused), "{other:?}");
    }
}

#[test]
fn an_acquire_with_the_id_of_another_is_refused() {
    let mut world = world();
    let (first, second) = (acquire(&["a", "b"], 11, 0), acquire(&["a", "b"], 12, 5_000));
    let granted =
        |outcome: &Outcome| matches!(outcome, Outcome::Granted(view) if view.token == Token(1));
    assert!(granted(&lock(&mut world, LockAction::Acquire(first.clone()))));
    let waiting = lock(&mut world, LockAction::Acquire(second.clone()));
    assert!(matches!(waiting, Outcome::Waiting { .. }), "{waiting:?}");
    check_reused_acquires(&mut world, &first);
    check_reused_acquires(&mut world, &second);
    assert!(granted(&lock(&mut world, LockAction::Acquire(first.clone()))));
    // A wait may be repeated for the rest of its time.
    let rest = Acquire { wait_ms: 4_000, ..second };
    assert!(matches!(lock(&mut world, LockAction::Acquire(rest)), Outcome::Waiting { .. }));

    let release = LockAction::Release { token: Token(1), locks: Some(lock_set(&["b"])), to: None };
    assert_eq!(lock(&mut world, release), Outcome::Released { already: false });
    assert!(granted(&lock(&mut world, LockAction::Acquire(first))), "a part of it is still held");
}
