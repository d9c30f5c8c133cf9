//! Limits of status, timers and delays, tested at their boundary: the last value that is allowed
//! and the first that is not.

use std::sync::Arc;

use tenure_core::retry::Retry;
use tenure_core::{
    Claim, Command, Finish, JobAction, JobId, JobState, Kind, Kinds, Millis, Operation, Outcome,
    Refusal, RequestId, ResourceAction, ResourceKey, SessionId, StatusUpdate, Submit, TimerChange,
    TimerSetting, Token, World, limits, step,
};

const NOW: Millis = Millis(1_000_000_000);

fn key() -> ResourceKey {
    "t/task/a".parse().expect("plain names")
}

/// Returns a world with a session and a kind that has one operation more than timers are allowed.
fn world() -> World {
    let retry = Retry { attempts: 2, initial_ms: 0, max_ms: 0, ..Retry::default() };
    let mut kind = Kind::new("task");
    for n in 0..=limits::TIMERS_MAX {
        kind = kind.operation(Operation::new(&format!("work{n:02}")).retry(retry.clone()));
    }
    let mut world = World::default();
    world.declare(Arc::new(Kinds::new([kind]).expect("valid kinds")), NOW);
    let (session, tenant, name) = (SessionId(1), "t".into(), "w".into());
    step(&mut world, &Command::Open { session, tenant, name, ttl_ms: limits::TTL_MS_MAX }, NOW);
    world
}

fn submit(world: &mut World) -> JobId {
    let submit = Submit::new(RequestId(1), "work00", "ann".into());
    let action = ResourceAction::Submit(submit);
    match step(world, &Command::Resource { key: key(), action }, NOW) {
        Outcome::Submitted { job, .. } => job,
        other => panic!("not submitted: {other:?}"),
    }
}

/// Claims the job and returns the number of its attempt with its token.
fn claim(world: &mut World, request: u128) -> (u32, Token) {
    let (session, request, kinds) = (SessionId(1), RequestId(request), vec!["task".into()]);
    let claim = Claim { session, request, kinds, max: 1, tenant: None, only: None };
    match step(world, &Command::Claim(claim), NOW) {
        Outcome::Claimed(jobs) => (jobs[0].job.attempt, jobs[0].tenure.token),
        other => panic!("not claimed: {other:?}"),
    }
}

fn act(world: &mut World, id: JobId, action: JobAction) -> Outcome {
    step(world, &Command::Job { id, action }, NOW)
}

fn deferred(token: Token, delay_ms: u64) -> JobAction {
    let (code, message) = ("NOT_YET".into(), "it waits".into());
    JobAction::Finish { token, finish: Finish::Deferred { delay_ms, code, message }, update: None }
}

fn status(token: Token, merge: &str) -> JobAction {
    let update = StatusUpdate { merge: Some(merge.into()), timers: Vec::new() };
    JobAction::Status { token, update: Box::new(update) }
}

#[test]
fn one_deferral_more_than_allowed_in_a_row_counts_as_a_failure() {
    let mut world = world();
    let id = submit(&mut world);
    for n in 0..limits::DEFERRALS_MAX {
        let (attempt, token) = claim(&mut world, 10 + u128::from(n));
        assert_eq!(attempt, 1, "deferral {n} was counted");
        act(&mut world, id, deferred(token, 0));
    }
    let (attempt, token) = claim(&mut world, 1_000);
    assert_eq!(attempt, 1);
    act(&mut world, id, deferred(token, 0));
    let (attempt, token) = claim(&mut world, 1_001);
    assert_eq!(attempt, 2, "the last deferral counts");
    // The failure ends the row: deferrals are free again.
    act(&mut world, id, deferred(token, 0));
    assert_eq!(claim(&mut world, 1_002).0, 2);
    assert_eq!(world.records[&key()].job(id).map(|job| job.state), Some(JobState::Running));
}

#[test]
fn delay_is_limited() {
    let mut world = world();
    let id = submit(&mut world);
    let (_, token) = claim(&mut world, 2);
    let outcome = act(&mut world, id, deferred(token, limits::DELAY_MS_MAX + 1));
    assert!(matches!(outcome, Outcome::Refused(Refusal::Invalid(_))), "{outcome:?}");
    let outcome = act(&mut world, id, deferred(token, limits::DELAY_MS_MAX));
    assert_eq!(outcome, Outcome::Finished { state: JobState::Backoff, already: false });
}

#[test]
fn status_size_is_limited_after_the_merge() {
    let mut world = world();
    let id = submit(&mut world);
    let (_, token) = claim(&mut world, 2);
    let half = "x".repeat(limits::STATUS_BYTES_MAX / 2 - r#"{"a":"","b":""}"#.len());
    let patch = |name: &str, extra: &str| format!(r#"{{"{name}":"{half}{extra}"}}"#);
    let whole = patch("a", &"y".repeat(limits::STATUS_BYTES_MAX));
    let outcome = act(&mut world, id, status(token, &whole));
    assert!(matches!(outcome, Outcome::Refused(Refusal::TooLarge(_))), "{outcome:?}");
    let noted = Outcome::Noted { cancelling: false };
    assert_eq!(act(&mut world, id, status(token, &patch("a", ""))), noted);
    let room = limits::STATUS_BYTES_MAX - 2 * half.len() - r#"{"a":"","b":""}"#.len();
    let too_large = patch("b", &"y".repeat(room + 1));
    let outcome = act(&mut world, id, status(token, &too_large));
    assert!(matches!(outcome, Outcome::Refused(Refusal::TooLarge(_))), "{outcome:?}");
    assert_eq!(act(&mut world, id, status(token, &patch("b", &"y".repeat(room)))), noted);
    let resource = world.records[&key()].resource.as_ref().expect("it has a job");
    let document = resource.status.as_ref().map(|status| status.document.len());
    assert_eq!(document, Some(limits::STATUS_BYTES_MAX));
}

#[test]
fn number_and_distance_of_timers_are_limited() {
    let mut world = world();
    submit(&mut world);
    let mut set = |n: usize, at: Millis| {
        let setting = TimerSetting::At(at);
        let timers = vec![TimerChange { operation: format!("work{n:02}").into(), setting }];
        let action = ResourceAction::SetTimers { timers, by: "ann".into(), precondition: None };
        step(&mut world, &Command::Resource { key: key(), action }, NOW)
    };
    let farthest = NOW.plus(limits::RUN_AHEAD_MS_MAX);
    let outcome = set(0, farthest.plus(1));
    assert!(matches!(outcome, Outcome::Refused(Refusal::Invalid(_))), "{outcome:?}");
    for n in 0..limits::TIMERS_MAX {
        let outcome = set(n, farthest);
        assert!(matches!(outcome, Outcome::TimersSet { .. }), "{outcome:?}");
    }
    let outcome = set(limits::TIMERS_MAX, farthest);
    assert!(matches!(outcome, Outcome::Refused(Refusal::Invalid(_))), "{outcome:?}");
    let moved = set(0, NOW.plus(1));
    assert!(matches!(moved, Outcome::TimersSet { .. }), "{moved:?}");
}
