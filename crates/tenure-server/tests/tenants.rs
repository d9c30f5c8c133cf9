//! Tenant isolation: every route is tried against another tenant, by name, id, token, cursor and
//! tenant, with an admin key of the attacking tenant.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{KEY, Server, http, key};
use serde_json::{Value, json};
use tenure_app::{Access, Rule};
use tenure_core::{Kind, Kinds, Operation};
use tenure_store::Memory;

/// Contained in everything that the victim writes.
const SECRET: &str = "confidential";

/// A tenant with a session, a lock, a running and a waiting job, a log and a key.
struct Victim {
    key: String,
    session: String,
    token: String,
    job: String,
    job_token: String,
    waiting: String,
    key_id: String,
}

impl Victim {
    async fn create(server: &Server) -> Self {
        let key = key(server, "victim", "admin").await;
        let post = async |path: &str, body: Value| {
            let (status, answer) = server.request(&key, "POST", path, Some(&body)).await;
            assert!(status < 300, "{path}: {answer}");
            answer
        };
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let open = json!({ "name": SECRET, "ttl_ms": 600_000 });
        let session = text(&post("/v1/sessions", open).await["session"]);
        let hold = json!({ "session": session, "purpose": SECRET });
        let token = text(&post("/v1/locks/cluster/c1/acquire", hold).await["token"]);
        let args = json!({ "operation": "work", "args": { "secret": SECRET } });
        post("/v1/resources/task/t1/jobs", args.clone()).await;
        let waiting = post("/v1/resources/task/t1/jobs", args).await["job"]["id"].clone();
        let claim = json!({ "session": session, "kinds": ["task"], "max": 1, "wait_ms": 0 });
        let claimed = post("/v1/jobs/claim", claim).await["jobs"][0].clone();
        let job = text(&claimed["job"]["id"]);
        let job_token = text(&claimed["tenure"]["token"]);
        let log = json!({ "token": claimed["tenure"]["token"], "text": format!("{SECRET}\n") });
        post(&format!("/v1/jobs/{job}/logs"), log).await;
        let (_, keys) = server.request(&key, "GET", "/v1/keys", None).await;
        let key_id = text(&keys["items"][0]["id"]);
        Self { key, session, token, job, job_token, waiting: text(&waiting), key_id }
    }

    /// Returns everything that the victim sees, without fields that depend on time.
    async fn sees(&self, server: &Server) -> String {
        let mut seen = String::new();
        for path in [
            "/v1/locks",
            "/v1/resources",
            "/v1/jobs",
            "/v1/history?limit=1000",
            "/v1/workers",
            "/v1/status",
            "/v1/keys",
            "/v1/dead",
        ] {
            let (status, mut answer) = server.request(&self.key, "GET", path, None).await;
            assert_eq!(status, 200, "{answer}");
            without_time(&mut answer);
            seen.push_str(&answer.to_string());
        }
        seen
    }

    /// Returns what must not leak to other tenants.
    fn secrets(&self) -> Vec<&str> {
        vec![SECRET, "victim", &self.session, &self.job, &self.waiting, &self.key_id]
    }
}

fn without_time(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !name.ends_with("_ms") && name != "used_at");
            fields.values_mut().for_each(without_time);
        }
        Value::Array(items) => items.iter_mut().for_each(without_time),
        _ => {}
    }
}

/// Returns bodies that would be effective if the victim sent them.
fn bodies(victim: &Victim) -> Vec<Value> {
    let (session, reason) = (&victim.session, "mischief");
    let token = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| json!(text));
    let (lock, job): (Value, Value) = (token(&victim.token), token(&victim.job_token));
    vec![
        json!({}),
        json!({ "token": lock }),
        json!({ "token": job }),
        json!({ "token": lock, "reason": reason }),
        json!({ "token": job, "outcome": "ok" }),
        json!({ "token": job, "text": "mine now\n" }),
        json!({ "token": job, "percent": 99 }),
        json!({ "reason": reason }),
        json!({ "session": session }),
        json!({ "session": session, "kinds": ["task"], "max": 10, "wait_ms": 0 }),
        json!({ "holder": "evil", "ttl_ms": 1_000, "wait_ms": 0 }),
        json!({ "request": "1" }),
        json!({ "name": "evil", "ttl_ms": 1_000 }),
        json!({ "name": "evil", "role": "admin", "tenant": "victim", "reason": reason }),
        json!({ "filter": { "ids": [victim.job, victim.waiting] }, "reason": reason }),
        json!({ "filter": { "ids": [victim.job, victim.waiting] }, "dry_run": true }),
        json!({ "filter": {}, "reason": reason }),
    ]
}

/// Returns the paths of a route with the names and ids of the victim.
fn paths(rule: &Rule, victim: &Victim) -> Vec<String> {
    let path = |kind: &str, name: &str, id: &str| {
        rule.path.replace("{kind}", kind).replace("{name}", name).replace("{id}", id)
    };
    let ids = [&victim.session, &victim.job, &victim.waiting, &victim.key_id];
    let named = [("cluster", "c1"), ("task", "t1")];
    let mut paths: Vec<String> =
        ids.iter().flat_map(|id| named.iter().map(|(kind, name)| path(kind, name, id))).collect();
    paths.sort();
    paths.dedup();
    for cursor in ["victim/cluster/c1", &victim.job, "1", "0"] {
        let cursor = cursor.replace('/', "%2F");
        paths.push(format!("{}?cursor={cursor}", path("cluster", "c1", &victim.job)));
    }
    paths
}

async fn victim_and_server() -> (Victim, Server) {
    let kinds = Kinds::new([Kind::new("task").operation(Operation::new("work"))]);
    let kinds = Arc::new(kinds.expect("valid kinds"));
    let server = Server::start_with(Arc::new(Memory::new()), kinds).await;
    (Victim::create(&server).await, server)
}

#[tokio::test]
async fn no_route_reveals_or_changes_anything_of_another_tenant() {
    let (victim, server) = victim_and_server().await;
    let evil = key(&server, "evil", "admin").await;
    let before = victim.sees(&server).await;
    let mut requests = 0;
    for rule in common::rules().iter().filter(|rule| rule.path != "/v1/events") {
        let bodies: Vec<Option<Value>> = match rule.method {
            "GET" => vec![None],
            _ => bodies(&victim).into_iter().map(Some).collect(),
        };
        for path in paths(rule, &victim) {
            for body in &bodies {
                let (status, answer) =
                    server.request(&evil, rule.method, &path, body.as_ref()).await;
                requests += 1;
                let answer = answer.to_string();
                assert!(status < 500, "{} {path} {body:?}: {answer}", rule.method);
                // Echoing the request reveals nothing.
                let sent = format!("{path} {body:?}");
                for secret in victim.secrets() {
                    assert!(
                        sent.contains(secret) || !answer.contains(secret),
                        "{} {path} {body:?} reveals {secret}: {answer}",
                        rule.method
                    );
                }
            }
        }
    }
    assert!(requests > 1_000, "{requests}");
    assert_eq!(victim.sees(&server).await, before);
}

#[tokio::test]
async fn no_route_acts_for_a_tenant_that_the_key_is_not_bound_to() {
    let (victim, server) = victim_and_server().await;
    let evil = key(&server, "evil", "admin").await;
    let rules = common::rules();
    let bound = rules.iter().filter(|rule| rule.access != Access::Public);
    for (rule, tenant) in bound.flat_map(|rule| ["victim", "*", "no-such"].map(|t| (rule, t))) {
        let path = format!("{}?tenant={tenant}", paths(rule, &victim)[0]);
        let (status, answer) = server.request(&evil, rule.method, &path, Some(&json!({}))).await;
        assert_eq!(status, 403, "{} {path}: {answer}", rule.method);
        assert!(!answer.to_string().contains(SECRET), "{answer}");
    }
}

/// Sends a request with an API key and an `Idempotency-Key`.
async fn post_as(server: &Server, key: &str, id: &str, path: &str, body: &Value) -> (u16, Value) {
    let headers = [("x-api-key", key), ("idempotency-key", id)];
    server.post_with(path, &headers, body.to_string()).await
}

#[tokio::test]
async fn ids_that_clients_choose_belong_to_their_tenant() {
    let server = Server::start(Arc::new(Memory::new())).await;
    let (one, two) = (key(&server, "one", "worker").await, key(&server, "two", "worker").await);
    let id = "0123456789abcdef0123456789abcdef";
    let open = json!({ "name": "w", "ttl_ms": 60_000 });
    let solo = json!({ "holder": "ann", "ttl_ms": 60_000 });
    let (mut sessions, mut holders) = (Vec::new(), Vec::new());
    for key in [&one, &two] {
        let (status, opened) = post_as(&server, key, id, "/v1/sessions", &open).await;
        assert_eq!(status, 200, "{opened}");
        let (_, again) = post_as(&server, key, id, "/v1/sessions", &open).await;
        assert_eq!(opened, again, "the same key opens the same session");
        let path = format!("/v1/sessions/{}/beat", opened["session"].as_str().unwrap());
        let (status, beat) = server.request(key, "POST", &path, Some(&json!({}))).await;
        assert_eq!(status, 200, "{beat}");
        sessions.push(opened["session"].clone());

        let (acquire, id) = ("/v1/locks/cluster/c1/acquire", "f".repeat(32));
        let (status, tenure) = post_as(&server, key, &id, acquire, &solo).await;
        assert_eq!(status, 200, "{tenure}");
        let (_, again) = post_as(&server, key, &id, acquire, &solo).await;
        assert_eq!(tenure["token"], again["token"]);
        holders.push(tenure["holder"]["session"].clone());
    }
    assert_ne!(sessions[0], sessions[1]);
    assert_ne!(holders[0], holders[1]);
    let withdraw = json!({ "request": "f".repeat(32) });
    let path = "/v1/locks/cluster/c1/withdraw";
    let (_, withdrawn) = server.request(&one, "POST", path, Some(&withdraw)).await;
    assert_eq!(withdrawn, json!({ "withdrawn": true, "token": 1 }));
    let (_, shown) = server.request(&two, "GET", "/v1/locks/cluster/c1", None).await;
    assert_eq!(shown["tenures"].as_array().unwrap().len(), 1, "{shown}");
}

#[tokio::test]
async fn the_library_works_with_the_key_of_one_tenant() {
    let server = Server::start(Arc::new(Memory::new())).await;
    let key = key(&server, "acme", "worker").await;
    let client = tenure::Client::connect(&server.url, &key).await.unwrap();
    let session = client.session("w", Duration::from_secs(60)).await.unwrap();
    let tenure = session.lock("cluster/c1").unwrap().acquire().await.unwrap();
    let (_, shown) = server.request(&key, "GET", "/v1/locks/cluster/c1", None).await;
    assert_eq!(shown["tenures"][0]["holder"]["session"], session.id().to_string());
    tenure.release().await.unwrap();
    session.close().await;
}

#[tokio::test]
async fn a_claim_of_another_tenant_does_not_end_the_wait_of_a_session() {
    let (victim, server) = victim_and_server().await;
    let evil = key(&server, "evil", "admin").await;
    let open = json!({ "name": "second", "ttl_ms": 600_000 });
    let (_, opened) = server.request(&victim.key, "POST", "/v1/sessions", Some(&open)).await;
    let claim = |wait_ms: u64| {
        let session = &opened["session"];
        json!({ "session": session, "kinds": ["task"], "max": 1, "wait_ms": wait_ms }).to_string()
    };
    let send = async |key: &str, body: String| {
        let headers = [("x-api-key", key), ("idempotency-key", "7")];
        server.post_with("/v1/jobs/claim", &headers, body).await
    };
    let meanwhile = async {
        let waits = async || {
            let (_, workers) = server.request(&victim.key, "GET", "/v1/workers", None).await;
            workers["items"].as_array().is_some_and(|workers| workers.len() == 2)
        };
        common::until(waits).await;
        let (status, refused) = send(&evil, claim(60_000)).await;
        assert_eq!((status, &refused["reason"]), (409, &json!("session_over")), "{refused}");
        let body = json!({ "operation": "work" });
        let path = "/v1/resources/task/t2/jobs";
        server.request(&victim.key, "POST", path, Some(&body)).await.1["job"]["id"].clone()
    };
    let ((_, claimed), job) = tokio::join!(send(&victim.key, claim(60_000)), meanwhile);
    assert_eq!(claimed["jobs"][0]["job"]["id"], job, "{claimed}");
}

#[tokio::test]
async fn events_and_positions_reveal_nothing_of_other_tenants() {
    let (victim, server) = victim_and_server().await;
    let evil = key(&server, "evil", "admin").await;
    let take = json!({ "holder": "evil", "ttl_ms": 60_000 });
    for name in ["a", "b"] {
        let path = format!("/v1/locks/cluster/{name}/acquire");
        assert_eq!(server.request(&evil, "POST", &path, Some(&take)).await.0, 200);
    }
    // From the beginning, without events of the victim.
    let url = format!("{}/v1/events?cursor=0", server.url);
    let mut events = http().get(url).header("x-api-key", &evil).send().await.expect("it answers");
    let mut received = String::new();
    while received.matches("event: history").count() < 2 {
        let chunk = events.chunk().await.expect("a chunk").expect("not the end");
        received.push_str(&String::from_utf8_lossy(&chunk));
    }
    for secret in victim.secrets() {
        assert!(!received.contains(secret), "{secret}: {received}");
    }
    let (_, mine) = server.request(&evil, "GET", "/v1/history", None).await;
    let (_, all) = server.request(KEY, "GET", "/v1/history?tenant=evil", None).await;
    let positions = |answer: &Value| -> Vec<u64> {
        let items = answer["items"].as_array().expect("a list");
        items.iter().map(|line| line["position"].as_u64().expect("a number")).collect()
    };
    assert_eq!(positions(&mine).len(), 2, "{mine}");
    assert!(positions(&mine).iter().all(|position| !positions(&all).contains(position)));
    // Encrypted positions work as cursors.
    let next = positions(&mine)[0];
    let (_, rest) = server.request(&evil, "GET", &format!("/v1/history?cursor={next}"), None).await;
    assert_eq!(positions(&rest), positions(&mine)[1..]);
}

#[tokio::test]
async fn readiness_reveals_no_counts() {
    let (victim, server) = victim_and_server().await;
    let ready = http().get(format!("{}/readyz", server.url)).send().await.expect("it answers");
    let ready = ready.text().await.expect("a complete response");
    for secret in victim.secrets().into_iter().chain(["sessions", "live"]) {
        assert!(!ready.contains(secret), "{secret}: {ready}");
    }
}
