//! Serialization round trips and the JSON of a job.

use serde_json::{Value, json};
use tenure_core::job::{Attempt, AttemptOutcome, Failure, Progress, RequestedBy};
use tenure_core::resource::Resource;
use tenure_core::retry::Class;
use tenure_core::status::Status;
use tenure_core::timers::Timer;
use tenure_core::{
    Assignment, Finish, Job, JobId, JobState, LockName, Millis, RequestId, ResourceKey, SessionId,
    StatusUpdate, TenureView, TimerChange, TimerSetting, Token,
};

use super::*;

fn key() -> ResourceKey {
    "acme/cluster/c1".parse().expect("valid key")
}

/// Returns a job with every field set that is part of the JSON.
fn job() -> Job {
    let requested = RequestedBy { by: "ann".into(), reason: "too slow".into(), at: Millis(7_001) };
    let error = Failure { code: "QUOTA".into(), message: "no room".into() };
    Job {
        id: JobId(9),
        request: RequestId(0),
        operation: "create".into(),
        args: Some(r#"{"a":[1,null],"b":"x"}"#.into()),
        priority: -3,
        by: "bob".into(),
        submitted_at: Millis(1_000),
        due: Millis(2_001),
        state: JobState::Cancelling,
        attempt: 2,
        attempts: vec![Attempt {
            n: 2,
            token: Token(5),
            session: SessionId(4),
            worker: "w1".into(),
            started_at: Millis(3_000),
            ended_at: Some(Millis(4_000)),
            outcome: Some(AttemptOutcome::HandedBack),
            error: Some(error.clone()),
        }],
        cancel: Some(requested),
        progress: Some(Progress { percent: 40, message: "copying".into(), at: Millis(5_000) }),
        error: Some(error),
        result: Some(r#""done""#.into()),
        ended_at: Some(Millis(6_000)),
        joined: 3,
        generation: 8,
        state_before: Some("READY".into()),
        retry_of: Some(JobId(1)),
        followed_by: Some(JobId(2)),
        previous: None,
        log_bytes: 0,
        deferrals: 0,
    }
}

fn round_trip<T: Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    let text = serde_json::to_string(value).expect("serializable");
    serde_json::from_str(&text).expect("deserializable")
}

#[test]
fn job_survives_a_round_trip() {
    let info = round_trip(&JobInfo::new(&key(), &job()));
    assert_eq!(info.to_job(), job());
    assert_eq!(info.key(), Ok(key()));
}

#[test]
fn job_is_serialized_as_documented() {
    let value = serde_json::to_value(JobInfo::new(&key(), &job())).expect("serializable");
    let expected = json!({
        "id": "00000000000000000000000000000009", "tenant": "acme", "kind": "cluster", "name": "c1",
        "operation": "create", "args": { "a": [1, null], "b": "x" }, "priority": -3, "by": "bob",
        "state": "cancelling", "attempt": 2,
        "attempts": [{
            "n": 2, "worker": "w1", "session": "00000000000000000000000000000004", "token": 5,
            "started_at": "1970-01-01T00:00:03Z", "ended_at": "1970-01-01T00:00:04Z",
            "outcome": "handed_back", "code": "QUOTA", "message": "no room",
        }],
        "submitted_at": "1970-01-01T00:00:01Z", "due_at": "1970-01-01T00:00:02.001Z",
        "ended_at": "1970-01-01T00:00:06Z",
        "error": { "code": "QUOTA", "message": "no room" },
        "progress": { "percent": 40, "message": "copying", "at": "1970-01-01T00:00:05Z" },
        "result": "done", "joined": 3,
        "cancel": { "by": "ann", "reason": "too slow", "at": "1970-01-01T00:00:07.001Z" },
        "retry_of": "00000000000000000000000000000001",
        "followed_by": "00000000000000000000000000000002", "generation": 8, "state_before": "READY",
    });
    assert_eq!(value, expected);
}

#[test]
fn resource_survives_a_round_trip() {
    let mut waiting = job();
    (waiting.id, waiting.state) = (JobId(10), JobState::Queued);
    let failure = Failure { code: "bad_transition".into(), message: "no".into() };
    let timer =
        |refused| Timer { operation: "expire".into(), due: Millis(5), by: "ann".into(), refused };
    let resource = Resource {
        spec: Some(r#"{"nodes":3}"#.into()),
        generation: 4,
        observed: 3,
        paused: Some(RequestedBy { by: "ann".into(), reason: "x".into(), at: Millis(1) }),
        lane: [Box::new(job()), Box::new(waiting)].into(),
        status: Some(Box::new(Status {
            document: r#"{"a":1}"#.into(),
            token: Token(4),
            at: Millis(8),
        })),
        timers: vec![timer(None), timer(Some((failure, Millis(6))))],
        ..Resource::new("READY".into(), Millis(9))
    };
    let info = round_trip(&ResourceInfo::new(&key(), &resource, 10));
    assert_eq!(info.to_resource(), resource);
    let short = ResourceInfo::new(&key(), &resource, 0);
    assert_eq!((short.queue.len(), short.queue_length), (0, 1));
}

#[test]
fn assignment_survives_a_round_trip() {
    let tenure = TenureView {
        key: key(),
        locks: LockName::main().into(),
        token: Token(5),
        session: SessionId(4),
        holder: "w1".into(),
        purpose: Some("create".into()),
        max_age_ms: None,
        request: RequestId(77),
        job: Some(JobId(9)),
        since: Millis(3_000),
        age_ms: 1,
        expires_in_ms: 2,
        waiters: 3,
        heartbeat_age_ms: 4,
    };
    let (job, spec, status) = (Box::new(job()), Some("null".into()), Some("{\"a\":1}".into()));
    let mut sent =
        Assignment { tenure, job, spec, limit_ms: Some(60_000), attempts_max: 3, status };
    let info = round_trip(&AssignmentInfo::new(&sent));
    // `null` means no desired state, in JSON as in Rust.
    sent.spec = None;
    assert_eq!(info.to_assignment(RequestId(77)), Ok(sent));
}

#[test]
fn finish_survives_a_round_trip() {
    let failed = |class| Finish::Failed {
        code: "QUOTA".into(),
        message: "no room".into(),
        class,
        state: Some("FAILED".into()),
        delay_ms: class.map(|_| 7),
    };
    let updates = [None, Some(Box::new(update()))];
    let mut updates = updates.iter().cycle();
    for finish in [
        Finish::Deferred { delay_ms: 5, code: "QUOTA".into(), message: "".into() },
        Finish::Ok { state: None, result: None },
        Finish::Ok { state: Some("DEGRADED".into()), result: Some("[1,2]".into()) },
        failed(None),
        failed(Some(Class::Transient)),
        failed(Some(Class::Permanent)),
        Finish::Cancelled,
        Finish::HandBack,
    ] {
        let update = updates.next().expect("endless").as_deref();
        let request = round_trip(&FinishRequest::new(Token(5), &finish, update));
        assert_eq!((request.token, request.to_finish()), (Token(5), Ok(finish)));
        assert_eq!(request.to_update().unwrap().as_deref(), update);
    }
}

fn update() -> StatusUpdate {
    let timer = |operation: &str, setting| TimerChange { operation: operation.into(), setting };
    StatusUpdate {
        merge: Some(r#"{"a":{"b":null}}"#.into()),
        timers: vec![
            timer("create", TimerSetting::At(Millis(1_000))),
            timer("expire", TimerSetting::After(5)),
            timer("scale", TimerSetting::Remove),
        ],
    }
}

#[test]
fn status_survives_a_round_trip() {
    let request = round_trip(&StatusRequest::new(Token(5), &update()));
    let received = status_update(request.merge.as_ref(), &request.timers).unwrap();
    assert_eq!((request.token, received.as_deref()), (Token(5), Some(&update())));
    assert_eq!(status_update(None, &TimerRequests::new()), Ok(None));
}

#[test]
fn document_that_is_not_json_becomes_a_string() {
    assert_eq!(parse_document("{"), Value::from("{"));
    assert_eq!(&*to_document(&json!({ "b": 1, "a": [ 1, 2 ] })), r#"{"a":[1,2],"b":1}"#);
}
