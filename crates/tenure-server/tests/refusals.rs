//! Every refusal of the core is transmitted unchanged from the server to the library.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use tenure::Transport;
use tenure::http::HttpTransport;
use tenure_app::Problem;
use tenure_core::record::EndKind;
use tenure_core::{
    Command, JobId, JobRequirement, JobState, LockName, Millis, Outcome, Refusal, RequestId,
    ResourceKey, SessionId, TenureView, Token,
};
use tokio::net::TcpListener;

fn tenure() -> TenureView {
    TenureView {
        key: ResourceKey::new("t", "cluster", "c1").expect("a valid name"),
        locks: LockName::main().into(),
        token: Token(7),
        session: SessionId(3),
        holder: "ann".into(),
        purpose: Some("install".into()),
        max_age_ms: None,
        // Not transmitted.
        request: RequestId(0),
        job: Some(JobId(9)),
        since: Millis(1_000),
        age_ms: 5,
        expires_in_ms: 6,
        waiters: 2,
        heartbeat_age_ms: 0,
    }
}

fn refusals() -> Vec<Refusal> {
    let present = Some(tenure());
    let wrong_state = |wanted| Refusal::WrongJobState { state: JobState::Dead, wanted };
    vec![
        Refusal::Held { by: present.clone(), queue_length: 2 },
        Refusal::Held { by: None, queue_length: 0 },
        Refusal::Lost { token: Token(7), how: Some(EndKind::Finished), current: present.clone() },
        Refusal::Lost { token: Token(7), how: None, current: None },
        Refusal::SessionExpired,
        Refusal::QueueFull,
        Refusal::RequestReused,
        Refusal::NotCurrent { current: present },
        Refusal::StillAlive,
        Refusal::ForeignSession,
        Refusal::Rejected {
            present: JobId(9),
            operation: "destroy".into(),
            state: JobState::Queued,
        },
        Refusal::LaneFull,
        Refusal::BadTransition {
            operation: "create".into(),
            state: "READY".into(),
            from: vec!["PENDING".into(), "FAILED".into()],
        },
        Refusal::NotDeclared("the kind x".to_owned()),
        Refusal::NoSuchJob,
        Refusal::NoSuchResource,
        wrong_state(JobRequirement::Dead),
        wrong_state(JobRequirement::Unfinished),
        wrong_state(JobRequirement::InBackoffOrFinished),
        wrong_state(JobRequirement::Unresolved),
        Refusal::InUse { job: Some(JobId(9)) },
        Refusal::InUse { job: None },
        Refusal::TenureOfJob(JobId(9)),
        Refusal::Invalid("percent is 101".to_owned()),
    ]
}

#[tokio::test]
async fn refusals_are_transmitted_unchanged() {
    let next = Arc::new(Mutex::new(None));
    let refusal_to_send = Arc::clone(&next);
    let refuse = move || {
        let refusal: Option<Refusal> = refusal_to_send.lock().unwrap().clone();
        async move { Problem::from(refusal.expect("set below")).into_response() }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving =
        tokio::spawn(async { axum::serve(listener, Router::new().fallback(refuse)).await });
    let transport = HttpTransport::new(&url, "key", "t").unwrap();
    for refusal in refusals() {
        *next.lock().unwrap() = Some(refusal.clone());
        let heartbeat = Command::Heartbeat { session: SessionId(1), seen: 0, tenant: None };
        let outcome =
            transport.send(heartbeat, Duration::ZERO).await.expect("a refusal is an outcome");
        assert_eq!(outcome, Outcome::Refused(refusal));
    }
    serving.abort();
}
