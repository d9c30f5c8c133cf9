//! Workers that disappear, and a store that has lost its locks.

use std::sync::Arc;

use serde_json::json;
use tenure_core::{Command, LockAction, ResourceKey};

use crate::bed::{
    ATTEMPTS, Bed, MINUTE_MS, STALE_MS, database, directory, id, new_clock, open, path,
};

#[tokio::test]
async fn a_stale_worker_costs_an_attempt_and_after_the_last_one_the_cluster_has_failed() {
    let bed = Bed::start_embedded().await;
    bed.create("a").await;
    let alive = bed.worker("alive").await;
    let mut id = None;
    for attempt in 1..=ATTEMPTS {
        let dead = bed.worker("dead").await;
        let job = dead.claim("a").await.expect("it is retried");
        assert_eq!(job.job["attempt"], attempt);
        let id = id.get_or_insert(job.id().clone());
        assert_eq!(bed.state("a").await, "CREATING");
        bed.advance(STALE_MS - 2_000, &[&alive]).await;
        assert_eq!(bed.state("a").await, "CREATING", "a heartbeat may be late");
        bed.advance(4_000, &[&alive]).await;
        let shown = bed.job(id).await;
        assert_eq!(shown["error"]["code"], "WORKER_TIMEOUT", "{shown}");
        assert_eq!(shown["state"], if attempt < ATTEMPTS { "backoff" } else { "dead" });
        // What the dead worker reports late is refused.
        let (status, problem) = dead.post(&job, "finish", json!({ "outcome": "ok" })).await;
        assert_eq!((status, &problem["code"]), (409, &json!("lost")), "{problem}");
        let (status, _) = dead.post(&job, "status", json!({ "merge": { "workers": 9 } })).await;
        assert_eq!(status, 409);
        bed.advance(4 * MINUTE_MS, &[&alive]).await;
    }
    assert_eq!(bed.state("a").await, "FAILED");
    let (status, dead) = bed.server.get("/v1/dead").await;
    assert!(status == 200 && dead.to_string().contains(id.unwrap().as_str().unwrap()), "{dead}");
    assert_eq!(bed.create("a").await.0, 202, "it can be created again");
}

#[tokio::test]
async fn a_worker_that_dies_during_a_destroy_or_a_scale_leaves_its_state() {
    let bed = Bed::start().await;
    let alive = bed.worker("alive").await;
    for (name, state, after) in [("a", "SCALING", "READY"), ("b", "DESTROYING", "READY")] {
        let dead = bed.worker("dead").await;
        bed.bring(&dead, name, state).await;
        bed.advance(STALE_MS + 2_000, &[&alive]).await;
        assert_eq!(bed.state(name).await, after, "between two attempts it is what it was");
        bed.advance(4 * MINUTE_MS, &[&alive]).await;
        let job = alive.claim(name).await.expect("it is retried");
        assert_eq!((bed.state(name).await.as_str(), &job.job["attempt"]), (state, &json!(2)));
    }
}

/// Removes the tenures of all clusters from the file.
fn lose_locks(path: &std::path::Path) -> usize {
    let file = rusqlite::Connection::open(path).expect("it is a database");
    let sql = "UPDATE resources SET body = json_remove(body, '$.tenures')
               WHERE key LIKE '%/cluster/%' AND json_extract(body, '$.tenures') IS NOT NULL";
    file.execute(sql, []).expect("it is a table")
}

#[tokio::test]
async fn lost_locks_fail_the_job_and_the_cluster_until_an_operator_looks() {
    let (dir, clock) = (directory(), new_clock());
    let file = database(dir.path());
    let mut bed = Bed::start_on(open(&file, &clock), dir, clock.clone()).await;
    let cases = [
        ("a", "CREATING", "FAILED"),
        ("b", "DESTROYING", "DESTROY_FAILED"),
        // It still runs, with however many workers.
        ("c", "SCALING", "READY"),
    ];
    {
        let worker = bed.worker("a").await;
        for (name, state, _) in cases {
            bed.bring(&worker, name, state).await;
        }
    }
    bed.server.stop().await.expect("it ends").expect("it ends");
    let Bed { store, dir, .. } = bed;
    // The threads of the server drop it asynchronously.
    while Arc::strong_count(&store) > 1 {
        tokio::task::yield_now().await;
    }
    drop(store);
    assert_eq!(lose_locks(&file), cases.len());
    let bed = Bed::start_on(open(&file, &clock), dir, clock).await;
    for (name, _, after) in cases {
        // The kinds are declared when the server answers.
        bed.show(name).await;
        // Like the duty of the server.
        let key = ResourceKey::new("default", "cluster", id(name).as_str()).expect("a name");
        let command = Command::Lock { key, action: LockAction::Settle };
        bed.store.apply(vec![command]).await.expect("the store works");
        assert_eq!(bed.state(name).await, after);
        let history = bed.server.get(&format!("{}/history", path(name))).await.1;
        assert!(history.to_string().contains("LOCK_STATE_LOST"), "{history}");
        assert_eq!(bed.lane(name).await, [], "nothing retries it");
    }
}
