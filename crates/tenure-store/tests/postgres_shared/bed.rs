//! Databases, stores and commands for the tests beside it.

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

/// The longest that anything here may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The address of a new database on the server that all tests share.
pub(crate) fn database() -> String {
    let server = tenure_testbed::shared();
    server.url(&server.new_database().expect("a new database"))
}

/// A store on the clock of the database.
pub(crate) async fn open(url: &str) -> Arc<Postgres> {
    open_with(url, None).await
}

/// A store, perhaps on a clock of the test.
pub(crate) async fn open_with(url: &str, clock: Option<&ManualClock>) -> Arc<Postgres> {
    let clock = clock.map(|clock| Arc::new(clock.clone()) as _);
    let store = Postgres::open_with(url, Options { clock }).await.expect("the server is there");
    store.declare(scenario::kinds()).await.expect("the server is there");
    Arc::new(store)
}

/// A connection as users of the database have it.
pub(crate) async fn raw(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it connects");
    tokio::spawn(connection);
    client
}

/// Looks again and again until it is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let started = stopwatch();
    while !is_so().await {
        assert!(started.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Nothing is wrong with the history, as every store sees it.
pub(crate) async fn verified(stores: &[&Arc<Postgres>]) {
    for store in stores {
        assert_eq!(verify(&***store).await.expect("it reads").problems, []);
    }
}

pub(crate) async fn one(store: &dyn Store, command: Command) -> Outcome {
    store.apply(vec![command]).await.expect("the server is there").remove(0)
}

/// Sends a command until nobody else is at its resource.
pub(crate) async fn insist(store: &dyn Store, command: Command) -> Outcome {
    let busy = Outcome::Refused(tenure_core::Refusal::Busy);
    let started = stopwatch();
    loop {
        let outcome = one(store, command.clone()).await;
        if outcome != busy {
            return outcome;
        }
        assert!(started.elapsed() < PATIENCE, "always busy: {command:?}");
    }
}

pub(crate) fn key(name: &str) -> ResourceKey {
    ResourceKey::new("t", "cluster", name).expect("a good name")
}

pub(crate) fn session(id: u128) -> Command {
    session_of(id, "t", 60_000)
}

pub(crate) fn session_of(id: u128, tenant: &str, ttl_ms: u64) -> Command {
    let name = format!("s{id}").into();
    Command::Open { session: SessionId(id), tenant: tenant.into(), name, ttl_ms }
}

/// A request for the main lock.
pub(crate) fn ask(session: u128, request: u128, wait_ms: u64) -> Acquire {
    Acquire {
        locks: LockName::main().into(),
        claimant: Claimant::Session(SessionId(session)),
        request: RequestId(request),
        wait_ms,
        purpose: None,
    }
}

pub(crate) fn acquire(name: &str, session: u128, request: u128) -> Command {
    Command::Lock { key: key(name), action: LockAction::Acquire(ask(session, request, 0)) }
}

pub(crate) fn release(name: &str, token: Token) -> Command {
    Command::Lock { key: key(name), action: LockAction::Release { token, locks: None } }
}

pub(crate) fn token(outcome: &Outcome) -> Token {
    match outcome {
        Outcome::Granted(view) => view.token,
        other => panic!("{other:?} is not a grant"),
    }
}

/// Takes and gives back a lock; says which token it was.
pub(crate) async fn take_and_release(store: &dyn Store, name: &str, request: u128) -> Token {
    take_and_release_as(store, 1, name, request).await
}

/// The same, by another session.
pub(crate) async fn take_and_release_as(
    store: &dyn Store,
    session: u128,
    name: &str,
    request: u128,
) -> Token {
    let token = token(&one(store, acquire(name, session, request)).await);
    let released = one(store, release(name, token)).await;
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
    };
    let action = ResourceAction::Submit(submit);
    Command::Resource { key: key.parse().expect("a good name"), action }
}

pub(crate) fn claim(session: u128, request: u128, kind: &str, max: usize) -> Claim {
    let kinds = vec![kind.into()];
    Claim { session: SessionId(session), request: RequestId(request), kinds, max }
}

pub(crate) fn finish(id: JobId, token: Token) -> Command {
    let finish = Finish::Ok { state: None, result: None };
    Command::Job { id, action: JobAction::Finish { token, finish } }
}

/// What a claim got.
pub(crate) fn claimed(outcome: Outcome) -> Vec<tenure_core::Assignment> {
    match outcome {
        Outcome::Claimed(jobs) => jobs,
        other => panic!("{other:?} is no answer to a claim"),
    }
}
