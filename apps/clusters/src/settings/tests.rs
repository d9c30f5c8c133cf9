//! Tests of the table `[clusters]`.

use super::*;
use tenure_config::{Report, Section};

const DIR: &str = "/etc/tenure";

/// Reads a file with the table, and returns the settings or all problems.
fn parse(text: &str) -> Result<Settings, String> {
    let mut report = Report::new(text);
    let table = report.table().unwrap();
    let root = Section::root(table.get_ref());
    let section = root.section("clusters", &mut report).unwrap();
    let settings = Settings::read(&section, Path::new(DIR), &mut report);
    if report.is_empty() { Ok(settings) } else { Err(report.into_error().to_string()) }
}

fn with(line: &str) -> Result<Settings, String> {
    parse(&format!("[clusters]\n{line}\n"))
}

#[track_caller]
fn refuses(line: &str, parts: &[&str]) {
    let problems = with(line).unwrap_err();
    for part in parts {
        assert!(problems.contains(part), "{line}: {part}: {problems}");
    }
    assert_eq!(problems.lines().count(), 1, "{problems}");
}

#[test]
fn an_empty_table_has_the_defaults() {
    let settings = parse("[clusters]\n").unwrap();
    assert_eq!(settings, Settings::new(Path::new(DIR)));
    assert_eq!((settings.lock_ttl_ms, settings.heartbeat_ms), (30_000, 10_000));
    assert_eq!(settings.attempts, 3);
    assert_eq!((settings.backoff_ms, settings.backoff_max_ms), (300_000, 1_800_000));
}

#[test]
fn every_key_is_read() {
    let settings = parse(
        r#"
        [clusters]
        installer = "bin/openshift-install-{version}"
        work_dir = "work"
        profiles = "/srv/profiles"
        failure_rules = "rules.toml"
        slots = 0
        lock_ttl = "60m"
        heartbeat_interval = "5m"
        stale_margin = "5m"
        attempts = 5
        backoff = "1m"
        backoff_max = "1h"
        create_limit = "4h"
        destroy_limit = "2h"
        scale_limit = "20m"
        stop_grace = "90s"
        verify = ["./verify", "--all"]
        verify_interval = "10s"
        pass_env = ["AWS_*", "HTTPS_PROXY"]
        artifacts = "s3://snapshots/ocp/"
        artifact_options = { endpoint = "http://127.0.0.1:9000" }
        artifact_retention = "7d"
        aws_endpoint = "http://127.0.0.1:5000/"
        advisory_locks = "DATABASE_URL"
        [clusters.base_domains]
        "dev.example.com" = "dev"
        [clusters.sqs]
        queue = "jobs.fifo"
        dead_letters = "dead.fifo"
        region = "eu-west-1"
        visibility = "5m"
        wait = "5s"
        receives = 4
        retention = "7d"
        claim_interval = "1m"
        create = true
        "#,
    );
    let expected = Settings {
        installer: "/etc/tenure/bin/openshift-install-{version}".to_owned(),
        work_dir: "/etc/tenure/work".into(),
        profiles: "/srv/profiles".into(),
        failure_rules: Some("/etc/tenure/rules.toml".into()),
        base_domains: [("dev.example.com".to_owned(), "dev".to_owned())].into(),
        slots: 0,
        lock_ttl_ms: HOUR_MS,
        heartbeat_ms: 5 * MINUTE_MS,
        stale_margin_ms: 5 * MINUTE_MS,
        attempts: 5,
        backoff_ms: MINUTE_MS,
        backoff_max_ms: HOUR_MS,
        create_limit_ms: 4 * HOUR_MS,
        destroy_limit_ms: 2 * HOUR_MS,
        scale_limit_ms: 20 * MINUTE_MS,
        stop_grace_ms: 90_000,
        verification: Verification::Command(vec![
            "/etc/tenure/verify".to_owned(),
            "--all".to_owned(),
        ]),
        verify_interval_ms: 10_000,
        pass_env: vec!["AWS_*".to_owned(), "HTTPS_PROXY".to_owned()],
        artifacts: "s3://snapshots/ocp".to_owned(),
        artifact_options: [("endpoint".to_owned(), "http://127.0.0.1:9000".to_owned())].into(),
        artifact_retention_ms: 7 * DAY_MS,
        aws_endpoint: Some("http://127.0.0.1:5000".to_owned()),
        advisory_locks: Some("DATABASE_URL".to_owned()),
        sqs: Some(SqsSettings {
            queue: "jobs.fifo".to_owned(),
            dead_letters: "dead.fifo".to_owned(),
            region: "eu-west-1".to_owned(),
            visibility_ms: 5 * MINUTE_MS,
            wait_ms: 5_000,
            receives: 4,
            retention_ms: 7 * DAY_MS,
            claim_interval_ms: MINUTE_MS,
            create: true,
        }),
    };
    assert_eq!(settings, Ok(expected));
}

#[test]
fn a_queue_has_the_names_and_times_of_older_systems_by_default() {
    let settings = parse("[clusters.sqs]\nregion = \"us-east-1\"\n").unwrap();
    let expected = SqsSettings {
        queue: "ocpctl-jobs.fifo".to_owned(),
        dead_letters: "ocpctl-jobs-dlq.fifo".to_owned(),
        region: "us-east-1".to_owned(),
        visibility_ms: 10 * MINUTE_MS,
        wait_ms: 20_000,
        receives: 3,
        retention_ms: 14 * DAY_MS,
        claim_interval_ms: 30_000,
        create: false,
    };
    assert_eq!(settings.sqs, Some(expected));
}

#[test]
fn every_problem_is_reported_at_once_with_its_line() {
    let text = "[clusters]\ninstaler = \"x\"\nslots = 5000\nlock_ttl = \"1s\"\nattempts = 0\n\
                backoff = \"2d\"\nverify = \"gcp\"\npass_env = [\"*\"]\nartifacts = \"ftp://a/b\"\n\
                create_limit = \"soon\"\naws_endpoint = \"localhost\"\n\
                advisory_locks = \"postgres://u:hunter2@db/x\"\n\
                base_domains = { example = \"dev\" }\n\
                [clusters.sqs]\nqueue = \"jobs\"\nwait = \"21s\"\nreceivs = 3\n";
    let problems = parse(text).unwrap_err();
    for part in [
        "line 2: clusters.instaler: unknown key `instaler`; did you mean `installer`?",
        "line 3: clusters.slots: ",
        "line 4: clusters.lock_ttl: it is 1s; it must be between 3s and 1d",
        "line 5: clusters.attempts: ",
        "line 6: clusters.backoff: it is 2d; it must be between 0s and 1d",
        "line 7: clusters.verify: \"gcp\" is neither",
        "line 8: clusters.pass_env: `*`",
        "line 9: clusters.artifacts: the scheme ftp://",
        "line 10: clusters.create_limit: ",
        "line 11: clusters.aws_endpoint: ",
        "line 12: clusters.advisory_locks: ",
        "line 13: clusters.base_domains",
        "clusters.sqs: `region` is missing",
        "line 15: clusters.sqs.queue: \"jobs\" does not end in .fifo",
        "line 16: clusters.sqs.wait: it is 21s; it must be between 0s and 20s",
        "line 17: clusters.sqs.receivs: unknown key `receivs`; did you mean `receives`?",
    ] {
        assert!(problems.contains(part), "{part}:\n{problems}");
    }
    assert_eq!(problems.lines().count(), 16, "{problems}");
    assert!(!problems.contains("hunter2"), "{problems}");
}

#[test]
fn heartbeats_follow_a_short_time_to_live_and_are_at_most_half_of_it() {
    assert_eq!(with("lock_ttl = \"3s\"").unwrap().heartbeat_ms, 1_000);
    assert_eq!(with("lock_ttl = \"24h\"").unwrap().heartbeat_ms, 10_000);
    let at_bound = with("lock_ttl = \"10s\"\nheartbeat_interval = \"5s\"").unwrap();
    assert_eq!(at_bound.heartbeat_ms, 5_000);
    let above = "lock_ttl = \"10s\"\nheartbeat_interval = \"5001ms\"";
    refuses(above, &["heartbeat_interval", "5s1ms", "half", "lock_ttl of 10s"]);
    refuses("heartbeat_interval = \"16s\"", &["lock_ttl of 30s"]);
    refuses("heartbeat_interval = \"99ms\"", &["between 100ms"]);
    // An invalid time to live is one problem, not two.
    refuses("lock_ttl = \"25h\"\nheartbeat_interval = \"1m\"", &["lock_ttl"]);
}

#[test]
fn the_maximum_backoff_is_not_shorter_than_the_first() {
    assert_eq!(with("backoff = \"2h\"").unwrap().backoff_max_ms, 2 * HOUR_MS);
    refuses("backoff = \"2m\"\nbackoff_max = \"1m\"", &["backoff_max", "1m", "2m"]);
    refuses("backoff_max = \"4m\"", &["first backoff of 5m"]);
}

#[test]
fn durations_are_accepted_at_their_bounds_and_refused_beyond() {
    for (key, min, below, max, above) in [
        ("lock_ttl", "3s", "2s999ms", "1d", "1d1ms"),
        ("create_limit", "1s", "999ms", "1d", "1d1ms"),
        ("destroy_limit", "1s", "999ms", "1d", "1d1ms"),
        ("scale_limit", "1s", "999ms", "1d", "1d1ms"),
        ("verify_interval", "100ms", "99ms", "1h", "1h1ms"),
        ("artifact_retention", "1h", "59m", "3650d", "3651d"),
    ] {
        for value in [min, max] {
            assert!(with(&format!("{key} = {value:?}")).is_ok(), "{key} {value}");
        }
        for value in [below, above] {
            refuses(&format!("{key} = {value:?}"), &[key, value, "must be between"]);
        }
    }
    refuses("stop_grace = \"61m\"", &["stop_grace", "1h1m"]);
    refuses("stale_margin = \"25h\"", &["stale_margin", "1d1h"]);
}

#[test]
fn only_the_version_is_replaced_in_the_path_of_the_installer() {
    assert_eq!(with("installer = \"oi-{version}\"").unwrap().installer, "oi-{version}");
    assert_eq!(with("installer = \"./oi\"").unwrap().installer, "/etc/tenure/oi");
    refuses("installer = \"/opt/{release}/oi\"", &["{version}", "{release}"]);
    refuses("installer = \"\"", &["between 1 and"]);
}

#[test]
fn a_verification_is_a_word_or_a_command() {
    assert_eq!(with("verify = \"aws\"").unwrap().verification, Verification::Aws);
    assert_eq!(with("verify = \"none\"").unwrap().verification, Verification::None);
    let command = with("verify = [\"aws\"]").unwrap().verification;
    assert_eq!(command, Verification::Command(vec!["aws".to_owned()]));
    refuses("verify = []", &["between 1 and"]);
    refuses("verify = [1]", &["strings"]);
    refuses("verify = true", &["true is neither"]);
}

#[test]
fn credentials_of_tenure_are_not_passed_on() {
    refuses("pass_env = [\"TENURE_KEY\"]", &["TENURE_KEY", "credential"]);
    refuses("pass_env = [\"TENURE_*\"]", &["TENURE_*", "credential"]);
    refuses("pass_env = [\"A=B\"]", &["A=B"]);
    let many: Vec<String> = (0..=places::PASS_ENV_MAX).map(|n| format!("\"A{n}\"")).collect();
    refuses(&format!("pass_env = [{}]", many.join(",")), &["101 names"]);
}

#[test]
fn snapshots_are_kept_in_a_directory_or_a_bucket() {
    let artifacts = |text: &str| with(&format!("artifacts = {text:?}")).map(|s| s.artifacts);
    assert_eq!(artifacts("snapshots").unwrap(), "file:///etc/tenure/snapshots");
    assert_eq!(artifacts("/srv/a").unwrap(), "file:///srv/a");
    assert_eq!(artifacts("gs://bucket").unwrap(), "gs://bucket");
    for (text, part) in [
        ("s3:///a", "bucket"),
        ("file://a", "absolute"),
        ("s3://key:hunter2@bucket", "credentials"),
        ("", "between 1 and"),
    ] {
        let problem = artifacts(text).unwrap_err();
        assert!(problem.contains(part) && !problem.contains("hunter2"), "{text}: {problem}");
    }
}

#[test]
fn the_names_of_queues_are_checked() {
    let sqs = |line: &str| parse(&format!("[clusters.sqs]\nregion = \"us-east-1\"\n{line}\n"));
    let longest = format!("queue = \"{}.fifo\"", "a".repeat(75));
    sqs(&longest).unwrap();
    let above = format!("queue = \"{}.fifo\"", "a".repeat(76));
    for (line, part) in [
        (above.as_str(), "81 characters"),
        ("queue = \".fifo\"", "before .fifo"),
        ("queue = \"a b.fifo\"", "before .fifo"),
        ("dead_letters = \"ocpctl-jobs.fifo\"", "the queue itself"),
        ("visibility = \"1500ms\"", "whole seconds"),
        ("retention = \"15d\"", "14d"),
        ("receives = 0", "between 1 and 1000"),
        ("claim_interval = \"0s\"", "between 1s"),
    ] {
        let problem = sqs(line).unwrap_err();
        assert!(problem.contains(part), "{line}: {problem}");
    }
    let problem = parse("[clusters.sqs]\nregion = \"\"\n").unwrap_err();
    assert!(problem.contains("us-east-1"), "{problem}");
}

#[test]
fn the_tenants_of_base_domains_are_names() {
    refuses("base_domains = { \"a.example\" = \"x/y\" }", &["the tenant \"x/y\""]);
    refuses("base_domains = { \"A.example\" = \"x\" }", &["'A'"]);
}
