//! Wake-ups between servers: they arrive promptly, and losing them only adds latency.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::Outcome;
use tenure_store::clock::stopwatch;
use tenure_store::committer::POLL_INTERVAL;
use tenure_store::postgres::Postgres;
use tenure_store::{Committer, Store};
use tokio_postgres::{AsyncMessage, NoTls};

use crate::common::*;

/// Maximum latency of a wake-up; well below the poll floor.
const WAKE_UP_MAX: Duration = Duration::from_millis(400);

async fn receives_wakeups(store: &Postgres) -> Option<bool> {
    store.status().await.expect("database is up").wakeups
}

/// Waits until two servers know of each other: each has sent two hellos since both listen.
async fn wait_for_hellos(url: &str, stores: [&Postgres; 2]) {
    wait_until("both receive their own notifications", async || {
        receives_wakeups(stores[0]).await == Some(true)
            && receives_wakeups(stores[1]).await == Some(true)
    })
    .await;
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.expect("connects");
    let receive = async {
        let mut hellos: BTreeMap<String, usize> = BTreeMap::new();
        while hellos.len() < 2 || hellos.values().any(|count| *count < 2) {
            let message = poll_fn(|cx| connection.poll_message(cx)).await;
            if let Some(Ok(AsyncMessage::Notification(note))) = message {
                let from = note.payload().split('"').nth(3).expect("sender").to_owned();
                *hellos.entry(from).or_default() += 1;
            }
        }
    };
    let listen = async {
        client.batch_execute("LISTEN tenure").await.expect("listen succeeds");
        std::future::pending::<()>().await;
    };
    let both = async {
        tokio::select! {
            () = receive => {}
            () = listen => {}
        }
    };
    tokio::time::timeout(TIMEOUT, both).await.expect("both send hellos");
}

/// Measures the time from a release at one server to the grant for a waiter at another.
async fn measure_hand_over(waiting: &Committer, releasing: &Committer, round: u128) -> Duration {
    let name = format!("c{round}");
    let held = releasing.submit(acquire(&name, 1, 1_000 + round)).await.expect("database is up");
    let waiter = tokio::spawn({
        let (waiting, key) = (waiting.clone(), key(&name));
        let request = acquire_request(2, 2_000 + round, 60_000);
        async move { waiting.acquire(&key, &request, TIMEOUT).await }
    });
    wait_until("the request is queued", async || {
        let shown = releasing.store().reads().show(&key(&name)).await.expect("read succeeds");
        shown.is_some_and(|shown| shown.queue.len() == 1)
    })
    .await;
    // The release comes long before the waiter polls again.
    let started = stopwatch();
    releasing.submit(release(&name, granted_token(&held))).await.expect("database is up");
    let granted = waiter.await.expect("task does not panic").expect("database is up");
    assert!(matches!(granted, Outcome::Granted(_)), "{granted:?}");
    started.elapsed()
}

/// Measures the time from a submit at one server to the claim of a worker that waits at another.
async fn measure_claim(waiting: &Committer, submitting: &Committer, round: u128) -> Duration {
    let worker = tokio::spawn({
        let waiting = waiting.clone();
        async move { waiting.claim(&claim_request(2, 3_000 + round, "task", 1), TIMEOUT).await }
    });
    wait_until("the worker is registered", async || {
        let workers = submitting.store().reads().workers().await.expect("read succeeds");
        workers.len() == 1
    })
    .await;
    let started = stopwatch();
    let key = format!("t/task/r{round}");
    submitting.submit(submit(&key, "work", 1)).await.expect("database is up");
    let jobs = assignments(worker.await.expect("task does not panic").expect("database is up"));
    let took = started.elapsed();
    assert_eq!(jobs.len(), 1);
    let job = &jobs[0];
    waiting.submit(finish(job.job.id, job.tenure.token)).await.expect("database is up");
    took
}

async fn committers(url: &str) -> ([Arc<Postgres>; 2], [Committer; 2]) {
    let stores = [open(url).await, open(url).await];
    apply_one(&*stores[0], open_session(1)).await;
    apply_one(&*stores[0], open_session(2)).await;
    let start = |store: &Arc<Postgres>| Committer::start(Arc::clone(store) as Arc<dyn Store>);
    let committers = [start(&stores[0]), start(&stores[1])];
    (stores, committers)
}

#[tokio::test(flavor = "multi_thread")]
async fn wake_ups_cross_servers() {
    let url = new_database();
    let (stores, [a, b]) = committers(&url).await;
    wait_for_hellos(&url, [&stores[0], &stores[1]]).await;
    for round in 0..5 {
        let took = measure_hand_over(&a, &b, round).await;
        assert!(took < WAKE_UP_MAX, "a lock took {took:?}");
    }
    // A waiting claim may also poll at just this moment: only several rounds prove wake-ups.
    for round in 0..8 {
        let took = measure_claim(&a, &b, round).await;
        assert!(took < WAKE_UP_MAX, "a job took {took:?}");
    }
    assert_valid_history(&[&stores[0], &stores[1]]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_notifications_waiters_poll() {
    // No server listens on the discard port.
    let url = format!("{}?listen=127.0.0.1:9", new_database());
    let (stores, [a, b]) = committers(&url).await;
    let latency_max = POLL_INTERVAL * 3;
    for round in 0..2 {
        let took = measure_hand_over(&a, &b, round).await;
        assert!(took < latency_max, "a lock took {took:?}");
        let took = measure_claim(&a, &b, round).await;
        assert!(took < latency_max, "a job took {took:?}");
    }
    assert_eq!(receives_wakeups(&stores[0]).await, Some(false));
    assert_eq!(receives_wakeups(&stores[1]).await, Some(false));
    assert_valid_history(&[&stores[0], &stores[1]]).await;
}
