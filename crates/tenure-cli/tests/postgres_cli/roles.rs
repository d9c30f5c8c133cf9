//! Roles with no more than they need, and the examples of docs/postgresql.md.

use std::sync::Mutex;

use tenure_testbed::{Postgres, shared};

use crate::bed::{Served, doctor, finding, psql, run, url_as};
use crate::common::{stderr, stdout};

const GUIDE: &str = include_str!("../../../../docs/postgresql.md");

/// Tables and roles in a new database, by the scripts that operators have; gives its name.
fn with_roles(server: &Postgres) -> String {
    // Roles are of the whole cluster, and making one is not for two at once.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().expect("no panic");
    let database = server.new_database().expect("the server is there");
    let owner = server.url(&database);
    assert!(run(&["migrate", "--store", &owner]).status.success());
    let roles = stdout(&run(&["migrate", "--roles"]));
    // Twice, since running it again must be harmless.
    psql(&owner, &roles).expect("the owner may");
    psql(&owner, &roles).expect("the owner may");
    for role in ["app", "reader", "guard"] {
        let make = format!("CREATE ROLE {role}_{database} LOGIN IN ROLE tenure_{role}");
        server.psql(&database, &make).expect("the server is there");
    }
    database
}

/// The blocks of the guide with this name.
fn blocks(name: &str) -> Vec<&'static str> {
    let open = format!("```{name}\n");
    let parts = GUIDE.split(&open).skip(1);
    parts.map(|part| part.split_once("```").expect("it ends").0).collect()
}

#[test]
fn a_server_works_as_tenure_app_and_cannot_do_more() {
    let server = shared();
    let database = with_roles(server);
    let app = url_as(server, &format!("app_{database}"), &database);
    let served = Served::start(&app);
    let token = served.acquire("cluster/c1");
    served.ok(&["lock", "renew", "cluster/c1", "--token", &token.to_string()]);
    served.ok(&["lock", "release", "cluster/c1", "--token", &token.to_string()]);
    served.ok(&["job", "submit", "report/june", "build"]);
    assert!(served.ok(&["verify"]).contains("every lock had at most one holder"));
    assert!(!served.log().contains("permission denied"), "{}", served.log());
    let (_, report) = doctor(&app);
    assert_eq!(finding(&report, "privileges")["verdict"], "ok", "{report}");
    for sql in [
        "UPDATE tenure.pages SET lines = ''",
        "UPDATE tenure.logs SET text = ''",
        "DELETE FROM tenure.meta",
        "TRUNCATE tenure.pages",
        "ALTER TABLE tenure.jobs ADD x int",
        "CREATE TABLE tenure.mine (x int)",
    ] {
        let error = psql(&app, sql).unwrap_err();
        assert!(error.contains("permission denied") || error.contains("must be owner"), "{error}");
    }
    // And one without the role is told how to get it.
    let reader = url_as(server, &format!("reader_{database}"), &database);
    let (code, report) = doctor(&reader);
    let privileges = finding(&report, "privileges");
    assert_eq!((code, &privileges["verdict"]), (Some(1), &"bad".into()), "{report}");
    assert!(privileges["found"].as_str().unwrap().contains("INSERT on resources"), "{report}");
}

#[test]
fn a_reader_reads_and_the_queries_of_the_guide_work() {
    let server = shared();
    let database = with_roles(server);
    let served = Served::start(&server.url(&database));
    served.acquire("cluster/c1");
    served.ok(&["job", "submit", "report/june", "build"]);
    // A list that is read from the tables brings them up to date.
    served.ok(&["job", "ls"]);
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
fn a_guard_asserts_and_reads_nothing() {
    let server = shared();
    let database = with_roles(server);
    let make = format!(
        "CREATE TABLE clusters AS SELECT 'c1' AS name, '15.3' AS version; \
         GRANT SELECT, UPDATE ON clusters TO guard_{database}"
    );
    server.psql(&database, &make).unwrap();
    let served = Served::start(&server.url(&database));
    assert_eq!(served.acquire("cluster/c1"), 1);
    let guard = url_as(server, &format!("guard_{database}"), &database);

    // As the guide has it: once while the lock is held, and once after it was lost.
    let [example] = blocks("sql guard")[..] else { panic!("the example is gone") };
    psql(&guard, example).unwrap();
    let version = || server.psql(&database, "SELECT version FROM clusters").unwrap();
    assert_eq!(version(), "15.4");
    served.ok(&["lock", "break", "cluster/c1", "--token", "1", "--reason", "test"]);
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
