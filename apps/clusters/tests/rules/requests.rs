//! Requests: identity of clusters, idempotency keys, names, and errors that name the remedy.

use serde_json::{Value, json};

use crate::bed::{Bed, HOUR_MS, id, path, request, with_key};
use crate::common::key;

fn detail(problem: &Value) -> &str {
    problem["detail"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn name_platform_and_base_domain_are_the_identity_of_a_cluster() {
    let bed = Bed::start().await;
    let first = bed.create("a").await.1;
    assert_eq!(first["id"], id("a"));
    // Another profile, region or owner does not make it another cluster.
    for fields in
        [json!({ "profile": "other" }), json!({ "region": "eu-west-1" }), json!({ "owner": "bob" })]
    {
        let (status, problem) = bed.create_with("a", fields).await;
        assert_eq!((status, &problem["code"]), (409, &json!("conflict")), "{problem}");
        let job = first["job"]["id"].as_str().unwrap();
        assert!(detail(&problem).contains(job), "{problem}");
        assert!(detail(&problem).contains("wait for it, or destroy"), "{problem}");
    }
    assert_eq!(bed.server.get("/v1/clusters").await.1["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_running_cluster_of_another_configuration_is_a_conflict() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.ready(&worker, "a", json!({})).await;
    let (status, answer) = bed.create("a").await;
    assert_eq!((status, &answer["verdict"]), (200, &json!("exists")));
    assert_eq!(answer["job"], Value::Null);
    let (status, problem) = bed.create_with("a", json!({ "version": "4.18.3" })).await;
    assert_eq!((status, &problem["code"]), (409, &json!("conflict")), "{problem}");
    assert!(detail(&problem).contains("tenure cluster show"), "{problem}");
}

#[tokio::test]
async fn a_base_domain_of_another_tenant_is_refused_without_naming_the_tenant() {
    let bed = Bed::start().await;
    let (status, theirs) = bed.create_with("a", json!({ "base_domain": "acme.example.com" })).await;
    assert_eq!(status, 422, "{theirs}");
    // The same answer as for a domain that nobody has.
    let unknown = json!({ "base_domain": "nobody.example.com" });
    let (_, nobodys) = bed.create_with("a", unknown).await;
    let same = detail(&nobodys).replace("nobody.example.com", "acme.example.com");
    assert_eq!(detail(&theirs), same);
    assert!(!detail(&theirs).replace("acme.example.com", "").contains("acme"), "{theirs}");
    let acme = key(&bed.server, "acme", "operator").await;
    for (domain, expected) in [("dev.example.com", 422), ("acme.example.com", 202)] {
        let body = request("a", &json!({ "base_domain": domain }));
        let (status, answer) = bed.server.request(&acme, "POST", "/v1/clusters", Some(&body)).await;
        assert_eq!(status, expected, "{domain}: {answer}");
    }
    // So one key exists in one tenant only.
    let (_, page) = bed.server.get("/v1/clusters?tenant=*").await;
    assert_eq!(page["items"].as_array().map(Vec::len), Some(1), "{page}");
}

#[tokio::test]
async fn a_repeated_request_with_the_same_key_has_the_same_answer() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    let create = request("a", &json!({}));
    let scale = format!("{}/scale", path("a"));
    let (status, first) = with_key(&bed, "POST", "/v1/clusters", "k1", &create).await;
    assert_eq!((status, &first["verdict"]), (202, &json!("started")), "{first}");
    let (status, again) = with_key(&bed, "POST", "/v1/clusters", "k1", &create).await;
    assert_eq!(
        (status, &again["verdict"], &again["job"]["id"]),
        (202, &json!("started"), &first["job"]["id"])
    );
    let job = worker.claim("a").await.unwrap();
    worker.begin_create(&job).await;
    worker.finish_create(&job).await;
    // It is not created again by a late repetition.
    let (status, late) = with_key(&bed, "POST", "/v1/clusters", "k1", &create).await;
    assert!(status < 300, "{late}");
    assert_eq!(bed.lane("a").await, []);
    let (_, first) = with_key(&bed, "POST", &scale, "k2", &json!({ "workers": 5 })).await;
    let (_, again) = with_key(&bed, "POST", &scale, "k2", &json!({ "workers": 5 })).await;
    assert_eq!((&again["verdict"], &again["job"]["id"]), (&json!("started"), &first["job"]["id"]));
    let (status, problem) = with_key(&bed, "POST", &scale, "k2", &json!({ "workers": 6 })).await;
    assert!((400..500).contains(&status), "a key stands for one request: {problem}");
    let (_, first) = with_key(&bed, "DELETE", &path("a"), "k3", &Value::Null).await;
    let (_, again) = with_key(&bed, "DELETE", &path("a"), "k3", &Value::Null).await;
    assert_eq!(again["job"]["id"], first["job"]["id"]);
    let destroy = worker.claim("a").await.unwrap();
    worker.finish_destroy(&destroy).await;
    // A late repetition does not destroy what was created since.
    bed.ready(&worker, "a", json!({})).await;
    let (status, late) = with_key(&bed, "DELETE", &path("a"), "k3", &Value::Null).await;
    assert_eq!((status, &late["job"]["id"]), (202, &first["job"]["id"]), "{late}");
    assert_eq!(bed.lane("a").await, []);
}

#[tokio::test]
async fn hostile_names_are_refused_and_the_answer_stays_small() {
    let bed = Bed::start().await;
    let long = "a".repeat(60_000);
    for name in [
        "",
        "A",
        "a b",
        "a/b",
        "../a",
        "a%2fb",
        "a;rm",
        "a'--",
        "a\"",
        "a\n",
        "a\0",
        "-a",
        "a-",
        "ä",
        "a.b",
        "a:b",
        "{{x}}",
        "$(x)",
        "\u{202e}a",
        &long,
    ] {
        let (status, problem) = bed.create(name).await;
        assert_eq!(status, 422, "{name:?}: {problem}");
        assert!(detail(&problem).contains("name"), "{name:?}: {problem}");
        assert!(problem.to_string().len() < 2_000, "{} bytes", problem.to_string().len());
    }
    for field in ["profile", "owner", "version", "region", "base_domain"] {
        for value in ["", "../../etc/passwd", "a\0b", "a\nb", &long] {
            if field == "owner" && value.contains('/') {
                // It is the value of a tag, which no path is made of.
                continue;
            }
            let (status, problem) = bed.create_with("a", json!({ field: value })).await;
            assert_eq!(status, 422, "{field} {value:?}: {problem}");
            assert!(problem.to_string().len() < 2_000, "{field}: {}", problem.to_string().len());
        }
    }
    for id in ["aws:a.dev.example.com%2f..", "%00", "a%20b", "%e2%80%ae", "..%2f..", "a%0ab"] {
        let (status, problem) = bed.server.get(&format!("/v1/clusters/{id}")).await;
        assert!((400..500).contains(&status), "{id}: {problem}");
    }
    assert_eq!(bed.server.get("/v1/clusters").await.1["items"], json!([]));
}

#[tokio::test]
async fn every_refusal_names_the_remedy() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.ready(&worker, "ready", json!({})).await;
    bed.bring(&worker, "gone", "DESTROYED").await;
    bed.bring(&worker, "stuck", "DESTROY_FAILED").await;
    let missing = bed.server.get(&path("missing")).await;
    let refusals = [
        (missing.clone(), 404, "tenure cluster ls"),
        (bed.destroy("missing").await, 404, "tenure cluster ls"),
        (bed.scale("missing", 3).await, 404, "tenure cluster ls"),
        (bed.extend("missing", HOUR_MS).await, 404, "tenure cluster ls"),
        (bed.scale("ready", 99).await, 422, "between 1 and 30"),
        (bed.scale("ready", 0).await, 422, "between 1 and 30"),
        (bed.scale("gone", 3).await, 409, "READY"),
        (bed.extend("gone", HOUR_MS).await, 409, "cannot be extended"),
        (bed.extend("ready", 1).await, 422, "between 10m and 30d"),
        (bed.extend("ready", 40 * 24 * HOUR_MS).await, 422, "between 10m and 30d"),
        (bed.create("stuck").await, 409, "DESTROYED"),
        (bed.create_with("a", json!({ "profile": "deb" })).await, 422, "dev"),
        (bed.create_with("a", json!({ "version": "3.11" })).await, 422, "4.19.1"),
        (bed.create_with("a", json!({ "region": "moon" })).await, 422, "us-east-1"),
        (bed.create_with("a", json!({ "workers": 31 })).await, 422, "between 1 and 30"),
        (bed.create_with("a", json!({ "ttl_ms": 1 })).await, 422, "between 10m and 30d"),
        (bed.create_with("a", json!({ "owner": "" })).await, 422, "name the person or team"),
        (bed.create_with("a", json!({ "typo": 1 })).await, 422, "typo"),
        (bed.server.get(&format!("{}/outputs", path("gone"))).await, 404, "does not run"),
        (bed.manage("/v1/clusters/queue/redrive").await, 404, "[clusters.sqs]"),
        (bed.server.get("/v1/clusters/queue").await, 404, "[clusters.sqs]"),
    ];
    for ((status, problem), expected, remedy) in refusals {
        assert_eq!(status, expected, "{remedy}: {problem}");
        assert!(detail(&problem).contains(remedy), "{remedy}: {problem}");
    }
}

#[tokio::test]
async fn a_failed_create_that_is_kept_has_to_be_destroyed_first() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.create_with("a", json!({ "preserve_on_failure": true })).await;
    let job = worker.claim("a").await.unwrap();
    worker.begin_create(&job).await;
    let body = json!({
        "outcome": "failed", "code": "QUOTA", "transient": false,
        "merge": { "preserved": true }, "timers": { "JANITOR_DESTROY": null },
    });
    assert_eq!(worker.finish(&job, body).await, "failed");
    let (status, problem) = bed.create("a").await;
    assert_eq!((status, &problem["code"]), (409, &json!("rejected")), "{problem}");
    assert!(detail(&problem).contains("destroy the cluster first"), "{problem}");
    bed.skip(30 * 24 * HOUR_MS).await;
    assert_eq!(bed.lane("a").await, [], "it outlives its time to live");
    assert_eq!(bed.destroy("a").await.0, 202);
}
