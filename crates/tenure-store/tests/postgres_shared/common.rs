//! Databases, stores and commands for the tests in this directory.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{
    Acquire, Claim, Claimant, Command, Finish, JobAction, JobId, LockAction, LockName, Outcome,
    RequestId, ResourceAction, ResourceKey, SessionId, Submit, Token,
};
use tenure_store::clock::{ManualClock, stopwatch};
use tenure_store::postgres::{Options, Postgres};
use tenure_store::verify::verify;
use tenure_store::{Store, scenario};
use tokio_postgres::NoTls;

/// Timeout of every wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the URL of a new database on the server that all tests share.
pub(crate) fn new_database() -> String {
    let server = tenure_testbed::shared();
    server.url(&server.new_database().expect("new database"))
}

/// Opens a store on the clock of the database.
pub(crate) async fn open(url: &str) -> Arc<Postgres> {
    open_with(url, None).await
}

/// Opens a store, optionally on a manual clock.
pub(crate) async fn open_with(url: &str, clock: Option<&ManualClock>) -> Arc<Postgres> {
    let clock = clock.map(|clock| Arc::new(clock.clone()) as _);
    let store = Postgres::open_with(url, Options { clock, ..Options::default() })
        .await
        .expect("database is up");
    store.declare(scenario::kinds()).await.expect("database is up");
    Arc::new(store)
}

/// Opens a user connection.
pub(crate) async fn user_connection(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connects");
    tokio::spawn(connection);
    client
}

/// Polls until a condition holds.
pub(crate) async fn wait_until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let started = stopwatch();
    while !condition().await {
        assert!(started.elapsed() < TIMEOUT, "timeout: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Asserts that the history is valid, as read through each store.
pub(crate) async fn assert_valid_history(stores: &[&Arc<Postgres>]) {
    for store in stores {
        assert_eq!(verify(&***store).await.expect("read succeeds").problems, []);
    }
}

pub(crate) async fn apply_one(store: &dyn Store, command: Command) -> Outcome {
    store.apply(vec![command]).await.expect("database is up").remove(0)
}

/// Applies a command until its resource is no longer busy.
pub(crate) async fn apply_until_not_busy(store: &dyn Store, command: Command) -> Outcome {
    let busy = Outcome::Refused(tenure_core::Refusal::Busy);
    let started = stopwatch();
    loop {
        let outcome = apply_one(store, command.clone()).await;
        if outcome != busy {
            return outcome;
        }
        assert!(started.elapsed() < TIMEOUT, "always busy: {command:?}");
    }
}

pub(crate) fn key(name: &str) -> ResourceKey {
    ResourceKey::new("t", "cluster", name).expect("valid key")
}

pub(crate) fn open_session(id: u128) -> Command {
    open_session_of(id, "t", 60_000)
}

pub(crate) fn open_session_of(id: u128, tenant: &str, ttl_ms: u64) -> Command {
    let name = format!("s{id}").into();
    Command::Open { session: SessionId(id), tenant: tenant.into(), name, ttl_ms }
}

/// Returns a request for the lock `main`.
pub(crate) fn acquire_request(session: u128, request: u128, wait_ms: u64) -> Acquire {
    Acquire {
        locks: LockName::main().into(),
        claimant: Claimant::Session(SessionId(session)),
        request: RequestId(request),
        wait_ms,
        purpose: None,
        max_age_ms: None,
        tenant: None,
    }
}

pub(crate) fn acquire(name: &str, session: u128, request: u128) -> Command {
    Command::Lock {
        key: key(name),
        action: LockAction::Acquire(acquire_request(session, request, 0)),
    }
}

pub(crate) fn release(name: &str, token: Token) -> Command {
    Command::Lock { key: key(name), action: LockAction::Release { token, locks: None, to: None } }
}

pub(crate) fn granted_token(outcome: &Outcome) -> Token {
    match outcome {
        Outcome::Granted(view) => view.token,
        other => panic!("{other:?} is not a grant"),
    }
}

/// Acquires and releases a lock as session 1. Returns the token.
pub(crate) async fn acquire_and_release(store: &dyn Store, name: &str, request: u128) -> Token {
    acquire_and_release_as(store, 1, name, request).await
}

/// Acquires and releases a lock. Returns the token.
pub(crate) async fn acquire_and_release_as(
    store: &dyn Store,
    session: u128,
    name: &str,
    request: u128,
) -> Token {
    let token = granted_token(&apply_one(store, acquire(name, session, request)).await);
    let released = apply_one(store, release(name, token)).await;
    assert_eq!(released, Outcome::Released { already: false });
    token
}

pub(crate) fn submit(key: &str, operation: &str, request: u128) -> Command {
    let submit = Submit {
        request: RequestId(request),
        operation: operation.into(),
        args: None,
        priority: 0,
        run_at: None,
        by: "ann".into(),
        precondition: None,
    };
    let action = ResourceAction::Submit(submit);
    Command::Resource { key: key.parse().expect("valid key"), action }
}

pub(crate) fn claim_request(session: u128, request: u128, kind: &str, max: usize) -> Claim {
    let kinds = vec![kind.into()];
    Claim {
        session: SessionId(session),
        request: RequestId(request),
        kinds,
        max,
        tenant: None,
        only: None,
    }
}

pub(crate) fn finish(id: JobId, token: Token) -> Command {
    let finish = Finish::Ok { state: None, result: None };
    Command::Job { id, action: JobAction::Finish { token, finish, update: None } }
}

/// Returns the assignments of a claim.
pub(crate) fn assignments(outcome: Outcome) -> Vec<tenure_core::Assignment> {
    match outcome {
        Outcome::Claimed(jobs) => jobs,
        other => panic!("{other:?} is not the outcome of a claim"),
    }
}
