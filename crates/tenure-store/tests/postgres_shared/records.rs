//! The record in a row may be behind its history: whoever reads it makes up for that.

use std::sync::Arc;

use tenure_core::{Command, LockAction, Record, RequestId};
use tenure_store::Store;
use tenure_store::postgres::Postgres;
use tenure_store::store::{HistoryQuery, PAGE_MAX, Retention};
use tokio_postgres::Client;

use crate::bed::*;

/// Brings the tables up, as every list does.
async fn tables_up(store: &Arc<Postgres>) {
    let all = HistoryQuery::Scan { after: 0, limit: PAGE_MAX };
    store.reads().history(all).await.expect("it reads");
}

async fn record(store: &Arc<Postgres>) -> Record {
    let shown = store.reads().show(&key("c1")).await.expect("it reads");
    shown.expect("it is there").record
}

/// How many lines of history the resource has, and how many of them its record tells.
async fn lines_and_told(user: &Client) -> (i64, i64) {
    let sql = "SELECT n, told, (record::json -> 'chain' ->> 'n')::bigint FROM tenure.resources \
               WHERE key = 't/cluster/c1'";
    let row = user.query_one(sql, &[]).await.expect("it is there");
    let (n, told, known): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    assert_eq!(told, known, "the row does not know how far its record is");
    (n, told)
}

/// A store on which the record of a resource is two lines behind.
async fn lagging(url: &str) -> (Arc<Postgres>, Client) {
    let (store, user) = (open(url).await, raw(url).await);
    one(&*store, session(1)).await;
    for request in 10..30 {
        take_and_release(&*store, "c1", request).await;
    }
    tables_up(&store).await;
    assert_eq!(lines_and_told(&user).await, (40, 40));
    take_and_release(&*store, "c1", 30).await;
    tables_up(&store).await;
    assert_eq!(lines_and_told(&user).await, (42, 40), "the record was written for two lines");
    (store, user)
}

#[tokio::test]
async fn whoever_starts_reads_what_a_record_does_not_tell_from_history() {
    let url = database();
    let (a, user) = lagging(&url).await;
    let b = open(&url).await;
    assert_eq!(record(&b).await, record(&a).await);
    let held = token(&one(&*b, acquire("c1", 1, 40)).await);
    assert_eq!(held.0, 22);
    verified(&[&a, &b]).await;
    let live = open(&url).await;
    assert_eq!(record(&live).await, record(&b).await, "a lock that is held was read otherwise");
    // It may lack as many lines as it remembers requests.
    one(&*b, release("c1", held)).await;
    let mut most = 0;
    for request in 50..70 {
        take_and_release(&*b, "c1", request).await;
        tables_up(&b).await;
        let (n, told) = lines_and_told(&user).await;
        most = most.max(n - told);
    }
    assert!((2..16).contains(&most), "the record was {most} lines behind");
}

#[tokio::test]
async fn what_history_does_not_tell_is_written_at_once() {
    let url = database();
    let (a, user) = lagging(&url).await;
    let held = token(&one(&*a, acquire("c1", 1, 40)).await);
    one(&*a, session(2)).await;
    let wait = LockAction::Acquire(ask(2, 41, 60_000));
    one(&*a, Command::Lock { key: key("c1"), action: wait }).await;
    tables_up(&a).await;
    let (n, told) = lines_and_told(&user).await;
    assert_eq!(n, told, "somebody waits, and no line of history says so");
    let b = open(&url).await;
    assert_eq!(record(&b).await.queue.len(), 1);
    one(&*b, release("c1", held)).await;
    assert_eq!(record(&a).await.tenures[0].request, RequestId(41));
    verified(&[&a, &b]).await;
}

#[tokio::test]
async fn lines_that_a_record_needs_are_not_pruned_before_it_tells_them() {
    let url = database();
    let (a, user) = lagging(&url).await;
    let keep = Retention { jobs_ms: 0, dead_ms: 0, history_ms: 0, rows_max: 1_000 };
    let started = tenure_store::clock::stopwatch();
    let mut lines = 0;
    while lines < 42 {
        assert!(started.elapsed() < PATIENCE, "only {lines} lines were pruned");
        lines += a.prune(keep).await.expect("it prunes").lines;
    }
    assert_eq!(lines_and_told(&user).await, (42, 42));
    let b = open(&url).await;
    assert_eq!(record(&b).await, record(&a).await);
    assert_eq!(token(&one(&*b, acquire("c1", 1, 40)).await).0, 22);
    verified(&[&a, &b]).await;
}

#[tokio::test]
async fn nobody_goes_on_from_an_entry_that_was_followed_in_part() {
    let url = database();
    let (a, user) = lagging(&url).await;
    let b = open(&url).await;
    take_and_release(&*a, "c2", 50).await;
    b.sweep().await.expect("it follows");
    let run = async |sql: &str| user.batch_execute(sql).await.expect("the server is there");
    run("UPDATE tenure.pages SET key = '-' WHERE key = 't/cluster/c1' AND n = 42").await;
    // Nobody brings the tables up meanwhile.
    run("SELECT pg_advisory_lock(7117003)").await;
    take_and_release(&*a, "c1", 60).await;
    for _ in 0..2 {
        let error = b.sweep().await.expect_err("lines are missing").to_string();
        assert!(error.contains("line 43 comes after line 40"), "{error}");
    }
    run("UPDATE tenure.pages SET key = 't/cluster/c1' WHERE key = '-'").await;
    run("SELECT pg_advisory_unlock(7117003)").await;
    b.sweep().await.expect("nothing is missing any more");
    assert_eq!(record(&b).await, record(&a).await);
    verified(&[&a, &b]).await;
}

#[tokio::test]
async fn rows_of_the_version_before_tell_everything() {
    let url = database();
    let (a, user) = (open(&url).await, raw(&url).await);
    one(&*a, session(1)).await;
    for request in 10..30 {
        take_and_release(&*a, "c1", request).await;
    }
    tables_up(&a).await;
    drop(a);
    let held = async || -> Vec<String> {
        let rows = user.query("SELECT held FROM tenure.journal ORDER BY id", &[]).await;
        rows.expect("it is there").iter().map(|row| row.get(0)).collect()
    };
    let before = held().await;
    assert!(before.iter().any(|held| held == "\nt/cluster/c1 main=7 \n"), "{before:?}");
    let back = "ALTER TABLE tenure.journal ADD COLUMN keys text[], ADD COLUMN tenures text[]; \
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
                DROP FUNCTION tenure.unfold; \
                ALTER TABLE tenure.lines RENAME TO history; \
                UPDATE tenure.meta SET value = '2' WHERE key = 'version'";
    user.batch_execute(back).await.expect("it is ours");
    let b = open(&url).await;
    assert_eq!(lines_and_told(&user).await, (40, 40));
    assert_eq!(held().await[..before.len()], before);
    assert_eq!(token(&one(&*b, acquire("c1", 1, 40)).await).0, 21);
    verified(&[&b]).await;
}
