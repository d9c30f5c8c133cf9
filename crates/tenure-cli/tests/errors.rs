//! Errors of the real binary: words of the command line, JSON, connections that fail, ids that are
//! parts of several.

mod common;
#[expect(dead_code, reason = "terminals are not needed here")]
#[path = "jobs_cli/harness.rs"]
mod harness;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use common::{Server, free_address, stderr, stdout, tenure};
use harness::{Site, id_in};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Runs the binary and returns its exit code and the JSON error on stderr.
fn json_error(server: &Server, args: &[&str]) -> (i32, Value) {
    let output = server.run(&[&["-o", "json"], args].concat());
    let text = stderr(&output);
    let document: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error}: {text}"));
    assert_eq!(stdout(&output), "", "{args:?}");
    let error = document["error"].clone();
    assert_eq!(document, json!({ "error": error }), "{args:?}");
    assert!(error["message"].is_string(), "{args:?}: {error}");
    (output.status.code().expect("it was not killed"), error)
}

#[test]
fn errors_are_json_on_request() {
    let server = Server::start();
    server.run(&["lock", "acquire", "cluster/c1", "--ttl", "1h", "--holder", "ann"]);
    let (code, error) = json_error(&server, &["lock", "acquire", "cluster/c1"]);
    assert_eq!((code, &error["code"]), (3, &json!("held")), "{error}");
    assert_eq!(error["held_by"]["holder"]["name"], "ann", "{error}");
    assert_eq!((&error["status"], &error["queue_length"]), (&json!(409), &json!(0)), "{error}");
    assert!(error["request_id"].is_string() && error["detail"].is_string(), "{error}");
    let message = error["message"].as_str().expect("a text");
    assert!(message.starts_with("cluster/c1: held by ann"), "{message}");

    let exec = ["exec", "cluster/c1", "--wait", "0s", "--", "true"];
    let (code, error) = json_error(&server, &exec);
    assert_eq!((code, &error["code"]), (123, &json!("held")), "{error}");
    let unknown = "0".repeat(32);
    for (exit, code, args) in [
        (4, "not_found", &["job", "show", &*unknown][..]),
        (4, "not_found", &["resource", "show", "cluster/c1"]),
        (5, "unauthenticated", &["--key", "wrong", "lock", "ls"]),
        (69, "unavailable", &["--server", "http://127.0.0.1:1", "lock", "ls"]),
        (2, "invalid", &["why", "no slash"]),
        (2, "invalid", &["job", "submit", "cluster/c1", "create", "--args", "{"]),
        (2, "invalid", &["lock", "nonsense"]),
        (1, "failed", &["--data", "/no/such/directory", "lock", "ls"]),
    ] {
        let (found, error) = json_error(&server, args);
        assert_eq!((found, &error["code"]), (exit, &json!(code)), "{args:?}: {error}");
    }
    let help = server.run(&["lock", "--help", "-o", "json"]);
    assert!(stdout(&help).contains("Usage:"), "help is not an error: {}", stdout(&help));
}

#[test]
fn errors_name_options_not_parts_of_requests() {
    let server = Server::start();
    let create = ["key", "create", "--tenant", "acme", "--role", "worker", "--name", "ci"];
    let key = stdout(&server.run(&[&create[..], &["--reason", "builds"]].concat()));
    for (part, args) in [
        ("name it with --tenant NAME, not *", &["--tenant", "*", "why", "cluster/c1"][..]),
        ("name it with --tenant NAME", &["--tenant", "*", "lock", "show", "cluster/c1"]),
        ("leave --tenant out", &["--key", key.trim(), "--tenant", "other", "lock", "ls"]),
        ("pass a valid key with --key or TENURE_KEY", &["--key", "wrong", "lock", "ls"]),
    ] {
        let output = server.run(args);
        let text = stderr(&output);
        assert!(!output.status.success(), "{args:?}");
        assert!(text.contains(part), "{args:?}: {text}");
        for word in ["?tenant", "Authorization", "x-api-key", "GET /"] {
            assert!(!text.contains(word), "{args:?}: {text}");
        }
    }
}

/// Accepts one connection, reads a part of the request and answers with `bytes`.
fn answer_once(bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a caller");
        let read = stream.read(&mut [0; 1024]).expect("a request");
        assert!(read > 0, "the request is empty");
        stream.write_all(bytes).expect("a waiting caller");
    });
    address
}

#[test]
fn each_failure_to_connect_has_its_own_remedy() {
    let server = Server::start();
    // The answer of a TLS server to a request without TLS.
    let alert = answer_once(&[0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x16]);
    let closed = answer_once(b"");
    for (part, url) in [
        ("nothing listens on this address; start a server", format!("http://{}", free_address())),
        ("the host name cannot be resolved", "http://no-such-host.invalid:7117".to_owned()),
        ("use https:// in its address", format!("http://{alert}")),
        ("the connection was closed", format!("http://{closed}")),
        ("expected https://HOST", server.listen().to_owned()),
    ] {
        let output = server.run(&["--server", &url, "lock", "ls"]);
        let text = stderr(&output);
        assert!(text.contains(part), "{url}: {text}");
    }
}

#[test]
fn the_form_of_the_address_to_listen_on_is_named() {
    let dir = TempDir::new().expect("a directory");
    let serve = |listen: &str| {
        let args = ["serve", "--store", "memory:", "--listen", listen];
        tenure(dir.path()).args(args).output().expect("the binary runs")
    };
    let output = serve("7302");
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(text.contains("expected an address HOST:PORT, for example 127.0.0.1:7302"), "{text}");
    assert!(!text.contains("another server"), "{text}");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let output = serve(&taken.local_addr().expect("it is bound").to_string());
    let text = stderr(&output);
    assert!(text.contains("if another server runs there, stop it"), "{text}");
}

#[test]
fn a_resource_with_nothing_but_locks_is_explained() {
    let site = Site::start();
    site.ok(&["lock", "acquire", "report/r1"]);
    let (code, stderr_text) = site.code(&["resource", "show", "report/r1"]);
    assert_eq!(code, 4, "{stderr_text}");
    for part in ["report/r1 has locks but no state", "`tenure lock ls", "`tenure why report/r1`"] {
        assert!(stderr_text.contains(part), "{part} is missing: {stderr_text}");
    }
    let (code, stderr_text) = site.code(&["resource", "show", "report/none"]);
    assert_eq!(code, 4);
    assert!(stderr_text.contains("there is no such resource"), "{stderr_text}");
}

#[test]
fn a_part_of_an_id_suffices_if_it_is_unique() {
    let site = Site::start();
    let worker = site.worker("w1");
    let ids = ["r1", "r2", "r3"].map(|name| site.submit(&format!("report/{name}"), "run"));
    let [first, second, third] = ids.each_ref().map(String::as_str);
    for part in [&first[..28], &first[20..], &first[24..].to_uppercase()] {
        assert_eq!(site.json(&["job", "show", part])["id"], first, "{part}");
        assert!(site.ok(&["why", part]).starts_with(&format!("job {first}: ")), "{part}");
        assert_eq!(site.ok(&["job", "logs", part]), "");
    }
    assert_eq!(site.ok(&["job", "cancel", &second[20..]]), format!("cancelled {second}\n"));
    // Ids start with the time. At most one of the pairs was submitted across a change of the first
    // eight digits.
    let pair = [(first, second), (second, third)].into_iter().find(|(a, b)| a[..8] == b[..8]);
    let (one, other) = pair.expect("submitted within a minute");
    let (code, stderr_text) = site.code(&["job", "show", &one[..8]]);
    assert_eq!(code, 2, "{stderr_text}");
    for part in ["is part of several ids", one, other, "report/r2 run, cancelled"] {
        assert!(stderr_text.contains(part), "{part} is missing: {stderr_text}");
    }
    let unknown = "0".repeat(10);
    let (code, stderr_text) = site.code(&["job", "show", &unknown]);
    assert_eq!(code, 4, "{stderr_text}");
    assert!(stderr_text.contains(&format!("no id starts with {unknown}")), "{stderr_text}");
    let dead = worker.claim();
    dead.fail("DISK_FULL", "disk is full", true);
    let discard = ["dead", "discard", &dead.id[20..], "--reason", "old"];
    assert_eq!(site.ok(&discard), format!("{}\n", dead.id));
    let retry = ["job", "retry", &second[20..], "--reason", "after all"];
    let retried = id_in(&site.ok(&retry));
    assert_eq!(site.json(&["job", "show", &retried])["retry_of"], second);
}
