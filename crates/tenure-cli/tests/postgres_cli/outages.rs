//! Outages of the database, as clients see them over HTTP.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_testbed::{Fault, Proxy, shared};

use crate::common::{http, until};
use crate::testbed::TestServer;

/// Two seconds, and one for a machine that is busy with other tests.
const PROMPT: Duration = Duration::from_secs(3);

/// Sends a POST. Returns the status, the body and the time that it took.
fn post(server: &TestServer, path: &str, body: &Value) -> (u16, Value, Duration) {
    let started = tenure_store::clock::stopwatch();
    let key = format!("x-api-key: {}", server.key());
    let line = format!("POST {path} HTTP/1.1");
    let answer = http(server.listen(), &[&line, &key], &body.to_string()).expect("it answers");
    let status = answer.get(9..12).and_then(|status| status.parse().ok()).expect("a status");
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    assert!(status != 503 || answer.to_lowercase().contains("retry-after: "), "{answer}");
    (status, serde_json::from_str(body).unwrap_or_default(), started.elapsed())
}

/// Sends what holders and others send, each on a connection of its own.
fn send_all(server: &TestServer, session: &str, token: &Value) -> Vec<(String, u16, Duration)> {
    let lock = "/v1/locks/cluster/held";
    let requests = [
        ("/v1/locks/cluster/free/acquire".to_owned(), json!({ "session": session })),
        (format!("/v1/sessions/{session}/beat"), json!({ "seen": 0 })),
        (format!("{lock}/renew"), json!({ "token": token })),
        (format!("{lock}/release"), json!({ "token": token })),
    ];
    std::thread::scope(|scope| {
        let send = |(path, body): &(String, Value)| {
            let (status, _, took) = post(server, path, body);
            (path.clone(), status, took)
        };
        let running: Vec<_> =
            requests.iter().map(|request| scope.spawn(move || send(request))).collect();
        running.into_iter().map(|request| request.join().expect("no panic")).collect()
    })
}

fn assert_outage_is_reported_promptly(fault: Fault) {
    let database = shared();
    let proxy = Proxy::start(database.port()).expect("a free port");
    let name = database.new_database().expect("a new database");
    let server =
        TestServer::start(&format!("postgres://postgres@127.0.0.1:{}/{name}", proxy.port()));
    let open = json!({ "name": "w1", "ttl_ms": 600_000 });
    let session = post(&server, "/v1/sessions", &open).1["session"].clone();
    let session = session.as_str().expect("an id");
    let held = "/v1/locks/cluster/held/acquire";
    let (status, tenure, _) = post(&server, held, &json!({ "session": session }));
    assert_eq!(status, 200, "{tenure}");
    proxy.set_fault(fault);
    for round in 0..3 {
        for (path, status, took) in send_all(&server, session, &tenure["token"]) {
            assert_eq!(status, 503, "{path}");
            assert!(took < PROMPT, "{path} took {took:?} in round {round}");
            // The breaker is open.
            assert!(round == 0 || took < PROMPT / 2, "{path} took {took:?} in round {round}");
        }
    }
    proxy.set_fault(Fault::None);
    proxy.disconnect_all();
    let recovered = tenure_store::clock::stopwatch();
    let beat = format!("/v1/sessions/{session}/beat");
    until(|| post(&server, &beat, &json!({ "seen": 0 })).0 == 200);
    assert!(recovered.elapsed() < PROMPT, "{:?}", recovered.elapsed());
    let released = post(&server, "/v1/locks/cluster/held/release", &json!({ "token": 1 }));
    assert_eq!(released.0, 200, "{}", released.1);
}

#[test]
fn a_database_that_refuses_connections_is_reported_promptly_to_holders() {
    assert_outage_is_reported_promptly(Fault::Down);
}

#[test]
fn a_silent_database_is_reported_promptly_to_holders() {
    assert_outage_is_reported_promptly(Fault::Blackhole);
}
