//! What each request does in each state, and what happens when operations meet.

use serde_json::{Value, json};

use crate::bed::{Bed, id, path};

const STATES: [&str; 8] = [
    "PENDING",
    "CREATING",
    "READY",
    "SCALING",
    "DESTROYING",
    "DESTROYED",
    "FAILED",
    "DESTROY_FAILED",
];

/// Sends a request to a cluster in each state, and compares the status with the verdict or code.
async fn compare(operation: &str, expected: [(u16, &str); 8]) {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    for (state, (status, word)) in STATES.iter().zip(expected) {
        let name = state.to_lowercase().replace('_', "-");
        bed.bring(&worker, &name, state).await;
        let answer = match operation {
            "CREATE" => bed.create(&name).await,
            "DESTROY" => bed.destroy(&name).await,
            _ => bed.scale(&name, 7).await,
        };
        let field = if status < 300 { "verdict" } else { "code" };
        assert_eq!(
            (answer.0, answer.1[field].as_str()),
            (status, Some(word)),
            "{state}: {answer:?}"
        );
        // Whatever was accepted, one job runs at a time.
        let lane = bed.lane(&name).await;
        let runs = lane.iter().filter(|(_, state)| state == "running" || state == "cancelling");
        assert!(runs.count() <= 1, "{state}: {lane:?}");
        if let Some(claimed) = worker.claim(&name).await {
            assert_eq!(claimed.operation(), operation, "in {state}");
            assert!(!["CREATING", "SCALING", "DESTROYING"].contains(state), "two run in {state}");
            assert!(worker.claim(&name).await.is_none(), "two run from {state}");
        }
    }
}

#[tokio::test]
async fn a_cluster_is_created_only_if_nothing_of_it_exists() {
    let expected = [
        (202, "started"),
        (202, "attached"),
        (200, "exists"),
        (200, "exists"),
        (409, "rejected"),
        (202, "started"),
        (202, "started"),
        (409, "bad_transition"),
    ];
    compare("CREATE", expected).await;
}

#[tokio::test]
async fn a_cluster_is_destroyed_from_any_state_after_what_runs_has_stopped() {
    let expected = [
        (202, "started"),
        (202, "queued"),
        (202, "started"),
        (202, "queued"),
        (202, "attached"),
        (202, "started"),
        (202, "started"),
        (202, "started"),
    ];
    compare("DESTROY", expected).await;
}

#[tokio::test]
async fn only_a_running_cluster_is_scaled() {
    let expected = [
        (409, "bad_transition"),
        (409, "rejected"),
        (202, "started"),
        (202, "queued"),
        (409, "rejected"),
        (409, "bad_transition"),
        (409, "bad_transition"),
        (409, "bad_transition"),
    ];
    compare("SCALE_WORKERS", expected).await;
}

#[tokio::test]
async fn the_states_during_and_after_each_operation_are_those_of_the_document() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.create("a").await;
    assert_eq!(bed.state("a").await, "PENDING");
    let create = worker.claim("a").await.unwrap();
    assert_eq!((create.operation(), bed.state("a").await.as_str()), ("CREATE", "CREATING"));
    worker.begin_create(&create).await;
    worker.finish_create(&create).await;
    assert_eq!(bed.state("a").await, "READY");
    bed.scale("a", 5).await;
    let scale = worker.claim("a").await.unwrap();
    assert_eq!((scale.operation(), bed.state("a").await.as_str()), ("SCALE_WORKERS", "SCALING"));
    // A cluster with the wrong number of workers still runs.
    assert_eq!(worker.fail(&scale, false).await, "failed");
    assert_eq!(bed.state("a").await, "READY");
    bed.destroy("a").await;
    let destroy = worker.claim("a").await.unwrap();
    assert_eq!((destroy.operation(), bed.state("a").await.as_str()), ("DESTROY", "DESTROYING"));
    assert_eq!(worker.fail(&destroy, false).await, "failed");
    assert_eq!(bed.state("a").await, "DESTROY_FAILED");
    bed.destroy("a").await;
    let destroy = worker.claim("a").await.unwrap();
    worker.finish_destroy(&destroy).await;
    assert_eq!(bed.state("a").await, "DESTROYED");
}

#[tokio::test]
async fn a_create_during_a_destroy_is_refused_with_the_job_that_destroys() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.ready(&worker, "a", json!({})).await;
    let destroy = bed.destroy("a").await.1["job"]["id"].clone();
    for running in [false, true] {
        if running {
            worker.claim("a").await.unwrap();
        }
        let (status, problem) = bed.create("a").await;
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert_eq!((status, &problem["code"]), (409, &json!("rejected")), "{problem}");
        assert!(detail.contains(destroy.as_str().unwrap()), "{detail}");
        assert!(detail.contains("DESTROY"), "{detail}");
    }
}

#[tokio::test]
async fn a_second_destroy_attaches_and_both_callers_get_the_same_job() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.ready(&worker, "a", json!({})).await;
    let first = bed.destroy("a").await.1["job"]["id"].clone();
    assert_eq!(bed.destroy("a").await.1["job"]["id"], first);
    let job = worker.claim("a").await.unwrap();
    let (status, answer) = bed.destroy("a").await;
    assert_eq!((status, &answer["verdict"]), (202, &json!("attached")));
    assert_eq!(answer["job"]["id"], first);
    // Also between two attempts.
    assert_eq!(worker.fail(&job, true).await, "backoff");
    assert_eq!(bed.destroy("a").await.1["job"]["id"], first);
}

/// Lets the time to live of a cluster elapse.
async fn expire(bed: &Bed, name: &str) {
    let path = format!("/v1/resources/cluster/{}/timers/JANITOR_DESTROY", id(name));
    let (status, answer) = bed.server.put(&path, json!({ "after_ms": 0 })).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn a_destroy_replaces_a_waiting_janitor_destroy_and_does_not_depend_on_it() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.ready(&worker, "a", json!({})).await;
    expire(&bed, "a").await;
    assert_eq!(bed.lane("a").await, [("JANITOR_DESTROY".to_owned(), "queued".to_owned())]);
    let (_, answer) = bed.destroy("a").await;
    assert_eq!(answer["verdict"], "replaced", "{answer}");
    assert_eq!(bed.lane("a").await, [("DESTROY".to_owned(), "queued".to_owned())]);
    // One that runs may do nothing, so the destroy of the user runs after it.
    bed.ready(&worker, "b", json!({})).await;
    expire(&bed, "b").await;
    let janitor = worker.claim("b").await.unwrap();
    let (_, answer) = bed.destroy("b").await;
    assert_eq!(answer["verdict"], "queued", "{answer}");
    worker.skip(&janitor, None).await;
    let destroy = worker.claim("b").await.unwrap();
    assert_eq!(destroy.id(), &answer["job"]["id"]);
    worker.finish_destroy(&destroy).await;
    assert_eq!(bed.state("b").await, "DESTROYED");
}

#[tokio::test]
async fn a_janitor_destroy_joins_a_destroy_or_another_one() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    for name in ["waits", "runs", "twice"] {
        bed.ready(&worker, name, json!({})).await;
    }
    bed.destroy("waits").await;
    bed.destroy("runs").await;
    worker.claim("runs").await.unwrap();
    for name in ["waits", "runs", "twice", "twice"] {
        expire(&bed, name).await;
    }
    for (name, operation) in
        [("waits", "DESTROY"), ("runs", "DESTROY"), ("twice", "JANITOR_DESTROY")]
    {
        let lane = bed.lane(name).await;
        assert_eq!((lane.len(), lane[0].0.as_str()), (1, operation), "{name}: {lane:?}");
    }
}

#[tokio::test]
async fn a_janitor_destroy_cancels_a_create_and_a_scale() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    for (name, state) in [("a", "CREATING"), ("b", "SCALING")] {
        bed.bring(&worker, name, state).await;
        expire(&bed, name).await;
        let lane = bed.lane(name).await;
        let states: Vec<&str> = lane.iter().map(|(_, state)| state.as_str()).collect();
        assert!(states.contains(&"cancelling") && states.contains(&"queued"), "{lane:?}");
    }
}

#[tokio::test]
async fn what_is_destroyed_does_not_expire() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.bring(&worker, "a", "DESTROYED").await;
    expire(&bed, "a").await;
    assert_eq!(bed.lane("a").await, []);
    bed.ready(&worker, "b", json!({ "ttl_ms": 0 })).await;
    bed.skip(365 * 24 * crate::bed::HOUR_MS).await;
    assert_eq!(bed.lane("b").await, []);
}

#[tokio::test]
async fn a_purge_gives_way_to_whatever_the_user_wants() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    let purge = |name: &'static str| {
        let path = format!("/v1/resources/cluster/{}/timers/PURGE", id(name));
        let bed = &bed;
        async move { bed.server.put(&path, json!({ "after_ms": 0 })).await }
    };
    for (name, operation) in [("a", "CREATE"), ("b", "DESTROY")] {
        bed.bring(&worker, name, "DESTROYED").await;
        purge(name).await;
        assert_eq!(bed.lane(name).await[0].0, "PURGE");
        let answer = if name == "a" { bed.create(name).await } else { bed.destroy(name).await };
        assert_eq!(answer.0, 202, "{answer:?}");
        assert_eq!(bed.lane(name).await, [(operation.to_owned(), "queued".to_owned())]);
    }
    // One that runs is asked to stop, and the cluster is created afterwards.
    bed.bring(&worker, "c", "DESTROYED").await;
    purge("c").await;
    let running = worker.claim("c").await.unwrap();
    assert_eq!(bed.create("c").await.1["verdict"], "queued");
    assert_eq!(worker.finish(&running, json!({ "outcome": "cancelled" })).await, "cancelled");
    assert_eq!(worker.claim("c").await.unwrap().operation(), "CREATE");
    // It waits for nothing that exists.
    for state in ["READY", "FAILED", "CREATING", "DESTROYING"] {
        let name: &'static str = match state {
            "READY" => "d",
            "FAILED" => "e",
            "CREATING" => "f",
            _ => "g",
        };
        bed.bring(&worker, name, state).await;
        purge(name).await;
        let lane = bed.lane(name).await;
        assert!(lane.iter().all(|(operation, _)| operation != "PURGE"), "{state}: {lane:?}");
    }
}

#[tokio::test]
async fn a_destroy_while_a_create_waits_or_backs_off_ends_it_and_removes_what_it_left() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.create("waits").await;
    bed.create("rests").await;
    let job = worker.claim("rests").await.unwrap();
    worker.begin_create(&job).await;
    assert_eq!(worker.fail(&job, true).await, "backoff");
    // Between two attempts it has the state before the job.
    assert_eq!(bed.state("rests").await, "PENDING");
    for name in ["waits", "rests"] {
        let (status, answer) = bed.destroy(name).await;
        assert_eq!(status, 202, "{answer}");
        assert_eq!(bed.lane(name).await, [("DESTROY".to_owned(), "queued".to_owned())]);
        let destroy = worker.claim(name).await.unwrap();
        worker.finish_destroy(&destroy).await;
        assert_eq!(bed.state(name).await, "DESTROYED");
    }
    assert_eq!(bed.job(job.id()).await["state"], "cancelled");
}

#[tokio::test]
async fn waiting_scales_are_replaced_and_the_running_one_is_not() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.ready(&worker, "a", json!({})).await;
    let first = bed.scale("a", 4).await.1["job"]["id"].clone();
    assert_eq!(bed.scale("a", 5).await.1["verdict"], "replaced");
    let running = worker.claim("a").await.unwrap();
    assert_eq!(running.job["args"], json!({ "workers": 5 }));
    assert_eq!(bed.scale("a", 6).await.1["verdict"], "queued");
    assert_eq!(bed.scale("a", 7).await.1["verdict"], "replaced");
    assert_eq!(bed.job(&first).await["state"], "superseded");
    worker.finish(&running, json!({ "outcome": "ok" })).await;
    assert_eq!(worker.claim("a").await.unwrap().job["args"], json!({ "workers": 7 }));
}

#[tokio::test]
async fn operations_of_the_engine_cannot_be_submitted_by_hand() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.ready(&worker, "a", json!({})).await;
    for (operation, remedy) in [
        ("CREATE", "POST /v1/clusters"),
        ("SCALE_WORKERS", "tenure cluster scale"),
        ("JANITOR_DESTROY", "use DESTROY"),
        ("PURGE", "use DESTROY"),
    ] {
        let path = format!("/v1/resources/cluster/{}/jobs", id("a"));
        let body = json!({ "operation": operation, "args": { "workers": 9_999 } });
        let (status, problem) = bed.server.post(&path, body.clone()).await;
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert_eq!(status, 409, "{operation}: {problem}");
        assert!(detail.contains(remedy), "{operation}: {detail}");
        let requests = json!({ "requests": [{ "method": "POST", "path": path, "body": body }] });
        let (_, batch) = bed.server.post("/v1/batch", requests).await;
        assert!(!batch.to_string().contains("202"), "{operation}: {batch}");
    }
    assert_eq!(bed.lane("a").await, []);
}

#[tokio::test]
async fn a_cluster_whose_create_never_began_is_shown_with_what_its_name_tells() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.bring(&worker, "a", "PENDING").await;
    let shown = bed.show("a").await;
    let of_name = ["name", "platform", "base_domain"].map(|field| shown[field].clone());
    assert_eq!(of_name, ["a", "aws", "dev.example.com"]);
    assert_eq!((&shown["state"], &shown["operation"]), (&json!("PENDING"), &Value::Null));
    assert_eq!((&shown["created_at"], &shown["expires_at"]), (&Value::Null, &Value::Null));
    let (status, list) = bed.server.get("/v1/clusters").await;
    assert_eq!((status, list["items"].as_array().map(Vec::len)), (200, Some(1)), "{list}");
    for (verb, expected) in [("outputs", 404), ("logs", 200), ("history", 200), ("lock", 200)] {
        let (status, answer) = bed.server.get(&format!("{}/{verb}", path("a"))).await;
        assert_eq!(status, expected, "{verb}: {answer}");
    }
    let (status, problem) = bed.extend("a", crate::bed::HOUR_MS).await;
    assert_eq!((status, &problem["code"]), (409, &json!("conflict")), "{problem}");
}
