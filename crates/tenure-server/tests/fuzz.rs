//! Ten thousand random requests: none causes a server error, and every error is a problem document.

mod common;

use std::sync::{Arc, OnceLock};

use common::{KEY, Server, http};
use serde_json::{Value, json};
use tenure_app::Rule;
use tenure_core::{Kind, Kinds, Operation};
use tenure_store::Memory;

const REQUESTS: u64 = 10_000;
const CLIENTS: u64 = 8;

/// Deterministic xorshift generator.
struct Rng(u64);

impl Rng {
    fn below(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).expect("53 bits fit") % sides
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

const FIELDS: [&str; 30] = [
    "lock",
    "holder",
    "ttl_ms",
    "wait_ms",
    "poll_ms",
    "purpose",
    "session",
    "token",
    "reason",
    "name",
    "seen",
    "kinds",
    "max",
    "outcome",
    "percent",
    "message",
    "text",
    "operation",
    "args",
    "priority",
    "run_at",
    "spec",
    "filter",
    "dry_run",
    "request",
    "role",
    "tenant",
    "code",
    "expires_in_ms",
    "state",
];

fn value(rng: &mut Rng, depth: usize) -> Value {
    match rng.below(if depth == 0 { 12 } else { 14 }) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(0),
        3 => json!(-1),
        4 => json!(u64::MAX),
        5 => json!(i64::MIN),
        6 => json!(1.5e300),
        7 => json!(1_000),
        8 => json!(""),
        9 => json!("a".repeat(rng.below(5_000))),
        10 => json!(*rng.pick(&[
            "work",
            "task",
            "main",
            "ok",
            "../..",
            "\u{0}",
            "é\u{202e}",
            "*",
            "a b",
            "%2F",
            "'; DROP TABLE locks; --",
            "00000000000000000000000000000001",
            "1-1",
            "2030-01-31T12:00:00Z",
            "worker"
        ])),
        11 => json!("😀".repeat(rng.below(300))),
        12 => (0..rng.below(4)).map(|_| value(rng, depth - 1)).collect(),
        _ => object(rng, depth - 1),
    }
}

fn object(rng: &mut Rng, depth: usize) -> Value {
    let fields = (0..rng.below(6)).map(|_| ((*rng.pick(&FIELDS)).to_owned(), value(rng, depth)));
    Value::Object(fields.collect())
}

fn body(rng: &mut Rng) -> Vec<u8> {
    match rng.below(10) {
        0 => Vec::new(),
        1 => (0..rng.below(200)).map(|_| u8::try_from(rng.below(256)).expect("a byte")).collect(),
        2 => "[".repeat(rng.below(3_000)).into_bytes(),
        3 => {
            let mut text = object(rng, 2).to_string().into_bytes();
            text.truncate(rng.below(text.len() + 1));
            text
        }
        4 => vec![b'1'; 70_000],
        _ => object(rng, 3).to_string().into_bytes(),
    }
}

static RULES: OnceLock<Vec<Rule>> = OnceLock::new();

fn path(rng: &mut Rng) -> (String, String) {
    const WORDS: [&str; 12] = [
        "cluster",
        "task",
        "c1",
        "..",
        "%00",
        "%2F",
        "%ff",
        "a%20b",
        "*",
        "%E2%80%AE",
        "00000000000000000000000000000001",
        "x",
    ];
    let rules = RULES.get_or_init(common::rules);
    let rule = rng.pick(rules);
    let mut path = rule.path.to_owned();
    for name in ["{kind}", "{name}", "{id}"] {
        let long = "n".repeat(rng.below(400));
        let word = if rng.below(20) == 0 { long.as_str() } else { rng.pick(&WORDS) };
        path = path.replace(name, if word.is_empty() { "x" } else { word });
    }
    const QUERIES: [&str; 14] = [
        "limit=0",
        "limit=1000",
        "limit=1001",
        "limit=-1",
        "limit=x",
        "cursor=x",
        "cursor=0",
        "cursor=18446744073709551615",
        "tenant=*",
        "tenant=%00",
        "tenant=a&tenant=b",
        "state=dead",
        "wait_ms=0",
        "&&==&",
    ];
    if rng.below(2) == 0 {
        path = format!("{path}?{}", rng.pick(&QUERIES));
    }
    let methods = [rule.method, rule.method, rule.method, "GET", "POST", "PUT", "DELETE", "PATCH"];
    ((*rng.pick(&methods)).to_owned(), path)
}

async fn client(url: String, seed: u64) -> u64 {
    let mut rng = Rng(seed);
    let mut answered = 0;
    for n in 0..REQUESTS / CLIENTS {
        let (method, path) = path(&mut rng);
        // An event stream does not end.
        if path.starts_with("/v1/events") {
            continue;
        }
        let mut sent = body(&mut rng);
        if method == "GET" {
            // An unread body may truncate the response.
            sent.truncate(1_000);
        }
        let mut request = http().request(method.parse().expect("a method"), format!("{url}{path}"));
        request = match rng.below(10) {
            0 => request,
            1 => request.header("authorization", "Bearer"),
            2 => request.header("x-api-key", KEY).header("idempotency-key", "é"),
            3 => request.header("x-api-key", KEY).header("idempotency-key", "k".repeat(300)),
            _ => request.header("x-api-key", KEY),
        };
        let shown = String::from_utf8_lossy(&sent[..sent.len().min(300)]).into_owned();
        let what = format!("seed {seed}, request {n}: {method} {path} {shown}");
        let answer = request.body(sent).send().await;
        let answer = answer.unwrap_or_else(|error| panic!("{what}: {error}"));
        let (status, kind) = (answer.status(), answer.headers().get("content-type").cloned());
        let text = answer.text().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(!status.is_server_error(), "{what}: {status} {text}");
        if status.is_client_error() && !path.starts_with("/signin") {
            let kind = kind.expect("a content type");
            assert_eq!(kind, "application/problem+json", "{what}: {status} {text}");
            let problem: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(problem["status"], status.as_u16(), "{what}");
            assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{what}");
        }
        answered += 1;
    }
    answered
}

#[tokio::test]
async fn random_requests_get_well_formed_responses() {
    let kinds = Kinds::new([Kind::new("task").operation(Operation::new("work"))]);
    let kinds = Arc::new(kinds.expect("valid kinds"));
    let server = Server::start_with(Arc::new(Memory::new()), kinds).await;
    let local = tokio::task::LocalSet::new();
    let clients: Vec<_> = (1..=CLIENTS)
        .map(|seed| local.spawn_local(client(server.url.clone(), seed * 0x9e37_79b9_7f4a)))
        .collect();
    local
        .run_until(async {
            let mut answered = 0;
            for client in clients {
                answered += client.await.expect("no panic");
            }
            println!("{answered} random requests were answered");
            assert!(answered > REQUESTS * 9 / 10);
        })
        .await;
    assert_eq!(server.get("/v1/locks").await.0, 200);
    let (_, verified) = server.get("/v1/verify").await;
    assert_eq!(verified["ok"], true, "{verified}");
}
