//! Errors of the real binary: words of the command line, JSON, connections that fail, ids that are
//! parts of several.

mod common;
#[expect(dead_code, reason = "terminals are not needed here")]
#[path = "jobs_cli/harness.rs"]
mod harness;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;

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

const EXPIRED_KEY: [&str; 10] =
    ["key", "create", "--role", "viewer", "--name", "a", "--reason", "x", "--expires", "0s"];

#[test]
fn errors_name_options_with_values_as_they_are_typed() {
    let site = Site::start();
    let long = "x".repeat(300);
    for (part, command) in [
        (
            "--ttl is 5d; it must be between 1s and 1d",
            &["lock", "acquire", "a/b", "--ttl", "5d"][..],
        ),
        ("--wait is 9d; it must be at most 1d", &["lock", "acquire", "a/b", "--wait", "9d"]),
        ("--max-age is 0s; it must be between", &["lock", "acquire", "a/b", "--max-age", "0s"]),
        ("--holder is empty", &["lock", "acquire", "a/b", "--holder", ""]),
        ("--reason has 300 bytes", &["lock", "acquire", "a/b", "--reason", &long]),
        ("a/b: there is no tenure with token 9", &["lock", "renew", "a/b", "--token", "9"]),
        ("--ttl is 5d; it must be", &["exec", "a/b", "--ttl", "5d", "--", "true"]),
        ("--ttl must be at least 3s", &["exec", "a/b", "--ttl", "1s", "--", "true"]),
        ("--wait must be at most 1d", &["exec", "a/b", "--wait", "9d", "--", "true"]),
        ("--limit must be more than 0s", &["exec", "a/b", "--limit", "0s", "--", "true"]),
        ("--holder is empty", &["exec", "a/b", "--holder", "", "--", "true"]),
        (
            "--priority is 9999; it must",
            &["job", "submit", "report/a", "run", "--priority", "9999"],
        ),
        ("--at or --in is more than", &["job", "submit", "report/a", "run", "--in", "400d"]),
        (
            "--name must have 1 to",
            &["key", "create", "--role", "viewer", "--name", "", "--reason", "x"],
        ),
        ("--since is \"x\"; write", &["audit", "--since", "x"]),
        ("name it with --tenant NAME", &["--tenant", "*", "lock", "acquire", "a/b"]),
        ("name it with --tenant NAME", &["--tenant", "*", "exec", "a/b", "--", "true"]),
        ("`tenure resource ls` lists all", &["resource", "pause", "a/b", "--reason", "x"]),
        ("--reason has 600 bytes", &["resource", "pause", "a/b", "--reason", &long.repeat(2)]),
        ("--expires must be more than 0s", &EXPIRED_KEY),
    ] {
        let (code, text) = site.code(command);
        assert_ne!(code, 0, "{command:?}");
        assert!(text.contains(part), "{command:?}: {text}");
        for field in ["_ms", "run_at", "session name", "the purpose", "Put it"] {
            assert!(!text.contains(field), "{command:?}: {text}");
        }
    }
    let submit = ["job", "submit", "report/a", "run", "--idempotency-key", "k"];
    site.ok(&submit);
    let (_, text) = site.code(&[&submit[..], &["--priority", "1"]].concat());
    assert!(text.contains("--idempotency-key was used for another request"), "{text}");
}

#[test]
fn a_request_that_may_have_been_received_is_one_json_error() {
    let server = Server::start();
    let submit = ["--server", "http://127.0.0.1:1", "job", "submit", "report/a", "run"];
    let (code, error) = json_error(&server, &submit);
    assert_eq!((code, &error["code"]), (69, &json!("unavailable")), "{error}");
    let message = error["message"].as_str().expect("a text");
    assert!(message.contains("may have been submitted; retry with --idempotency-key"), "{message}");
}

/// Runs the commands of a message in a shell.
fn run_hints(server: &Server, text: &str) {
    let (mut commands, mut parts) = (Vec::new(), text.split('`').skip(1).step_by(2));
    commands.extend(parts.by_ref().filter(|part| part.starts_with("tenure ")));
    for start in ["try: ", "see: ", "without filters: "] {
        let listed = text.split_once(start).map(|(_, commands)| commands.trim().split(", "));
        commands.extend(listed.into_iter().flatten());
    }
    assert!(!commands.is_empty(), "no command in {text:?}");
    for command in commands {
        let command = command.replace("TEXT", "because").replace("sleep 60", "true");
        let script = format!("tenure() {{ '{}' \"$@\"; }}; {command}", common::TENURE);
        // Nothing is known from the environment.
        let data = server.file("elsewhere");
        let mut shell = Command::new("bash");
        shell
            .args(["-c", &script])
            .env_clear()
            .env("TENURE_DATA", data)
            .env("TENURE_KEY", server.key());
        let output = shell.output().expect("bash runs");
        assert!(output.status.success(), "{command}: {}", stderr(&output));
    }
}

#[test]
fn commands_in_messages_can_be_run() {
    let site = Site::start();
    let server = &site.server;
    let url = server.url();
    let dead = {
        let worker = site.worker("w1");
        let id = id_in(&site.ok(&["job", "submit", "report/dead", "run", "--tenant", "default"]));
        worker.claim().fail("DISK_FULL", "disk is full", true);
        id
    };
    for tenant in ["default", "acme", "*"] {
        for list in [
            &["lock", "ls", "--kind", "none"][..],
            &["lock", "ls"],
            &["job", "ls", "--kind", "none"],
            &["resource", "ls", "--kind", "none"],
            &["key", "ls"],
            &["dead", "ls", "--kind", "none"],
            &["pipeline", "runs"],
            &["resource", "history", "cluster/none"],
        ] {
            if tenant == "*" && list[1] == "history" {
                continue;
            }
            let output = server.run(&[list, &["--server", &url, "--tenant", tenant]].concat());
            assert!(output.status.success(), "{list:?}: {}", stderr(&output));
            // The hint of another tenant may have filled a list of all tenants.
            if tenant != "*" || stdout(&output).is_empty() {
                run_hints(server, &stderr(&output));
            }
        }
    }
    let acme = ["--server", &*url, "--tenant", "acme"];
    for list in [["job", "ls"], ["resource", "ls"]] {
        let output = server.run(&[&list[..], &acme].concat());
        let text = stderr(&output);
        assert!(
            text.contains("; try: tenure job submit database/demo create --tenant acme"),
            "{text}"
        );
    }
    let output = server.run(&["why", "report/dead", "--server", &url]);
    let text = stdout(&output).lines().next().expect("a sentence").to_owned();
    assert!(text.contains(&format!("`tenure dead ls --server {url}`")), "{text}");
    // The second command would discard what the first one retried.
    run_hints(server, text.split_once(", or discard").expect("two ways").0.trim());
    assert_eq!(site.state(&dead), "redriven");
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
fn why_names_the_permanent_failure_of_an_idle_resource() {
    let site = Site::start();
    let worker = site.worker("w1");
    let failed = site.submit("report/r1", "run");
    worker.claim().fail("NO_TABLE", "there is no such table", false);
    let why = site.ok(&["why", "report/r1"]);
    for part in [
        &*format!("report/r1: run (job {failed}) failed permanently "),
        "with NO_TABLE: there is no such table",
        &*format!("`tenure job retry {failed} --reason TEXT`"),
        "`tenure job ls --state failed`",
    ] {
        assert!(why.contains(part), "{part} is missing: {why}");
    }
    let answer = site.json(&["why", "report/r1"]);
    assert_eq!((&answer["why"], &answer["job"]), (&json!("failed"), &json!(failed)));
    site.ok(&["job", "retry", &failed, "--reason", "it was created"]);
    worker.claim().succeed();
    assert_eq!(site.json(&["why", "report/r1"])["why"], "idle");
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
