//! What becomes of tests: lost, failed, requeued, flaky, and how often.

use serde_json::{Value, json};

use crate::bed::{Bed, STALE_MS, failed, passed, result};

#[tokio::test]
async fn c13_a_test_of_a_frozen_node_is_taken_by_another_and_finished_once() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let term = a.start("x", json!({}), &["t1"]).await;
    let frozen = a.take("x", term).await;
    assert!(b.reserve("x", term, 1).await.is_empty());
    bed.advance(STALE_MS, &[&b]).await;
    let test = b.take("x", term).await;
    assert_eq!((&test["test"], &test["losses"]), (&json!("t1"), &json!(1)));
    assert_eq!(b.ack("x", term, passed(&test)).await, "passed");
    assert_eq!(a.ack("x", term, failed(&frozen)).await, "lost", "it wakes up later");
    let report = bed.report("x").await;
    assert_eq!((&report["passed"], &report["failed"]), (&json!(1), &json!(0)));
}

#[tokio::test]
async fn c14_a_released_node_hands_its_tests_over_at_once() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let term = a.start("x", json!({}), &["t1"]).await;
    b.join("x").await;
    let lost = a.take("x", term).await;
    let (status, answer) = b.post("x", "release", json!({ "worker": "a" })).await;
    assert_eq!((status, &answer["released"]), (200, &json!(1)), "{answer}");
    assert_eq!(b.take("x", term).await["test"], "t1", "without a step of the clock");
    assert_eq!(a.ack("x", term, passed(&lost)).await, "lost");
    let (status, answer) = b.post("x", "release", json!({ "worker": "a" })).await;
    assert_eq!(status, 404, "{answer}");
}

#[tokio::test]
async fn c15_no_requeue_is_granted_to_a_result_that_comes_too_late() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let rules = json!({ "max_requeues": 5, "requeue_tolerance": 1.0 });
    let term = a.start("x", rules, &["t1"]).await;
    let late = a.take("x", term).await;
    bed.advance(STALE_MS, &[&b]).await;
    b.take("x", term).await;
    assert_eq!(a.ack("x", term, failed(&late)).await, "lost");
    assert_eq!(bed.show("x").await["requeues"], 0);
}

#[tokio::test]
async fn c16_a_build_is_not_finished_while_a_lost_test_runs() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let term = a.start("x", json!({}), &["t1"]).await;
    a.take("x", term).await;
    bed.advance(STALE_MS, &[&b]).await;
    let answer = b.reserve_with("x", term, 1, Vec::new()).await;
    assert_eq!((&answer["finished"], &answer["remaining"]), (&json!(false), &json!(1)));
    let test = &answer["tests"][0];
    assert_eq!(bed.show("x").await["master_status"], "ready");
    let late = bed.node("late").await;
    let answer = late.reserve_with("x", term, 1, Vec::new()).await;
    assert_eq!(answer["finished"], false, "it is running");
    b.ack("x", term, passed(test)).await;
    let answer = late.reserve_with("x", term, 1, Vec::new()).await;
    assert_eq!(answer["finished"], true);
}

#[tokio::test]
async fn c20_an_acknowledged_test_is_never_run_again() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let term = a.start("x", json!({}), &["t1"]).await;
    let test = a.take("x", term).await;
    assert_eq!(a.ack("x", term, passed(&test)).await, "passed");
    assert_eq!(a.ack("x", term, passed(&test)).await, "passed", "a repetition changes nothing");
    bed.advance(2 * STALE_MS, &[&b]).await;
    assert!(b.reserve("x", term, 10).await.is_empty());
    assert_eq!(bed.report("x").await["workers"], workers(&[("a", 1, 0)]));
}

fn workers(rows: &[(&str, u64, u64)]) -> Value {
    let row = |(worker, tests, failed): &(&str, u64, u64)| {
        let duration_ms = tests * 7;
        json!({ "worker": worker, "tests": tests, "failed": failed, "duration_ms": duration_ms })
    };
    rows.iter().map(row).collect()
}

#[tokio::test]
async fn c21_a_node_leaves_its_own_failure_to_others_once() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let rules = json!({ "max_requeues": 3, "requeue_tolerance": 1.0 });
    let term = a.start("x", rules, &["t1", "t2"]).await;
    let tests = a.reserve("x", term, 2).await;
    assert_eq!(a.ack("x", term, passed(&tests[1])).await, "passed");
    assert_eq!(a.ack("x", term, failed(&tests[0])).await, "requeued");
    assert!(a.reserve("x", term, 1).await.is_empty(), "left to others");
    bed.advance(1_000, &[&a, &b]).await;
    let test = a.take("x", term).await;
    assert_eq!(test["failures"], 1, "nobody else has taken it");
    assert_eq!(a.ack("x", term, failed(&test)).await, "requeued");
    let test = b.take("x", term).await;
    assert_eq!(test["failures"], 2, "another node gets it at once");
}

#[tokio::test]
async fn c22_the_limits_of_a_test_and_of_the_build_hold_at_their_boundary() {
    let bed = Bed::start().await;
    let a = bed.node("a").await;
    let b = bed.node("b").await;
    // Two requeues per test; one in ten of ten tests.
    let tests: Vec<String> = (0..10).map(|n| format!("t{n}")).collect();
    let tests: Vec<&str> = tests.iter().map(String::as_str).collect();
    let rules = json!({ "max_requeues": 2, "requeue_tolerance": 0.2 });
    let term = a.start("x", rules, &tests).await;
    let reserved = a.reserve("x", term, 10).await;
    assert_eq!(a.ack("x", term, failed(&reserved[0])).await, "requeued");
    let again = b.take("x", term).await;
    assert_eq!(b.ack("x", term, failed(&again)).await, "requeued");
    let third = a.take("x", term).await;
    assert_eq!(a.ack("x", term, failed(&third)).await, "failed", "the limit of the test");
    assert_eq!(a.ack("x", term, failed(&reserved[1])).await, "failed", "the limit of the build");
    let build = bed.show("x").await;
    assert_eq!((&build["requeues"], &build["requeues_max"]), (&json!(2), &json!(2)));
}

#[tokio::test]
async fn c22_of_two_failures_at_the_last_requeue_one_is_granted_it() {
    let bed = Bed::start().await;
    for round in 0..10 {
        let build = format!("x{round}");
        let (a, b) = (bed.node("a").await, bed.node("b").await);
        let rules = json!({ "max_requeues": 1, "requeue_tolerance": 0.5 });
        let term = a.start(&build, rules, &["t1", "t2"]).await;
        let (one, two) = (a.take(&build, term).await, b.take(&build, term).await);
        let (one, two) =
            tokio::join!(a.ack(&build, term, failed(&one)), b.ack(&build, term, failed(&two)));
        let mut verdicts = [one, two];
        verdicts.sort();
        assert_eq!(verdicts, ["failed", "requeued"]);
    }
}

#[tokio::test]
async fn a_repeated_acknowledgement_of_a_failure_uses_up_no_second_requeue() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let rules = json!({ "max_requeues": 2, "requeue_tolerance": 1.0 });
    let term = a.start("x", rules, &["t1", "t2"]).await;
    let test = a.reserve("x", term, 1).await.remove(0);
    for _ in 0..3 {
        assert_eq!(a.ack("x", term, failed(&test)).await, "requeued");
    }
    assert_eq!(bed.show("x").await["requeues"], 1);
    for test in b.reserve("x", term, 2).await {
        b.ack("x", term, passed(&test)).await;
    }
    assert_eq!(a.ack("x", term, failed(&test)).await, "requeued", "it stays what it was");
}

#[tokio::test]
async fn c26_lost_runs_are_reported_with_the_node_that_finished_the_test() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let term = a.start("x", json!({}), &["t1", "t2"]).await;
    a.reserve("x", term, 2).await;
    bed.advance(STALE_MS, &[&b]).await;
    for _ in 0..2 {
        b.ack("x", term, passed(&b.take("x", term).await)).await;
    }
    let report = bed.report("x").await;
    assert_eq!(report["losses"], 2);
    let lost: Vec<_> = report["lost_tests"].as_array().unwrap().iter().collect();
    assert_eq!(lost.len(), 2);
    assert!(lost.iter().all(|test| test["worker"] == "b" && test["losses"] == 1), "{lost:?}");
}

#[tokio::test]
async fn a_test_that_kills_its_nodes_fails_after_three_of_them() {
    let bed = Bed::start().await;
    let watcher = bed.node("watcher").await;
    let first = bed.node("n0").await;
    let term = first.start("x", json!({}), &["deadly"]).await;
    for n in 1..=3 {
        let node = bed.node(&format!("n{n}")).await;
        node.take("x", term).await;
        bed.advance(STALE_MS, &[&watcher]).await;
    }
    let answer = watcher.reserve_with("x", term, 1, Vec::new()).await;
    assert_eq!((&answer["tests"], &answer["finished"]), (&json!([]), &json!(true)), "{answer}");
    let report = bed.report("x").await;
    let failure = &report["failures"][0];
    assert_eq!((&failure["code"], &failure["losses"]), (&json!("NODE_LOST"), &json!(3)));
}

#[tokio::test]
async fn c27_a_test_that_fails_and_passes_is_flaky_and_does_not_fail_the_build() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let term = a.start("x", json!({}), &["t1"]).await;
    let test = a.take("x", term).await;
    assert_eq!(a.ack("x", term, failed(&test)).await, "requeued");
    let test = b.take("x", term).await;
    assert_eq!(b.ack("x", term, passed(&test)).await, "passed");
    let report = bed.report("x").await;
    assert_eq!((&report["passed"], &report["failed"]), (&json!(1), &json!(0)));
    let flaky = &report["flaky_tests"][0];
    assert_eq!((&flaky["test"], &flaky["failures"]), (&json!("t1"), &json!(1)));
    assert_eq!(flaky["code"], "EXIT_1", "what failed is kept");
}

#[tokio::test]
async fn a_test_that_is_known_to_be_flaky_does_not_fail_the_build() {
    let bed = Bed::start().await;
    let a = bed.node("a").await;
    let term = a.start("x", json!({ "max_failures": 1 }), &["t1"]).await;
    let test = a.take("x", term).await;
    let mut result = failed(&test);
    result["known_flaky"] = json!(true);
    assert_eq!(a.ack("x", term, result.clone()).await, "flaky");
    assert_eq!(a.ack("x", term, result).await, "flaky", "a repetition changes nothing");
    let report = bed.report("x").await;
    assert_eq!((&report["flaky"], &report["failed"]), (&json!(1), &json!(0)));
    assert_eq!(bed.show("x").await["stopped"], Value::Null);
}

#[tokio::test]
async fn after_the_maximum_of_failures_no_test_is_reserved() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let rules = json!({ "max_requeues": 0, "max_failures": 2 });
    let term = a.start("x", rules, &["t1", "t2", "t3", "t4"]).await;
    let tests = a.reserve("x", term, 2).await;
    assert_eq!(a.ack("x", term, failed(&tests[0])).await, "failed");
    let third = b.take("x", term).await;
    assert_eq!(a.ack("x", term, failed(&tests[1])).await, "failed");
    let answer = b.reserve_with("x", term, 1, vec![passed(&third)]).await;
    assert_eq!(answer["stopped"]["code"], "too_many_failures", "{answer}");
    assert_eq!(answer["tests"], json!([]));
    assert_eq!(answer["verdicts"], json!(["passed"]), "a result that comes after it counts");
}

#[tokio::test]
async fn a_test_that_was_not_run_goes_to_another_node_and_is_not_counted() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let term = a.start("x", json!({}), &["t1"]).await;
    let test = a.take("x", term).await;
    assert_eq!(a.ack("x", term, result(&test, "not_run")).await, "returned");
    let test = b.take("x", term).await;
    assert_eq!((&test["failures"], &test["losses"]), (&json!(0), &json!(0)));
}

#[tokio::test]
async fn a_retry_runs_the_failures_of_one_node_only() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let rules = json!({ "max_requeues": 0, "max_failures": 2 });
    let term = a.start("x", rules, &["t1", "t2"]).await;
    let (one, two) = (a.take("x", term).await, b.take("x", term).await);
    a.ack("x", term, failed(&one)).await;
    b.ack("x", term, failed(&two)).await;
    let (status, answer) = a.post("x", "retry", json!({ "worker": "a" })).await;
    assert_eq!((status, &answer["tests"]), (200, &json!(1)), "{answer}");
    let again = a.take("x", term).await;
    assert_eq!(again["test"], one["test"]);
    assert_eq!(a.ack("x", term, passed(&again)).await, "passed");
    let report = bed.report("x").await;
    assert_eq!((&report["passed"], &report["failed"]), (&json!(1), &json!(1)));
    assert_eq!(report["failures"][0]["test"], two["test"]);
}

#[tokio::test]
async fn a_long_message_is_shortened_and_a_bad_code_uses_up_nothing() {
    let bed = Bed::start().await;
    let a = bed.node("a").await;
    let term = a.start("x", json!({}), &["t1", "t2"]).await;
    let tests = a.reserve("x", term, 1).await;
    let mut bad = failed(&tests[0]);
    bad["code"] = json!("two\nlines");
    let body = json!({
        "worker": "a", "session": a.session, "term": term, "max": 1, "results": [bad]
    });
    let (status, answer) = a.post("x", "reserve", body).await;
    assert_eq!((status, &answer["code"]), (422, &json!("invalid")), "{answer}");
    let build = bed.show("x").await;
    assert_eq!((&build["requeues"], &build["running"]), (&json!(0), &json!(1)), "t2 is free");
    let mut long = failed(&tests[0]);
    long["message"] = json!(format!("{}\u{0}the end", "x".repeat(5_000)));
    assert_eq!(a.ack("x", term, long).await, "requeued");
    let report = bed.report("x").await;
    let test = &report["tests"].as_array().unwrap()[0];
    assert!(test["message"].as_str().unwrap().ends_with("xthe end"), "{test}");
}

#[tokio::test]
async fn a_test_that_has_lost_a_node_is_reserved_alone() {
    let bed = Bed::start().await;
    let (a, b) = (bed.node("a").await, bed.node("b").await);
    let term = a.start("x", json!({}), &["t1", "t2", "t3"]).await;
    assert_eq!(a.reserve("x", term, 2).await.len(), 2);
    bed.advance(STALE_MS, &[&b]).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let tests = b.reserve("x", term, 10).await;
        assert_eq!(tests.len(), 1, "{tests:?}");
        seen.push(tests[0]["test"].as_str().unwrap().to_owned());
        b.ack("x", term, passed(&tests[0])).await;
    }
    seen.sort();
    assert_eq!(seen, ["t1", "t2", "t3"]);
    let report = bed.report("x").await;
    assert_eq!(report["losses"], 2, "{report}");
}

/// Takes tests until none is left. In about three of ten runs the session is taken away before the
/// result. Returns the numbers of counted and of refused results.
async fn work_with_theft(bed: &Bed, n: u64, term: u64) -> (usize, usize) {
    let (mut counted, mut stolen, mut random) = (0, 0, 0x5eed + n);
    let mut node = bed.node(&format!("n{n}")).await;
    loop {
        let answer = node.reserve_with("x", term, 1, Vec::new()).await;
        if answer["finished"] == true {
            return (counted, stolen);
        }
        let Some(test) = answer["tests"].as_array().and_then(|tests| tests.first()) else {
            tokio::task::yield_now().await;
            continue;
        };
        random = random * 48_271 % 2_147_483_647;
        let is_stolen = random % 10 < 3;
        if is_stolen {
            let path = format!("/v1/sessions/{}", node.session);
            assert_eq!(bed.server.delete(&path).await.0, 200);
        }
        let verdict = node.ack("x", term, passed(test)).await;
        assert_eq!(verdict, if is_stolen { "lost" } else { "passed" });
        if is_stolen {
            stolen += 1;
            node = bed.node(&format!("n{n}")).await;
        } else {
            counted += 1;
        }
    }
}

#[tokio::test]
async fn c17_with_three_of_ten_runs_stolen_every_test_counts_once() {
    const TESTS: usize = 120;
    let bed = Bed::start().await;
    let names: Vec<String> = (0..TESTS).map(|n| format!("t{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let leader = bed.node("leader").await;
    let term = leader.start("x", json!({ "max_losses": 40 }), &names).await;
    let nodes = (0..6).map(|n| work_with_theft(&bed, n, term));
    let ended = futures_util::future::join_all(nodes).await;
    let counted: usize = ended.iter().map(|(counted, _)| counted).sum();
    let stolen: usize = ended.iter().map(|(_, stolen)| stolen).sum();
    let report = bed.report("x").await;
    assert_eq!((&report["passed"], counted), (&json!(TESTS), TESTS), "{report}");
    assert!(stolen > TESTS / 10, "{stolen} runs were stolen");
    assert_eq!(report["losses"], stolen, "each theft is recorded");
}
