//! Who leads, and whose tests count.

use serde_json::{Value, json};

use crate::bed::{Bed, Leadership, Node, STALE_MS, leadership, passed};

#[tokio::test]
async fn c01_the_first_node_is_elected_and_the_second_is_not() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    assert!(a.join("x").await.is_some());
    assert_eq!(b.join("x").await, None);
    let build = bed.show("x").await;
    assert_eq!(
        (&build["master_status"], &build["master_worker_id"]),
        (&json!("setup"), &json!("a"))
    );
    assert_eq!(build["elections"], 1);
}

#[tokio::test]
async fn c02_a_leader_is_stale_exactly_at_the_limit() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let first = a.join("x").await.unwrap();
    bed.advance(STALE_MS - 1, &[&b]).await;
    assert_eq!(b.join("x").await, None, "one millisecond is left");
    bed.advance(1, &[&b]).await;
    let second = b.join("x").await.expect("the leader is stale");
    assert!(second.term > first.term);
}

#[tokio::test]
async fn c02_a_leader_that_never_sent_a_heartbeat_has_the_full_time() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    a.join("x").await.unwrap();
    let build = bed.show("x").await;
    assert!(build["master_setup_heartbeat"].is_string(), "the election itself is a heartbeat");
    assert_eq!(b.join("x").await, None);
}

#[tokio::test]
async fn c03_no_takeover_of_a_fresh_leader_by_itself_or_when_the_tests_are_published() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let leader = a.join("x").await.unwrap();
    assert_eq!(a.join("x").await, None, "a leader cannot replace itself");
    assert_eq!(b.join("x").await, None, "the leader is fresh");
    a.publish("x", &leader, &["t1"]).await;
    bed.advance(2 * STALE_MS, &[&b]).await;
    assert_eq!(b.join("x").await, None, "the tests are published");
    assert_eq!(bed.show("x").await["elections"], 1);
}

#[tokio::test]
async fn c04_five_contenders_elect_one_leader_and_one_successor() {
    let bed = Bed::start().await;
    let mut nodes = Vec::new();
    for n in 0..5 {
        nodes.push(bed.node(&format!("n{n}")).await);
    }
    let mut leader = elect(&nodes).await;
    for _ in 0..2 {
        let followers: Vec<&Node<'_>> =
            nodes.iter().filter(|node| node.worker != leader.0).collect();
        bed.advance(STALE_MS, &followers).await;
        let next = elect(&nodes).await;
        assert!(next.1.term > leader.1.term);
        assert_ne!(next.0, leader.0, "a session that has ended cannot lead again");
        leader = next;
    }
}

/// Lets all nodes join at once. Returns the name of the only leader, and its leadership.
async fn elect(nodes: &[Node<'_>]) -> (String, Leadership) {
    let joined = futures_util::future::join_all(nodes.iter().map(|node| async {
        // A node whose session has ended is refused.
        let (_, answer) = node.join_with("x", json!({})).await;
        leadership(&answer).map(|leadership| (node.worker.clone(), leadership))
    }));
    let mut elected: Vec<_> = joined.await.into_iter().flatten().collect();
    assert_eq!(elected.len(), 1, "{elected:?}");
    elected.remove(0)
}

#[tokio::test]
async fn c05_the_heartbeat_advances_during_the_setup_and_is_gone_after_it() {
    let bed = Bed::start().await;
    let a = bed.node("a").await;
    let leader = a.join("x").await.unwrap();
    let heartbeat = async || bed.show("x").await["master_setup_heartbeat"].clone();
    let first = heartbeat().await;
    bed.advance(10_000, &[]).await;
    assert_eq!(heartbeat().await, first, "only a heartbeat moves it");
    bed.advance(500, &[&a]).await;
    assert!(heartbeat().await.as_str() > first.as_str());
    a.publish("x", &leader, &["t1"]).await;
    assert_eq!(heartbeat().await, Value::Null);
}

#[tokio::test]
async fn c06_tests_of_a_leader_that_died_while_it_published_are_queued_once() {
    let bed = Bed::start().await;
    let tests = ["t0", "t1", "t2", "t3", "t4"];
    for pushed in 0..=tests.len() {
        let build = format!("x{pushed}");
        let (a, b) = (bed.node("a").await, bed.node("b").await);
        let dead = a.join(&build).await.unwrap();
        assert_eq!(a.push(&build, &dead, 0, &tests[..pushed]).await.0, 200);
        bed.advance(STALE_MS, &[&b]).await;
        let leader = b.join(&build).await.expect("the leader is dead");
        let (status, _) = b.post(&build, "reserve", reserve(&b, dead.term)).await;
        assert_eq!(status, 409, "nothing is published");
        b.publish(&build, &leader, &tests).await;
        let mut names = Vec::new();
        for test in b.reserve(&build, leader.term, 100).await {
            names.push(test["test"].as_str().unwrap().to_owned());
        }
        assert_eq!(names, tests, "after {pushed} tests of the dead leader");
        let (status, answer) = b.post(&build, "reserve", reserve(&b, dead.term)).await;
        assert_eq!((status, &answer["code"]), (409, &json!("conflict")), "of the dead term");
    }
}

fn reserve(node: &Node<'_>, term: u64) -> Value {
    json!({ "worker": node.worker, "session": node.session, "term": term, "max": 100 })
}

#[tokio::test]
async fn c07_the_push_of_a_leader_that_wakes_up_is_refused() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let frozen = a.join("x").await.unwrap();
    bed.advance(STALE_MS, &[&b]).await;
    let leader = b.join("x").await.unwrap();
    for answer in [
        a.push("x", &frozen, 0, &["stale"]).await,
        a.finish("x", &frozen, 0).await,
        // After its successor has published, too.
        {
            b.publish("x", &leader, &["t1"]).await;
            a.finish("x", &frozen, 0).await
        },
    ] {
        assert_eq!((answer.0, &answer.1["code"]), (409, &json!("lost")), "{}", answer.1);
    }
    let build = bed.show("x").await;
    assert_eq!((&build["term"], &build["total"]), (&json!(leader.term), &json!(1)));
}

#[tokio::test]
async fn c08_a_slow_leader_that_sends_heartbeats_is_never_replaced() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let leader = a.join("x").await.unwrap();
    for _ in 0..10 {
        bed.advance(STALE_MS, &[&a, &b]).await;
        assert_eq!(b.join("x").await, None);
    }
    a.publish("x", &leader, &["t1"]).await;
    assert_eq!(bed.show("x").await["elections"], 1);
}

#[tokio::test]
async fn c09_after_its_lock_was_taken_away_a_leader_can_neither_push_nor_renew() {
    let bed = Bed::start().await;
    let a = bed.node("a").await;
    let leader = a.join("x").await.unwrap();
    let body = json!({ "token": leader.term, "reason": "a test" });
    assert_eq!(bed.server.post("/v1/locks/build/x/break", body).await.0, 200);
    for answer in [a.push("x", &leader, 0, &["t1"]).await, a.finish("x", &leader, 0).await] {
        assert_eq!((answer.0, &answer.1["code"]), (409, &json!("lost")), "{}", answer.1);
    }
    let renew = json!({ "token": leader.term });
    let (status, answer) = bed.server.post("/v1/locks/build/x/renew", renew).await;
    assert_eq!((status, &answer["code"]), (409, &json!("lost")));
}

#[tokio::test]
async fn c10_after_three_dead_leaders_the_build_fails() {
    let bed = Bed::start().await;
    let watcher = bed.node("watcher").await;
    for n in 1..=3 {
        let node = bed.node(&format!("n{n}")).await;
        assert!(node.join("x").await.is_some(), "election {n}");
        bed.advance(STALE_MS, &[&watcher]).await;
    }
    let (status, answer) = watcher.join_with("x", json!({})).await;
    assert_eq!((status, &answer["role"]), (200, &json!("follower")));
    let build = &answer["build"];
    assert_eq!((&build["master_status"], &build["elections"]), (&json!("failed"), &json!(3)));
    assert_eq!(build["error"]["code"], "WORKER_TIMEOUT");
}

#[tokio::test]
async fn c11_a_follower_of_another_term_is_refused() {
    let bed = Bed::start().await;
    let a = bed.node("a").await;
    let term = a.start("x", json!({}), &["t1"]).await;
    let (status, answer) = a.post("x", "reserve", reserve(&a, term + 1)).await;
    assert_eq!((status, &answer["code"]), (409, &json!("conflict")));
    let detail = answer["detail"].as_str().unwrap();
    assert!(detail.contains("join the build again"), "{detail}");
}

#[tokio::test]
async fn c18_a_wrong_token_renews_nothing_and_an_ended_session_cannot_send_heartbeats() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let leader = a.join("x").await.unwrap();
    let renew = json!({ "token": leader.term + 1 });
    let (status, answer) = bed.server.post("/v1/locks/build/x/renew", renew).await;
    assert_eq!((status, &answer["code"]), (409, &json!("lost")));
    bed.advance(STALE_MS, &[&b]).await;
    assert_eq!(a.beat().await, 409, "the session has ended");
    assert!(b.join("x").await.is_some(), "the heartbeat kept nothing alive");
}

#[tokio::test]
async fn a_repeated_join_with_one_key_returns_the_same_leadership() {
    let bed = Bed::start().await;
    let a = bed.node("a").await;
    let body = json!({ "worker": "a", "session": a.session });
    let join = async || bed.server.post_as("/v1/builds/x/join", "once", body.clone()).await.1;
    let first = leadership(&join().await).unwrap();
    assert_eq!(leadership(&join().await), Some(first), "its answer may have been lost");
}

#[tokio::test]
async fn a_repeated_publication_changes_nothing() {
    let bed = Bed::start().await;
    let a = bed.node("a").await;
    let leader = a.join("x").await.unwrap();
    for _ in 0..2 {
        a.publish("x", &leader, &["t1", "t2"]).await;
    }
    let tests = a.reserve("x", leader.term, 100).await;
    assert_eq!(tests.len(), 2);
    for test in &tests {
        a.ack("x", leader.term, passed(test)).await;
    }
    a.publish("x", &leader, &["t1", "t2"]).await;
    assert_eq!(a.reserve("x", leader.term, 100).await.len(), 0, "no test is queued again");
}

#[tokio::test]
async fn a_build_without_tests_is_finished_when_it_is_published() {
    let bed = Bed::start().await;
    let a = bed.node("a").await;
    a.start("x", json!({}), &[]).await;
    assert_eq!(bed.show("x").await["master_status"], "finished");
}
