//! Commands that are executed at most once: what is remembered, for how long, and at the limits.

use std::sync::Arc;

use tenure_core::{
    Command, JobAction, JobId, Kind, Kinds, LockAction, Millis, Operation, Outcome, Put, Refusal,
    RequestId, ResourceAction, ResourceKey, Submit, World, limits, step,
};

const NOW: Millis = Millis(1_000_000_000);

fn key() -> ResourceKey {
    "t/task/a".parse().expect("plain names")
}

fn world() -> World {
    let kind = Kind::new("task").operation(Operation::new("work"));
    let mut world = World::default();
    world.declare(Arc::new(Kinds::new([kind]).expect("valid kinds")), NOW);
    world
}

fn put(spec: &str) -> Command {
    let action = ResourceAction::Put(Put::new(spec.into(), "ann".into()));
    Command::Resource { key: key(), action }
}

fn delete() -> Command {
    let action = ResourceAction::Delete { by: "ann".into(), precondition: None };
    Command::Resource { key: key(), action }
}

fn pause() -> Command {
    let action = ResourceAction::Pause { by: "ann".into(), reason: "so".into() };
    Command::Resource { key: key(), action }
}

fn once(world: &mut World, request: usize, command: Command, now: Millis) -> Outcome {
    let outcome = step(world, &command.once(RequestId(request as u128)), now);
    let events = world.take_changes().events;
    world.seal(events);
    outcome
}

fn generation(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Put { generation, .. } => *generation,
        other => panic!("not put: {other:?}"),
    }
}

#[test]
fn a_late_repetition_changes_nothing() {
    let mut world = world();
    let missing = once(&mut world, 1, delete(), NOW);
    assert_eq!(missing, Outcome::Refused(Refusal::NoSuchResource));
    let first = once(&mut world, 2, put("1"), NOW);
    let second = once(&mut world, 3, put("2"), NOW);
    assert_eq!((generation(&first), generation(&second)), (1, 2));
    let before = world.records.clone();
    let later = NOW.plus(limits::RECENT_TTL_MS);
    assert_eq!(once(&mut world, 1, delete(), later), missing, "also a refusal is remembered");
    assert_eq!(once(&mut world, 2, put("1"), later), first);
    assert_eq!(once(&mut world, 3, put("2"), later), second);
    assert_eq!(world.records, before);
    let reused = Outcome::Refused(Refusal::RequestReused);
    assert_eq!(once(&mut world, 2, put("3"), later), reused);
    assert_eq!(once(&mut world, 2, delete(), later), reused);
    assert_eq!(world.records, before);
    // Then the request is new again.
    assert_eq!(once(&mut world, 1, delete(), later.plus(1)), Outcome::Deleted);
}

#[test]
fn one_request_more_than_can_be_remembered_is_refused_until_the_first_is_forgotten() {
    let mut world = world();
    once(&mut world, 0, put("1"), NOW);
    for request in 1..limits::RECENT_ANSWERS_MAX {
        let outcome = once(&mut world, request, pause(), NOW.plus(1));
        assert_eq!(outcome, Outcome::Paused(true));
    }
    let full = Outcome::Refused(Refusal::TooManyKeys);
    let at = NOW.plus(limits::RECENT_TTL_MS);
    let before = world.records.clone();
    assert_eq!(once(&mut world, limits::RECENT_ANSWERS_MAX, delete(), at), full);
    assert_eq!(world.records, before, "it had no effect");
    assert_eq!(generation(&once(&mut world, 0, put("1"), at)), 1, "the oldest is remembered");
    let outcome = step(&mut world, &delete(), at);
    assert_eq!(outcome, Outcome::Deleted, "it needs no memory without a request id");
    let outcome = once(&mut world, limits::RECENT_ANSWERS_MAX, put("2"), at.plus(1));
    assert_eq!(generation(&outcome), 1);
    let record = &world.records[&key()];
    assert_eq!(record.recent_answers.len(), limits::RECENT_ANSWERS_MAX);
}

#[test]
fn an_answer_beyond_the_limit_of_their_size_is_forgotten_and_not_its_request() {
    let mut world = world();
    let spec = |fill: char| -> String {
        let half = limits::RECENT_ANSWERS_BYTES_MAX / 2 - 400;
        format!("\"{}\"", fill.to_string().repeat(half))
    };
    let first = once(&mut world, 1, put(&spec('a')), NOW);
    let second = once(&mut world, 2, put(&spec('b')), NOW);
    assert_eq!(once(&mut world, 1, put(&spec('a')), NOW), first, "both of them fit");
    let third = once(&mut world, 3, put(&spec('c')), NOW);
    let before = world.records.clone();
    let forgotten = Outcome::Refused(Refusal::AlreadyAnswered);
    assert_eq!(once(&mut world, 1, put(&spec('a')), NOW), forgotten);
    assert_eq!(once(&mut world, 2, put(&spec('b')), NOW), second);
    assert_eq!(once(&mut world, 3, put(&spec('c')), NOW), third);
    assert_eq!(world.records, before);
}

#[test]
fn a_finished_job_is_cancelled_once() {
    let mut world = world();
    let submit = ResourceAction::Submit(Submit::new(RequestId(9), "work", "ann".into()));
    let submitted = once(&mut world, 1, Command::Resource { key: key(), action: submit }, NOW);
    let Outcome::Submitted { job: id, .. } = submitted else { panic!("{submitted:?}") };
    let cancel = |id| {
        let action = JobAction::Cancel { by: "ann".into(), reason: "so".into() };
        Command::Job { id, action }
    };
    let unknown = once(&mut world, 2, cancel(JobId(77)), NOW);
    assert_eq!(unknown, Outcome::Refused(Refusal::NoSuchJob));
    let first = step(&mut world, &cancel(id).once(RequestId(3)), NOW);
    assert!(matches!(first, Outcome::Cancelled { .. }), "{first:?}");
    let before = world.records.clone();
    assert_eq!(step(&mut world, &cancel(id).once(RequestId(3)), NOW), first);
    assert_eq!(world.records, before);
}

#[test]
fn a_resource_with_remembered_answers_is_not_forgotten() {
    let mut world = world();
    once(&mut world, 1, delete(), NOW);
    let forget = Command::Lock { key: key(), action: LockAction::Forget { n: 0 } };
    let at = NOW.plus(limits::RECENT_TTL_MS);
    let refused = Outcome::Refused(Refusal::InUse { job: None });
    assert_eq!(step(&mut world, &forget, at), refused);
    assert_eq!(step(&mut world, &forget, at.plus(1)), Outcome::Forgotten);
}

#[test]
fn an_answer_from_before_the_clock_was_set_back_keeps_no_expired_one() {
    let mut world = world();
    let ahead = NOW.plus(limits::RECENT_TTL_MS / 2);
    once(&mut world, 1, put("1"), ahead);
    // The server restarts, and its clock is set back.
    once(&mut world, 2, put("2"), NOW);
    let late = NOW.plus(limits::RECENT_TTL_MS + 1);
    assert!(world.records[&key()].recent_answers.any_fresh(late), "the first is still remembered");
    once(&mut world, 2, put("3"), late);
    let answers = &world.records[&key()].recent_answers;
    assert_eq!(answers.answered_at(RequestId(2)), Some(late), "executed again");
    assert_eq!(answers.len(), 2, "{answers:?}");
}
