//! Databases that are restored, failed over to or copied: no token ever comes again.

use std::sync::Arc;

use tenure_core::{Incarnation, Outcome, Refusal, Token};
use tenure_store::Store;
use tenure_store::postgres::{Postgres, migrate};
use tenure_store::store::StoreError;
use tenure_testbed::{Durability, Fault, Proxy};

use crate::bed::*;

type Server = tenure_testbed::Postgres;

fn server() -> Server {
    Server::start(Durability::None).expect("PostgreSQL is installed")
}

async fn incarnation(store: &Postgres) -> Incarnation {
    store.status().await.expect("the server is there").incarnation
}

/// Whoever had a session in the old life has none in the new one; a new one gets more.
async fn begins_anew(store: &Arc<Postgres>, last: Token) {
    let old = Outcome::Refused(Refusal::SessionExpired);
    assert_eq!(when_it_is_back(store, 1, 52).await.expect("a new life"), old);
    let granted = when_it_is_back(store, 2, 53).await.expect("a new life");
    assert!(token(&granted) > last, "{granted:?} comes after {last:?}");
    assert_eq!(incarnation(store).await, Incarnation(1));
    verified(&[store]).await;
}

/// Sends an acquire until the database is back; gives the answer.
async fn when_it_is_back(store: &Postgres, who: u128, request: u128) -> Result<Outcome, String> {
    let started = tenure_store::clock::stopwatch();
    loop {
        let both = vec![session(who), acquire("c1", who, request)];
        let error = match store.apply(both).await {
            Ok(mut outcomes) => return Ok(outcomes.remove(1)),
            Err(StoreError::Unavailable(why)) => why,
            Err(error) => panic!("{error}"),
        };
        let away = error.contains("cannot be reached") || error.contains("starting up");
        if !away || started.elapsed() > PATIENCE {
            return Err(error);
        }
    }
}

/// Restores an old backup under a running store, which has to refuse to go on.
async fn restored_under_a_running_store(written_since: &str) {
    let mut server = server();
    let url = server.url(&server.new_database().expect("a new database"));
    let store = open(&url).await;
    one(&*store, session(1)).await;
    let first = take_and_release(&*store, "c1", 10).await;
    let backup = server.backup().expect("a backup");
    let mut last = first;
    for n in 0..20 {
        last = take_and_release(&*store, "c1", 11 + n).await;
    }
    server.restore(&backup).expect("it comes up again");
    server.psql("postgres", written_since).expect("it is there");
    let error = when_it_is_back(&store, 1, 50).await.expect_err("tokens would come again");
    assert!(error.contains("tenure migrate --new-incarnation"), "{error}");
    // It stays so, for every server that saw the life before.
    let error = when_it_is_back(&store, 1, 51).await.expect_err("tokens would come again");
    assert!(error.contains("tenure migrate --new-incarnation"), "{error}");
    let (_, begun) = migrate(&url, true).await.expect("it is there");
    assert_eq!(begun, Incarnation(1));
    begins_anew(&store, last).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_backup_under_a_running_store_is_refused() {
    restored_under_a_running_store("SELECT 1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_backup_is_refused_although_others_have_written_much_since() {
    let much = "SELECT pg_logical_emit_message(false, 'test', repeat('x', 1000000)) \
                FROM generate_series(1, 40)";
    restored_under_a_running_store(much).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_was_behind_begins_a_new_incarnation() {
    let mut primary = server();
    let name = primary.new_database().expect("a new database");
    let (replication, address) = (
        Proxy::start(primary.port()).expect("a free port"),
        Proxy::start(primary.port()).expect("a free port"),
    );
    let standby = primary.standby_through(replication.port(), Durability::None).expect("a standby");
    let url = format!("postgres://postgres@127.0.0.1:{}/{name}", address.port());
    let store = open(&url).await;
    one(&*store, session(1)).await;
    let first = take_and_release(&*store, "c1", 10).await;
    let seen = || standby.psql(&name, "SELECT token FROM tenure.resources").unwrap_or_default();
    until("the standby has it", async || seen() == first.0.to_string()).await;
    replication.set_fault(Fault::Down);
    let mut last = first;
    for n in 0..5 {
        last = take_and_release(&*store, "c1", 11 + n).await;
    }
    assert_eq!(seen(), first.0.to_string(), "it is behind");
    primary.kill();
    standby.promote().expect("it is promoted");
    address.redirect(standby.port());
    address.disconnect_all();
    begins_anew(&store, last).await;
    // A server that starts now sees the same life.
    let other = open(&url).await;
    assert_eq!(incarnation(&other).await, Incarnation(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_on_another_server_is_another_life() {
    let other = server();
    let shared = tenure_testbed::shared();
    let name = shared.new_database().expect("a new database");
    let store = open(&shared.url(&name)).await;
    one(&*store, session(1)).await;
    let early = shared.dump_to(&name, &other).expect("a dump");
    let last = take_and_release(&*store, "c1", 10).await;
    let copy = open(&other.url(&early)).await;
    assert_eq!(incarnation(&copy).await, Incarnation(1));
    one(&*copy, session(2)).await;
    assert!(take_and_release_as(&*copy, 2, "c1", 10).await > last);
    assert_eq!(incarnation(&store).await, Incarnation(0));
    assert_eq!(take_and_release(&*store, "c1", 11).await, Token(last.0 + 1));
}
