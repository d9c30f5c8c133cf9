//! The audit of several servers on one database.

use tenure_testbed::shared;

use crate::common::{http, until};
use crate::testbed::{TestServer, psql};

#[test]
fn servers_show_the_actions_of_each_other() {
    let postgres = shared();
    let database = postgres.new_database().expect("the server is there");
    let url = postgres.url(&database);
    let (first, second) = (TestServer::start(&url), TestServer::start(&url));
    let key = ["key", "create", "--name", "ci", "--role", "viewer", "--reason", "a test"];
    first.ok(&key);
    first.acquire("cluster/c1");
    let entries = |server: &TestServer, args: &[&str]| {
        let list = server.ok(&[&["audit", "-o", "json"], args].concat());
        let list: serde_json::Value = serde_json::from_str(&list).expect("it is JSON");
        list["items"].as_array().expect("a list").clone()
    };
    let created = ["--action", "key.create", "--since", "1h"];
    until(|| !entries(&second, &created).is_empty());
    let (of_first, of_second) = (entries(&first, &created), entries(&second, &created));
    assert_eq!(of_first.len(), 1, "its own entry is shown once: {of_first:?}");
    assert_eq!(of_first, of_second);
    assert!(of_first[0]["server"].is_string(), "{of_first:?}");
    // Calls of workers stay where they were made.
    let acquired = ["--action", "lock.acquire"];
    assert_eq!(entries(&first, &acquired).len(), 1);
    assert!(entries(&second, &acquired).is_empty());
}

#[test]
fn a_flood_of_denied_calls_does_not_reach_the_database() {
    const FLOOD: usize = 1_000;
    let postgres = shared();
    let database = postgres.new_database().expect("the server is there");
    let url = postgres.url(&database);
    let server = TestServer::start(&url);
    // Nobody needs a key for this.
    for _ in 0..FLOOD {
        http(server.listen(), &["POST /signout HTTP/1.1"], "").expect("it answers");
    }
    let create = ["key", "create", "--name", "ci", "--role", "viewer", "--reason", "a test"];
    server.ok(&create);
    let count = |class: &str| {
        let sql = format!("SELECT count(*) FROM tenure.audit WHERE class = '{class}'");
        let count = psql(&url, &sql).expect("the owner may");
        count.trim().parse::<usize>().expect("a number")
    };
    // It is behind the flood in every queue.
    until(|| count("operators") == 1);
    let shared = count("denied");
    assert!((1..FLOOD).contains(&shared), "{shared}");
    let metrics = server.metrics();
    let labels = r#"class="denied",reason="denied_rate""#;
    let dropped = format!("tenure_audit_dropped_total{{{labels}}} {}", FLOOD - shared);
    assert!(metrics.contains(&dropped), "{dropped}: {metrics}");
    // All are in the files of the server.
    let list = server.ok(&["audit", "--action", "signout", "--limit", "1000", "-o", "json"]);
    assert_eq!(list.matches("\"action\": \"signout\"").count(), FLOOD);
}
