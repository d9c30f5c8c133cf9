//! Every limit of jobs, tested at its boundary: the last value that is allowed and the first that
//! is not.

use std::sync::Arc;

use tenure_core::kind::Backoff;
use tenure_core::retry::{Class, Retry};
use tenure_core::{
    Acquire, Claim, Claimant, Command, Finish, JobAction, JobId, JobState, Kind, Kinds, LockAction,
    LockName, Millis, Operation, Outcome, Policy, Put, Refusal, RequestId, ResourceAction,
    ResourceKey, SessionId, Submit, Token, World, limits, step,
};

const NOW: Millis = Millis(1_000_000_000);

fn key(name: &str) -> ResourceKey {
    ResourceKey::new("t", "task", name).expect("plain names")
}

/// Returns a world with session 1 and a kind whose lanes let other jobs pass one in backoff.
fn world() -> World {
    let attempts = limits::ATTEMPTS_MAX;
    let retry = Retry { attempts, initial_ms: 0, max_ms: 0, ..Retry::default() };
    let kind = Kind::new("task")
        .operation(Operation::new("work").retry(retry))
        .operation(Operation::new("once").meets("once", Policy::Attach))
        .backoff(Backoff::Pass);
    let mut world = World::default();
    world.declare(Arc::new(Kinds::new([kind]).expect("valid kinds")), NOW);
    let (session, tenant, name) = (SessionId(1), "t".into(), "w".into());
    step(&mut world, &Command::Open { session, tenant, name, ttl_ms: limits::TTL_MS_MAX }, NOW);
    world
}

fn submit_request(request: u128) -> Submit {
    let (request, operation, by) = (RequestId(request), "work".into(), "ann".into());
    Submit { request, operation, args: None, priority: 0, run_at: None, by, precondition: None }
}

fn on(world: &mut World, name: &str, action: ResourceAction) -> Outcome {
    step(world, &Command::Resource { key: key(name), action }, NOW)
}

fn submit(world: &mut World, name: &str, submit: Submit) -> Outcome {
    on(world, name, ResourceAction::Submit(submit))
}

fn act(world: &mut World, id: JobId, action: JobAction) -> Outcome {
    step(world, &Command::Job { id, action }, NOW)
}

fn claim(world: &mut World, request: u128, max: usize) -> Outcome {
    let (session, request, kinds) = (SessionId(1), RequestId(request), vec!["task".into()]);
    step(
        world,
        &Command::Claim(Claim { session, request, kinds, max, tenant: None, only: None }),
        NOW,
    )
}

#[track_caller]
fn submitted(outcome: Outcome) -> JobId {
    match outcome {
        Outcome::Submitted { job, .. } => job,
        other => panic!("not submitted: {other:?}"),
    }
}

#[track_caller]
fn claimed(outcome: Outcome) -> Vec<(JobId, Token)> {
    match outcome {
        Outcome::Claimed(jobs) => jobs.iter().map(|a| (a.job.id, a.tenure.token)).collect(),
        other => panic!("not claimed: {other:?}"),
    }
}

#[track_caller]
fn invalid(outcome: &Outcome, words: &str) {
    match outcome {
        Outcome::Refused(Refusal::Invalid(why)) => assert!(why.contains(words), "{why}"),
        other => panic!("not refused as invalid: {other:?}"),
    }
}

/// Starts one job.
fn running(world: &mut World) -> (JobId, Token) {
    submitted(submit(world, "a", submit_request(1)));
    claimed(claim(world, 1, 1)).remove(0)
}

#[test]
fn full_lane_accepts_a_job_after_one_finishes() {
    let mut world = world();
    let max = limits::LANE_MAX as u128;
    let first = submitted(submit(&mut world, "a", submit_request(1)));
    for request in 2..=max {
        submitted(submit(&mut world, "a", submit_request(request)));
    }
    let refused = submit(&mut world, "a", submit_request(max + 1));
    assert_eq!(refused, Outcome::Refused(Refusal::LaneFull));
    let (by, reason) = ("ann".into(), "room".into());
    act(&mut world, first, JobAction::Cancel { by, reason });
    submitted(submit(&mut world, "a", submit_request(max + 1)));
    assert_eq!(world.records[&key("a")].lane().len(), limits::LANE_MAX);
}

#[test]
fn full_lane_still_answers_repeated_submits() {
    let mut world = world();
    for request in 1..=limits::LANE_MAX as u128 {
        submitted(submit(&mut world, "a", submit_request(request)));
    }
    let again = submit(&mut world, "a", submit_request(7));
    assert!(matches!(again, Outcome::Submitted { .. }), "{again:?}");
}

#[test]
fn args_and_spec_size_is_limited() {
    let mut world = world();
    let text = |n: usize| -> Option<tenure_core::Text> { Some("x".repeat(n).into()) };
    let args = |n| Submit { args: text(n), ..submit_request(1) };
    invalid(&submit(&mut world, "a", args(limits::ARGS_BYTES_MAX + 1)), "args has 65537 bytes");
    submitted(submit(&mut world, "a", args(limits::ARGS_BYTES_MAX)));
    let put = |n: usize| ResourceAction::Put(Put::new("x".repeat(n).into(), "ann".into()));
    let refused = on(&mut world, "b", put(limits::SPEC_BYTES_MAX + 1));
    invalid(&refused, "spec has 65537 bytes");
    assert!(!world.records.contains_key(&key("b")), "a refused put makes nothing known");
    let put = on(&mut world, "b", put(limits::SPEC_BYTES_MAX));
    assert!(matches!(put, Outcome::Put { generation: 1, .. }), "{put:?}");
}

#[test]
fn priority_is_limited() {
    let mut world = world();
    let with = |request, priority| Submit { priority, ..submit_request(request) };
    let max = limits::PRIORITY_MAX;
    invalid(&submit(&mut world, "a", with(1, max + 1)), "priority is 1001");
    invalid(&submit(&mut world, "a", with(1, -max - 1)), "priority is -1001");
    invalid(&submit(&mut world, "a", with(1, i32::MIN)), "priority is -2147483648");
    submitted(submit(&mut world, "a", with(1, -max)));
    let high = submitted(submit(&mut world, "a", with(2, max)));
    assert_eq!(world.records[&key("a")].lane().front().map(|job| job.id), Some(high));
}

#[test]
fn run_at_is_limited_to_one_year_ahead() {
    let mut world = world();
    let ahead = |ms| Submit { run_at: Some(NOW.plus(ms)), ..submit_request(1) };
    let max = limits::RUN_AHEAD_MS_MAX;
    invalid(&submit(&mut world, "a", ahead(max + 1)), "366 days ahead");
    submitted(submit(&mut world, "a", ahead(max)));
    assert_eq!(claimed(claim(&mut world, 1, 1)), [], "it is not due");
}

#[test]
fn claim_size_and_kinds_are_limited() {
    let mut world = world();
    for n in 0..=limits::CLAIM_MAX {
        submitted(submit(&mut world, &format!("r{n}"), submit_request(1)));
    }
    invalid(&claim(&mut world, 1, 0), "max is 0");
    invalid(&claim(&mut world, 1, limits::CLAIM_MAX + 1), "max is 257");
    assert_eq!(claimed(claim(&mut world, 1, limits::CLAIM_MAX)).len(), limits::CLAIM_MAX);
    let naming = |n: usize| Claim {
        session: SessionId(1),
        request: RequestId(2),
        kinds: (0..n)
            .map(|n| if n == 0 { "task".into() } else { format!("k{n}").into() })
            .collect(),
        max: 1,
        tenant: None,
        only: None,
    };
    invalid(&step(&mut world, &Command::Claim(naming(0)), NOW), "0 kinds");
    let many = limits::CLAIM_KINDS_MAX + 1;
    invalid(&step(&mut world, &Command::Claim(naming(many)), NOW), "257 kinds");
    let claim = Command::Claim(naming(limits::CLAIM_KINDS_MAX));
    assert_eq!(claimed(step(&mut world, &claim, NOW)).len(), 1);
}

#[test]
fn oldest_claim_is_evicted_at_the_limit() {
    let mut world = world();
    let kept = limits::CLAIMS_KEPT as u128;
    for request in 1..=kept + 2 {
        submitted(submit(&mut world, &format!("r{request}"), submit_request(1)));
    }
    let finish = |world: &mut World, (id, token)| {
        let finish = Finish::Ok { state: None, result: None };
        act(world, id, JobAction::Finish { token, finish, update: None })
    };
    for request in 1..=kept {
        let job = claimed(claim(&mut world, request, 1)).remove(0);
        finish(&mut world, job);
    }
    assert_eq!(claimed(claim(&mut world, 1, 1)), [], "a late repetition takes nothing");
    let job = claimed(claim(&mut world, kept + 1, 1)).remove(0);
    finish(&mut world, job);
    // The documented limit of idempotency: a retry this late is treated as a new claim.
    assert_eq!(claimed(claim(&mut world, 1, 1)).len(), 1);
}

fn cancel(world: &mut World, id: JobId) {
    let (by, reason) = ("ann".into(), "so".into());
    let cancelled = act(world, id, JobAction::Cancel { by, reason });
    assert_eq!(cancelled, Outcome::Cancelled { state: JobState::Cancelled });
}

#[test]
fn oldest_attached_submit_is_evicted_at_the_limit() {
    let mut world = world();
    let once = |request| Submit { operation: "once".into(), ..submit_request(request) };
    let first = submitted(submit(&mut world, "a", once(1)));
    let max = limits::RECENT_SUBMITS_MAX as u128;
    for request in 2..=max + 1 {
        assert_eq!(submitted(submit(&mut world, "a", once(request))), first);
    }
    let answered = &world.records[&key("a")].resource.as_ref().expect("it is known").recent_submits;
    assert_eq!(answered.len(), limits::RECENT_SUBMITS_MAX);
    cancel(&mut world, first);
    // The oldest attached submit is evicted, not the one that created the job.
    for request in [1, 3, max + 1] {
        assert_eq!(submitted(submit(&mut world, "a", once(request))), first, "{request}");
    }
    // The documented limit of idempotency: a retry this late is treated as a new submit.
    assert_ne!(submitted(submit(&mut world, "a", once(2))), first);
}

#[test]
fn submits_are_forgotten_after_their_ttl() {
    let mut world = world();
    let first = submitted(submit(&mut world, "a", submit_request(1)));
    cancel(&mut world, first);
    let mut at = |request, ms| {
        let action = ResourceAction::Submit(submit_request(request));
        submitted(step(&mut world, &Command::Resource { key: key("a"), action }, NOW.plus(ms)))
    };
    at(2, limits::RECENT_TTL_MS);
    assert_eq!(at(1, limits::RECENT_TTL_MS), first);
    at(3, limits::RECENT_TTL_MS + 1);
    assert_ne!(at(1, limits::RECENT_TTL_MS + 1), first);
}

#[test]
fn job_keeps_the_latest_attempts_and_counts_all() {
    let mut world = world();
    let id = submitted(submit(&mut world, "a", submit_request(1)));
    let rounds = limits::ATTEMPTS_KEPT as u128 + 3;
    for request in 1..=rounds {
        let (_, token) = claimed(claim(&mut world, request, 1)).remove(0);
        let finish = Finish::Failed {
            code: "BUSY".into(),
            message: "".into(),
            class: None,
            state: None,
            delay_ms: None,
        };
        act(&mut world, id, JobAction::Finish { token, finish, update: None });
    }
    let job = world.records[&key("a")].job(id).expect("in backoff");
    assert_eq!(u128::from(job.attempt), rounds);
    let kept: Vec<u32> = job.attempts.iter().map(|attempt| attempt.n).collect();
    assert_eq!(kept, (4..=13).collect::<Vec<u32>>());
}

#[test]
fn log_size_is_limited_and_truncation_is_logged_once() {
    let mut world = world();
    let (id, token) = running(&mut world);
    let piece = |n: usize| JobAction::Log { token, text: "x".repeat(n).into() };
    let too_long = act(&mut world, id, piece(limits::LOG_CHUNK_BYTES_MAX + 1));
    invalid(&too_long, "text has 65537 bytes");
    let pieces = usize::try_from(limits::LOG_BYTES_MAX).unwrap() / limits::LOG_CHUNK_BYTES_MAX;
    for _ in 0..pieces {
        let noted = act(&mut world, id, piece(limits::LOG_CHUNK_BYTES_MAX));
        assert_eq!(noted, Outcome::Noted { cancelling: false });
    }
    assert_eq!(world.take_changes().logs.len(), pieces);
    for _ in 0..3 {
        act(&mut world, id, piece(1));
    }
    let logs = world.take_changes().logs;
    assert_eq!(logs.len(), 1, "it says so once: {logs:?}");
    assert!(logs[0].text.contains("the log is full"), "{logs:?}");
}

#[test]
fn progress_percent_and_message_are_limited() {
    let mut world = world();
    let (id, token) = running(&mut world);
    let say =
        |percent, n: usize| JobAction::Progress { token, percent, message: "x".repeat(n).into() };
    invalid(&act(&mut world, id, say(101, 0)), "percent is 101");
    let too_long = act(&mut world, id, say(1, limits::MESSAGE_BYTES_MAX + 1));
    invalid(&too_long, "message has 1025 bytes");
    let noted = act(&mut world, id, say(100, limits::MESSAGE_BYTES_MAX));
    assert_eq!(noted, Outcome::Noted { cancelling: false });
}

#[test]
fn invalid_finish_is_refused_and_does_not_end_the_attempt() {
    let mut world = world();
    let (id, token) = running(&mut world);
    let mut finish =
        |finish| act(&mut world, id, JobAction::Finish { token, finish, update: None });
    let ok = |n: usize| Finish::Ok { state: None, result: Some("x".repeat(n).into()) };
    let failed = |code: usize, message: usize| Finish::Failed {
        code: "C".repeat(code).into(),
        message: "m".repeat(message).into(),
        class: Some(Class::Permanent),
        state: None,
        delay_ms: None,
    };
    invalid(&finish(ok(limits::RESULT_BYTES_MAX + 1)), "result has 65537 bytes");
    invalid(&finish(failed(0, 0)), "code of the failure is empty");
    invalid(&finish(failed(limits::CODE_BYTES_MAX + 1, 0)), "code has 65 bytes");
    invalid(&finish(failed(1, limits::MESSAGE_BYTES_MAX + 1)), "message has 1025 bytes");
    let unknown = Finish::Ok { state: Some("NOWHERE".into()), result: None };
    invalid(&finish(unknown), "cannot end in the state NOWHERE");
    let done = finish(failed(limits::CODE_BYTES_MAX, limits::MESSAGE_BYTES_MAX));
    assert_eq!(done, Outcome::Finished { state: JobState::Failed, already: false });
}

#[test]
fn result_of_maximum_size_is_accepted() {
    let mut world = world();
    let (id, token) = running(&mut world);
    let result = Some("x".repeat(limits::RESULT_BYTES_MAX).into());
    let finish = Finish::Ok { state: None, result };
    let done = act(&mut world, id, JobAction::Finish { token, finish, update: None });
    assert_eq!(done, Outcome::Finished { state: JobState::Succeeded, already: false });
}

#[test]
fn reason_and_principal_length_is_limited() {
    let mut world = world();
    let id = submitted(submit(&mut world, "a", submit_request(1)));
    let cancel = |by: usize, reason: usize| JobAction::Cancel {
        by: "b".repeat(by).into(),
        reason: "r".repeat(reason).into(),
    };
    let (by, reason) = (limits::SESSION_NAME_BYTES_MAX, limits::REASON_BYTES_MAX);
    invalid(&act(&mut world, id, cancel(by + 1, 1)), "principal has 129 bytes");
    invalid(&act(&mut world, id, cancel(1, reason + 1)), "reason has 513 bytes");
    let done = act(&mut world, id, cancel(by, reason));
    assert_eq!(done, Outcome::Cancelled { state: JobState::Cancelled });
}

#[test]
fn requests_to_stop_do_not_count_as_lost_tenures() {
    let mut world = world();
    let jobs = limits::REVOCATIONS_MAX + 1;
    for n in 0..jobs {
        submitted(submit(&mut world, &format!("r{n}"), submit_request(1)));
    }
    let mut taken = claimed(claim(&mut world, 1, limits::CLAIM_MAX));
    taken.extend(claimed(claim(&mut world, 2, 1)));
    assert_eq!(taken.len(), jobs);
    let heartbeat = Command::Heartbeat { session: SessionId(1), seen: 0, tenant: None };
    for (n, (id, _)) in taken.iter().enumerate() {
        assert!(matches!(step(&mut world, &heartbeat, NOW), Outcome::Alive { .. }), "{n}");
        let (by, reason) = ("ann".into(), "stop".into());
        let outcome = act(&mut world, *id, JobAction::Cancel { by, reason });
        assert_eq!(outcome, Outcome::Cancelled { state: JobState::Cancelling });
    }
    let Outcome::Alive { revoked, .. } = step(&mut world, &heartbeat, NOW) else {
        panic!("the session ended")
    };
    assert_eq!(revoked.len(), jobs);
    // A finished job no longer needs a request to stop.
    let (id, token) = taken[0];
    act(&mut world, id, JobAction::Finish { token, finish: Finish::Cancelled, update: None });
    let Outcome::Alive { revoked, .. } = step(&mut world, &heartbeat, NOW) else {
        panic!("the session ended")
    };
    assert_eq!(revoked.len(), jobs - 1);
}

#[test]
fn one_request_on_two_resources_creates_two_jobs() {
    let mut world = world();
    let first = submitted(submit(&mut world, "a", submit_request(1)));
    let second = submitted(submit(&mut world, "b", submit_request(1)));
    assert_ne!(first, second);
    assert_eq!(world.job_index.len(), 2);
}

#[test]
fn step_without_changes_keeps_records_created_in_the_same_batch() {
    let mut world = world();
    let first = submitted(submit(&mut world, "a", submit_request(1)));
    // Same batch: its history is not sealed yet.
    assert_eq!(submitted(submit(&mut world, "a", submit_request(1))), first);
    assert!(world.records.contains_key(&key("a")));
    on(&mut world, "b", ResourceAction::Put(Put::new("1".into(), "ann".into())));
    on(&mut world, "b", ResourceAction::Delete { by: "ann".into(), precondition: None });
    let gone = on(&mut world, "b", ResourceAction::Delete { by: "ann".into(), precondition: None });
    assert_eq!(gone, Outcome::Refused(Refusal::NoSuchResource));
    let events = world.take_changes().events;
    assert_eq!(world.seal(events).len(), 5);
}

#[test]
fn tenure_of_a_job_cannot_be_released_or_withdrawn() {
    let mut world = world();
    let (id, token) = running(&mut world);
    let mut lock = |action| step(&mut world, &Command::Lock { key: key("a"), action }, NOW);
    let refused = Outcome::Refused(Refusal::TenureOfJob(id));
    assert_eq!(lock(LockAction::Release { token, locks: None, to: None }), refused);
    assert_eq!(lock(LockAction::Withdraw { request: RequestId(1) }), refused);
    let other = Acquire {
        locks: LockName::main().into(),
        claimant: Claimant::Session(SessionId(1)),
        request: RequestId(77),
        wait_ms: 0,
        purpose: None,
        max_age_ms: None,
        tenant: None,
    };
    let held = lock(LockAction::Acquire(other));
    assert!(matches!(held, Outcome::Refused(Refusal::Held { .. })), "{held:?}");
}

#[test]
fn scheduled_job_runs_by_priority_once_due() {
    let mut world = world();
    let urgent = Submit { priority: 5, run_at: Some(NOW.plus(1_000)), ..submit_request(2) };
    submitted(submit(&mut world, "a", submit_request(1)));
    let urgent = submitted(submit(&mut world, "a", urgent));
    submitted(submit(&mut world, "b", Submit { priority: 1, ..submit_request(3) }));
    let (session, kinds) = (SessionId(1), vec!["task".into()]);
    let claim = Claim { session, request: RequestId(1), kinds, max: 1, tenant: None, only: None };
    let first = claimed(step(&mut world, &Command::Claim(claim), NOW.plus(1_000)));
    assert_eq!(first[0].0, urgent);
}
