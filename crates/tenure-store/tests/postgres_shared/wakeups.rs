//! Wake-ups between servers: they come soon, and losing them costs time only.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::Outcome;
use tenure_store::clock::stopwatch;
use tenure_store::committer::POLL_FLOOR;
use tenure_store::postgres::Postgres;
use tenure_store::{Committer, Store};
use tokio_postgres::{AsyncMessage, NoTls};

use crate::bed::*;

/// Well under the poll floor.
const SOON: Duration = Duration::from_millis(400);

async fn hears(store: &Postgres) -> Option<bool> {
    store.status().await.expect("the server is there").wakeups
}

/// Waits until two servers know of each other: each has said hello twice since both listen.
async fn acquainted(url: &str, stores: [&Postgres; 2]) {
    until("both hear themselves", async || {
        hears(stores[0]).await == Some(true) && hears(stores[1]).await == Some(true)
    })
    .await;
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.expect("it connects");
    let hearing = async {
        let mut hellos: BTreeMap<String, usize> = BTreeMap::new();
        while hellos.len() < 2 || hellos.values().any(|times| *times < 2) {
            let message = poll_fn(|cx| connection.poll_message(cx)).await;
            if let Some(Ok(AsyncMessage::Notification(note))) = message {
                let from = note.payload().split('"').nth(3).expect("who says it").to_owned();
                *hellos.entry(from).or_default() += 1;
            }
        }
    };
    let listening = async {
        client.batch_execute("LISTEN tenure").await.expect("it listens");
        std::future::pending::<()>().await;
    };
    let both = async {
        tokio::select! {
            () = hearing => {}
            () = listening => {}
        }
    };
    tokio::time::timeout(PATIENCE, both).await.expect("they say hello");
}

/// How long a lock that one server releases takes to whoever waits for it at another.
async fn hand_over(waiting: &Committer, releasing: &Committer, round: u128) -> Duration {
    let name = format!("c{round}");
    let held = releasing.submit(acquire(&name, 1, 1_000 + round)).await.expect("it is there");
    let waits = tokio::spawn({
        let (waiting, key) = (waiting.clone(), key(&name));
        async move { waiting.acquire(&key, &ask(2, 2_000 + round, 60_000), PATIENCE).await }
    });
    until("it waits in the queue", async || {
        let shown = releasing.store().reads().show(&key(&name)).await.expect("it reads");
        shown.is_some_and(|shown| shown.queue.len() == 1)
    })
    .await;
    // The one that waits asks again after the poll floor; this is long before.
    let started = stopwatch();
    releasing.submit(release(&name, token(&held))).await.expect("it is there");
    let granted = waits.await.expect("no panic").expect("it is there");
    assert!(matches!(granted, Outcome::Granted(_)), "{granted:?}");
    started.elapsed()
}

/// How long a job that is submitted at one server takes to a worker that waits at another.
async fn hand_work(waiting: &Committer, submitting: &Committer, round: u128) -> Duration {
    let waits = tokio::spawn({
        let waiting = waiting.clone();
        async move { waiting.claim(&claim(2, 3_000 + round, "task", 1), PATIENCE).await }
    });
    until("the worker is known", async || {
        let workers = submitting.store().reads().workers().await.expect("it reads");
        workers.len() == 1
    })
    .await;
    let started = stopwatch();
    let key = format!("t/task/r{round}");
    submitting.submit(submit(&key, "work", 1)).await.expect("it is there");
    let jobs = claimed(waits.await.expect("no panic").expect("it is there"));
    let took = started.elapsed();
    assert_eq!(jobs.len(), 1);
    let job = &jobs[0];
    waiting.submit(finish(job.job.id, job.tenure.token)).await.expect("it is there");
    took
}

async fn committers(url: &str) -> ([Arc<Postgres>; 2], [Committer; 2]) {
    let stores = [open(url).await, open(url).await];
    one(&*stores[0], session(1)).await;
    one(&*stores[0], session(2)).await;
    let start = |store: &Arc<Postgres>| Committer::start(Arc::clone(store) as Arc<dyn Store>);
    let committers = [start(&stores[0]), start(&stores[1])];
    (stores, committers)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_up_crosses_servers() {
    let url = database();
    let (stores, [a, b]) = committers(&url).await;
    acquainted(&url, [&stores[0], &stores[1]]).await;
    for round in 0..5 {
        let took = hand_over(&a, &b, round).await;
        assert!(took < SOON, "a lock took {took:?}");
    }
    // Claims that wait ask again all together, at any moment: only many of them show that they
    // were woken.
    for round in 0..8 {
        let took = hand_work(&a, &b, round).await;
        assert!(took < SOON, "a job took {took:?}");
    }
    verified(&[&stores[0], &stores[1]]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_notifications_everything_comes_with_the_poll_floor() {
    // Nobody listens on the port of discard.
    let url = format!("{}?listen=127.0.0.1:9", database());
    let (stores, [a, b]) = committers(&url).await;
    let late = POLL_FLOOR * 3;
    for round in 0..2 {
        let took = hand_over(&a, &b, round).await;
        assert!(took < late, "a lock took {took:?}");
        let took = hand_work(&a, &b, round).await;
        assert!(took < late, "a job took {took:?}");
    }
    assert_eq!(hears(&stores[0]).await, Some(false));
    assert_eq!(hears(&stores[1]).await, Some(false));
    verified(&[&stores[0], &stores[1]]).await;
}
