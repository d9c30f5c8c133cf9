//! Access control: every route with every role, and without a key.

mod common;

use std::sync::Arc;

use common::{KEY, Server, http, key, rules};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tenure_app::{Access, Rule};
use tenure_core::Role;
use tenure_store::Memory;

/// Returns a path of the route, for objects that do not exist.
fn path(rule: &Rule) -> String {
    let id = "00000000000000000000000000000001";
    rule.path.replace("{kind}", "cluster").replace("{name}", "c1").replace("{id}", id)
}

async fn send(server: &Server, rule: &Rule, key: Option<&str>) -> (StatusCode, Value) {
    let method = rule.method.parse().expect("a method");
    let mut request = http().request(method, format!("{}{}", server.url, path(rule)));
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    let response = request.body("{}").send().await.expect("it answers");
    let status = response.status();
    if rule.path == "/v1/events" && status.is_success() {
        return (status, Value::Null);
    }
    let text = response.text().await.expect("a complete response");
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

fn denied(status: StatusCode) -> bool {
    status == StatusCode::FORBIDDEN || status == StatusCode::UNAUTHORIZED
}

#[tokio::test]
async fn every_route_admits_exactly_the_roles_of_its_rule() {
    let server = Server::start(Arc::new(Memory::new())).await;
    for tenant in ["acme", "*"] {
        for role in Role::ALL {
            let key = key(&server, tenant, role.as_str()).await;
            for rule in &rules() {
                let allowed = match rule.access {
                    Access::Public => true,
                    Access::Tenant(least) => role >= least,
                    Access::AllTenants(least) => role >= least && tenant == "*",
                };
                let (status, answer) = send(&server, rule, Some(&key)).await;
                let (method, path) = (rule.method, rule.path);
                // The sign-in page has its own refusals.
                if path == "/signin" {
                    continue;
                }
                assert_eq!(
                    !denied(status),
                    allowed,
                    "{role} of {tenant}: {method} {path} gives {status} {answer}"
                );
                assert!(!status.is_server_error(), "{method} {path} gives {status} {answer}");
            }
        }
    }
}

#[tokio::test]
async fn without_a_valid_key_only_public_routes_respond() {
    let server = Server::start(Arc::new(Memory::new())).await;
    let wrong = format!("{}0", &KEY[..KEY.len() - 1]);
    for rule in rules().iter().filter(|rule| rule.path != "/signin") {
        for key in [None, Some("nonsense"), Some(wrong.as_str())] {
            let (status, answer) = send(&server, rule, key).await;
            // Failed authentications from one address are rate limited.
            let refused = status == StatusCode::UNAUTHORIZED || status.as_u16() == 429;
            assert_eq!(refused, rule.access != Access::Public, "{} {answer}", rule.path);
        }
    }
}

#[tokio::test]
async fn every_route_of_the_router_has_a_rule_and_every_rule_a_route() {
    let server = Server::start(Arc::new(Memory::new())).await;
    for rule in &rules() {
        let (status, answer) = send(&server, rule, Some(KEY)).await;
        let missing = answer["detail"].as_str().is_some_and(|why| why.contains("no such route"));
        assert!(!missing && status != StatusCode::METHOD_NOT_ALLOWED, "{}", rule.path);
        let mutation = rule.method != "GET";
        assert_eq!(rule.action().is_some(), mutation, "{}: mutations are audited", rule.path);
    }
    for (method, path) in [("PATCH", "/v1/locks"), ("DELETE", "/v1/keys"), ("PUT", "/signin")] {
        let method = method.parse().expect("a method");
        let request = http().request(method, format!("{}{path}", server.url));
        let answer = request.header("x-api-key", KEY).send().await.expect("it answers");
        assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED, "{path}");
    }
}

#[tokio::test]
async fn a_revoked_key_is_refused_and_only_its_own_tenant_may_revoke_it() {
    let server = Server::start(Arc::new(Memory::new())).await;
    let acme = key(&server, "acme", "admin").await;
    let other = key(&server, "other", "admin").await;
    let as_key = async |key: &str, path: &str, body: Value| {
        server.post_with(path, &[("x-api-key", key)], body.to_string()).await
    };
    let body = json!({ "name": "ci", "role": "worker", "reason": "builds" });
    let (status, made) = as_key(&acme, "/v1/keys", body).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(made["key"]["tenant"], "acme");
    let (id, secret) = (made["key"]["id"].as_str().unwrap(), made["secret"].as_str().unwrap());
    let revoke = format!("/v1/keys/{id}/revoke");

    let (status, _) = as_key(&other, &revoke, json!({ "reason": "mischief" })).await;
    assert_eq!(status, 404, "invisible to other tenants");
    let (status, answer) = as_key(&acme, &revoke, json!({})).await;
    assert_eq!((status, answer["code"].as_str()), (422, Some("invalid")), "a reason is required");
    let open = json!({ "name": "w", "ttl_ms": 10_000 });
    assert_eq!(as_key(secret, "/v1/sessions", open.clone()).await.0, 200);
    let (status, answer) = as_key(&acme, &revoke, json!({ "reason": "it leaked" })).await;
    assert_eq!((status, answer["good"].as_bool()), (200, Some(false)));
    assert_eq!(as_key(secret, "/v1/sessions", open).await.0, 401);

    for tenant in ["other", "*"] {
        let body = json!({ "name": "x", "role": "viewer", "tenant": tenant, "reason": "mischief" });
        assert_eq!(as_key(&acme, "/v1/keys", body).await.0, 403, "{tenant}");
    }
    let request = http().get(format!("{}/v1/keys", server.url)).header("x-api-key", &acme);
    let listed = request.send().await.unwrap().text().await.unwrap();
    assert!(listed.contains("acme") && !listed.contains("other"), "{listed}");
    assert!(!listed.contains(secret.rsplit('_').next().unwrap()), "a secret is shown once");
}

#[tokio::test]
async fn a_repeated_request_creates_no_second_key() {
    let server = Server::start(Arc::new(Memory::new())).await;
    let body = json!({ "name": "ci", "role": "worker", "tenant": "acme", "reason": "builds" });
    assert_eq!(server.post_as("/v1/keys", "once", body.clone()).await.0, 201);
    let (status, answer) = server.post_as("/v1/keys", "once", body.clone()).await;
    assert_eq!((status, answer["code"].as_str()), (409, Some("conflict")), "{answer}");
    assert_eq!(server.post_as("/v1/keys", "again", body).await.0, 201);
    let (_, keys) = server.get("/v1/keys").await;
    assert_eq!(keys["items"].as_array().map(Vec::len), Some(2), "{keys}");
}

#[tokio::test]
async fn an_event_stream_ends_when_its_key_is_revoked() {
    let server = Server::start(Arc::new(Memory::new())).await;
    let viewer = key(&server, "acme", "viewer").await;
    let request = http().get(format!("{}/v1/events", server.url)).header("x-api-key", &viewer);
    let mut events = request.send().await.expect("it answers");
    assert_eq!(events.status(), StatusCode::OK);
    let (_, keys) = server.get("/v1/keys").await;
    let id = keys["items"][0]["id"].as_str().expect("an id");
    server.post(&format!("/v1/keys/{id}/revoke"), json!({ "reason": "a test" })).await;
    let end = async { while events.chunk().await.expect("a chunk").is_some() {} };
    let timeout = std::time::Duration::from_secs(10);
    tokio::time::timeout(timeout, end).await.expect("it ends");
}
