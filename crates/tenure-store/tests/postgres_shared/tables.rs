//! The tables follow the journal, whatever comes between.

use std::sync::Arc;
use std::time::Duration;

use tenure_store::Store;
use tenure_store::postgres::Postgres;
use tenure_store::store::{BATCH_MAX, HistoryQuery, PAGE_MAX};

use crate::bed::*;

async fn lines(store: &Arc<Postgres>) -> usize {
    let all = HistoryQuery::Scan { after: 0, limit: PAGE_MAX };
    store.reads().history(all).await.expect("it reads").len()
}

#[tokio::test]
async fn what_happens_is_in_the_tables_a_moment_later_although_nobody_asks() {
    let url = database();
    let store = open(&url).await;
    one(&*store, session(1)).await;
    token(&one(&*store, acquire("c1", 1, 10)).await);
    let user = raw(&url).await;
    let held = "SELECT count(*) FROM tenure.locks l JOIN tenure.sessions s ON s.id = l.session \
                WHERE l.key = 't/cluster/c1' AND l.token = 1 AND s.name = 's1'";
    until("the lock is in its table", async || {
        user.query_one(held, &[]).await.expect("it is there").get::<_, i64>(0) == 1
    })
    .await;
}

#[tokio::test]
async fn tables_that_a_crash_of_the_database_took_back_are_brought_up_again() {
    let url = database();
    let store = open(&url).await;
    one(&*store, session(1)).await;
    for request in 10..15 {
        take_and_release(&*store, "c1", request).await;
    }
    assert_eq!(lines(&store).await, 10);
    let user = raw(&url).await;
    let back = "TRUNCATE tenure.pages, tenure.resources, tenure.locks, tenure.sessions, \
                tenure.flushes; INSERT INTO tenure.flushes VALUES (0)";
    user.batch_execute(back).await.expect("it is ours");
    assert_eq!(token(&one(&*store, acquire("c1", 1, 20)).await).0, 6);
    assert_eq!(lines(&store).await, 11);
    verified(&[&store]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_goes_away_in_the_middle_takes_nothing_with_it() {
    let store = open(&database()).await;
    one(&*store, session(1)).await;
    for round in 0..60_u32 {
        take_and_release(&*store, "c1", 10 + u128::from(round)).await;
        let all = HistoryQuery::Scan { after: 0, limit: PAGE_MAX };
        let reading = store.reads().history(all);
        // Somewhere between the first statement and the last.
        let patience = Duration::from_micros(u64::from(round) * 100);
        tokio::time::timeout(patience, reading).await.ok();
    }
    assert_eq!(lines(&store).await, 120);
    verified(&[&store]).await;
}

#[tokio::test]
async fn a_server_that_starts_knows_what_the_tables_do_not_tell_yet() {
    let url = database();
    let a = open(&url).await;
    one(&*a, session(1)).await;
    one(&*a, submit("t/task/r", "work", 5)).await;
    let user = raw(&url).await;
    // Nobody brings the tables up.
    user.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(7117003)").await.expect("it is free");
    let held = token(&one(&*a, acquire("c1", 1, 10)).await);
    take_and_release(&*a, "c2", 11).await;
    let b = open(&url).await;
    let told: i64 =
        user.query_one("SELECT count(*) FROM tenure.locks", &[]).await.expect("it is there").get(0);
    assert_eq!(told, 0);
    let refused = one(&*b, acquire("c1", 1, 12)).await;
    assert!(matches!(refused, tenure_core::Outcome::Refused(_)), "{refused:?}");
    assert_eq!(token(&one(&*b, acquire("c2", 1, 13)).await).0, 2);
    assert_eq!(
        claimed(one(&*b, tenure_core::Command::Claim(claim(1, 14, "task", 1))).await).len(),
        1
    );
    one(&*b, release("c1", held)).await;
    user.batch_execute("COMMIT").await.expect("it is there");
    verified(&[&a, &b]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_would_add_to_too_much_that_is_to_be_told_waits() {
    let url = database();
    let store = open(&url).await;
    one(&*store, session(1)).await;
    let user = raw(&url).await;
    // Nobody brings the tables up.
    user.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(7117003)").await.expect("it is free");
    // A row and a line for each.
    let grants = |first: usize| {
        let each = move |n| acquire(&format!("c{n}"), 1, n as u128);
        (first..first + BATCH_MAX).map(each).collect::<Vec<_>>()
    };
    let mut granted = 0;
    while 2 * granted <= 200_000 {
        let outcomes = store.apply(grants(granted)).await.expect("it is there");
        granted += outcomes.iter().filter(|outcome| token(outcome).0 == 1).count();
    }
    // Whoever brings them up tries for a while, fails, and tries again. Between two tries nobody
    // waits, so what counts is what happens during one: since when it waits, and the last batch.
    let sql = "SELECT waitstart::text, (SELECT max(id) FROM tenure.journal) FROM pg_locks \
               WHERE locktype = 'advisory' AND objid = 7117003 AND waitstart IS NOT NULL \
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let attempt = async || -> Option<(String, i64)> {
        let row = user.query_opt(sql, &[]).await.expect("it is there")?;
        Some((row.get(0), row.get(1)))
    };
    loop {
        until("the tables are tried", async || attempt().await.is_some()).await;
        let before = attempt().await;
        let batch = grants(granted);
        granted += BATCH_MAX;
        let adding = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.apply(batch).await }
        });
        tokio::pin!(adding);
        let early = tokio::time::timeout(Duration::from_millis(300), &mut adding).await;
        let after = attempt().await;
        let still = |before: &(String, i64), after: &(String, i64)| before.0 == after.0;
        if before.as_ref().zip(after.as_ref()).is_some_and(|(before, after)| still(before, after)) {
            assert_eq!(before, after, "it waits before it begins");
            assert!(early.is_err(), "it did not wait");
            user.batch_execute("COMMIT").await.expect("it is there");
            adding.await.expect("no panic").expect("it is there");
            return;
        }
        if early.is_err() {
            adding.await.expect("no panic").expect("it is there");
        }
    }
}
