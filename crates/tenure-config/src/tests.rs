//! Parsing of `tenure.toml`, and problems reported.

use std::path::Path;
use std::time::Duration;

use tenure_core::RunOptions;
use tenure_core::kind::{Backoff, Policy};

use super::NoApps;
use super::{AuditSetting, BadConfig, Config, Error, FILE_BYTES_MAX};

/// The example of the guide, with every key.
const COMPLETE: &str = r#"
[kinds.database]
states  = ["PENDING", "CREATING", "READY", "DESTROYING", "DESTROYED", "FAILED"]
initial = "PENDING"
backoff = "pass"
running_max = 1_0
tenant_running_max = 2
lock_max_age = "2h"
reconcile = "create"

[kinds.database.operations.create]
from = ["PENDING", "FAILED"]
during = "CREATING"
ok = "READY"
failed = "FAILED"
cancelled = "PENDING"
ends = "DESTROYED"
run = ["./create-db.sh", "--size", "small"]
limit = "30m"
env = { REGION = "eu" }
dir = "./work"
cancel_grace = "5m"
output_file = "logs/{job}-{attempt}.log"
output_bytes_max = 1_000_000
meets = { create = "attach", destroy = "reject" }
locks = ["main", "network"]

[kinds.database.operations.create.retry]
attempts = 3
initial = "5m"
factor = 2
max = "30m"
transient = ["BUSY"]
permanent = "QUOTA"

[kinds.database.operations.destroy]
from = "READY"
during = "DESTROYING"
ok = "DESTROYED"
failed = "FAILED"
run = ["destroy-db"]

[kinds.report.operations.run]

[runner]
pass_env = ["PGPASSWORD", "AWS_*"]

[worker]
slots = 7
ttl = "15s"
heartbeat_interval = "2s"
drain = "1m30s"
name = "builder"

[retention]
jobs = "7d"
dead = "60d"
history = "12h"
"#;

fn parse(text: &str) -> Result<Config, BadConfig> {
    Config::parse(text, Path::new("/etc/tenure"))
}

/// Returns each problem as `line: problem`.
fn problems(text: &str) -> Vec<String> {
    let bad = parse(text).expect_err("invalid");
    bad.0.iter().map(|problem| format!("{}: {}", problem.line, problem.description())).collect()
}

#[test]
fn every_key_is_parsed() {
    let config = parse(COMPLETE).expect("valid");
    assert_eq!(config.operations(), 3);
    let kind = config.kinds.get("database").expect("declared");
    assert_eq!((&*kind.initial, kind.states.len(), kind.backoff), ("PENDING", 6, Backoff::Pass));
    assert_eq!((kind.running_max, kind.tenant_running_max), (Some(10), Some(2)));
    assert_eq!(kind.lock_max_age_ms, Some(7_200_000));
    assert_eq!(kind.reconcile.as_deref(), Some("create"));
    let create = &kind.operations["create"];
    assert_eq!(create.from, ["PENDING".into(), "FAILED".into()]);
    assert_eq!(create.during.as_deref(), Some("CREATING"));
    assert_eq!((create.ok.as_deref(), create.failed.as_deref()), (Some("READY"), Some("FAILED")));
    assert_eq!(create.cancelled.as_deref(), Some("PENDING"));
    assert_eq!(create.ends, ["DESTROYED".into()]);
    assert_eq!(create.limit_ms, Some(30 * 60_000));
    assert_eq!((create.retry.attempts, create.retry.factor), (3, 2.0));
    assert_eq!((create.retry.initial_ms, create.retry.max_ms), (300_000, 1_800_000));
    assert_eq!(create.retry.transient, ["BUSY".into()]);
    assert_eq!(create.retry.permanent, ["QUOTA".into()]);
    assert_eq!(create.policy("destroy"), Policy::Reject);
    let locks: Vec<_> = create.locks.iter().map(ToString::to_string).collect();
    assert_eq!(locks, ["main", "network"]);
    assert_eq!(kind.operations["destroy"].from, ["READY".into()]);
    assert_eq!((config.worker.slots, config.worker.name.as_deref()), (Some(7), Some("builder")));
    assert_eq!(config.runner.pass_env, ["PGPASSWORD", "AWS_*"]);
    assert_eq!(create.env.get("REGION").map(String::as_str), Some("eu"));
    let options = &create.run_options;
    assert_eq!(options.dir.as_deref(), Some("/etc/tenure/work"));
    assert_eq!(options.cancel_grace_ms, Some(300_000));
    assert_eq!(options.output_file.as_deref(), Some("/etc/tenure/logs/{job}-{attempt}.log"));
    assert_eq!(options.output_bytes_max, Some(1_000_000));
    assert_eq!(kind.operations["destroy"].run_options, RunOptions::default());
    assert_eq!(config.worker.ttl, Duration::from_secs(15));
    assert_eq!(config.worker.heartbeat, Some(Duration::from_secs(2)));
    assert_eq!(config.worker.drain, Duration::from_secs(90));
    let day = 24 * 60 * 60 * 1_000;
    let retention = config.retention;
    assert_eq!(
        (retention.jobs_ms, retention.dead_ms, retention.history_ms),
        (7 * day, 60 * day, day / 2)
    );
}

#[test]
fn server_settings_are_parsed() {
    let text = "[server]\ntls_certificate = \"c.pem\"\ntls_key = \"/k.pem\"\naudit = \"off\"\n\
                connections = 5\ntenant_requests_per_s = 6\nwrong_keys_per_s = 7\n";
    let server = parse(text).expect("valid").server;
    assert_eq!(server.tls, Some(("/etc/tenure/c.pem".into(), "/k.pem".into())));
    assert_eq!(server.audit, AuditSetting::Off);
    assert_eq!(server.connections, Some(5));
    assert_eq!((server.tenant_requests_per_s, server.wrong_keys_per_s), (Some(6), Some(7)));
    let named = parse("[server]\naudit = \"a.jsonl\"\n").expect("valid").server;
    assert_eq!(named.audit, AuditSetting::File("/etc/tenure/a.jsonl".into()));
    let half = problems("[server]\ntls_key = \"k.pem\"\nconnections = 0\naudits = \"off\"\n");
    assert_eq!(half.len(), 3, "{half:?}");
    assert!(half.iter().any(|problem| problem.contains("`tls_certificate` is missing")));
}

#[test]
fn invalid_environment_variables_are_reported() {
    let text = "[runner]\npass_env = [\"*\", \"TENURE_KEY\", \"A B\", \"9\", \"OK\", \"\"]\n\
                [kinds.a.operations.b]\nenv = { X = \"y\" }\n\
                [kinds.a.operations.c]\nrun = [\"true\"]\n\
                env = { A-B = \"y\", TENURE_X = \"z\" }\n";
    assert_eq!(
        problems(text),
        [
            "2: runner.pass_env: `*` would pass every credential: name the variables, or use a \
             prefix such as `AWS_*`",
            "2: runner.pass_env: TENURE_KEY is a credential of Tenure, which no command gets",
            "2: runner.pass_env: \"A B\" is not the name of a variable: a variable consists of \
             letters, digits and `_`",
            "2: runner.pass_env: \"9\" is not the name of a variable: a variable consists of \
             letters, digits and `_`",
            "2: runner.pass_env: \"\" is not the name of a variable: a variable consists of \
             letters, digits and `_`",
            "4: kinds.a.operations.b.env: only a `run` has an environment",
            "7: kinds.a.operations.c.env.A-B: a variable consists of letters, digits and `_`",
            "7: kinds.a.operations.c.env.TENURE_X: Tenure sets the variables TENURE_…; choose \
             another name",
        ]
    );
}

#[test]
fn invalid_options_of_commands_are_reported() {
    let text = "[kinds.a.operations.b]\ndir = \"x\"\n\
                [kinds.a.operations.c]\nrun = [\"true\"]\ndir = \"\"\ncancel_grace = \"2d\"\n\
                output_file = \"out.log\"\n\
                [kinds.a.operations.d]\nrun = [\"true\"]\ncancel_grace = 5\noutput_bytes_max = 9\n";
    assert_eq!(
        problems(text),
        [
            "2: kinds.a.operations.b: dir is an option of a `run`, which is missing: add one, or \
             leave it out",
            "5: kinds.a.operations.c: dir is empty: leave it out to run in that of the worker",
            "6: kinds.a.operations.c: cancel_grace must be at most 1d",
            "7: kinds.a.operations.c: output_file must contain {job}, or concurrent jobs would \
             write the same file",
            "10: kinds.a.operations.d.cancel_grace: it must be a duration such as \"30m\", not of \
             the type integer",
            "11: kinds.a.operations.d: output_bytes_max has no effect without output_file: add \
             one, or leave it out",
        ]
    );
}

#[test]
fn empty_file_gives_the_defaults() {
    let config = parse("").expect("an empty file is valid");
    assert_eq!(config, Config::default());
    assert_eq!(config.worker.slots, None);
    assert!(config.retention.dead_ms > config.retention.jobs_ms);
}

#[test]
fn relative_path_is_resolved_and_bare_name_is_kept() {
    let config = parse(COMPLETE).expect("valid");
    let run =
        |name: &str| config.kinds.get("database").expect("declared").operations[name].run.clone();
    assert_eq!(run("create"), ["/etc/tenure/create-db.sh", "--size", "small"]);
    assert_eq!(run("destroy"), ["destroy-db"]);
    let bin = "[kinds.a.operations.b]\nrun = [\"bin/x\"]\n[kinds.c.operations.d]\nrun = [\"/x\"]";
    let config = parse(bin).expect("valid");
    let first = |kind: &str| {
        let kind = config.kinds.get(kind).expect("declared");
        kind.operations.values().next().expect("operation").run[0].clone()
    };
    assert_eq!((first("a"), first("c")), ("/etc/tenure/bin/x".into(), "/x".into()));
}

#[test]
fn command_kinds_are_those_with_commands() {
    let config = parse(COMPLETE).expect("valid");
    assert_eq!(config.command_kinds(), ["database".into()]);
}

#[test]
fn all_problems_are_reported_with_line_and_remedy() {
    let text = r#"kind = 1
[kinds.database]
states = ["PENDING", "CREATING", "READY", "LOST"]
initial = "PENDIG"
backof = "hold"
running_max = "many"

[kinds.database.operations.create]
form = ["PENDING"]
during = "CREATING"
ok = "REDY"
limit = 30
retry = { attempts = 0, initial = "1h", max = "1m", tries = 3 }
meets = { create = "atach", update = "queue" }
locks = ["a b"]

[kinds.database.operations.drop]
run = "drop.sh"

[worker]
slots = 0
ttl = "1s"

[retention]
jobs = "soon"
dead = "1s"
"#;
    let create = "kinds.database.operations.create";
    let among = "which is not among PENDING, CREATING, READY, LOST";
    assert_eq!(
        problems(text),
        [
            "1: kind: unknown key `kind`; did you mean `kinds`?",
            "2: kinds.database: no operation leads to the state PENDING",
            "2: kinds.database: no operation leads to the state READY",
            "2: kinds.database: no operation leads to the state LOST",
            &format!("4: kinds.database: initial names the state PENDIG, {among}"),
            "5: kinds.database.backof: unknown key `backof`; did you mean `backoff`?",
            "6: kinds.database.running_max: it must be an integer, not of the type string",
            &format!(
                "8: {create}: with a state during, the states ok and failed must be given too"
            ),
            &format!("9: {create}.form: unknown key `form`; did you mean `from`?"),
            &format!("11: {create}: ok names the state REDY, {among}"),
            &format!(
                "12: {create}.limit: it must be a duration such as \"30m\", not of the type \
                  integer"
            ),
            &format!(
                "13: {create}.retry.tries: unknown key `tries`; expected one of attempts, initial, \
                                  factor, max, transient, permanent"
            ),
            &format!("13: {create}.retry.attempts: it must be between 1 and 1000"),
            &format!("13: {create}: retry.initial is longer than retry.max"),
            &format!(
                "14: {create}.meets.create: \"atach\" is not a policy; expected queue, attach, \
                  reject, coalesce, replace, cancel"
            ),
            &format!("14: {create}: meets names the operation update, which is not declared"),
            &format!(
                "15: {create}.locks: the lock has the character ' '; allowed are letters, digits \
                  and . _ - : @ + ="
            ),
            "18: kinds.database.operations.drop.run: it must be a list of strings such as [\"a\", \
         \"b\"], not of the type string",
            "21: worker.slots: it must be between 1 and 4096",
            "22: worker.ttl: it must be between 3s and 86400s",
            "25: retention.jobs: \"soon\" is not a duration; write for example 500ms, 30s, 5m, \
             1h30m or 7d",
            "26: retention.dead: it must be at least 1m, so that finished jobs can be inspected",
        ]
    );
}

#[test]
fn problem_of_the_core_has_the_line_of_its_key_or_table() {
    let text = "[kinds.a]\nstates = [\"X\", \"Y\"]\n\n[kinds.a.operations.b]\nok = \"X\"\n\
                from = [\"Y\"]\nmeets = { c = \"queue\" }\n";
    assert_eq!(
        problems(text),
        [
            "1: kinds.a: no operation leads to the state Y",
            "1: kinds.a: the operation b can never start: no state of its from is ever reached",
            "7: kinds.a.operations.b: meets names the operation c, which is not declared",
        ]
    );
}

#[test]
fn dead_letters_are_kept_at_least_as_long_as_jobs() {
    let found = problems("[retention]\njobs = \"100d\"\n");
    assert!(found[0].starts_with("2: retention.jobs: dead letters would be dropped"), "{found:?}");
}

#[test]
fn kind_with_invalid_states_reports_no_follow_up_problems() {
    let text = "[kinds.a]\nstates = \"X\"\n[kinds.a.operations.b]\nok = \"X\"\nx = 1\n";
    assert_eq!(problems(text).len(), 2, "{:?}", problems(text));
    let text = "[kinds.a]\nstates = []\n";
    assert_eq!(
        problems(text),
        ["2: kinds.a.states: it must not be empty; leave the key out for a kind without states"]
    );
}

#[test]
fn all_syntax_errors_are_reported() {
    let found = problems("a = \n[kinds.x\nb = 'c\n");
    assert!(found.len() >= 2, "{found:?}");
    assert!(found.iter().all(|found| found.contains("invalid TOML")), "{found:?}");
    assert!(found[0].starts_with("1: "), "{found:?}");
}

#[test]
fn duplicate_key_is_rejected() {
    let found = problems("[worker]\nslots = 1\nslots = 2\n");
    assert!(found[0].starts_with("3: invalid TOML: duplicate key"), "{found:?}");
}

#[test]
fn wrong_types_are_rejected() {
    let found = problems("kinds = 1\nworker = []\n[retention]\njobs = true\n");
    assert_eq!(
        found,
        [
            "1: kinds: it must be a table, not of the type integer",
            "2: worker: it must be a table, not of the type array",
            "4: retention.jobs: it must be a duration such as \"30m\", not of the type boolean",
        ]
    );
}

#[test]
fn long_initial_backoff_raises_the_default_maximum() {
    let text = "[kinds.a.operations.b]\nretry = { attempts = 2, initial = \"2h\" }\n";
    let config = parse(text).expect("valid");
    let retry = &config.kinds.get("a").expect("declared").operations["b"].retry;
    assert_eq!((retry.initial_ms, retry.max_ms), (7_200_000, 7_200_000));
}

#[test]
fn missing_or_oversized_file_is_named() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("tenure.toml");
    let error = Config::load(&path, &mut NoApps).expect_err("missing").to_string();
    assert!(error.starts_with(&format!("cannot read {}: ", path.display())), "{error}");
    let max = usize::try_from(FILE_BYTES_MAX).expect("small");
    std::fs::write(&path, "#".repeat(max)).expect("writable");
    assert!(Config::load(&path, &mut NoApps).is_ok());
    std::fs::write(&path, "#".repeat(max + 1)).expect("writable");
    assert!(matches!(Config::load(&path, &mut NoApps), Err(Error::Unreadable { .. })));
}

#[test]
fn audit_limits_are_parsed_and_bounded() {
    let limits =
        parse("[audit]\nmax_bytes = 10_000_000\nmax_age = \"90d\"\n").expect("valid").audit;
    assert_eq!((limits.max_bytes, limits.max_age_ms), (10_000_000, Some(90 * 86_400_000)));
    let limits = parse("").expect("valid").audit;
    assert_eq!((limits.max_bytes, limits.max_age_ms), (201_326_592, None));
    let found = problems("[audit]\nmax_bytes = 1\nmax_age = \"1h\"\nmax_files = 3\n");
    assert_eq!(found.len(), 3, "{found:?}");
    for (problem, key) in found.iter().zip(["max_bytes", "max_age", "max_files"]) {
        assert!(problem.contains(&format!("audit.{key}: ")), "{problem}");
    }
}

#[test]
fn metrics_per_tenant_are_opt_in() {
    let config = Config::parse("", Path::new("/etc")).expect("an empty file is valid");
    assert!(!config.metrics.per_tenant);
    let text = "[metrics]\nper_tenant = true\n";
    let config = Config::parse(text, Path::new("/etc")).expect("valid");
    assert!(config.metrics.per_tenant);
    let found = problems("[metrics]\nper_tenant = 1\nper_tenants = true\n");
    assert_eq!(
        found,
        [
            "2: metrics.per_tenant: it must be true or false, not of the type integer",
            "3: metrics.per_tenants: unknown key `per_tenants`; did you mean `per_tenant`?",
        ]
    );
}

#[test]
fn a_heartbeat_interval_leaves_time_for_a_lost_heartbeat() {
    let with = |ttl: &str, interval: &str| {
        format!("[worker]\nttl = \"{ttl}\"\nheartbeat_interval = \"{interval}\"\n")
    };
    for (ttl, interval) in [("60m", "10s"), ("4s", "100ms"), ("4s", "2s")] {
        parse(&with(ttl, interval)).expect("valid");
    }
    for interval in ["99ms", "2001ms", "60m"] {
        assert_eq!(
            problems(&with("4s", interval)),
            ["3: worker.heartbeat_interval: it must be between 100ms and 2s"]
        );
    }
    let without_ttl = "[worker]\nheartbeat_interval = \"8s\"\n";
    assert_eq!(
        problems(without_ttl),
        ["2: worker.heartbeat_interval: it must be between 100ms and 7.5s"]
    );
}
