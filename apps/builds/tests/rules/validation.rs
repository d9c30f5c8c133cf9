//! Requests that are refused, and what they say.

use serde_json::json;

use crate::bed::Bed;
use crate::common::key;

#[tokio::test]
async fn nodes_with_another_list_of_tests_are_refused() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let list = |digit: &str| json!({ "tests": { "total": 2, "digest": digit.repeat(64) } });
    let (status, _) = a.join_with("x", list("1")).await;
    assert_eq!(status, 200);
    let (status, answer) = b.join_with("x", list("2")).await;
    assert_eq!((status, &answer["code"]), (409, &json!("rejected")));
    let detail = answer["detail"].as_str().unwrap();
    assert!(detail.contains("111111111111") && detail.contains("same list"), "{detail}");
    assert_eq!(b.join_with("x", list("1")).await.0, 200);
}

#[tokio::test]
async fn a_node_that_is_retried_does_not_create_the_build_again() {
    let bed = Bed::start().await;
    let a = bed.node("a").await;
    let (status, answer) = a.join_with("gone", json!({ "existing": true })).await;
    assert_eq!((status, &answer["code"]), (404, &json!("not_found")));
    let detail = answer["detail"].as_str().unwrap();
    assert!(detail.contains("too old"), "{detail}");
    assert_eq!(bed.server.get("/v1/builds/gone").await.0, 404);
}

#[tokio::test]
async fn rules_are_checked_all_at_once() {
    let bed = Bed::start().await;
    let a = bed.node("a").await;
    let rules = json!({ "timeout_ms": 1, "requeue_tolerance": 1.5, "max_failures": 0 });
    let (status, answer) = a.join_with("x", json!({ "rules": rules })).await;
    assert_eq!(status, 422, "{answer}");
    let detail = answer["detail"].as_str().unwrap();
    for part in ["timeout_ms", "requeue_tolerance", "max_failures"] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
}

#[tokio::test]
async fn ids_may_have_slashes_and_others_are_refused_with_the_character() {
    let bed = Bed::start().await;
    let a = bed.node("a").await;
    let term = a.start("acme%2Fweb%2F7", json!({}), &["t1"]).await;
    assert_eq!(a.reserve("acme%2Fweb%2F7", term, 1).await.len(), 1);
    let build = bed.show("acme%2Fweb%2F7").await;
    assert_eq!(build["build"], "acme/web/7");
    let (status, answer) = bed.server.get("/v1/builds/a%20b").await;
    assert_eq!(status, 422);
    assert!(answer["detail"].as_str().unwrap().contains("' '"), "{answer}");
}

#[tokio::test]
async fn publications_are_checked_before_anything_is_stored() {
    let bed = Bed::start().await;
    let a = bed.node("a").await;
    let leader = a.join("x").await.unwrap();
    for (tests, part) in [(vec![""], "one line"), (vec!["a\nb"], "one line")] {
        let (status, answer) = a.push("x", &leader, 0, &tests).await;
        assert_eq!(status, 422, "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains(part), "{answer}");
    }
    assert_eq!(a.push("x", &leader, 0, &["t1"]).await.0, 200);
    let (status, answer) = a
        .post(
            "x",
            "publish",
            json!({ "job": leader.job, "term": leader.term, "first": 1, "tests": [],
                    "total": 5, "digest": "0".repeat(64) }),
        )
        .await;
    assert_eq!(status, 422, "{answer}");
    assert!(answer["detail"].as_str().unwrap().contains("total is 1"), "{answer}");
}

#[tokio::test]
async fn builds_of_other_tenants_are_neither_seen_nor_acknowledged() {
    let bed = Bed::start().await;
    let a = bed.node("a").await;
    let term = a.start("x", json!({}), &["t1"]).await;
    let test = a.take("x", term).await;
    let other = key(&bed.server, "other", "worker").await;
    assert_eq!(bed.server.request(&other, "GET", "/v1/builds/x", None).await.0, 404);
    let join = json!({ "worker": "eve" });
    let path = "/v1/builds/x/join";
    assert_eq!(bed.server.request(&other, "POST", path, Some(&join)).await.0, 200);
    let ack = json!({ "worker": "eve", "term": term, "results": [
        { "job": test["job"], "token": test["token"], "test": "t1", "outcome": "passed" }
    ] });
    let (status, answer) = bed.server.request(&other, "POST", "/v1/builds/x/ack", Some(&ack)).await;
    assert_eq!((status, &answer["code"]), (409, &json!("rejected")), "{answer}");
    // Nor with tests of her own in the same term.
    let post = async |path: &str, body| {
        let (status, answer) = bed.server.request(&other, "POST", path, Some(&body)).await;
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let session = post("/v1/sessions", json!({ "name": "eve", "ttl_ms": 60_000 })).await;
    let join = json!({ "worker": "eve", "session": session["session"] });
    let leadership = &post("/v1/builds/x/join", join).await["leadership"];
    assert_eq!(leadership["term"], term);
    let publish = json!({
        "job": leadership["job"], "term": term, "first": 0, "tests": ["t1"], "total": 1,
        "digest": "0".repeat(64),
    });
    post("/v1/builds/x/publish", publish).await;
    let (status, answer) = bed.server.request(&other, "POST", "/v1/builds/x/ack", Some(&ack)).await;
    assert_eq!((status, &answer["code"]), (404, &json!("not_found")), "{answer}");
    assert_eq!(bed.show("x").await["remaining"], 1);
}

#[tokio::test]
async fn tests_count_only_if_all_are_stored_and_are_those_that_nodes_know() {
    let bed = Bed::start().await;
    let a = bed.node("a").await;
    let tests = json!({ "tests": { "total": 3, "digest": "1".repeat(64) } });
    let (_, answer) = a.join_with("x", tests).await;
    let leader = crate::bed::leadership(&answer).unwrap();
    let finish = async |total: usize, digest: &str| {
        let body = json!({
            "job": leader.job, "term": leader.term, "first": total, "tests": [], "total": total,
            "digest": digest.repeat(64),
        });
        a.post("x", "publish", body).await
    };
    assert_eq!(a.push("x", &leader, 1, &["t2", "t3"]).await.0, 200);
    let (status, answer) = finish(3, "1").await;
    assert_eq!((status, &answer["code"]), (409, &json!("rejected")), "{answer}");
    assert!(answer["detail"].as_str().unwrap().contains("2 tests are stored, not 3"), "{answer}");
    assert_eq!(a.push("x", &leader, 0, &["t1"]).await.0, 200);
    let (status, answer) = finish(3, "2").await;
    assert_eq!((status, &answer["code"]), (409, &json!("rejected")), "{answer}");
    assert_eq!(finish(3, "1").await.0, 200);
}

#[tokio::test]
async fn jobs_of_builds_cannot_be_submitted_by_hand() {
    let bed = Bed::start().await;
    for path in ["/v1/resources/build/x/jobs", "/v1/resources/build-test/x:1:000000/jobs"] {
        let (status, answer) = bed.server.post(path, json!({ "operation": "setup" })).await;
        assert_eq!((status, &answer["code"]), (409, &json!("rejected")), "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains("tenure build run"), "{answer}");
    }
    let a = bed.node("a").await;
    // A resource that is no build is named instead of tried again and again.
    bed.server.put("/v1/resources/build/y", json!({ "spec": { "a": 1 } })).await;
    let (status, answer) = a.join_with("y", json!({})).await;
    assert_eq!((status, &answer["code"]), (409, &json!("conflict")), "{answer}");
}
