//! What is deleted: tests of terms that do not count, and builds after their time to live.

use serde_json::json;
use tenure_app::{App as _, Duty, DutyContext, Live};
use tenure_builds::Builds;
use tenure_builds::names::{BUILD, NODE, TEST};
use tenure_store::Committer;
use tenure_store::store::{PAGE_MAX, Retention};

use crate::bed::{Bed, STALE_MS, passed};

/// Time after which a build is deleted.
const TTL_MS: u64 = 8 * 60 * 60 * 1_000;
/// Numbers of builds and of tests per build: `BUILDSxTESTS`.
const SIZE_VARIABLE: &str = "TENURE_TEST_BUILDS";
const SIZE_DEFAULT: (usize, usize) = (10, 100);

/// The duty, run by the test.
struct Cleanup {
    duty: Box<dyn Duty>,
    cx: DutyContext,
}

impl Cleanup {
    fn new(bed: &Bed) -> Self {
        let duty = Builds.duties().remove(0);
        let committer = Committer::start(std::sync::Arc::clone(&bed.store));
        Self { duty, cx: DutyContext::new(committer, Live::fixed(bed.live.clone())) }
    }

    /// Runs the duty. Returns the number of builds that it deleted.
    async fn run(&mut self) -> usize {
        self.duty.run(&self.cx).await.expect("the store works").count
    }
}

/// Returns the number of resources of a kind that have a state.
async fn count(bed: &Bed, kind: &str) -> usize {
    let path = format!("/v1/resources?kind={kind}&limit=1000");
    bed.server.get(&path).await.1["items"].as_array().expect("a list").len()
}

/// Returns the number of rows of builds, their tests and nodes.
async fn rows(bed: &Bed) -> usize {
    let (mut rows, mut after) = (0, None);
    loop {
        let page = bed.store.reads().keys(after, PAGE_MAX).await.expect("the store works");
        rows += page.iter().filter(|key| [BUILD, TEST, NODE].contains(&key.kind())).count();
        if page.len() < PAGE_MAX {
            return rows;
        }
        after = page.last().cloned();
    }
}

#[tokio::test]
async fn tests_of_a_term_that_does_not_count_are_deleted_and_the_others_stay() {
    let bed = Bed::start_embedded().await;
    let mut cleanup = Cleanup::new(&bed);
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let dead = a.join("x").await.unwrap();
    a.push("x", &dead, 0, &["t1", "t2", "t3"]).await;
    cleanup.run().await;
    assert_eq!(count(&bed, TEST).await, 3, "its leader may still publish them");
    bed.advance(STALE_MS, &[&b]).await;
    let leader = b.join("x").await.unwrap();
    b.publish("x", &leader, &["t1", "t2"]).await;
    cleanup.run().await;
    assert_eq!(count(&bed, TEST).await, 2);
    assert_eq!(b.reserve("x", leader.term, 10).await.len(), 2);
}

#[tokio::test]
async fn tests_of_a_build_that_was_deleted_by_hand_are_deleted() {
    let bed = Bed::start_embedded().await;
    let mut cleanup = Cleanup::new(&bed);
    let a = bed.node("a").await;
    a.start("x", json!({}), &["t1", "t2", "t3"]).await;
    a.start("y", json!({}), &["t1"]).await;
    assert_eq!(bed.server.delete("/v1/resources/build/x").await.0, 200);
    a.start("x", json!({}), &["t1"]).await;
    assert_eq!(count(&bed, TEST).await, 5);
    cleanup.run().await;
    assert_eq!(count(&bed, TEST).await, 2);
}

#[tokio::test]
async fn a_build_lives_as_long_as_its_nodes() {
    let bed = Bed::start().await;
    let mut cleanup = Cleanup::new(&bed);
    let a = bed.node("a").await;
    let term = a.start("x", json!({}), &["t1", "t2"]).await;
    let test = a.reserve("x", term, 1).await.remove(0);
    bed.skip(TTL_MS);
    // The store takes the jump for a stall of its own, so the node is alive.
    assert_eq!(cleanup.run().await, 0, "a node works on it");
    assert_eq!(count(&bed, TEST).await, 2);
    assert_eq!(a.ack("x", term, passed(&test)).await, "passed");
    assert_eq!(bed.server.delete(&format!("/v1/sessions/{}", a.session)).await.0, 200);
    assert_eq!(cleanup.run().await, 1);
    assert_eq!(bed.server.get("/v1/builds/x").await.0, 404);
    assert_eq!(count(&bed, TEST).await, 0);
}

#[tokio::test]
async fn deleted_builds_leave_no_rows_and_their_tokens_do_not_return() {
    let size = std::env::var(SIZE_VARIABLE).ok();
    let size = size.as_deref().and_then(|size| size.split_once('x'));
    let (builds, tests) = size.map_or(SIZE_DEFAULT, |(builds, tests)| {
        (builds.parse().expect("a number"), tests.parse().expect("a number"))
    });
    let bed = Bed::start_embedded().await;
    let mut cleanup = Cleanup::new(&bed);
    let names: Vec<String> = (0..tests).map(|n| format!("t{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut highest = 0;
    for n in 0..builds {
        let (build, node) = (format!("b{n}"), bed.node("a").await);
        let term = node.start(&build, json!({}), &names).await;
        highest = highest.max(term);
        // Some are finished, some are left.
        for test in node.reserve(&build, term, 1 + n % 7).await {
            node.ack(&build, term, passed(&test)).await;
            highest = highest.max(test["token"].as_u64().unwrap());
        }
        bed.server.delete(&format!("/v1/sessions/{}", node.session)).await;
    }
    assert!(rows(&bed).await > builds * tests);
    bed.skip(TTL_MS);
    let mut deleted = 0;
    while deleted < builds {
        deleted += cleanup.run().await;
    }
    bed.skip(TTL_MS);
    let retention = Retention { jobs_ms: 0, dead_ms: 0, history_ms: u64::MAX, rows_max: 10_000 };
    // Each call examines a range of the rows.
    let mut calls = 0;
    while rows(&bed).await > 0 {
        bed.store.prune(retention).await.expect("the store works");
        calls += 1;
        assert!(calls < 10_000, "{} rows are left", rows(&bed).await);
    }
    let node = bed.node("a").await;
    let term = node.start("b0", json!({}), &["t0"]).await;
    assert!(term > 1, "the first term of this name was 1");
    let token = node.take("b0", term).await["token"].as_u64().unwrap();
    assert!(token > highest, "{token} is not above {highest}");
}
