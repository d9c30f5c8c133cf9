//! Steps: commands, requests and transactions, with limits, retries, secrets and fencing.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tenure_testbed::{Durability, Postgres, shared};

use crate::testbed::{Cluster, SHORT_TTL, StoreKind, id, until};

/// HTTP server that responds to each request with the next status, and records the requests.
pub(crate) struct MockServer {
    pub(crate) address: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl MockServer {
    fn start(statuses: &'static [&'static str]) -> Self {
        Self::start_with(statuses, "hi")
    }

    pub(crate) fn start_with(statuses: &'static [&'static str], body: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("free port");
        let address = listener.local_addr().expect("bound").to_string();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let recorded = Arc::clone(&requests);
        std::thread::spawn(move || {
            for (index, stream) in listener.incoming().enumerate() {
                let mut stream = stream.expect("connection");
                let mut buffer = vec![0; 64 * 1024];
                let length = stream.read(&mut buffer).expect("request");
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                recorded.lock().expect("not poisoned").push(text);
                let status = statuses.get(index).or(statuses.last()).expect("status");
                let length = body.len();
                let response = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n\
                     {body}"
                );
                stream.write_all(response.as_bytes()).ok();
            }
        });
        Self { address, requests }
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("not poisoned").clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transient_http_failure_is_retried_with_the_same_key() {
    let server = MockServer::start(&["503 Busy", "200 OK"]);
    let text = format!(
        "[parameters]\nday = {{ type = \"string\", default = \"a/b c\" }}\n\
         [[steps]]\nname = \"notify\"\n\
         retry = {{ attempts = 3, initial = \"50ms\" }}\n[steps.http]\n\
         url = \"http://{}/days/{{{{ parameters.day }}}}\"\n\
         headers = {{ authorization = \"Bearer {{{{ secrets.hook }}}}\" }}\n\
         body = {{ day = \"{{{{ parameters.day }}}}\", key = \"{{{{ secrets.hook }}}}\" }}\n",
        server.address
    );
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/billing", &text)]).await;
    cluster.write("secrets/default/hook", "s3cret-of-the-hook\n");
    let run = cluster.start_run("billing").await;
    let done = cluster.wait_for_end(&run, "COMPLETE").await;
    assert_eq!(done["steps"][0]["tries"], 2, "{done:#}");
    let requests = server.requests();
    assert_eq!(requests.len(), 2, "{requests:?}");
    for request in &requests {
        assert!(request.starts_with("POST /days/a%2Fb%20c HTTP/1.1"), "{request}");
        assert!(request.contains(&format!("idempotency-key: {run}/notify")), "{request}");
        assert!(request.contains("x-tenure-token: 1"), "{request}");
        assert!(request.contains("authorization: Bearer s3cret-of-the-hook"), "{request}");
        assert!(request.contains("\"key\":\"s3cret-of-the-hook\""), "{request}");
    }
    let output = format!("{} {done} {}", cluster.log(&run).await, cluster.output());
    assert!(!output.contains("s3cret-of-the-hook"), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permanent_http_failure_is_not_retried() {
    let server = MockServer::start(&["404 Gone"]);
    let text = format!(
        "[[steps]]\nname = \"notify\"\nretry = {{ attempts = 3, initial = \"50ms\" }}\n\
         http = {{ url = \"http://{}/\" }}\n",
        server.address
    );
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/billing", &text)]).await;
    let run = cluster.start_run("billing").await;
    let done = cluster.wait_for_end(&run, "FAILED").await;
    assert_eq!(done["error"]["code"], "HTTP_404", "{done:#}");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_in_a_json_text_are_escaped() {
    let server = MockServer::start(&["200 OK"]);
    let text = format!(
        "[parameters]\nname = {{ type = \"string\" }}\n\
         [[steps]]\nname = \"notify\"\n[steps.http]\nurl = \"http://{}/\"\n\
         body = '{{\"name\": \"{{{{ parameters.name }}}}\"}}'\n",
        server.address
    );
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/p", &text)]).await;
    let name = "a\", \"admin\": \"yes";
    let response = cluster.trigger("p", json!({ "name": name })).await;
    cluster.wait_for_end(&id(&response), "COMPLETE").await;
    let requests = server.requests();
    let (_, body) = requests[0].split_once("\r\n\r\n").expect("body");
    assert_eq!(serde_json::from_str::<Value>(body).expect("JSON"), json!({ "name": name }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_to_a_link_local_address_is_refused() {
    let text = "[[steps]]\nname = \"a\"\nretry = { attempts = 3, initial = \"50ms\" }\n\
                http = { url = \"http://169.254.169.254/latest/meta-data/\" }\n";
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/p", text)]).await;
    let run = cluster.start_run("p").await;
    let done = cluster.wait_for_end(&run, "FAILED").await;
    assert_eq!(done["error"]["code"], "HTTP_INVALID", "{done:#}");
    assert_eq!(done["steps"][0]["tries"], 1, "{done:#}");
}

/// Sends a request to a name, and returns how the step ended.
async fn request_by_name(settings: &str, server: &MockServer, name: &str) -> Value {
    let (_, port) = server.address.split_once(':').expect("port");
    let text = format!("[[steps]]\nname = \"a\"\nhttp = {{ url = \"http://{name}:{port}/\" }}\n");
    let pipelines = [("default/p", text.as_str())];
    let cluster =
        Cluster::start_with(StoreKind::Embedded, 1, SHORT_TTL, settings, &pipelines).await;
    let run = cluster.start_run("p").await;
    until(async || cluster.run(&run).await["ended_at"].is_string()).await;
    cluster.run(&run).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn name_of_a_denied_address_is_refused() {
    let server = MockServer::start(&["200 OK"]);
    let deny = "http_deny = [\"127.0.0.0/8\", \"::1\"]\n";
    for name in ["localhost", "0.0.0.0", "[::ffff:127.0.0.1]"] {
        let failed = request_by_name(deny, &server, name).await;
        assert_eq!(failed["error"]["code"], "HTTP_INVALID", "{name}: {failed:#}");
    }
    assert_eq!(server.requests().len(), 0);
    let allow = "http_allow = [\"127.0.0.1\"]\n";
    let done = request_by_name(&format!("{deny}{allow}"), &server, "localhost").await;
    assert_eq!(done["status"], "COMPLETE", "{done:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirect_is_not_followed() {
    let server = MockServer::start(&["302 Found\r\nlocation: /elsewhere", "200 OK"]);
    let failed = request_by_name("", &server, "127.0.0.1").await;
    assert_eq!(failed["error"]["code"], "HTTP_302", "{failed:#}");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_in_a_form_are_encoded() {
    let server = MockServer::start(&["200 OK"]);
    let text = format!(
        "[parameters]\nname = {{ type = \"string\" }}\n\
         [[steps]]\nname = \"notify\"\n[steps.http]\nurl = \"http://{}/\"\n\
         headers = {{ Content-Type = \"application/x-www-form-urlencoded\" }}\n\
         body = 'name={{{{ parameters.name }}}}'\n",
        server.address
    );
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/p", &text)]).await;
    let response = cluster.trigger("p", json!({ "name": "a&admin=yes" })).await;
    cluster.wait_for_end(&id(&response), "COMPLETE").await;
    let requests = server.requests();
    assert!(requests[0].ends_with("\r\n\r\nname=a%26admin%3Dyes"), "{requests:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_follow_the_declared_classes_of_errors() {
    let text = "[[steps]]\nname = \"a\"\n\
        retry = { attempts = 3, initial = \"20ms\", transient = [\"QUOTA\"], \
        permanent = [\"EXIT_5\"] }\n\
        command = [\"sh\", \"-c\", \"echo ::error $KIND no; exit $CODE\"]\n\
        env = { KIND = \"{{ parameters.kind }}\", CODE = \"{{ parameters.code }}\" }\n\
        [parameters]\nkind = { type = \"string\" }\ncode = { type = \"integer\" }\n";
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/p", text)]).await;
    for (kind, code, tries) in [("QUOTA", 3, 3), ("EXIT_5", 5, 1)] {
        let response = cluster.trigger("p", json!({ "kind": kind, "code": code })).await;
        let run = cluster.wait_for_end(&id(&response), "FAILED").await;
        assert_eq!(run["steps"][0]["tries"], tries, "{run:#}");
        assert_eq!(run["error"]["code"], kind);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn step_is_stopped_at_its_time_limit() {
    let text = "[[steps]]\nname = \"slow\"\nlimit = \"300ms\"\ncommand = [\"sleep\", \"600\"]\n";
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/p", text)]).await;
    let run = cluster.start_run("p").await;
    let done = cluster.wait_for_end(&run, "FAILED").await;
    assert_eq!(done["error"]["code"], "STEP_TIME_LIMIT", "{done:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_runs_in_the_directory_of_its_step() {
    let text = "[[steps]]\nname = \"a\"\ndir = \"./work\"\ncommand = [\"cat\", \"input\"]\n";
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/p", text)]).await;
    let run = cluster.start_run("p").await;
    let failed = cluster.wait_for_end(&run, "FAILED").await;
    assert_eq!(failed["error"]["code"], "CANNOT_START", "{failed:#}");
    let message = failed["error"]["message"].as_str().expect("message");
    let dir = cluster.file("pipelines/default/work").display().to_string();
    assert!(message.contains(&format!("cannot run in the directory {dir}")), "{message}");
    cluster.write("pipelines/default/work/input", "of this directory\n");
    let run = cluster.start_run("p").await;
    cluster.wait_for_end(&run, "COMPLETE").await;
    assert!(cluster.log(&run).await.contains("a | of this directory"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secret_is_visible_in_the_environment_only() {
    let text = "[[steps]]\nname = \"a\"\nsecrets = { API_KEY = \"key\" }\n\
                command = [\"sh\", \"-c\", \
                \"echo got $API_KEY; [ $API_KEY = s3cret-key-of-acme ]\"]\n";
    let cluster =
        Cluster::start(StoreKind::Embedded, &[("acme/p", text), ("umbrella/p", text)]).await;
    cluster.write("secrets/acme/key", "s3cret-key-of-acme\n");
    let run = cluster.start_run("acme/p").await;
    cluster.wait_for_end(&run, "COMPLETE").await;
    let output = format!("{} {}", cluster.log(&run).await, cluster.output());
    assert!(output.contains("got [redacted]") && !output.contains("s3cret"), "{output}");
    // Another tenant has no such secret; the message names the file.
    let run = cluster.start_run("umbrella/p").await;
    let failed = cluster.wait_for_end(&run, "FAILED").await;
    assert_eq!(failed["error"]["code"], "NO_SUCH_SECRET", "{failed:#}");
    assert!(failed["error"]["message"].as_str().expect("text").contains("store it in the file"));
}

/// Output of a step never contains its secrets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_redacted_in_results_codes_and_truncated_messages() {
    let secret = "hunter2hunter2";
    let long = "x".repeat(250);
    let text = format!(
        "[[steps]]\nname = \"gives\"\nsecrets = {{ KEY = \"key\" }}\n\
         command = [\"sh\", \"-c\", \"echo '::result {{\\\"k\\\": \\\"'$KEY'\\\"}}'\"]\n\
         [[steps]]\nname = \"fails\"\nsecrets = {{ KEY = \"key\" }}\n\
         command = [\"sh\", \"-c\", \"echo ::error C_$KEY {long}$KEY; exit 3\"]\n"
    );
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/p", &text)]).await;
    cluster.write("secrets/default/key", secret);
    let run = cluster.start_run("p").await;
    let failed = cluster.wait_for_end(&run, "FAILED").await;
    assert_eq!(failed["error"]["code"], "C_[redacted]", "{failed:#}");
    assert_eq!(failed["steps"][1]["status"], "FAILED", "{failed:#}");
    let metrics = cluster.get("/metrics").await.to_string();
    for seen in [failed.to_string(), cluster.log(&run).await, cluster.output(), metrics] {
        assert!(!seen.contains("hunter2"), "{seen}");
    }
    // The result of a successful run is stored redacted.
    let only = text.split("[[steps]]\nname = \"fails\"").next().expect("first step");
    cluster.declare("default/q", only);
    until(async || cluster.output().contains("2 pipelines")).await;
    let run = cluster.start_run("q").await;
    let done = cluster.wait_for_end(&run, "COMPLETE").await;
    assert_eq!(done["result"], json!({ "gives": { "k": "[redacted]" } }), "{done:#}");
}

/// Text that looks like a secret does not break the timeline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn apparent_secret_does_not_hide_the_status_of_a_step() {
    let text = "[[steps]]\nname = \"a\"\ncommand = [\"sh\", \"-c\", \
                \"echo '::error BAD {\\\"token\\\":{\\\"a\\\":1}}'; exit 3\"]\n";
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/p", text)]).await;
    let run = cluster.start_run("p").await;
    let failed = cluster.wait_for_end(&run, "FAILED").await;
    assert_eq!(failed["steps"][0]["status"], "FAILED", "{failed:#}");
    assert_eq!(failed["steps"][0]["error"]["code"], "BAD", "{failed:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameter_cannot_change_the_path_of_a_url() {
    let server = MockServer::start(&["200 OK"]);
    let text = format!(
        "[parameters]\ns = {{ type = \"string\" }}\n[[steps]]\nname = \"notify\"\n\
         http = {{ url = \"http://{}/reports/{{{{ parameters.s }}}}/publish\" }}\n",
        server.address
    );
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/p", &text)]).await;
    let response = cluster.trigger("p", json!({ "s": ".." })).await;
    let failed = cluster.wait_for_end(&id(&response), "FAILED").await;
    assert_eq!(failed["error"]["code"], "HTTP_INVALID", "{failed:#}");
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn excessive_output_does_not_displace_the_timeline() {
    let text = "[[steps]]\nname = \"loud\"\n\
                command = [\"sh\", \"-c\", \"yes 0123456789 | head -c 3000000\"]\n\
                [[steps]]\nname = \"next\"\ncommand = [\"true\"]\n";
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/p", text)]).await;
    let run = cluster.start_run("p").await;
    let done = cluster.wait_for_end(&run, "COMPLETE").await;
    for index in 0..2 {
        assert_eq!(done["steps"][index]["status"], "COMPLETE", "{done:#}");
    }
    assert!(cluster.log(&run).await.contains("the log is full"));
}

/// A step on the database of the store.
struct SqlFixture {
    cluster: Cluster,
    database: String,
}

impl SqlFixture {
    async fn start(step: &str) -> Self {
        let cluster = Cluster::start_with(StoreKind::Postgres, 1, SHORT_TTL, "", &[]).await;
        let (url, database) = cluster.store.clone().expect("PostgreSQL store");
        let sql = |text: &str| shared().psql(&database, text).expect("SQL succeeds");
        sql("CREATE TABLE effects (day date, n int, token bigint)");
        cluster.write("secrets/default/db", &url);
        let text = "[parameters]\nday = { type = \"string\", default = \"2026-01-31\" }\n\
                    n = { type = \"integer\", default = 7 }\n[[steps]]\nname = \"load\"\n";
        cluster.declare("default/p", &format!("{text}{step}"));
        until(async || cluster.output().contains("1 pipeline")).await;
        Self { cluster, database }
    }

    fn sql(&self, text: &str) -> String {
        shared().psql(&self.database, text).expect("SQL succeeds")
    }
}

const INSERT: &str = "sql = { url = \"{{ secrets.db }}\", \
     run = \"INSERT INTO effects VALUES (:day, :n, :run_token)\" }\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_are_bound_and_cannot_inject_sql() {
    let fixture = SqlFixture::start(INSERT).await;
    let run = fixture.cluster.start_run("p").await;
    fixture.cluster.wait_for_end(&run, "COMPLETE").await;
    assert_eq!(fixture.sql("SELECT day, n, token FROM effects"), "2026-01-31|7|1");
    let injection = json!({ "day": "2026-01-31'); DROP TABLE effects; --" });
    let response = fixture.cluster.trigger("p", injection).await;
    let run = fixture.cluster.wait_for_end(&id(&response), "FAILED").await;
    assert_eq!(run["error"]["code"], "SQL_22007", "not a date: {run:#}");
    assert_eq!(fixture.sql("SELECT count(*) FROM effects"), "1");
}

/// The lock is released by force while a statement waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_of_a_lost_run_does_not_commit() {
    let step = "sql = { url = \"{{ secrets.db }}\", run = [\n\
                \"INSERT INTO effects VALUES (:day, :n, :run_token)\",\n\
                \"SELECT 1 FROM gate FOR SHARE\"] }\n";
    let fixture = SqlFixture::start(step).await;
    fixture.sql("CREATE TABLE gate (n int); INSERT INTO gate VALUES (1)");
    let url = fixture.cluster.store.clone().expect("database").0;
    let (gate, connection) =
        tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("response");
    tokio::spawn(connection);
    gate.batch_execute("BEGIN; SELECT 1 FROM gate FOR UPDATE").await.expect("free");
    let run = fixture.cluster.start_run("p").await;
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                 AND query LIKE '%gate%' AND datname = current_database()";
    until(async || fixture.sql(waits) == "1").await;
    let token = fixture.cluster.get("/pipelines/locks").await["items"][0]["token"].clone();
    let body = json!({ "token": token, "reason": "a test" });
    let path = "/pipelines/locks/p/release";
    let (status, response) = fixture
        .cluster
        .send(0, crate::testbed::KEY, reqwest::Method::POST, path, Some(&body))
        .await;
    assert_eq!(status, 200, "{response}");
    fixture.cluster.wait_for_end(&run, "FAILED").await;
    // Its backend no longer waits for the gate.
    until(async || fixture.sql(waits) == "0").await;
    gate.batch_execute("COMMIT").await.expect("commit");
    let again = fixture.cluster.start_run("p").await;
    fixture.cluster.wait_for_end(&again, "COMPLETE").await;
    assert_eq!(fixture.sql("SELECT token FROM effects"), "2", "only the second run counts");
}

/// A commit that exceeds the time limit may have succeeded, so it is not retried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_with_unknown_outcome_is_not_retried() {
    let postgres = Postgres::start(Durability::Disk).expect("PostgreSQL");
    let database = postgres.new_database().expect("database");
    postgres.psql(&database, "CREATE TABLE effects (n int)").expect("SQL succeeds");
    // From now on, a synchronous commit waits for a standby forever.
    let wait = "ALTER SYSTEM SET synchronous_standby_names = 'missing'";
    postgres.psql("postgres", wait).expect("SQL succeeds");
    postgres.psql("postgres", "SELECT pg_reload_conf()").expect("SQL succeeds");
    let text = "[[steps]]\nname = \"load\"\nlimit = \"2s\"\n\
                retry = { attempts = 3, initial = \"50ms\" }\n\
                sql = { url = \"{{ secrets.db }}\", run = \"INSERT INTO effects VALUES (1)\" }\n";
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/p", text)]).await;
    cluster.write("secrets/default/db", &postgres.url(&database));
    let run = cluster.start_run("p").await;
    let failed = cluster.wait_for_end(&run, "FAILED").await;
    assert_eq!(failed["error"]["code"], "SQL_COMMIT_UNKNOWN", "{failed:#}");
    assert_eq!(failed["steps"][0]["tries"], 1, "{failed:#}");
    let rows = postgres.psql(&database, "SELECT count(*) FROM effects").expect("response");
    assert!(rows == "0" || rows == "1", "{rows} rows");
}

/// A role without permission to call the guard is refused, which shows that the guard is called.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_on_the_database_of_the_store_asserts_the_tenure() {
    let fixture = SqlFixture::start(INSERT).await;
    let role = format!("loader_{}", fixture.database);
    fixture.sql(&format!("CREATE ROLE {role} LOGIN; GRANT INSERT ON effects TO {role}"));
    let url = fixture
        .cluster
        .store
        .clone()
        .expect("database")
        .0
        .replace("postgres@", &format!("{role}@"));
    fixture.cluster.write("secrets/default/db", &url);
    let run = fixture.cluster.start_run("p").await;
    let failed = fixture.cluster.wait_for_end(&run, "FAILED").await;
    assert_eq!(failed["error"]["code"], "SQL_GUARD_DENIED", "{failed:#}");
    assert_eq!(fixture.sql("SELECT count(*) FROM effects"), "0");
    fixture.sql(&format!("GRANT USAGE ON SCHEMA tenure TO {role}"));
    fixture.sql(&format!("GRANT EXECUTE ON FUNCTION tenure.assert_held TO {role}"));
    let run = fixture.cluster.start_run("p").await;
    fixture.cluster.wait_for_end(&run, "COMPLETE").await;
    // Another database has no guard function and needs none.
    let other = shared().new_database().expect("database");
    shared()
        .psql(&other, "CREATE TABLE effects (day date, n int, token bigint)")
        .expect("SQL succeeds");
    fixture.cluster.write("secrets/default/db", &shared().url(&other));
    let run = fixture.cluster.start_run("p").await;
    fixture.cluster.wait_for_end(&run, "COMPLETE").await;
    assert_eq!(shared().psql(&other, "SELECT count(*) FROM effects").expect("response"), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_of_steps_are_stored_with_the_run() {
    let text =
        "[[steps]]\nname = \"count\"\ncommand = [\"echo\", \"::result {\\\"rows\\\": 3}\"]\n";
    let cluster = Cluster::start(StoreKind::Embedded, &[("default/p", text)]).await;
    let run = cluster.start_run("p").await;
    let done: Value = cluster.wait_for_end(&run, "COMPLETE").await;
    assert_eq!(done["result"], json!({ "count": { "rows": 3 } }), "{done:#}");
}
