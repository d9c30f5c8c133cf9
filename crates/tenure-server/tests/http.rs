//! The HTTP layer: sign-in, CSRF, rate limits, slow and malformed clients, the audit log.

mod common;

use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::{KEY, Server, http, key, until};
use reqwest::header::{COOKIE, LOCATION, SET_COOKIE};
use serde_json::{Value, json};
use tenure_core::{Command, Kinds, Millis, Outcome, Text};
use tenure_server::HttpConfig;
use tenure_server::audit::{Audit, AuditLimits};
use tenure_server::auth::limits::Rate;
use tenure_store::observer::Observer;
use tenure_store::store::{Hint, Pruned, Reads, Result, Retention, Status, Swept};
use tenure_store::{ApiKey, KeyRing, Memory, Store, StoreError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::broadcast;

async fn server() -> Server {
    Server::start(Arc::new(Memory::new())).await
}

/// Signs in with a form, as a browser does.
async fn sign_in(server: &Server, key: &str) -> reqwest::Response {
    let request = http().post(format!("{}/signin", server.url));
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    request.body(format!("key={key}")).send().await.expect("it answers")
}

fn cookie(response: &reqwest::Response) -> String {
    let set = response.headers().get(SET_COOKIE).expect("a cookie").to_str().expect("text");
    for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(set.contains(part), "{set}");
    }
    set.split(';').next().expect("a value").to_owned()
}

#[tokio::test]
async fn a_key_signs_a_browser_in_and_forged_requests_are_refused() {
    let server = server().await;
    let operator = key(&server, "acme", "operator").await;
    let response = sign_in(&server, &operator).await;
    assert_eq!(response.status(), 303);
    assert_eq!(response.headers()[LOCATION], "/");
    let cookie = cookie(&response);
    let secret = operator.rsplit('_').next().expect("it has parts");
    assert!(!cookie.contains(secret), "it does not contain the secret");

    let whoami = http().get(format!("{}/v1/whoami", server.url)).header(COOKIE, &cookie);
    let whoami: Value = whoami.send().await.unwrap().json().await.unwrap();
    assert_eq!(
        (whoami["tenant"].as_str(), whoami["role"].as_str()),
        (Some("acme"), Some("operator"))
    );
    let csrf = whoami["csrf"].as_str().expect("a token").to_owned();

    let pause = async |headers: &[(&str, &str)]| {
        let url = format!("{}/v1/resources/task/t/pause", server.url);
        let mut request = http().post(url).header(COOKIE, &cookie);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = json!({ "reason": "a test" }).to_string();
        let response = request.body(body).send().await.expect("it answers");
        (response.status().as_u16(), response.json::<Value>().await.expect("JSON"))
    };
    assert_eq!(pause(&[]).await.0, 403, "a cross-site request carries the cookie");
    assert_eq!(pause(&[("x-tenure-csrf", &"0".repeat(64))]).await.0, 403);
    let cross = [("x-tenure-csrf", csrf.as_str()), ("sec-fetch-site", "cross-site")];
    assert_eq!(pause(&cross).await.0, 403);
    let (status, answer) = pause(&[("x-tenure-csrf", &csrf)]).await;
    assert!(status == 200 || status == 404, "{answer}");

    let forged = format!("{}0", &cookie[..cookie.len() - 1]);
    let forged =
        if forged == cookie { format!("{}1", &cookie[..cookie.len() - 1]) } else { forged };
    let answer = http().get(format!("{}/v1/whoami", server.url)).header(COOKIE, forged);
    assert_eq!(answer.send().await.unwrap().status(), 401);

    // Revoking a key ends its browser sessions.
    let (_, keys) = server.get("/v1/keys").await;
    let id = keys["items"][0]["id"].as_str().expect("an id");
    server.post(&format!("/v1/keys/{id}/revoke"), json!({ "reason": "a test" })).await;
    let answer = http().get(format!("{}/v1/whoami", server.url)).header(COOKIE, &cookie);
    assert_eq!(answer.send().await.unwrap().status(), 401);
}

#[tokio::test]
async fn a_cookie_ends_with_the_sign_out_on_all_servers() {
    let store = Arc::new(Memory::new());
    let server = Server::start(Arc::clone(&store) as Arc<dyn Store>).await;
    let other = Server::start(store).await;
    let cookies = [cookie(&sign_in(&server, KEY).await), cookie(&sign_in(&server, KEY).await)];
    let whoami = async |server: &Server, cookie: &str| {
        let request = http().get(format!("{}/v1/whoami", server.url)).header(COOKIE, cookie);
        request.send().await.expect("it answers").status().as_u16()
    };
    for server in [&server, &other] {
        assert_eq!(whoami(server, &cookies[0]).await, 200);
    }
    let sign_out = http().post(format!("{}/signout", server.url)).header(COOKIE, &cookies[0]);
    let response = sign_out.send().await.unwrap();
    assert_eq!(response.headers()[LOCATION], "/signin");
    assert_eq!(whoami(&server, &cookies[0]).await, 401, "a stolen copy is useless");
    until(|| async { whoami(&other, &cookies[0]).await == 401 }).await;
    for server in [&server, &other] {
        assert_eq!(whoami(server, &cookies[1]).await, 200, "another browser is still signed in");
    }
}

/// A store whose keys and sign-outs can be made unavailable.
#[derive(Default)]
struct KeyOutageStore {
    memory: Memory,
    outage: AtomicBool,
}

impl KeyOutageStore {
    fn keys(&self) -> Result<&dyn KeyRing> {
        let outage = self.outage.load(Ordering::SeqCst);
        let keys = (!outage).then(|| self.memory.key_ring());
        keys.ok_or_else(|| StoreError::unavailable("simulated outage"))
    }
}

#[async_trait]
impl KeyRing for KeyOutageStore {
    async fn all(&self) -> Result<Vec<ApiKey>> {
        self.keys()?.all().await
    }

    async fn add(&self, key: ApiKey) -> Result<bool> {
        self.keys()?.add(key).await
    }

    async fn revoke(&self, id: &str, at: Millis, by: &str) -> Result<bool> {
        self.keys()?.revoke(id, at, by).await
    }

    async fn record_uses(&self, uses: &[(Text, Millis)]) -> Result<()> {
        self.keys()?.record_uses(uses).await
    }

    async fn get_or_set_secret(&self, candidate: &str) -> Result<String> {
        self.keys()?.get_or_set_secret(candidate).await
    }

    async fn sign_out(&self, cookie: &str, until: Millis, now: Millis) -> Result<()> {
        self.keys()?.sign_out(cookie, until, now).await
    }

    async fn signed_out(&self) -> Result<Vec<String>> {
        self.keys()?.signed_out().await
    }
}

#[async_trait]
impl Store for KeyOutageStore {
    async fn apply(&self, commands: Vec<Command>) -> Result<Vec<Outcome>> {
        self.memory.apply(commands).await
    }

    async fn sweep(&self) -> Result<Swept> {
        self.memory.sweep().await
    }

    async fn prune(&self, keep: Retention) -> Result<Pruned> {
        self.memory.prune(keep).await
    }

    async fn declare(&self, kinds: Arc<Kinds>) -> Result<()> {
        self.memory.declare(kinds).await
    }

    fn watch(&self) -> broadcast::Receiver<Hint> {
        self.memory.watch()
    }

    fn observe(&self, observer: &Arc<dyn Observer>) {
        self.memory.observe(observer);
    }

    async fn status(&self) -> Result<Status> {
        self.memory.status().await
    }

    fn reads(&self) -> &dyn Reads {
        self.memory.reads()
    }

    fn key_ring(&self) -> &dyn KeyRing {
        self
    }
}

#[tokio::test]
async fn a_sign_out_takes_effect_while_the_store_is_down_and_is_recorded_later() {
    let store = Arc::new(KeyOutageStore::default());
    let server = Server::start(Arc::clone(&store) as Arc<dyn Store>).await;
    let signed_in = cookie(&sign_in(&server, KEY).await);
    store.outage.store(true, Ordering::SeqCst);
    let sign_out = http().post(format!("{}/signout", server.url)).header(COOKIE, &signed_in);
    let response = sign_out.send().await.expect("it answers");
    assert_eq!(response.status(), 303);
    assert!(cookie(&response).ends_with('='), "the browser forgets it");
    let whoami = http().get(format!("{}/v1/whoami", server.url)).header(COOKIE, &signed_in);
    assert_eq!(whoami.send().await.expect("it answers").status(), 401);
    store.outage.store(false, Ordering::SeqCst);
    until(async || !store.signed_out().await.expect("it is up").is_empty()).await;
}

#[tokio::test]
async fn failed_sign_ins_from_one_address_are_rate_limited() {
    let server = server().await;
    let mut statuses = Vec::new();
    for _ in 0..30 {
        statuses.push(sign_in(&server, "tenure_wrong").await.status().as_u16());
    }
    assert_eq!(statuses[0], 401);
    let last = sign_in(&server, "tenure_wrong").await;
    assert_eq!(last.status(), 429, "{statuses:?}");
    assert!(last.headers().contains_key("retry-after"));
}

async fn locks(server: &Server, key: Option<&str>) -> u16 {
    let request = http().get(format!("{}/v1/locks", server.url));
    let request = key.into_iter().fold(request, |request, key| request.header("x-api-key", key));
    request.send().await.expect("it answers").status().as_u16()
}

#[tokio::test]
async fn wrong_and_missing_keys_do_not_lock_other_keys_out() {
    let server = server().await;
    let unused = [key(&server, "acme", "worker").await, key(&server, "acme", "worker").await];
    let mut wrong = 0;
    while locks(&server, Some(&format!("tenure_acme_{wrong}_wrong"))).await != 429 {
        assert_eq!(locks(&server, None).await, 401);
        wrong += 1;
        assert!(wrong < 1_000, "wrong keys are not limited");
    }
    assert_eq!(locks(&server, Some(&unused[0])).await, 200);
    assert_eq!(sign_in(&server, &unused[1]).await.status(), 303);
}

#[tokio::test]
async fn a_correct_guess_is_not_confirmed_after_wrong_ones_of_the_same_key() {
    const BURST: u32 = 3;
    let http_config =
        HttpConfig { auth_failure_rate: Rate { burst: BURST, per_s: 1 }, ..HttpConfig::default() };
    let server = Server::start_with_http(Arc::new(Memory::new()), http_config).await;
    // A token may arrive after the wrong guesses: a key that is accepted then is tried no more.
    let mut limited = [None, None];
    for _ in 0..100 {
        let correct = key(&server, "acme", "viewer").await;
        let (id, _) = correct.rsplit_once('_').expect("it has parts");
        for _ in 0..BURST {
            assert!(matches!(locks(&server, Some(&format!("{id}_wrong"))).await, 401 | 429));
        }
        let by_header = limited[0].is_none();
        let status = if by_header {
            locks(&server, Some(&correct)).await
        } else {
            sign_in(&server, &correct).await.status().as_u16()
        };
        if status == 429 {
            limited[usize::from(!by_header)] = Some(correct);
        }
        if limited[1].is_some() {
            break;
        }
    }
    assert!(limited.iter().all(Option::is_some), "correct guesses are confirmed: {limited:?}");

    let used = key(&server, "acme", "viewer").await;
    assert_eq!(locks(&server, Some(&used)).await, 200);
    let (id, _) = used.rsplit_once('_').expect("it has parts");
    for _ in 0..2 * BURST {
        locks(&server, Some(&format!("{id}_wrong"))).await;
    }
    assert_eq!(locks(&server, Some(&used)).await, 200, "it was accepted from here before");
    assert_eq!(sign_in(&server, KEY).await.status(), 303, "so was the admin key");
}

#[tokio::test]
async fn requests_of_a_tenant_over_its_rate_get_retry_after_and_others_are_served() {
    let http_config =
        HttpConfig { tenant_rate: Some(Rate { burst: 5, per_s: 1 }), ..HttpConfig::default() };
    let server = Server::start_with_http(Arc::new(Memory::new()), http_config).await;
    let (greedy, modest) =
        (key(&server, "greedy", "viewer").await, key(&server, "modest", "viewer").await);
    let get = async |key: &str| {
        let request = http().get(format!("{}/v1/locks", server.url)).header("x-api-key", key);
        request.send().await.expect("it answers")
    };
    for _ in 0..5 {
        assert_eq!(get(&greedy).await.status(), 200);
    }
    let refused = get(&greedy).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "1");
    let problem: Value = refused.json().await.unwrap();
    assert_eq!(problem["code"], "rate_limited");
    assert_eq!(get(&modest).await.status(), 200);
    assert_eq!(get(KEY).await.status(), 200, "a key of all tenants is not bounded");
}

#[tokio::test]
async fn every_response_has_a_request_id_and_security_headers() {
    let server = server().await;
    for path in ["/healthz", "/v1/locks", "/nothing", "/signin"] {
        let answer = http().get(format!("{}{path}", server.url)).send().await.unwrap();
        let headers = answer.headers().clone();
        for name in ["content-security-policy", "x-content-type-options", "x-frame-options"] {
            assert!(headers.contains_key(name), "{path} lacks {name}");
        }
        let id = headers["x-request-id"].to_str().unwrap().to_owned();
        if headers["content-type"] == "application/problem+json" {
            let problem: Value = answer.json().await.unwrap();
            assert_eq!(problem["request_id"], id, "{path}");
        }
    }
    let chosen = http().get(format!("{}/healthz", server.url)).header("x-request-id", "mine-1");
    assert_eq!(chosen.send().await.unwrap().headers()["x-request-id"], "mine-1");
    let invalid = http().get(format!("{}/healthz", server.url)).header("x-request-id", "a b\"c");
    assert_ne!(invalid.send().await.unwrap().headers()["x-request-id"], "a b\"c");
}

/// Sends bytes and reads until the server closes the connection.
async fn raw(server: &Server, bytes: &[u8]) -> String {
    let address = server.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    // The server may close the connection before it has read everything.
    stream.write_all(bytes).await.ok();
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    tokio::time::timeout(Duration::from_secs(10), read).await.expect("closed").ok();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn slow_and_malformed_clients_are_cut_off_and_others_are_served() {
    let http_config =
        HttpConfig { read_timeout: Duration::from_millis(300), ..HttpConfig::default() };
    let server = Server::start_with_http(Arc::new(Memory::new()), http_config).await;
    // An incomplete head.
    let slow = raw(&server, b"GET /healthz HTTP/1.1\r\nhost: x\r\n").await;
    assert!(!slow.contains("200 OK"), "{slow}");
    // An incomplete body.
    let head = format!(
        "POST /v1/sessions HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\ncontent-length: 100\r\n\r\n{{"
    );
    let slow = raw(&server, head.as_bytes()).await;
    assert!(slow.starts_with("HTTP/1.1 408") && slow.contains("\"timeout\""), "{slow}");
    for malformed in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\nhost: y\r\nconnection: close\r\n\r\n",
    ] {
        let answer = raw(&server, malformed).await;
        assert!(
            !answer.starts_with("HTTP/1.1 5") && !answer.contains("200 OK"),
            "{malformed:?} {answer}"
        );
    }
    let long =
        format!("GET /healthz HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "a".repeat(100_000));
    let answer = raw(&server, long.as_bytes()).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    let many: String = (0..500).map(|n| format!("x-{n}: y\r\n")).collect();
    let answer = raw(&server, format!("GET /healthz HTTP/1.1\r\n{many}\r\n").as_bytes()).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(server.get("/v1/locks").await.0, 200);
}

#[tokio::test]
async fn a_head_that_a_proxy_may_understand_differently_is_refused() {
    let server = server().await;
    let send = async |version: &str, headers: &[String]| {
        let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let head = format!("GET /v1/locks HTTP/{version}\r\n{headers}connection: close\r\n\r\n");
        raw(&server, head.as_bytes()).await
    };
    let (host, key) = ("host: x".to_owned(), format!("x-api-key: {KEY}"));
    let answer = send("1.1", &[host.clone(), key.clone()]).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = send("1.0", from_ref(&key)).await;
    assert!(answer.starts_with("HTTP/1.0 200"), "HTTP/1.0 has no Host: {answer}");
    let answer = send("1.1", from_ref(&key)).await;
    assert!(answer.starts_with("HTTP/1.1 422") && answer.contains("needs a Host"), "{answer}");
    // The parser does not distinguish it: RFC 9112, 2.2 allows it, and the guide says so.
    let answer = raw(&server, b"GET /healthz HTTP/1.1\nhost: x\nconnection: close\n\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let bearer = format!("authorization: Bearer {KEY}");
    for second in [
        host.as_str(),
        "authorization: Bearer other",
        "x-api-key: other",
        "idempotency-key: a",
        "x-tenure-csrf: a",
    ] {
        let (name, _) = second.split_once(':').expect("a header");
        let first = match name {
            "authorization" => bearer.clone(),
            "x-api-key" => key.clone(),
            _ => second.to_owned(),
        };
        let mut headers = vec![first, second.to_owned()];
        let others = [&host, &bearer].into_iter().filter(|line| !line.starts_with(name)).cloned();
        headers.extend(others);
        let answer = send("1.1", &headers).await;
        let detail = format!("more than one {name} header");
        assert!(answer.starts_with("HTTP/1.1 422") && answer.contains(&detail), "{answer}");
    }
}

#[tokio::test]
async fn connections_are_bounded_and_their_slots_are_reused() {
    let read_timeout = Duration::from_millis(300);
    let http_config = HttpConfig { connections_max: 2, read_timeout, ..HttpConfig::default() };
    let server = Server::start_with_http(Arc::new(Memory::new()), http_config).await;
    let address = server.url.trim_start_matches("http://").to_owned();
    let idle = [TcpStream::connect(&address).await, TcpStream::connect(&address).await];
    // It waits until the idle connections are cut off.
    assert_eq!(server.get("/v1/locks").await.0, 200);
    drop(idle);
}

#[tokio::test]
async fn the_audit_log_records_mutations_and_refused_calls() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("audit.jsonl");
    let audit = Audit::open(&path, AuditLimits::default()).expect("created");
    let http_config = HttpConfig { audit, ..HttpConfig::default() };
    let server = Server::start_with_http(Arc::new(Memory::new()), http_config).await;
    let (operator, viewer) =
        (key(&server, "acme", "operator").await, key(&server, "acme", "viewer").await);
    let take = json!({ "holder": "h", "ttl_ms": 60_000 });
    let lock = "/v1/locks/cluster/c1";
    let (_, tenure) =
        server.request(&operator, "POST", &format!("{lock}/acquire"), Some(&take)).await;
    let body = json!({ "token": tenure["token"], "reason": "it hangs" });
    let path_of_break = format!("{lock}/break");
    assert_eq!(server.request(&viewer, "POST", &path_of_break, Some(&body)).await.0, 403);
    assert_eq!(server.request("wrong", "POST", &path_of_break, Some(&body)).await.0, 401);
    assert_eq!(server.request(&operator, "POST", &path_of_break, Some(&body)).await.0, 200);
    server.request(&operator, "GET", "/v1/locks", None).await;
    sign_in(&server, &operator).await;

    let (status, lines) =
        server.request(&operator, "GET", "/v1/audit?action=lock.break", None).await;
    assert_eq!(status, 200, "{lines}");
    let lines = lines["items"].as_array().expect("a list").clone();
    let outcomes: Vec<_> = lines.iter().map(|line| line["outcome"].as_str().unwrap()).collect();
    assert_eq!(
        outcomes,
        ["ok", "forbidden"],
        "newest first, without the unauthenticated call, which has no tenant"
    );
    assert_eq!(lines[0]["reason"], "it hangs");
    assert_eq!(lines[0]["address"], "127.0.0.1");
    assert_eq!(lines[0]["path"], "/v1/locks/cluster/c1/break");
    assert!(lines[0]["principal"].as_str().unwrap().starts_with("t/"), "{}", lines[0]);
    let (_, all) = server.get("/v1/audit?limit=1000").await;
    let all = all["items"].as_array().expect("a list").clone();
    assert!(all.iter().any(|line| line["outcome"] == "unauthenticated"), "{all:?}");
    assert!(all.iter().all(|line| line["action"] != Value::Null));
    let signed_in = all.iter().find(|line| line["action"] == "signin").expect("an entry");
    assert_eq!(signed_in["tenant"], "acme", "{signed_in}");
    let file = std::fs::read_to_string(path).expect("it is there");
    for secret in [KEY, &operator, &viewer] {
        assert!(!file.contains(secret.rsplit('_').next().unwrap()), "a secret is in the audit log");
    }
}
