//! Every limit of the engine, tested at its boundary: the last value that is allowed and the first
//! that is not.

use tenure_core::record::Waiter;
use tenure_core::{
    Acquire, Claimant, Command, LockAction, LockName, LockSet, Millis, Outcome, Refusal, RequestId,
    ResourceKey, SessionId, Token, World, limits, step,
};

const NOW: Millis = Millis(1_000_000);

fn key() -> ResourceKey {
    "t/k/n".parse().expect("a plain key")
}

fn lock(world: &mut World, action: LockAction, now: Millis) -> Outcome {
    step(world, &Command::Lock { key: key(), action }, now)
}

fn open(world: &mut World, session: u128, name: &str, ttl_ms: u64) -> Outcome {
    let (tenant, name) = ("t".into(), name.into());
    step(world, &Command::Open { session: SessionId(session), tenant, name, ttl_ms }, NOW)
}

fn acquire_request(session: u128, request: u128) -> Acquire {
    Acquire {
        locks: LockName::main().into(),
        claimant: Claimant::Session(SessionId(session)),
        request: RequestId(request),
        wait_ms: 0,
        purpose: None,
        max_age_ms: None,
        tenant: None,
    }
}

/// Returns a world with sessions 1 and 2.
fn world() -> World {
    let mut world = World::default();
    for session in [1, 2] {
        let opened = open(&mut world, session, "s", limits::TTL_MS_MAX);
        assert!(matches!(opened, Outcome::Alive { .. }), "{opened:?}");
    }
    world
}

fn acquire(world: &mut World, acquire: Acquire, now: Millis) -> Outcome {
    lock(world, LockAction::Acquire(acquire), now)
}

#[track_caller]
fn granted(outcome: Outcome) -> Token {
    match outcome {
        Outcome::Granted(view) => view.token,
        other => panic!("not granted: {other:?}"),
    }
}

#[track_caller]
fn invalid(outcome: &Outcome, words: &str) {
    match outcome {
        Outcome::Refused(Refusal::Invalid(why)) => assert!(why.contains(words), "{why}"),
        other => panic!("not refused as invalid: {other:?}"),
    }
}

#[test]
fn session_ttl_is_limited() {
    let mut world = World::default();
    invalid(&open(&mut world, 1, "s", limits::TTL_MS_MIN - 1), "ttl_ms is 999");
    invalid(&open(&mut world, 1, "s", limits::TTL_MS_MAX + 1), "ttl_ms is 86400001");
    assert!(matches!(open(&mut world, 1, "s", limits::TTL_MS_MIN), Outcome::Alive { .. }));
    assert!(matches!(open(&mut world, 2, "s", limits::TTL_MS_MAX), Outcome::Alive { .. }));
}

#[test]
fn solo_ttl_is_limited_on_acquire_and_on_renew() {
    let mut world = World::default();
    let solo = |ttl_ms| Acquire {
        claimant: Claimant::Solo { name: "solo".into(), ttl_ms },
        ..acquire_request(0, 7)
    };
    invalid(&acquire(&mut world, solo(limits::TTL_MS_MIN - 1), NOW), "ttl_ms");
    invalid(&acquire(&mut world, solo(limits::TTL_MS_MAX + 1), NOW), "ttl_ms");
    let token = granted(acquire(&mut world, solo(limits::TTL_MS_MIN), NOW));
    let renew = |ttl_ms| LockAction::Renew { token, ttl_ms: Some(ttl_ms) };
    invalid(&lock(&mut world, renew(limits::TTL_MS_MAX + 1), NOW), "ttl_ms");
    let renewed = lock(&mut world, renew(limits::TTL_MS_MAX), NOW);
    assert!(matches!(renewed, Outcome::Renewed(_)), "{renewed:?}");
}

#[test]
fn session_name_length_is_limited() {
    let mut world = World::default();
    let longest = "n".repeat(limits::SESSION_NAME_BYTES_MAX);
    invalid(&open(&mut world, 1, &format!("{longest}n"), 5_000), "session name has 129 bytes");
    invalid(&open(&mut world, 1, "", 5_000), "empty");
    assert!(matches!(open(&mut world, 1, &longest, 5_000), Outcome::Alive { .. }));
}

#[test]
fn purpose_is_limited_and_single_line() {
    let mut world = world();
    let with = |purpose: &str| Acquire { purpose: Some(purpose.into()), ..acquire_request(1, 1) };
    let longest = "p".repeat(limits::PURPOSE_BYTES_MAX);
    invalid(&acquire(&mut world, with(&format!("{longest}p")), NOW), "purpose has 257 bytes");
    invalid(&acquire(&mut world, with("two\nlines"), NOW), "control characters");
    granted(acquire(&mut world, with(&longest), NOW));
}

#[test]
fn break_requires_a_reason_of_limited_length() {
    let mut world = world();
    let token = granted(acquire(&mut world, acquire_request(1, 1), NOW));
    let with = |reason: &str| {
        let (by, reason) = ("ann".into(), reason.into());
        LockAction::Break { token, locks: None, by, reason, end_job: false }
    };
    let longest = "r".repeat(limits::REASON_BYTES_MAX);
    invalid(&lock(&mut world, with(&format!("{longest}r")), NOW), "reason has 513 bytes");
    invalid(&lock(&mut world, with("  "), NOW), "needs a reason");
    assert_eq!(lock(&mut world, with(&longest), NOW), Outcome::Broken);
}

#[test]
fn wait_is_limited_to_one_day() {
    let mut world = world();
    granted(acquire(&mut world, acquire_request(1, 1), NOW));
    let wait = |wait_ms| Acquire { wait_ms, ..acquire_request(2, 2) };
    invalid(&acquire(&mut world, wait(limits::WAIT_MS_MAX + 1), NOW), "wait_ms");
    let waiting = acquire(&mut world, wait(limits::WAIT_MS_MAX), NOW);
    assert!(matches!(waiting, Outcome::Waiting { position: 1, .. }), "{waiting:?}");
    invalid(&acquire(&mut world, wait(limits::WAIT_MS_MAX + 1), NOW), "wait_ms");
}

#[test]
fn maximum_age_is_between_a_millisecond_and_a_year() {
    let mut world = world();
    let with = |max_age_ms| Acquire { max_age_ms: Some(max_age_ms), ..acquire_request(1, 1) };
    let max = limits::LOCK_MAX_AGE_MS_MAX;
    invalid(&acquire(&mut world, with(0), NOW), "max_age_ms is 0");
    invalid(&acquire(&mut world, with(max + 1), NOW), "between 1 and 31622400000");
    granted(acquire(&mut world, with(max), NOW));
}

#[test]
fn full_queue_accepts_a_waiter_after_one_leaves() {
    let mut world = world();
    granted(acquire(&mut world, acquire_request(1, 0), NOW));
    let wait = |request| Acquire { wait_ms: 60_000, ..acquire_request(2, request) };
    let max = u128::try_from(limits::WAITERS_MAX).unwrap();
    for request in 1..=max {
        let waiting = acquire(&mut world, wait(request), NOW);
        assert!(matches!(waiting, Outcome::Waiting { .. }), "{request}: {waiting:?}");
    }
    let refused = acquire(&mut world, wait(max + 1), NOW);
    assert_eq!(refused, Outcome::Refused(Refusal::QueueFull));
    let again = acquire(&mut world, wait(max), NOW);
    assert!(matches!(again, Outcome::Waiting { .. }), "who waits may ask again: {again:?}");
    lock(&mut world, LockAction::Withdraw { request: RequestId(5) }, NOW);
    let last = acquire(&mut world, wait(max + 1), NOW);
    assert!(matches!(last, Outcome::Waiting { .. }), "{last:?}");
    assert_eq!(world.records[&key()].queue.len(), limits::WAITERS_MAX);
    assert_eq!(world.records[&key()].queue.back().map(|w: &Waiter| w.request.0), Some(max + 1));
}

/// Acquires and releases the lock, which adds one ended request to the resource.
fn use_once(world: &mut World, request: u128, now: Millis) {
    let token = granted(acquire(world, acquire_request(1, request), now));
    lock(world, LockAction::Release { token, locks: None, to: None }, now);
}

#[test]
fn oldest_ended_request_is_evicted_at_the_limit() {
    let mut world = world();
    let max = u128::try_from(limits::RECENT_REQUESTS_MAX).unwrap();
    for request in 1..=max {
        use_once(&mut world, request, NOW);
    }
    let late = acquire(&mut world, acquire_request(1, 1), NOW);
    assert!(matches!(late, Outcome::Refused(Refusal::Lost { .. })), "{late:?}");
    use_once(&mut world, max + 1, NOW);
    assert_eq!(world.records[&key()].recent.len(), limits::RECENT_REQUESTS_MAX);
    // The documented limit of idempotency: a retry this late is treated as a new request.
    granted(acquire(&mut world, acquire_request(1, 1), NOW));
}

#[test]
fn ended_requests_are_forgotten_after_their_ttl() {
    let mut world = world();
    use_once(&mut world, 1, NOW);
    use_once(&mut world, 2, NOW.plus(limits::RECENT_TTL_MS));
    let remembered = |world: &World| -> Vec<u128> {
        world.records[&key()].recent.iter().map(|recent| recent.request.0).collect()
    };
    assert_eq!(remembered(&world), [1, 2]);
    use_once(&mut world, 3, NOW.plus(limits::RECENT_TTL_MS + 1));
    assert_eq!(remembered(&world), [2, 3]);
}

#[test]
fn session_ends_after_too_many_unacknowledged_breaks() {
    let mut world = world();
    let max = u128::try_from(limits::REVOCATIONS_MAX).unwrap();
    let mut break_one = |request: u128| {
        let token = granted(acquire(&mut world, acquire_request(1, request), NOW));
        let (by, reason) = ("ann".into(), "stuck".into());
        let action = LockAction::Break { token, locks: None, by, reason, end_job: false };
        assert_eq!(lock(&mut world, action, NOW), Outcome::Broken);
        step(&mut world, &Command::Heartbeat { session: SessionId(1), seen: 0, tenant: None }, NOW)
    };
    for request in 1..=max {
        let outcome = break_one(request);
        assert!(matches!(outcome, Outcome::Alive { .. }), "{request}: {outcome:?}");
    }
    assert_eq!(break_one(max + 1), Outcome::Refused(Refusal::SessionExpired));
}

#[test]
fn name_lengths_are_limited() {
    let long = |n: usize| "x".repeat(n);
    let new = |tenant: usize, kind: usize, name: usize| {
        ResourceKey::new(&long(tenant), &long(kind), &long(name))
    };
    let (tenant, kind) = (limits::TENANT_BYTES_MAX, limits::KIND_BYTES_MAX);
    assert!(new(tenant, kind, limits::NAME_BYTES_MAX).is_ok());
    assert!(new(tenant + 1, 1, 1).is_err());
    assert!(new(1, kind + 1, 1).is_err());
    assert!(new(1, 1, limits::NAME_BYTES_MAX + 1).is_err());
    assert!(long(limits::LOCK_BYTES_MAX).parse::<LockName>().is_ok());
    assert!(long(limits::LOCK_BYTES_MAX + 1).parse::<LockName>().is_err());
}

#[test]
fn lock_set_size_is_limited() {
    let set = |n: usize| LockSet::new((0..n).map(|n| format!("l{n}").parse().unwrap()).collect());
    assert_eq!(set(limits::LOCK_SET_MAX).unwrap().size(), limits::LOCK_SET_MAX);
    assert!(set(limits::LOCK_SET_MAX + 1).is_err());
    assert!(set(0).is_err());
}

#[test]
fn current_token_with_wrong_locks_is_refused_but_not_fenced() {
    let mut world = world();
    let token = granted(acquire(&mut world, acquire_request(1, 1), NOW));
    let config: LockName = "config".parse().unwrap();
    let release = LockAction::Release { token, locks: Some(config.into()), to: None };
    let refused = lock(&mut world, release, NOW);
    assert!(matches!(refused, Outcome::Refused(Refusal::Lost { .. })), "{refused:?}");
    assert!(world.changes.events.iter().all(|(_, _, event)| event.as_str() != "fenced"));
}
