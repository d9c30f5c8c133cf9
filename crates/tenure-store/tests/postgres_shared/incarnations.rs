//! Restores, fail-overs and copies of a database: no token is ever granted twice.

use std::sync::Arc;

use tenure_core::{Incarnation, Outcome, Refusal, Token};
use tenure_store::Store;
use tenure_store::postgres::{Options, Postgres, migrate};
use tenure_store::store::StoreError;
use tenure_store::verify::incremental::IncrementalVerifier;
use tenure_testbed::{Durability, Fault, Proxy};

use crate::common::*;
use crate::incremental::catch_up;

type Server = tenure_testbed::Postgres;

fn server() -> Server {
    Server::start(Durability::None).expect("PostgreSQL is installed")
}

async fn incarnation(store: &Postgres) -> Incarnation {
    store.status().await.expect("database is up").incarnation
}

/// Asserts that incarnation 1 has started: old sessions are over, and new tokens are greater.
async fn assert_new_incarnation(store: &Arc<Postgres>, last: Token) {
    let session_ended = Outcome::Refused(Refusal::SessionExpired);
    assert_eq!(acquire_when_up(store, 1, 52).await.expect("new incarnation"), session_ended);
    let granted = acquire_when_up(store, 2, 53).await.expect("new incarnation");
    assert!(granted_token(&granted) > last, "{granted:?} is not greater than {last:?}");
    assert_eq!(incarnation(store).await, Incarnation(1));
    assert_valid_history(&[store]).await;
}

/// Opens a session and acquires a lock, retrying until the database is up. Returns the outcome of
/// the acquire.
pub(crate) async fn acquire_when_up(
    store: &Postgres,
    id: u128,
    request: u128,
) -> Result<Outcome, String> {
    let started = tenure_store::clock::stopwatch();
    loop {
        let batch = vec![open_session(id), acquire("c1", id, request)];
        let error = match store.apply(batch).await {
            Ok(mut outcomes) => return Ok(outcomes.remove(1)),
            Err(error @ StoreError::Unavailable(_)) => error.to_string(),
            Err(error) => panic!("{error}"),
        };
        let is_down = error.contains("cannot be reached") || error.contains("starting up");
        if !is_down || started.elapsed() > TIMEOUT {
            return Err(error);
        }
    }
}

/// Restores an old backup under a running store and asserts that the store refuses to continue.
async fn assert_old_backup_is_refused(write_more: &str) {
    let mut server = server();
    let url = server.url(&server.new_database().expect("new database"));
    let store = open(&url).await;
    apply_one(&*store, open_session(1)).await;
    let first = acquire_and_release(&*store, "c1", 10).await;
    let backup = server.backup().expect("backup succeeds");
    let mut last = first;
    for n in 0..20 {
        last = acquire_and_release(&*store, "c1", 11 + n).await;
    }
    let mut verifier = IncrementalVerifier::default();
    assert_eq!(catch_up(&mut verifier, &store).await, 42);
    server.restore(&backup).expect("restore succeeds");
    server.psql("postgres", write_more).expect("database is up");
    let error = acquire_when_up(&store, 1, 50).await.expect_err("tokens could be issued again");
    assert!(error.contains("tenure migrate --new-incarnation"), "{error}");
    // The refusal is permanent for servers that have seen the later state.
    let error = acquire_when_up(&store, 1, 51).await.expect_err("tokens could be issued again");
    assert!(error.contains("tenure migrate --new-incarnation"), "{error}");
    let (_, started) = migrate(&url, true).await.expect("database is up");
    assert_eq!(started, Incarnation(1));
    assert_new_incarnation(&store, last).await;
    // Two entries of the backup, and those since, at positions that were used before.
    let entries = catch_up(&mut verifier, &store).await;
    assert!((3..42).contains(&entries), "{entries} entries");
    assert_eq!(verifier.take_problems(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn old_backup_restored_under_a_running_store_is_refused() {
    assert_old_backup_is_refused("SELECT 1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_backup_is_refused_even_if_the_wal_is_longer_than_before() {
    let write_wal = "SELECT pg_logical_emit_message(false, 'test', repeat('x', 1000000)) \
                FROM generate_series(1, 40)";
    assert_old_backup_is_refused(write_wal).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fail_over_to_a_lagging_standby_starts_a_new_incarnation() {
    let mut primary = server();
    let name = primary.new_database().expect("new database");
    let (replication, address) = (
        Proxy::start(primary.port()).expect("free port"),
        Proxy::start(primary.port()).expect("free port"),
    );
    let standby =
        primary.standby_through(replication.port(), Durability::None).expect("standby starts");
    let url = format!("postgres://postgres@127.0.0.1:{}/{name}", address.port());
    let dir = tempfile::tempdir().expect("a directory");
    let open_remembering = async || {
        let identity_file = Some(dir.path().join("identity"));
        Postgres::open_with(&url, Options { identity_file, ..Options::default() }).await
    };
    let store = Arc::new(open_remembering().await.expect("database is up"));
    apply_one(&*store, open_session(1)).await;
    let first = acquire_and_release(&*store, "c1", 10).await;
    let replicated =
        || standby.psql(&name, "SELECT token FROM tenure.resources").unwrap_or_default();
    wait_until("the standby catches up", async || replicated() == first.0.to_string()).await;
    replication.set_fault(Fault::Down);
    let mut last = first;
    for n in 0..5 {
        last = acquire_and_release(&*store, "c1", 11 + n).await;
    }
    assert_eq!(replicated(), first.0.to_string(), "the standby lags");
    primary.kill();
    standby.promote().expect("promotion succeeds");
    address.redirect(standby.port());
    address.disconnect_all();
    assert_new_incarnation(&store, last).await;
    // A server that starts now sees the same incarnation.
    let other = open(&url).await;
    assert_eq!(incarnation(&other).await, Incarnation(1));

    // The old primary is started again.
    primary.resume().expect("it starts");
    address.redirect(primary.port());
    address.disconnect_all();
    let error = acquire_when_up(&store, 2, 54).await.expect_err("an old primary");
    assert!(error.contains("is an old primary: it is on timeline 1"), "{error}");
    let (_, started) = migrate(&url, true).await.expect("database is up");
    assert_eq!(started, Incarnation(1), "the incarnation of the new primary");
    let error = acquire_when_up(&store, 2, 55).await.expect_err("an old primary");
    assert!(error.contains("until the incarnation is above 1"), "{error}");
    drop(store);
    let error = open_remembering().await.err().expect("an old primary").to_string();
    assert!(error.contains("is an old primary"), "{error}");
    migrate(&url, true).await.expect("database is up");
    let store = open_remembering().await.expect("the incarnation is new");
    assert_eq!(incarnation(&store).await, Incarnation(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_on_another_server_starts_a_new_incarnation() {
    let other = server();
    let shared = tenure_testbed::shared();
    let name = shared.new_database().expect("new database");
    let store = open(&shared.url(&name)).await;
    apply_one(&*store, open_session(1)).await;
    let copied = shared.dump_to(&name, &other).expect("dump succeeds");
    let last = acquire_and_release(&*store, "c1", 10).await;
    let copy = open(&other.url(&copied)).await;
    assert_eq!(incarnation(&copy).await, Incarnation(1));
    apply_one(&*copy, open_session(2)).await;
    assert!(acquire_and_release_as(&*copy, 2, "c1", 10).await > last);
    assert_eq!(incarnation(&store).await, Incarnation(0));
    assert_eq!(acquire_and_release(&*store, "c1", 11).await, Token(last.0 + 1));
}
