//! Who may do what: roles, tenants, and the audit log.

use serde_json::{Value, json};

use crate::bed::{Bed, HOUR_MS, id, path, request};
use crate::common::{key, rules};

/// A request, and the statuses for a viewer, a worker and an operator of the tenant.
type Case = (&'static str, String, Value, [u16; 3]);

#[tokio::test]
async fn each_route_has_the_role_that_its_effect_needs() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.ready(&worker, "a", json!({})).await;
    let keys = [
        key(&bed.server, "default", "viewer").await,
        key(&bed.server, "default", "worker").await,
        key(&bed.server, "default", "operator").await,
    ];
    let one = path("a");
    let none = Value::Null;
    let reads = [200, 200, 200];
    let cases: [Case; 15] = [
        ("GET", "/v1/clusters".to_owned(), none.clone(), reads),
        ("GET", "/v1/profiles".to_owned(), none.clone(), reads),
        ("GET", one.clone(), none.clone(), reads),
        ("GET", format!("{one}/logs"), none.clone(), reads),
        ("GET", format!("{one}/outputs"), none.clone(), reads),
        ("GET", format!("{one}/history"), none.clone(), reads),
        ("GET", format!("{one}/lock"), none.clone(), reads),
        // A snapshot is missing here; an operator comes that far.
        ("POST", format!("{one}/credentials"), none.clone(), [403, 403, 404]),
        ("POST", "/v1/clusters".to_owned(), request("b", &json!({})), [403, 403, 202]),
        ("POST", format!("{one}/ttl"), json!({ "ttl_ms": HOUR_MS }), [403, 403, 200]),
        ("POST", format!("{one}/scale"), json!({ "workers": 5 }), [403, 403, 202]),
        ("DELETE", one.clone(), none.clone(), [403, 403, 202]),
        // The queue is that of all tenants.
        ("GET", "/v1/clusters/queue".to_owned(), none.clone(), [403, 403, 403]),
        ("POST", "/v1/clusters/queue/redrive".to_owned(), none.clone(), [403, 403, 403]),
        ("GET", format!("/v1/audit?path={one}"), none, [403, 403, 200]),
    ];
    for (method, path, body, expected) in &cases {
        for (key, expected) in keys.iter().zip(expected) {
            let body = Some(body).filter(|body| !body.is_null());
            let (status, answer) = bed.server.request(key, method, path, body).await;
            assert_eq!(status, *expected, "{method} {path}: {answer}");
        }
        let (status, _) = bed.server.request("wrong", method, path, Some(body)).await;
        assert_eq!(status, 401, "{method} {path}");
    }
    // Each route of the app was tried.
    let tried = |rule: &&tenure_app::Rule| {
        let pattern = rule.path.replace("{id}", &id("a"));
        cases.iter().any(|(method, path, ..)| *method == rule.method && **path == *pattern)
    };
    let rules = rules();
    let own: Vec<_> = rules.iter().filter(|rule| rule.path.starts_with("/v1/clusters")).collect();
    let missed: Vec<_> = own.iter().copied().filter(|rule| !tried(rule)).collect();
    assert!(own.len() >= 12 && missed.is_empty(), "{missed:?}");
}

#[tokio::test]
async fn the_cluster_of_another_tenant_does_not_exist() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    bed.ready(&worker, "secret", json!({})).await;
    let acme = key(&bed.server, "acme", "admin").await;
    let before = bed.show("secret").await;
    let cases = |one: &str| {
        [
            ("GET", one.to_owned(), Value::Null),
            ("DELETE", one.to_owned(), Value::Null),
            ("GET", format!("{one}/logs"), Value::Null),
            ("GET", format!("{one}/outputs"), Value::Null),
            ("GET", format!("{one}/lock"), Value::Null),
            ("POST", format!("{one}/credentials"), Value::Null),
            ("POST", format!("{one}/scale"), json!({ "workers": 5 })),
            ("POST", format!("{one}/ttl"), json!({ "ttl_ms": HOUR_MS })),
        ]
    };
    for (theirs, missing) in cases(&path("secret")).iter().zip(cases(&path("absent"))) {
        let (method, path, body) = theirs;
        let body = Some(body).filter(|body| !body.is_null());
        let (status, answer) = bed.server.request(&acme, method, path, body).await;
        assert_eq!(status, 404, "{method} {path}: {answer}");
        let (_, absent) = bed.server.request(&acme, method, &missing.1, body).await;
        let text = |answer: &Value| answer["detail"].to_string().replace("absent", "secret");
        assert_eq!(text(&answer), text(&absent), "{method} {path}");
        let asked = format!("{path}?tenant=default");
        let (status, answer) = bed.server.request(&acme, method, &asked, body).await;
        assert!([403, 404].contains(&status), "{method} {asked}: {answer}");
    }
    let (_, history) =
        bed.server.request(&acme, "GET", &format!("{}/history", path("secret")), None).await;
    assert!(history["items"].as_array().is_none_or(Vec::is_empty), "{history}");
    assert_eq!(bed.show("secret").await, before);
}

#[tokio::test]
async fn changes_are_in_the_audit_log_and_reads_are_not() {
    let bed = Bed::start().await;
    let worker = bed.worker("a").await;
    let operator = key(&bed.server, "default", "operator").await;
    let viewer = key(&bed.server, "default", "viewer").await;
    let one = path("a");
    let send = async |key: &str, method: &str, path: &str, body: Value| {
        let body = Some(&body).filter(|body| !body.is_null());
        bed.server.request(key, method, path, body).await.0
    };
    assert_eq!(send(&operator, "POST", "/v1/clusters", request("a", &json!({}))).await, 202);
    let job = worker.claim("a").await.unwrap();
    worker.begin_create(&job).await;
    worker.finish_create(&job).await;
    let scale = format!("{one}/scale");
    send(&operator, "POST", &scale, json!({ "workers": 5 })).await;
    send(&operator, "POST", &format!("{one}/ttl"), json!({ "ttl_ms": HOUR_MS })).await;
    send(&operator, "POST", &format!("{one}/credentials"), Value::Null).await;
    send(&operator, "DELETE", &one, Value::Null).await;
    send(&operator, "GET", &one, Value::Null).await;
    assert_eq!(send(&viewer, "DELETE", &one, Value::Null).await, 403);
    let (_, page) = bed.server.get("/v1/audit?limit=1000").await;
    let entries = page["items"].as_array().expect("a list");
    let of = |action: &str| -> Vec<&str> {
        let matching = entries.iter().filter(|entry| entry["action"] == action);
        let mut outcomes: Vec<&str> =
            matching.filter_map(|entry| entry["outcome"].as_str()).collect();
        // They were written in the same millisecond.
        outcomes.sort_unstable();
        outcomes
    };
    assert_eq!(of("cluster.create"), ["ok"]);
    assert_eq!(of("cluster.scale"), ["ok"]);
    assert_eq!(of("cluster.extend"), ["ok"]);
    assert_eq!(of("cluster.credentials").len(), 1, "also what was not found");
    assert_eq!(of("cluster.destroy"), ["forbidden", "ok"]);
    let reads = entries.iter().filter(|entry| entry["method"] == "GET" && entry["path"] == *one);
    assert_eq!(reads.count(), 0);
}
