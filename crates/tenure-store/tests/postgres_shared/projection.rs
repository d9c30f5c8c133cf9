//! The projection catches up with the journal despite crashes, cancellation and load.

use std::sync::Arc;
use std::time::Duration;

use tenure_store::Store;
use tenure_store::postgres::Postgres;
use tenure_store::store::{BATCH_MAX, HistoryQuery, PAGE_MAX};

use crate::common::*;

async fn count_events(store: &Arc<Postgres>) -> usize {
    let all = HistoryQuery::Scan { after: 0, limit: PAGE_MAX };
    store.reads().history(all).await.expect("read succeeds").len()
}

#[tokio::test]
async fn changes_are_flushed_without_a_read() {
    let url = new_database();
    let store = open(&url).await;
    apply_one(&*store, open_session(1)).await;
    granted_token(&apply_one(&*store, acquire("c1", 1, 10)).await);
    let user = user_connection(&url).await;
    let held = "SELECT count(*) FROM tenure.locks l JOIN tenure.sessions s ON s.id = l.session \
                WHERE l.key = 't/cluster/c1' AND l.token = 1 AND s.name = 's1'";
    wait_until("the lock is in its table", async || {
        user.query_one(held, &[]).await.expect("database is up").get::<_, i64>(0) == 1
    })
    .await;
}

#[tokio::test]
async fn projection_lost_in_a_database_crash_is_rebuilt() {
    let url = new_database();
    let store = open(&url).await;
    apply_one(&*store, open_session(1)).await;
    for request in 10..15 {
        acquire_and_release(&*store, "c1", request).await;
    }
    assert_eq!(count_events(&store).await, 10);
    let user = user_connection(&url).await;
    let roll_back = "TRUNCATE tenure.pages, tenure.resources, tenure.locks, tenure.sessions, \
                tenure.flushes; INSERT INTO tenure.flushes VALUES (0)";
    user.batch_execute(roll_back).await.expect("statement succeeds");
    assert_eq!(granted_token(&apply_one(&*store, acquire("c1", 1, 20)).await).0, 6);
    assert_eq!(count_events(&store).await, 11);
    assert_valid_history(&[&store]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_read_loses_no_events() {
    let store = open(&new_database()).await;
    apply_one(&*store, open_session(1)).await;
    for round in 0..60_u32 {
        acquire_and_release(&*store, "c1", 10 + u128::from(round)).await;
        let all = HistoryQuery::Scan { after: 0, limit: PAGE_MAX };
        let reading = store.reads().history(all);
        // Cancel it somewhere between its first and its last statement.
        let delay = Duration::from_micros(u64::from(round) * 100);
        tokio::time::timeout(delay, reading).await.ok();
    }
    assert_eq!(count_events(&store).await, 120);
    assert_valid_history(&[&store]).await;
}

#[tokio::test]
async fn starting_server_applies_entries_that_are_not_flushed() {
    let url = new_database();
    let a = open(&url).await;
    apply_one(&*a, open_session(1)).await;
    apply_one(&*a, submit("t/task/r", "work", 5)).await;
    let user = user_connection(&url).await;
    // Block flushes.
    user.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(7117003)").await.expect("lock is free");
    let held = granted_token(&apply_one(&*a, acquire("c1", 1, 10)).await);
    acquire_and_release(&*a, "c2", 11).await;
    let b = open(&url).await;
    let flushed_locks: i64 = user
        .query_one("SELECT count(*) FROM tenure.locks", &[])
        .await
        .expect("database is up")
        .get(0);
    assert_eq!(flushed_locks, 0);
    let refused = apply_one(&*b, acquire("c1", 1, 12)).await;
    assert!(matches!(refused, tenure_core::Outcome::Refused(_)), "{refused:?}");
    assert_eq!(granted_token(&apply_one(&*b, acquire("c2", 1, 13)).await).0, 2);
    assert_eq!(
        assignments(
            apply_one(&*b, tenure_core::Command::Claim(claim_request(1, 14, "task", 1))).await
        )
        .len(),
        1
    );
    apply_one(&*b, release("c1", held)).await;
    user.batch_execute("COMMIT").await.expect("database is up");
    assert_valid_history(&[&a, &b]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_block_while_the_backlog_is_full() {
    let url = new_database();
    let store = open(&url).await;
    apply_one(&*store, open_session(1)).await;
    let user = user_connection(&url).await;
    // Block flushes.
    user.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(7117003)").await.expect("lock is free");
    // Each grant adds a resource row and a history event to the backlog.
    let grants = |first: usize| {
        let each = move |n| acquire(&format!("c{n}"), 1, n as u128);
        (first..first + BATCH_MAX).map(each).collect::<Vec<_>>()
    };
    let mut granted = 0;
    while 2 * granted <= 200_000 {
        let outcomes = store.apply(grants(granted)).await.expect("database is up");
        granted += outcomes.iter().filter(|outcome| granted_token(outcome).0 == 1).count();
    }
    // A flush waits for its lock, times out, and is retried. Writers block only during an attempt,
    // so compare the state at both ends of one: when it started to wait, and the head of the
    // journal.
    let sql = "SELECT waitstart::text, (SELECT max(id) FROM tenure.journal) FROM pg_locks \
               WHERE locktype = 'advisory' AND objid = 7117003 AND waitstart IS NOT NULL \
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let attempt = async || -> Option<(String, i64)> {
        let row = user.query_opt(sql, &[]).await.expect("database is up")?;
        Some((row.get(0), row.get(1)))
    };
    loop {
        wait_until("a flush waits for its lock", async || attempt().await.is_some()).await;
        let before = attempt().await;
        let batch = grants(granted);
        granted += BATCH_MAX;
        let writing = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.apply(batch).await }
        });
        tokio::pin!(writing);
        let early = tokio::time::timeout(Duration::from_millis(300), &mut writing).await;
        let after = attempt().await;
        let same_attempt = |(before, after): (&(String, i64), &(String, i64))| before.0 == after.0;
        if before.as_ref().zip(after.as_ref()).is_some_and(same_attempt) {
            assert_eq!(before, after, "the batch was committed");
            assert!(early.is_err(), "the writer did not block");
            user.batch_execute("COMMIT").await.expect("database is up");
            writing.await.expect("task does not panic").expect("database is up");
            return;
        }
        if early.is_err() {
            writing.await.expect("task does not panic").expect("database is up");
        }
    }
}
