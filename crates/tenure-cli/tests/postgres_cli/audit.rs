//! The audit of several servers on one database.

use tenure_testbed::shared;

use crate::common::until;
use crate::testbed::TestServer;

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
