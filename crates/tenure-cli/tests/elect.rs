//! `tenure elect` with a real server and real candidates: one command at a time, whatever happens
//! to its leader. The ten races of a master election are in `elect/races.rs`.

mod common;
#[path = "elect/frozen.rs"]
mod frozen;
#[path = "elect/harness.rs"]
mod harness;
#[path = "elect/races.rs"]
mod races;

use std::fs;

use common::{Server, stderr, stdout, until};
use harness::{
    Candidate, ELECTION, LEAD, SERVE, TTL, candidates, expect_fenced, expect_terms, leader, status,
    terms, wait_for_tree,
};

#[test]
fn five_contenders_run_one_command_at_a_time() {
    let server = Server::start();
    let script = r#"
        mkdir "$D/leading" || echo "$NAME" >> "$D/overlap"
        echo "$NAME $TENURE_TERM" >> "$D/terms"
        sleep 0.1
        rmdir "$D/leading"
        exit 7"#;
    let start = |name: &&str| Candidate::start(&server, name, &[], script);
    let contenders: Vec<_> = ["a", "b", "c", "d", "e"].iter().map(start).collect();
    for contender in contenders {
        assert_eq!(contender.wait(), Some(7), "the code of the command");
    }
    let mut names: Vec<_> = terms(&server).iter().map(|term| term[..1].to_owned()).collect();
    let numbers: Vec<_> = terms(&server).iter().map(|term| term[2..].to_owned()).collect();
    names.sort_unstable();
    assert_eq!((names.join(""), numbers.join("")), ("abcde".to_owned(), "12345".to_owned()));
    assert!(!server.file("overlap").exists());
}

#[test]
fn the_command_has_its_term_and_lock_in_its_environment() {
    let server = Server::start();
    let script = "echo $TENURE_TERM $TENURE_TOKEN $TENURE_LOCK ${TENURE_KEY-none}";
    let args = ["elect", ELECTION, "--", "sh", "-c", script];
    let output = server.tenure().args(args).env("TENURE_KEY", server.key()).output();
    let output = output.expect("the binary runs");
    assert_eq!((output.status.code(), &*stdout(&output)), (Some(0), "1 1 service/api none\n"));
    assert_eq!(stderr(&output), "tenure: leading service/api in term 1\n");
}

#[test]
fn a_frozen_leader_is_replaced_fenced_and_becomes_a_follower() {
    let server = Server::start();
    let frozen = Candidate::start(&server, "a", &[], LEAD);
    wait_for_tree(&server, 2);
    let _next = Candidate::start_waiting(&server, "b", LEAD);
    frozen.signal("STOP");
    expect_terms(&server, &["a 1", "b 2"]);
    frozen.signal("CONT");
    until(|| candidates(&server) == ["a"]);
    assert_eq!(leader(&server), Some(("b".to_owned(), 2)));
    expect_fenced(&server, "1");
    assert!(frozen.said().contains("the leadership is lost"));
}

#[test]
fn a_killed_leader_is_replaced_and_a_killed_candidate_is_skipped() {
    let server = Server::start();
    let dying = Candidate::start(&server, "a", &[], LEAD);
    wait_for_tree(&server, 2);
    let dead = Candidate::start_waiting(&server, "b", LEAD);
    let _next = Candidate::start_waiting(&server, "c", LEAD);
    dead.signal("KILL");
    assert_eq!(dead.wait(), None);
    until(|| candidates(&server) == ["c"]);
    dying.signal("KILL");
    assert_eq!(dying.wait(), None);
    expect_terms(&server, &["a 1", "c 2"]);
    let status = status(&server);
    assert_eq!((&status["handovers"], &status["term"]), (&1.into(), &2.into()), "{status}");
}

#[test]
fn a_leader_that_ends_hands_over_to_the_candidate_that_it_names() {
    let server = Server::start();
    let ending = Candidate::start(&server, "a", &["--transfer-to", "c"], LEAD);
    wait_for_tree(&server, 2);
    let _other = Candidate::start_waiting(&server, "b", LEAD);
    let _named = Candidate::start_waiting(&server, "c", LEAD);
    // The command ignores SIGTERM: it is killed before the leader hands over.
    ending.signal("TERM");
    expect_terms(&server, &["a 1", "c 2"]);
    assert!(ending.said().contains("handed service/api over to c"), "{}", ending.said());
    assert_eq!(ending.wait(), Some(137));
    assert_eq!((leader(&server), candidates(&server)), (Some(("c".into(), 2)), vec!["b".into()]));
    let terms = server.run(&["resource", "history", ELECTION, "-o", "json"]);
    let history: serde_json::Value = serde_json::from_str(&stdout(&terms)).expect("JSON");
    let at = |n: usize| history["items"][n]["at"].as_str().expect("an instant").to_owned();
    assert_eq!(at(0), at(1), "one step ends term 1 and begins term 2: {history:#}");
}

#[test]
fn a_leader_whose_successor_does_not_wait_resigns() {
    let server = Server::start();
    let ending = Candidate::start(&server, "a", &["--transfer-to", "nobody"], SERVE);
    until(|| terms(&server) == ["a 1"]);
    let _next = Candidate::start_waiting(&server, "b", LEAD);
    fs::write(server.file("end"), "").expect("it is writable");
    expect_terms(&server, &["a 1", "b 2"]);
    assert!(ending.said().contains("nobody does not wait for service/api"), "{}", ending.said());
    assert_eq!(ending.wait(), Some(7));
}

#[test]
fn a_leader_survives_the_death_and_restart_of_the_server() {
    let mut server = Server::start();
    let leading = Candidate::start(&server, "a", &["--ttl", "30s"], LEAD);
    wait_for_tree(&server, 2);
    server.kill();
    server.launch();
    let _next = Candidate::start_waiting(&server, "b", LEAD);
    let heartbeats = || status(&server)["leader"]["heartbeat_age_ms"].as_u64();
    // It has sent a heartbeat to the new process.
    let before = heartbeats().expect("it leads");
    until(|| heartbeats().is_some_and(|age_ms| age_ms < before));
    assert_eq!(leader(&server), Some(("a".to_owned(), 1)));
    assert_eq!(terms(&server), ["a 1"], "{}", leading.said());
}

#[test]
fn a_leader_that_loses_its_server_stands_again_unless_it_runs_once() {
    for (extra, code) in [(&["--once"][..], Some(122)), (&[], None)] {
        let server = Server::start();
        let leading = Candidate::start(&server, "a", extra, LEAD);
        wait_for_tree(&server, 2);
        server.signal("STOP");
        until(|| leading.said().contains("the leadership is lost"));
        if let Some(code) = code {
            assert_eq!(leading.wait(), Some(code));
            server.signal("CONT");
            continue;
        }
        server.signal("CONT");
        expect_terms(&server, &["a 1", "a 2"]);
    }
}

#[test]
fn an_interrupted_candidate_leaves_the_queue_and_a_limited_wait_ends() {
    let server = Server::start();
    let _leading = Candidate::start(&server, "a", &[], SERVE);
    until(|| terms(&server) == ["a 1"]);
    let waiting = Candidate::start_waiting(&server, "b", SERVE);
    waiting.signal("INT");
    assert_eq!(waiting.wait(), Some(130));
    assert!(candidates(&server).is_empty());
    let output = server.run(&["elect", ELECTION, "--wait", "0s", "--", "true"]);
    assert_eq!(output.status.code(), Some(123), "{}", stderr(&output));
}

#[test]
fn the_status_shows_leader_term_heartbeat_hand_overs_and_candidates() {
    let server = Server::start();
    let none = server.run(&["elect", ELECTION, "--status"]);
    assert_eq!(stdout(&none), "service/api has no leader; its last term was 0\n");
    let _leading = Candidate::start(&server, "a", &[], SERVE);
    until(|| terms(&server) == ["a 1"]);
    let _waiting = Candidate::start_waiting(&server, "b", SERVE);
    let shown = stdout(&server.run(&["elect", ELECTION, "--status"]));
    let words = |line: usize| -> Vec<String> {
        shown.lines().nth(line).unwrap_or_default().split_whitespace().map(Into::into).collect()
    };
    let header = "ELECTION LEADER TERM SINCE AGE HEARTBEAT HAND-OVERS CANDIDATES";
    assert_eq!(words(0).join(" "), header, "{shown}");
    assert_eq!(words(1)[..3], ["service/api", "a", "1"], "{shown}");
    assert_eq!(words(1)[words(1).len() - 2..], ["0", "1"], "{shown}");
    assert_eq!(words(2)[..2], ["1.", "b"], "{shown}");
}

#[test]
fn bad_options_are_refused_with_the_remedy() {
    let server = Server::start();
    for (args, code, word) in [
        (&["--ttl", "1s", "--", "true"][..], 125, "at least 3s"),
        (&["--ttl", TTL, "--heartbeat", "2s", "--", "true"], 125, "between 100ms and 1.5s"),
        (&["--transfer-to", "b"], 2, "CMD"),
        (&["--status", "--", "true"], 2, "--status"),
    ] {
        let output = server.run(&[&["elect", ELECTION], args].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(word), "{args:?}: {}", stderr(&output));
    }
}
