//! The record in a row may lag behind its history: readers replay the missing events.

use std::sync::Arc;

use tenure_core::{Command, LockAction, Record, RequestId};
use tenure_store::Store;
use tenure_store::clock::ManualClock;
use tenure_store::postgres::Postgres;
use tenure_store::store::{HistoryQuery, PAGE_MAX, Retention};
use tokio_postgres::Client;

use crate::common::*;
use crate::previous_format;

/// Flushes the projection, as every list does.
async fn flush(store: &Arc<Postgres>) {
    let all = HistoryQuery::Scan { after: 0, limit: PAGE_MAX };
    store.reads().history(all).await.expect("read succeeds");
}

async fn record(store: &Arc<Postgres>) -> Record {
    let shown = store.reads().show(&key("c1")).await.expect("read succeeds");
    shown.expect("database is up").record
}

/// Returns the number of history events of the resource, and how many its stored record includes.
async fn event_counts(user: &Client) -> (i64, i64) {
    let sql = "SELECT n, told, (record::json -> 'chain' ->> 'n')::bigint FROM tenure.resources \
               WHERE key = 't/cluster/c1'";
    let row = user.query_one(sql, &[]).await.expect("database is up");
    let (n, included, in_record): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    assert_eq!(included, in_record, "the column `told` does not match the record");
    (n, included)
}

/// Opens a store in which the record of a resource lags by two events.
async fn open_with_lagging_record(url: &str) -> (Arc<Postgres>, Client) {
    let (store, user) = (open(url).await, user_connection(url).await);
    apply_one(&*store, open_session(1)).await;
    for request in 10..30 {
        acquire_and_release(&*store, "c1", request).await;
    }
    flush(&store).await;
    assert_eq!(event_counts(&user).await, (40, 40));
    acquire_and_release(&*store, "c1", 30).await;
    flush(&store).await;
    assert_eq!(event_counts(&user).await, (42, 40), "the record was rewritten for two events");
    (store, user)
}

#[tokio::test]
async fn starting_server_replays_the_events_that_a_record_lacks() {
    let url = new_database();
    let (a, user) = open_with_lagging_record(&url).await;
    let b = open(&url).await;
    assert_eq!(record(&b).await, record(&a).await);
    let held = granted_token(&apply_one(&*b, acquire("c1", 1, 40)).await);
    assert_eq!(held.0, 22);
    assert_valid_history(&[&a, &b]).await;
    let c = open(&url).await;
    assert_eq!(record(&c).await, record(&b).await, "records of live resources differ");
    // It may lag by as many events as it remembers requests.
    apply_one(&*b, release("c1", held)).await;
    let mut max_lag = 0;
    for request in 50..70 {
        acquire_and_release(&*b, "c1", request).await;
        flush(&b).await;
        let (n, included) = event_counts(&user).await;
        max_lag = max_lag.max(n - included);
    }
    assert!((2..16).contains(&max_lag), "the record lagged by {max_lag} events");
}

#[tokio::test]
async fn change_outside_history_rewrites_the_record() {
    let url = new_database();
    let (a, user) = open_with_lagging_record(&url).await;
    let held = granted_token(&apply_one(&*a, acquire("c1", 1, 40)).await);
    apply_one(&*a, open_session(2)).await;
    let wait = LockAction::Acquire(acquire_request(2, 41, 60_000));
    apply_one(&*a, Command::Lock { key: key("c1"), action: wait }).await;
    flush(&a).await;
    let (n, included) = event_counts(&user).await;
    assert_eq!(n, included, "a waiter has no history event, so the record must be written");
    let b = open(&url).await;
    assert_eq!(record(&b).await.queue.len(), 1);
    apply_one(&*b, release("c1", held)).await;
    assert_eq!(record(&a).await.tenures[0].request, RequestId(41));
    assert_valid_history(&[&a, &b]).await;
}

#[tokio::test]
async fn events_are_pruned_only_after_the_record_includes_them() {
    let url = new_database();
    let (a, user) = open_with_lagging_record(&url).await;
    let keep = Retention { jobs_ms: 0, dead_ms: 0, history_ms: 0, rows_max: 1_000 };
    let started = tenure_store::clock::stopwatch();
    let mut pruned = 0;
    while pruned < 42 {
        assert!(started.elapsed() < TIMEOUT, "only {pruned} events were pruned");
        pruned += a.prune(keep).await.expect("prune succeeds").lines;
    }
    assert_eq!(event_counts(&user).await, (42, 42));
    let b = open(&url).await;
    assert_eq!(record(&b).await, record(&a).await);
    assert_eq!(granted_token(&apply_one(&*b, acquire("c1", 1, 40)).await).0, 22);
    assert_valid_history(&[&a, &b]).await;
}

#[tokio::test]
async fn replica_is_discarded_after_a_partially_applied_entry() {
    let url = new_database();
    let (a, user) = open_with_lagging_record(&url).await;
    let b = open(&url).await;
    acquire_and_release(&*a, "c2", 50).await;
    b.sweep().await.expect("catch-up succeeds");
    let execute = async |sql: &str| user.batch_execute(sql).await.expect("database is up");
    execute("UPDATE tenure.pages SET key = '-' WHERE key = 't/cluster/c1' AND n = 42").await;
    // Block flushes.
    execute("SELECT pg_advisory_lock(7117003)").await;
    acquire_and_release(&*a, "c1", 60).await;
    for _ in 0..2 {
        let error = b.sweep().await.expect_err("events are missing").to_string();
        assert!(error.contains("event 43 follows event 40"), "{error}");
    }
    execute("UPDATE tenure.pages SET key = 't/cluster/c1' WHERE key = '-'").await;
    execute("SELECT pg_advisory_unlock(7117003)").await;
    b.sweep().await.expect("events are restored");
    assert_eq!(record(&b).await, record(&a).await);
    assert_valid_history(&[&a, &b]).await;
}

#[tokio::test]
async fn rows_of_schema_version_2_are_migrated() {
    let url = new_database();
    let (a, user) = (open(&url).await, user_connection(&url).await);
    apply_one(&*a, open_session(1)).await;
    for request in 10..30 {
        acquire_and_release(&*a, "c1", request).await;
    }
    flush(&a).await;
    drop(a);
    let held = async || -> Vec<String> {
        let rows = user.query("SELECT held FROM tenure.journal ORDER BY id", &[]).await;
        rows.expect("database is up").iter().map(|row| row.get(0)).collect()
    };
    let before = held().await;
    assert!(before.iter().any(|held| held == "\nt/cluster/c1 main=7 \n"), "{before:?}");
    let downgrade = "ALTER TABLE tenure.journal ADD COLUMN keys text[], ADD COLUMN tenures text[]; \
                UPDATE tenure.journal SET \
                    keys = ARRAY(SELECT split_part(line, ' ', 1) \
                        FROM unnest(string_to_array(held, E'\\n')) AS line WHERE line <> ''), \
                    tenures = ARRAY(SELECT rtrim(substr(line, strpos(line, ' ') + 1)) \
                        FROM unnest(string_to_array(held, E'\\n')) AS line WHERE line <> ''); \
                ALTER TABLE tenure.journal DROP COLUMN held; \
                ALTER TABLE tenure.resources DROP COLUMN n, DROP COLUMN told; \
                ALTER TABLE tenure.resources RENAME COLUMN record TO body; \
                CREATE TABLE tenure.lines (id bigint PRIMARY KEY, key text COLLATE \"C\" NOT NULL, \
                    n bigint NOT NULL, at bigint NOT NULL, line text NOT NULL, \
                    hash bytea NOT NULL); \
                INSERT INTO tenure.lines SELECT * FROM tenure.history; \
                DROP VIEW tenure.history; DROP TABLE tenure.pages; \
                DROP FUNCTION tenure.unfold; DROP TABLE tenure.audit; \
                DROP INDEX tenure.jobs_of_group; \
                ALTER TABLE tenure.lines RENAME TO history; \
                UPDATE tenure.meta SET value = '2' WHERE key = 'version'";
    user.batch_execute(downgrade).await.expect("statement succeeds");
    let b = open(&url).await;
    assert_eq!(event_counts(&user).await, (40, 40));
    assert_eq!(held().await[..before.len()], before);
    assert_eq!(granted_token(&apply_one(&*b, acquire("c1", 1, 40)).await).0, 21);
    assert_valid_history(&[&b]).await;
}

/// Fills a database with the rows that schema version 6 contained.
async fn load_schema_version_6(user: &Client) {
    let execute = async |sql: &str| user.batch_execute(sql).await.expect("statement succeeds");
    execute("CREATE SCHEMA tenure").await;
    for migration in [
        include_str!("../../src/postgres/0001_tables.sql"),
        include_str!("../../src/postgres/0002_keys.sql"),
        include_str!("../../src/postgres/0003_records.sql"),
        include_str!("../../src/postgres/0004_pages.sql"),
        include_str!("../../src/postgres/0005_held.sql"),
        include_str!("../../src/postgres/0006_audit.sql"),
    ] {
        execute(migration).await;
    }
    execute("DELETE FROM tenure.meta; DELETE FROM tenure.journal; DELETE FROM tenure.flushes")
        .await;
    execute(include_str!("../fixtures/postgres_6.sql")).await;
    // It is the same database, not a restored one.
    execute(
        "UPDATE tenure.meta SET value = (SELECT system_identifier FROM pg_control_system())::text \
         || '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) \
         || '/' || 'tenure.meta'::regclass::oid::text WHERE key = 'identity'",
    )
    .await;
}

#[tokio::test]
async fn rows_of_schema_version_6_are_migrated_and_used() {
    let url = new_database();
    let user = user_connection(&url).await;
    load_schema_version_6(&user).await;
    let sql = "SELECT lines FROM tenure.journal ORDER BY id DESC LIMIT 1";
    let entries: i64 = user.query_one(sql, &[]).await.expect("database is up").get(0);
    let clock = ManualClock::default();
    clock.advance(previous_format::STOPPED_MS);
    let a = open_with(&url, Some(&clock)).await;
    previous_format::check_and_use(&*a, usize::try_from(entries).expect("a few")).await;
    let sql = "SELECT value FROM tenure.meta WHERE key = 'version'";
    let version: String = user.query_one(sql, &[]).await.expect("database is up").get(0);
    assert_eq!(version, "7");
    // Another server reads what the first one wrote, and so does one that starts later.
    let b = open_with(&url, Some(&clock)).await;
    previous_format::check_reopened(&*b).await;
    drop(a);
    previous_format::check_reopened(&*open_with(&url, Some(&clock)).await).await;
}
