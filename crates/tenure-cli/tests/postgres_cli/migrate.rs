//! `tenure migrate`.

use serde_json::Value;
use tenure_testbed::shared;

use crate::common::{stderr, stdout};
use crate::testbed::{TestServer, doctor, finding, run};

#[test]
fn a_plan_changes_nothing_and_a_migration_runs_once() {
    let server = shared();
    let database = server.new_database().unwrap();
    let store = server.url(&database);
    let exists =
        || server.psql(&database, "SELECT to_regclass('tenure.meta') IS NOT NULL").unwrap();
    let (_, before) = doctor(&store);
    assert_eq!(finding(&before, "tables")["verdict"], "warn", "{before}");

    let plan = run(&["migrate", "--plan", "--store", &store]);
    assert!(plan.status.success(), "{}", stderr(&plan));
    assert!(stdout(&plan).contains("CREATE TABLE tenure.meta"), "{}", stdout(&plan));
    assert_eq!(exists(), "f");

    let done = run(&["migrate", "--store", &store]);
    assert!(stdout(&done).starts_with("migrated from version 0 to "), "{done:?}");
    assert_eq!(exists(), "t");
    for args in [&["migrate", "--store", &store][..], &["migrate", "--plan", "--store", &store]] {
        assert!(stdout(&run(args)).starts_with("nothing to do: "), "{args:?}");
    }
    // The doctor expects the version to which the migrations lead.
    let (_, after) = doctor(&store);
    assert_eq!(finding(&after, "tables")["verdict"], "ok", "{after}");
}

#[test]
fn a_newer_schema_is_not_changed() {
    let server = shared();
    let database = server.new_database().unwrap();
    let store = server.url(&database);
    assert!(run(&["migrate", "--store", &store]).status.success());
    server.psql(&database, "UPDATE tenure.meta SET value = '99' WHERE key = 'version'").unwrap();
    for args in [&["migrate", "--plan", "--store", &store][..], &["migrate", "--store", &store]] {
        let refused = run(args);
        assert!(!refused.status.success(), "{args:?}");
        assert!(stderr(&refused).contains("use the newer program"), "{}", stderr(&refused));
    }
}

#[test]
fn the_sql_of_a_plan_is_what_a_migration_runs() {
    let server = shared();
    let (planned, migrated) = (server.new_database().unwrap(), server.new_database().unwrap());
    let plan = run(&["migrate", "--plan", "--store", &server.url(&planned)]);
    server.psql(&planned, &stdout(&plan)).unwrap();
    run(&["migrate", "--store", &server.url(&migrated)]);
    let columns = "SELECT string_agg(table_name || '.' || column_name || ' ' || data_type, ', ' \
                   ORDER BY table_name, ordinal_position) FROM information_schema.columns \
                   WHERE table_schema = 'tenure'";
    let columns = |database: &str| server.psql(database, columns).unwrap();
    assert!(columns(&planned).contains("resources.token bigint"));
    assert_eq!(columns(&planned), columns(&migrated));
}

#[test]
fn tokens_of_a_new_incarnation_are_higher_than_all_before() {
    let server = shared();
    let store = server.url(&server.new_database().unwrap());
    let server_process = TestServer::start(&store);
    assert_eq!(server_process.acquire("cluster/c1"), 1);
    let output = run(&["migrate", "--new-incarnation", "--store", &store]);
    assert!(stdout(&output).contains("incarnation 1 started"), "{output:?}");
    assert!(stderr(&output).contains("higher than every token granted before"), "{output:?}");
    assert_eq!(server_process.acquire("cluster/c2"), (1 << 32) + 1);
    let (_, report) = doctor(&store);
    let found = finding(&report, "tables")["found"].as_str().unwrap();
    assert!(found.ends_with("incarnation 1"), "{report}");
}

#[test]
fn errors_have_the_remedy_and_never_the_password() {
    let server = shared();
    let database = server.new_database().unwrap();
    server.psql(&database, "CREATE ROLE nobody_special LOGIN").unwrap();
    let port = server.port();
    let at = |who: &str, database: &str| {
        format!("postgres://{who}:s3cret@127.0.0.1:{port}/{database}?application_name=t")
    };
    let cases = [
        ("postgres://u:s3cret@127.0.0.1:1/d".to_owned(), 69, "see that it runs"),
        (
            "postgres://u:s3cret@127.0.0.1:x/d".to_owned(),
            1,
            "expected postgres://USER:PASSWORD@HOST",
        ),
        ("mysql://u:s3cret@127.0.0.1/d".to_owned(), 1, "mysql: is not a store"),
        ("s3cret".to_owned(), 1, "is not a store"),
        (at("postgres", "missing"), 1, "createdb NAME"),
        (at("nobody_special", &database), 1, "tenure migrate --roles | psql"),
    ];
    for (store, code, expected) in cases {
        let output = run(&["migrate", "--store", &store]);
        let text = stderr(&output) + &stdout(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(expected), "{expected} is missing: {text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn an_embedded_store_migrates_itself() {
    let output = run(&["migrate", "-o", "json"]);
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed["by_itself"], true);
    let output = run(&["migrate", "--new-incarnation"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("remove tenure.db.life"), "{output:?}");
}
