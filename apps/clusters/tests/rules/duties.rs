//! The duties: two holders of one cluster, and clusters that leave the lists.

use std::sync::Arc;

use serde_json::{Value, json};
use tenure_app::{App as _, Duty, DutyContext, DutyReport, Live};
use tenure_clusters::Clusters;
use tenure_core::ResourceKey;
use tenure_core::verify::Problem;
use tenure_store::Committer;
use tenure_store::committer::Sweep;
use tenure_store::store::PAGE_MAX;

use crate::bed::{Bed, HOUR_MS, MINUTE_MS, Worker, database, directory, id, new_clock, open, path};

/// A duty, run by the test.
pub(crate) struct Run {
    duty: Box<dyn Duty>,
    cx: DutyContext,
}

impl Run {
    pub(crate) fn new(bed: &Bed, name: &str) -> Self {
        let duties = Clusters.duties().into_iter();
        let duty = duties.into_iter().find(|duty| duty.name() == name).expect("it exists");
        let committer = Committer::start_with(Arc::clone(&bed.store), Sweep::External);
        Self { duty, cx: DutyContext::new(committer, Live::fixed(bed.live.clone())) }
    }

    /// Adds a contradiction of the history.
    pub(crate) fn contradict(&self, name: &str, n: u64) {
        let key = ResourceKey::new("default", "cluster", id(name).as_str()).expect("a name");
        self.cx.violations.add(&[Problem { key, n, what: "two holders".into() }]);
    }

    pub(crate) async fn run(&mut self) -> usize {
        let report: DutyReport = self.duty.run(&self.cx).await.expect("the store works");
        report.count
    }
}

pub(crate) const HOLDERS: &str = "cluster_duplicate_holders";
pub(crate) const RETENTION: &str = "cluster_retention";

async fn resume(bed: &Bed, name: &str) {
    let path = format!("/v1/resources/cluster/{}/resume", id(name));
    assert_eq!(bed.manage(&path).await.0, 200);
}

async fn is_paused(bed: &Bed, name: &str) -> bool {
    bed.show(name).await["paused"] == true
}

#[tokio::test]
async fn a_contradiction_stops_the_job_and_nothing_retries_it_until_an_operator_does() {
    let bed = Bed::start_embedded().await;
    let (worker, idle) = (bed.worker("a").await, bed.worker("idle").await);
    bed.create("a").await;
    bed.create("other").await;
    let job = worker.claim("a").await.unwrap();
    let other = idle.claim("other").await.unwrap();
    let mut duty = Run::new(&bed, HOLDERS);
    assert_eq!(duty.run().await, 0);
    duty.contradict("a", 3);
    assert_eq!(duty.run().await, 1);
    assert!(is_paused(&bed, "a").await && !is_paused(&bed, "other").await);
    let stopped = bed.job(job.id()).await;
    let expected = (&json!("failed"), &json!("DUPLICATE_HOLDERS"));
    assert_eq!((&stopped["state"], &stopped["error"]["code"]), expected, "{stopped}");
    assert_eq!(bed.state("a").await, "FAILED");
    assert_eq!(bed.server.get(&format!("{}/lock", path("a"))).await.1["lock"], Value::Null);
    assert_eq!(bed.job(other.id()).await["state"], "running", "other clusters are not touched");
    assert_eq!((worker.beat().await, idle.beat().await), (409, 200), "its worker is stopped");
    // What it reports late changes nothing.
    assert_eq!(worker.post(&job, "status", json!({ "merge": { "workers": 9 } })).await.0, 409);
    assert_eq!(worker.finish(&job, json!({ "outcome": "ok" })).await, "failed");
    assert_eq!(bed.state("a").await, "FAILED");
    // It is done once, also after a restart, which finds the same entry again.
    assert_eq!(duty.run().await, 0);
    bed.skip(24 * HOUR_MS).await;
    assert!(idle.claim("a").await.is_none(), "nothing retries it");
    // Not even what a user submits begins.
    let create = bed.create("a").await.1["job"]["id"].clone();
    assert!(idle.claim("a").await.is_none(), "{create}");
    resume(&bed, "a").await;
    let mut restarted = Run::new(&bed, HOLDERS);
    restarted.contradict("a", 3);
    assert_eq!(restarted.run().await, 0);
    assert!(!is_paused(&bed, "a").await, "an operator is not asked again");
    let again = idle.claim("a").await.unwrap();
    assert_eq!(again.id(), &create);
    // A later contradiction is another incident.
    restarted.contradict("a", 9);
    assert_eq!(restarted.run().await, 1);
    assert!(is_paused(&bed, "a").await);
}

#[tokio::test]
async fn the_failed_job_can_be_retried_by_an_operator() {
    let bed = Bed::start().await;
    let (worker, other) = (bed.worker("a").await, bed.worker("b").await);
    bed.ready(&worker, "a", json!({})).await;
    bed.destroy("a").await;
    let job = worker.claim("a").await.unwrap();
    let mut duty = Run::new(&bed, HOLDERS);
    duty.contradict("a", 5);
    assert_eq!(duty.run().await, 1);
    assert_eq!(bed.state("a").await, "DESTROY_FAILED");
    resume(&bed, "a").await;
    assert!(other.claim("a").await.is_none());
    let retry = format!("/v1/jobs/{}/retry", job.id().as_str().unwrap());
    let (status, answer) = bed.manage(&retry).await;
    assert!(status < 300, "{answer}");
    let again = other.claim("a").await.expect("it was retried");
    assert_eq!(again.operation(), "DESTROY");
    other.finish_destroy(&again).await;
    assert_eq!(bed.state("a").await, "DESTROYED");
}

#[tokio::test]
async fn an_incident_keeps_an_extension() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.ready(&worker, "a", json!({ "ttl_ms": HOUR_MS })).await;
    let (_, extended) = bed.extend("a", 5 * HOUR_MS).await;
    let mut duty = Run::new(&bed, HOLDERS);
    duty.contradict("a", 5);
    assert_eq!(duty.run().await, 1);
    assert_eq!(bed.show("a").await["expires_at"], extended["expires_at"]);
    // And an extension keeps the incident.
    resume(&bed, "a").await;
    bed.extend("a", 6 * HOUR_MS).await;
    assert_eq!(duty.run().await, 0);
}

#[tokio::test]
async fn a_contradiction_of_what_is_gone_stops_nothing_and_creates_nothing() {
    let bed = Bed::start().await;
    let mut duty = Run::new(&bed, HOLDERS);
    duty.contradict("never", 1);
    assert_eq!(duty.run().await, 0);
    assert_eq!(bed.server.get(&path("never")).await.0, 404);
}

#[tokio::test]
async fn the_sessions_of_both_holders_are_closed() {
    let (dir, clock) = (directory(), new_clock());
    let file = database(dir.path());
    let bed = Bed::start_on(open(&file, &clock), dir, clock).await;
    let (first, second) = (bed.worker("first").await, bed.worker("second").await);
    let third = bed.worker("third").await;
    bed.ready(&third, "a", json!({})).await;
    bed.scale("a", 5).await;
    let job = first.claim("a").await.unwrap();
    first.finish(&job, json!({ "outcome": "ok" })).await;
    bed.scale("a", 6).await;
    second.claim("a").await.unwrap();
    // The end of the first tenure is that of another one, as if both had been granted.
    let connection = rusqlite::Connection::open(&file).expect("it is a database");
    let ends = "SELECT max(id) FROM history WHERE json_extract(line, '$.event') = 'ended'";
    let sql =
        format!("UPDATE history SET line = json_set(line, '$.token', 99) WHERE id = ({ends})");
    assert_eq!(connection.execute(&sql, []).expect("it is a table"), 1);
    let mut duty = Run::new(&bed, HOLDERS);
    duty.contradict("a", 20);
    assert_eq!(duty.run().await, 1);
    let beats = [first.beat().await, second.beat().await, third.beat().await];
    assert_eq!(beats, [409, 409, 200]);
}

/// Marks the snapshots of a destroyed cluster as deleted, as PURGE does.
async fn purge(bed: &Bed, worker: &Worker<'_>, name: &str) {
    let timer = format!("/v1/resources/cluster/{}/timers/PURGE", id(name));
    assert_eq!(bed.server.put(&timer, json!({ "after_ms": 0 })).await.0, 200);
    let job = worker.claim(name).await.expect("it was due");
    assert_eq!(job.operation(), "PURGE");
    let merge = json!({ "snapshot": null, "destroyed": null });
    worker.finish(&job, json!({ "outcome": "ok", "merge": merge })).await;
}

/// Writes that there was an installation.
async fn destroyed(bed: &Bed, worker: &Worker<'_>, name: &str) {
    bed.ready(worker, name, json!({})).await;
    bed.destroy(name).await;
    let job = worker.claim(name).await.expect("it can start");
    let infra = json!({
        "infra_id": "x", "cluster_id": "y", "region": "us-east-1", "token": 1, "metadata": {},
    });
    let body = json!({ "merge": { "destroyed": infra } });
    assert_eq!(worker.post(&job, "status", body).await.0, 200);
    worker.finish_destroy(&job).await;
}

#[tokio::test]
async fn a_purged_cluster_leaves_the_lists_when_it_is_old() {
    let bed = Bed::start_embedded().await;
    let worker = bed.worker("a").await;
    let mut duty = Run::new(&bed, RETENTION);
    for name in ["purged", "full", "again"] {
        destroyed(&bed, &worker, name).await;
    }
    bed.ready(&worker, "ready", json!({ "ttl_ms": 0 })).await;
    for name in ["purged", "again"] {
        purge(&bed, &worker, name).await;
    }
    bed.skip(24 * HOUR_MS).await;
    assert_eq!(duty.run().await, 0, "it is not older than that");
    bed.skip(MINUTE_MS).await;
    destroyed(&bed, &worker, "young").await;
    purge(&bed, &worker, "young").await;
    assert_eq!(bed.create("again").await.0, 202);
    worker.beat().await;
    assert_eq!(duty.run().await, 1);
    assert_eq!(bed.server.get(&path("purged")).await.0, 404);
    for name in ["full", "again", "ready", "young"] {
        assert_eq!(bed.server.get(&path(name)).await.0, 200, "{name}");
    }
    // Its name is free, and its history stays.
    let history = bed.server.get(&format!("{}/history", path("purged"))).await.1;
    assert!(history.to_string().contains("deleted"), "{history}");
    assert_eq!(bed.create("purged").await.1["verdict"], "started");
}

#[tokio::test]
async fn all_pages_of_destroyed_clusters_are_looked_at() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    let mut duty = Run::new(&bed, RETENTION);
    let all = PAGE_MAX + 5;
    for n in 0..all {
        let name = format!("c{n}");
        // What is destroyed before it was created has nothing to purge.
        bed.create(&name).await;
        bed.destroy(&name).await;
        let job = worker.claim(&name).await.unwrap();
        worker.finish_destroy(&job).await;
    }
    bed.skip(25 * HOUR_MS).await;
    let mut deleted = 0;
    for _ in 0..3 {
        deleted += duty.run().await;
    }
    assert_eq!(deleted, all);
    assert_eq!(bed.server.get("/v1/clusters").await.1["items"], json!([]));
}
