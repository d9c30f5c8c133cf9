//! Least-privilege roles, and the examples of docs/postgresql.md.

use std::sync::Mutex;

use tenure_testbed::{Postgres, shared};

use crate::common::{stderr, stdout, until};
use crate::testbed::{TestServer, doctor, finding, psql, run, url_as};

const GUIDE: &str = include_str!("../../../../docs/postgresql.md");

/// Creates a database with tables and roles, using the scripts for operators. Returns its name.
fn create_database_with_roles(server: &Postgres) -> String {
    // Roles belong to the whole cluster, and concurrent creation fails.
    static ROLE_CREATION: Mutex<()> = Mutex::new(());
    let _guard = ROLE_CREATION.lock().expect("no panic");
    let database = server.new_database().expect("the server is there");
    let owner = server.url(&database);
    assert!(run(&["migrate", "--store", &owner]).status.success());
    let roles = stdout(&run(&["migrate", "--roles"]));
    // Twice: the script must be idempotent.
    psql(&owner, &roles).expect("the owner may");
    psql(&owner, &roles).expect("the owner may");
    for role in ["app", "reader", "guard"] {
        let create = format!("CREATE ROLE {role}_{database} LOGIN IN ROLE tenure_{role}");
        server.psql(&database, &create).expect("the server is there");
    }
    database
}

/// Returns the code blocks of the guide with this info string.
fn blocks(name: &str) -> Vec<&'static str> {
    let open = format!("```{name}\n");
    let parts = GUIDE.split(&open).skip(1);
    parts.map(|part| part.split_once("```").expect("it ends").0).collect()
}

#[test]
fn a_server_runs_as_tenure_app_without_further_privileges() {
    let server = shared();
    let database = create_database_with_roles(server);
    let app = url_as(server, &format!("app_{database}"), &database);
    let server_process = TestServer::start(&app);
    let token = server_process.acquire("cluster/c1");
    server_process.ok(&["lock", "renew", "cluster/c1", "--token", &token.to_string()]);
    server_process.ok(&["lock", "release", "cluster/c1", "--token", &token.to_string()]);
    server_process.ok(&["job", "submit", "report/june", "build"]);
    assert!(server_process.ok(&["verify"]).contains("every lock had at most one holder"));
    assert!(!server_process.log().contains("permission denied"), "{}", server_process.log());
    let (_, report) = doctor(&app);
    assert_eq!(finding(&report, "privileges")["verdict"], "ok", "{report}");
    for sql in [
        "UPDATE tenure.pages SET lines = ''",
        "UPDATE tenure.logs SET text = ''",
        "UPDATE tenure.audit SET entry = ''",
        "DELETE FROM tenure.meta",
        "TRUNCATE tenure.pages",
        "ALTER TABLE tenure.jobs ADD x int",
        "CREATE TABLE tenure.mine (x int)",
    ] {
        let error = psql(&app, sql).unwrap_err();
        assert!(error.contains("permission denied") || error.contains("must be owner"), "{error}");
    }
    // Without the role the report has the remedy.
    let reader = url_as(server, &format!("reader_{database}"), &database);
    let (code, report) = doctor(&reader);
    let privileges = finding(&report, "privileges");
    assert_eq!((code, &privileges["verdict"]), (Some(1), &"bad".into()), "{report}");
    assert!(privileges["found"].as_str().unwrap().contains("INSERT on resources"), "{report}");
}

#[test]
fn a_reader_can_run_the_queries_of_the_guide() {
    let server = shared();
    let database = create_database_with_roles(server);
    let server_process = TestServer::start(&server.url(&database));
    server_process.acquire("cluster/c1");
    server_process.ok(&["job", "submit", "report/june", "build"]);
    // Reading a list flushes the projection.
    server_process.ok(&["job", "ls"]);
    let reader = url_as(server, &format!("reader_{database}"), &database);
    let answers: Vec<_> =
        blocks("sql query").into_iter().map(|sql| psql(&reader, sql).unwrap()).collect();
    assert_eq!(answers.len(), 3);
    assert!(answers[0].contains("default/cluster/c1|main|1|"), "{}", answers[0]);
    assert!(answers[1].starts_with("report|build|queued|1|"), "{}", answers[1]);
    let line = &answers[2];
    assert!(line.starts_with("1|") && line.contains(r#"|granted|{"n":1,"#), "{line}");
    let error = psql(&reader, "DELETE FROM tenure.locks").unwrap_err();
    assert!(error.contains("permission denied"), "{error}");
}

#[test]
fn a_guard_can_assert_tenures_but_read_nothing() {
    let server = shared();
    let database = create_database_with_roles(server);
    let create = format!(
        "CREATE TABLE clusters AS SELECT 'c1' AS name, '15.3' AS version; \
         GRANT SELECT, UPDATE ON clusters TO guard_{database}"
    );
    server.psql(&database, &create).unwrap();
    let server_process = TestServer::start(&server.url(&database));
    assert_eq!(server_process.acquire("cluster/c1"), 1);
    let guard = url_as(server, &format!("guard_{database}"), &database);

    // The example of the guide: once while the lock is held, and once after it was lost.
    let [example] = blocks("sql guard")[..] else { panic!("the example is gone") };
    psql(&guard, example).unwrap();
    let version = || server.psql(&database, "SELECT version FROM clusters").unwrap();
    assert_eq!(version(), "15.4");
    server_process.ok(&["lock", "break", "cluster/c1", "--token", "1", "--reason", "test"]);
    let error = psql(&guard, &example.replace("15.4", "15.5")).unwrap_err();
    assert_eq!(version(), "15.4");
    for line in ["the lock default/cluster/c1 is not held with token 1", "It was lost. Stop"] {
        assert!(error.contains(line) && GUIDE.contains(line), "{error}");
    }

    let tables = "SELECT relname FROM pg_class WHERE relkind = 'r' \
                  AND relnamespace = 'tenure'::regnamespace";
    let tables = server.psql(&database, tables).unwrap();
    assert!(tables.lines().count() >= 9, "{tables}");
    for table in tables.lines() {
        let error = psql(&guard, &format!("SELECT * FROM tenure.{table}")).unwrap_err();
        assert!(error.contains("permission denied"), "{table}: {error}");
    }
    assert!(psql(&guard, "SELECT tenure.at(1)").unwrap_err().contains("permission denied"));
    let refused = run(&["migrate", "--store", &guard]);
    assert!(stderr(&refused).contains("tenure migrate --roles"), "{refused:?}");
}

#[test]
fn a_server_that_may_not_use_the_audit_says_what_to_run() {
    let server = shared();
    let database = create_database_with_roles(server);
    // The roles are older than the table.
    let revoke = "REVOKE ALL ON tenure.audit FROM tenure_app";
    server.psql(&database, revoke).expect("the server is there");
    let process = TestServer::start(&url_as(server, &format!("app_{database}"), &database));
    let token = process.acquire("cluster/c1").to_string();
    let args = ["lock", "break", "cluster/c1", "--token", &token, "--reason", "a test"];
    assert!(process.run(&args).status.success(), "no action depends on it");
    let partial = process.run(&["audit"]);
    let message = stderr(&partial);
    assert!(partial.status.success(), "{message}");
    let entries = String::from_utf8_lossy(&partial.stdout);
    assert!(entries.contains("lock.break"), "the server has its own entries: {entries}");
    assert!(message.contains("warning: entries of other servers are missing"), "{message}");
    assert!(message.contains("permission denied for table audit"), "{message}");
    assert!(message.contains("run: tenure migrate --roles | psql"), "{message}");
    until(|| process.log().contains("cannot append to the shared audit log"));
}
