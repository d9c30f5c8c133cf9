//! The read-only views with the tables of older systems.

use serde_json::json;
use tenure_testbed::Postgres;

use crate::bed::{Bed, StoreKind};
use crate::common::until;

/// Columns of the views.
const COLUMNS: &str = "clusters: id,name,platform,base_domain,status
job_locks: cluster_id,job_id,locked_at,locked_by,expires_at
jobs: id,cluster_id,job_type,status,error_code,attempt";

/// Runs SQL on the database of a test.
struct Sql<'a> {
    server: &'static Postgres,
    database: &'a str,
}

impl<'a> Sql<'a> {
    fn new(bed: &'a Bed) -> Self {
        let database = bed.database().rsplit('/').next().expect("a database");
        Self { server: tenure_testbed::shared(), database }
    }

    fn run(&self, sql: &str) -> String {
        self.server.psql(self.database, sql).expect("valid SQL")
    }

    fn error(&self, sql: &str) -> String {
        self.server.psql(self.database, sql).expect_err("a refusal").to_string()
    }
}

fn apply(bed: &Bed) {
    let (code, text) = bed.run(&["cluster", "views", "--apply", "--database", bed.database()]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("created ocpctl.clusters, ocpctl.jobs, ocpctl.job_locks"), "{text}");
}

#[test]
fn the_views_show_clusters_jobs_and_locks() {
    let bed = Bed::start(StoreKind::Postgres);
    apply(&bed);
    apply(&bed);
    let sql = Sql::new(&bed);
    let columns = "SELECT table_name || ': ' \
         || string_agg(column_name, ',' ORDER BY ordinal_position) \
         FROM information_schema.columns WHERE table_schema = 'ocpctl' \
         GROUP BY table_name ORDER BY 1";
    assert_eq!(sql.run(columns), COLUMNS);
    let _worker = bed.worker("a");
    bed.plan("demo", &json!({"create cluster": [{"hold": "begin"}]}));
    let (_, answer) = bed.create("demo");
    let job = answer["job"]["id"].as_str().expect("an id");
    bed.reached("demo", "begin");
    let cluster = "aws:demo.dev.example.com";
    let expected = format!("{cluster}|demo|aws|dev.example.com|CREATING");
    until(|| sql.run("SELECT * FROM ocpctl.clusters") == expected);
    assert_eq!(sql.run("SELECT * FROM ocpctl.jobs"), format!("{job}|{cluster}|CREATE|RUNNING||1"));
    let lock = "SELECT cluster_id, job_id, \
         locked_at BETWEEN now() - interval '1 minute' AND now(), \
         expires_at BETWEEN now() AND now() + interval '1 minute' FROM ocpctl.job_locks";
    until(|| sql.run(lock) == format!("{cluster}|{job}|t|t"));
    let by = sql.run("SELECT locked_by FROM ocpctl.job_locks");
    let lock = bed.api("GET", &format!("{}/lock", crate::bed::path("demo")), &json!(null)).1;
    assert!(!by.is_empty() && lock.to_string().contains(&by), "{by}: {lock}");
    bed.go("demo", "begin");
    bed.settled("demo", "READY");
    until(|| sql.run("SELECT status FROM ocpctl.clusters") == "READY");
    assert_eq!(sql.run("SELECT status, attempt FROM ocpctl.jobs"), "SUCCEEDED|1");
    until(|| sql.run("SELECT count(*) FROM ocpctl.job_locks") == "0");
}

#[test]
fn the_views_show_a_failure_by_its_code_and_no_arguments() {
    let bed = Bed::start(StoreKind::Postgres);
    apply(&bed);
    let sql = Sql::new(&bed);
    let _worker = bed.worker("a");
    let quota = "Error: VpcLimitExceeded: The maximum number of VPCs hunter2 has been reached";
    bed.plan("demo", &json!({"create cluster": [{"exit": 4, "log": [quota]}]}));
    bed.create_with("demo", &json!({"owner": "argument-of-the-job"}));
    bed.settled("demo", "FAILED");
    until(|| sql.run("SELECT status FROM ocpctl.clusters") == "FAILED");
    let job = sql.run("SELECT job_type, status, error_code, attempt FROM ocpctl.jobs");
    let reason = bed.show("demo")["last_error"]["code"].as_str().expect("a code").to_owned();
    assert_eq!(job, format!("CREATE|FAILED|{reason}|1"));
    // What all columns of all rows say.
    let all = ["clusters", "jobs", "job_locks"]
        .map(|view| sql.run(&format!("SELECT to_jsonb(v) FROM ocpctl.{view} v")))
        .concat();
    for secret in ["argument-of-the-job", "hunter2", "VpcLimitExceeded"] {
        assert!(!all.contains(secret), "{all}");
    }
}

#[test]
fn a_reader_of_the_views_sees_nothing_of_the_tables() {
    let bed = Bed::start(StoreKind::Postgres);
    apply(&bed);
    bed.create("demo");
    let sql = Sql::new(&bed);
    let role = format!("reader_{}", sql.database);
    sql.run(&format!(
        "CREATE ROLE {role}; GRANT USAGE ON SCHEMA ocpctl TO {role}; \
         GRANT SELECT ON ALL TABLES IN SCHEMA ocpctl TO {role}"
    ));
    let as_reader = |query: &str| format!("SET ROLE {role}; {query}");
    until(|| sql.run(&as_reader("SELECT name FROM ocpctl.clusters")) == "demo");
    for view in ["jobs", "job_locks"] {
        sql.run(&as_reader(&format!("SELECT * FROM ocpctl.{view}")));
    }
    for table in ["resources", "jobs", "locks", "sessions", "journal", "logs", "history", "meta"] {
        let error = sql.error(&as_reader(&format!("SELECT * FROM tenure.{table}")));
        assert!(error.contains("permission denied for schema tenure"), "{error}");
    }
    for change in ["DELETE FROM ocpctl.clusters", "UPDATE ocpctl.clusters SET status = 'READY'"] {
        assert!(sql.error(&as_reader(change)).contains("permission denied"));
    }
}

#[test]
fn views_are_printed_and_problems_are_named() {
    let bed = Bed::start(StoreKind::Embedded);
    let (code, text) = bed.run(&["cluster", "views"]);
    assert!(code == Some(0) && text.contains("CREATE OR REPLACE VIEW ocpctl.jobs"), "{text}");
    let apply = |url: &str| {
        let mut command = bed.command();
        command.args(["cluster", "views", "--apply"]).env("TENURE_STORE", url);
        let output = command.output().expect("the binary runs");
        (output.status.code(), crate::common::stderr(&output))
    };
    let server = tenure_testbed::shared();
    let empty = server.url(&server.new_database().expect("a database"));
    for (url, expected) in [
        (empty.as_str(), "tenure migrate"),
        ("embedded:tenure.db", "postgres://"),
        ("postgres://ann:hunter2@127.0.0.1:9/ops", "cannot be reached"),
        ("postgres://ann:hunter2@127.0.0.1:9/ops?nonsense=1", "invalid"),
    ] {
        let (code, text) = apply(url);
        assert!(code != Some(0) && text.contains(expected), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
    assert_eq!(bed.run(&["cluster", "views", "--apply"]).0, Some(1));
}
