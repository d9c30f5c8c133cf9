//! `tenure doctor`, and `/readyz` of servers on a database.

use serde_json::Value;
use tenure_testbed::{Durability, Postgres, shared, shared_bouncer};

use crate::common::{stderr, stdout, until};
use crate::testbed::{TestServer, doctor, finding, run};

/// Returns the names of the findings with this verdict.
fn names_with<'a>(report: &'a Value, verdict: &str) -> Vec<&'a str> {
    let findings = report["findings"].as_array().expect("it is a report").iter();
    let matching = findings.filter(|finding| finding["verdict"] == verdict);
    matching.map(|finding| finding["name"].as_str().expect("it is a report")).collect()
}

#[test]
fn unsafe_settings_are_reported_with_a_remedy() {
    let server = shared();
    let store = server.url(&server.new_database().unwrap());
    run(&["migrate", "--store", &store]);
    let (code, report) = doctor(&store);
    let bad = ["synchronous_commit", "fsync", "full_page_writes", "safety class"];
    assert_eq!((code, &report["ok"]), (Some(1), &Value::Bool(false)));
    assert_eq!(names_with(&report, "bad"), bad, "{report}");
    assert_eq!(finding(&report, "wake-ups")["found"], "received on the main address");
    let shown = run(&["doctor", "--store", &store]);
    let shown = stdout(&shown);
    for part in ["BAD", "store: fsync", "voids:  a crash", "remedy: switch it on"] {
        assert!(shown.contains(part), "{part} is missing: {shown}");
    }
}

#[test]
fn a_safe_database_passes_and_its_standby_does_not() {
    let primary = Postgres::start(Durability::Disk).unwrap();
    let database = primary.new_database().unwrap();
    let store = primary.url(&database);
    run(&["migrate", "--store", &store]);
    let (code, report) = doctor(&store);
    assert_eq!((code, names_with(&report, "bad").len()), (Some(0), 0), "{report}");
    assert_eq!(names_with(&report, "warn").len(), 0, "{report}");

    let standby = primary.standby(Durability::Disk).unwrap();
    let attached = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
    until(|| primary.psql("postgres", attached).unwrap() == "1");
    let (code, report) = doctor(&store);
    assert_eq!((code, names_with(&report, "warn")), (Some(0), vec!["standbys"]), "{report}");

    let (code, report) = doctor(&standby.url(&database));
    assert_eq!((code, names_with(&report, "bad")), (Some(1), vec!["primary", "safety class"]));
    let refused = run(&["serve", "--listen", "127.0.0.1:0", "--store", &standby.url(&database)]);
    assert!(stderr(&refused).contains("this is a standby: name the primary"), "{refused:?}");

    let (first, second) = (standby.port(), primary.port());
    let both = format!(
        "postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/{database}\
         ?target_session_attrs=read-write"
    );
    let (_, report) = doctor(&both);
    assert_eq!(finding(&report, "primary")["verdict"], "ok", "{report}");

    primary.psql("postgres", "ALTER ROLE postgres SET synchronous_commit = off").unwrap();
    let (code, report) = doctor(&store);
    assert_eq!((code, names_with(&report, "bad")[0]), (Some(1), "synchronous_commit"));
}

#[test]
fn a_pooler_needs_a_direct_address_for_wake_ups() {
    let server = shared();
    let store = shared_bouncer().url(server, &server.new_database().unwrap());
    run(&["migrate", "--store", &store]);
    let (_, report) = doctor(&store);
    let found = &finding(&report, "wake-ups")["found"];
    assert_eq!(found, "a pooler is in between, received on the address of listen=");

    let (without_listen, _) = store.split_once('?').unwrap();
    let (code, report) = doctor(without_listen);
    let wakeups = finding(&report, "wake-ups");
    assert_eq!((code, &wakeups["verdict"]), (Some(1), &Value::from("bad")), "{report}");
    assert!(wakeups["remedy"].as_str().unwrap().contains("listen=HOST:PORT"), "{report}");

    let (code, report) = doctor(&format!("{without_listen}?listen=127.0.0.1:1"));
    assert_eq!((code, &finding(&report, "wake-ups")["verdict"]), (Some(1), &Value::from("bad")));
}

#[test]
fn idle_transactions_are_reported() {
    let server = shared();
    let database = server.new_database().unwrap();
    let mut idle = std::process::Command::new("psql")
        .args(["--no-psqlrc", "--quiet", "--dbname", &server.url(&database)])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(idle.stdin.as_mut().unwrap(), b"BEGIN;\n").unwrap();
    let idling = format!(
        "SELECT pid FROM pg_stat_activity WHERE datname = '{database}' \
         AND state = 'idle in transaction'"
    );
    until(|| !server.psql("postgres", &idling).unwrap().is_empty());
    let pid = server.psql("postgres", &idling).unwrap();
    let (_, report) = doctor(&server.url(&database));
    let found = finding(&report, "idle transactions")["found"].as_str().unwrap();
    assert!(found.contains(&format!("process {pid}")), "{found}");
    drop(idle.stdin.take());
    idle.wait().unwrap();
}

#[test]
fn a_server_reports_missing_wake_ups_and_stays_ready() {
    let server = shared();
    let store = shared_bouncer().url(server, &server.new_database().unwrap());
    let probe = |server_process: &TestServer| {
        let output = run(&["doctor", "--server", &server_process.url(), "-o", "json"]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let server_process = TestServer::start(&store);
    until(|| server_process.log().contains("store postgres, safety class: "));
    until(|| finding(&probe(&server_process), "wake-ups")["verdict"] == "ok");

    let (without_listen, _) = store.split_once('?').unwrap();
    let isolated = TestServer::start(without_listen);
    // The first notification may arrive with the response to LISTEN; later ones do not.
    until(|| finding(&probe(&isolated), "wake-ups")["verdict"] == "warn");
    let report = probe(&isolated);
    assert_eq!(finding(&report, "ready")["verdict"], "ok", "{report}");
    assert_eq!(isolated.acquire("cluster/c1"), 1);
}

#[test]
fn an_unreachable_server_or_database_is_reported() {
    let output = run(&["doctor", "--server", "http://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("the server grants no locks"), "{output:?}");
    let output = run(&["doctor", "--store", "postgres://u:s3cret@127.0.0.1:1/d"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output) + &stderr(&output);
    assert!(text.contains("see that it runs") && !text.contains("s3cret"), "{text}");
}
