//! What steps do: commands, requests, transactions; their limits, retries, secrets and fences.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tenure_testbed::{Durability, Postgres, shared};

use crate::bed::{On, QUICK, Site, id, until};

/// A server that answers each request with the next status, and keeps what it was sent.
struct Peer {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Peer {
    fn start(statuses: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&requests);
        std::thread::spawn(move || {
            for (at, stream) in listener.incoming().enumerate() {
                let mut stream = stream.expect("somebody calls");
                let mut piece = vec![0; 64 * 1024];
                let length = stream.read(&mut piece).expect("it says something");
                let text = String::from_utf8_lossy(&piece[..length]).into_owned();
                kept.lock().expect("no panic").push(text);
                let status = statuses.get(at).or(statuses.last()).expect("there is one");
                let answer = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi"
                );
                stream.write_all(answer.as_bytes()).ok();
            }
        });
        Self { address, requests }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_repeated_under_one_key_while_it_may_help() {
    let peer = Peer::start(&["503 Busy", "200 OK"]);
    let text = format!(
        "[parameters]\nday = {{ type = \"string\", default = \"a/b c\" }}\n\
         [[steps]]\nname = \"tell\"\n\
         retry = {{ attempts = 3, initial = \"50ms\" }}\n[steps.http]\n\
         url = \"http://{}/days/{{{{ parameters.day }}}}\"\n\
         headers = {{ authorization = \"Bearer {{{{ secrets.hook }}}}\" }}\n\
         body = {{ day = \"{{{{ parameters.day }}}}\", key = \"{{{{ secrets.hook }}}}\" }}\n",
        peer.address
    );
    let site = Site::start(On::Embedded, &[("default/billing", &text)]).await;
    site.write("secrets/default/hook", "s3cret-of-the-hook\n");
    let run = site.begin("billing").await;
    let done = site.over(&run, "COMPLETE").await;
    assert_eq!(done["steps"][0]["tries"], 2, "{done:#}");
    let requests = peer.requests();
    assert_eq!(requests.len(), 2, "{requests:?}");
    for request in &requests {
        assert!(request.starts_with("POST /days/a%2Fb%20c HTTP/1.1"), "{request}");
        assert!(request.contains(&format!("idempotency-key: {run}/tell")), "{request}");
        assert!(request.contains("x-tenure-token: 1"), "{request}");
        assert!(request.contains("authorization: Bearer s3cret-of-the-hook"), "{request}");
        assert!(request.contains("\"key\":\"s3cret-of-the-hook\""), "{request}");
    }
    let seen = format!("{} {done} {}", site.log(&run).await, site.said());
    assert!(!seen.contains("s3cret-of-the-hook"), "{seen}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_refused_is_not_repeated() {
    let peer = Peer::start(&["404 Gone"]);
    let text = format!(
        "[[steps]]\nname = \"tell\"\nretry = {{ attempts = 3, initial = \"50ms\" }}\n\
         http = {{ url = \"http://{}/\" }}\n",
        peer.address
    );
    let site = Site::start(On::Embedded, &[("default/billing", &text)]).await;
    let run = site.begin("billing").await;
    let done = site.over(&run, "FAILED").await;
    assert_eq!(done["error"]["code"], "HTTP_404", "{done:#}");
    assert_eq!(peer.requests().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_follow_the_declared_classes_of_errors() {
    let text = "[[steps]]\nname = \"a\"\n\
        retry = { attempts = 3, initial = \"20ms\", transient = [\"QUOTA\"], \
        permanent = [\"EXIT_5\"] }\n\
        command = [\"sh\", \"-c\", \"echo ::error $KIND no; exit $CODE\"]\n\
        env = { KIND = \"{{ parameters.kind }}\", CODE = \"{{ parameters.code }}\" }\n\
        [parameters]\nkind = { type = \"string\" }\ncode = { type = \"integer\" }\n";
    let site = Site::start(On::Embedded, &[("default/p", text)]).await;
    for (kind, code, tries) in [("QUOTA", 3, 3), ("EXIT_5", 5, 1)] {
        let answer = site.trigger("p", json!({ "kind": kind, "code": code })).await;
        let run = site.over(&id(&answer), "FAILED").await;
        assert_eq!(run["steps"][0]["tries"], tries, "{run:#}");
        assert_eq!(run["error"]["code"], kind);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_has_a_limit_of_its_own() {
    let text = "[[steps]]\nname = \"slow\"\nlimit = \"300ms\"\ncommand = [\"sleep\", \"600\"]\n";
    let site = Site::start(On::Embedded, &[("default/p", text)]).await;
    let run = site.begin("p").await;
    let done = site.over(&run, "FAILED").await;
    assert_eq!(done["error"]["code"], "STEP_TIME_LIMIT", "{done:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_is_in_the_environment_and_nowhere_else() {
    let text = "[[steps]]\nname = \"a\"\nsecrets = { API_KEY = \"key\" }\n\
                command = [\"sh\", \"-c\", \
                \"echo got $API_KEY; [ $API_KEY = s3cret-key-of-acme ]\"]\n";
    let site = Site::start(On::Embedded, &[("acme/p", text), ("umbrella/p", text)]).await;
    site.write("secrets/acme/key", "s3cret-key-of-acme\n");
    let run = site.begin("acme/p").await;
    site.over(&run, "COMPLETE").await;
    let seen = format!("{} {}", site.log(&run).await, site.said());
    assert!(seen.contains("got [redacted]") && !seen.contains("s3cret"), "{seen}");
    // Another tenant has no such secret, and is told where to put it.
    let run = site.begin("umbrella/p").await;
    let failed = site.over(&run, "FAILED").await;
    assert_eq!(failed["error"]["code"], "NO_SUCH_SECRET", "{failed:#}");
    assert!(failed["error"]["message"].as_str().expect("a text").contains("put it into the file"));
}

/// Whatever a step says, the secrets that it was given are not in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_is_cut_out_of_results_codes_and_what_is_cut_short() {
    let secret = "hunter2hunter2";
    let long = "x".repeat(250);
    let text = format!(
        "[[steps]]\nname = \"gives\"\nsecrets = {{ KEY = \"key\" }}\n\
         command = [\"sh\", \"-c\", \"echo '::result {{\\\"k\\\": \\\"'$KEY'\\\"}}'\"]\n\
         [[steps]]\nname = \"fails\"\nsecrets = {{ KEY = \"key\" }}\n\
         command = [\"sh\", \"-c\", \"echo ::error C_$KEY {long}$KEY; exit 3\"]\n"
    );
    let site = Site::start(On::Embedded, &[("default/p", &text)]).await;
    site.write("secrets/default/key", secret);
    let run = site.begin("p").await;
    let failed = site.over(&run, "FAILED").await;
    assert_eq!(failed["error"]["code"], "C_[redacted]", "{failed:#}");
    assert_eq!(failed["steps"][1]["status"], "FAILED", "{failed:#}");
    let metrics = site.get("/metrics").await.to_string();
    for seen in [failed.to_string(), site.log(&run).await, site.said(), metrics] {
        assert!(!seen.contains("hunter2"), "{seen}");
    }
    // What is given by a run that went well is kept, and cleaned.
    let only = text.split("[[steps]]\nname = \"fails\"").next().expect("the first step");
    site.pipeline("default/q", only);
    until(async || site.said().contains("2 pipelines")).await;
    let run = site.begin("q").await;
    let done = site.over(&run, "COMPLETE").await;
    assert_eq!(done["result"], json!({ "gives": { "k": "[redacted]" } }), "{done:#}");
}

/// Texts that look like secrets do not break what is told of a step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_looks_secret_does_not_hide_how_a_step_ended() {
    let text = "[[steps]]\nname = \"a\"\ncommand = [\"sh\", \"-c\", \
                \"echo '::error BAD {\\\"token\\\":{\\\"a\\\":1}}'; exit 3\"]\n";
    let site = Site::start(On::Embedded, &[("default/p", text)]).await;
    let run = site.begin("p").await;
    let failed = site.over(&run, "FAILED").await;
    assert_eq!(failed["steps"][0]["status"], "FAILED", "{failed:#}");
    assert_eq!(failed["steps"][0]["error"]["code"], "BAD", "{failed:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parameter_stays_one_part_of_an_address() {
    let peer = Peer::start(&["200 OK"]);
    let text = format!(
        "[parameters]\ns = {{ type = \"string\" }}\n[[steps]]\nname = \"tell\"\n\
         http = {{ url = \"http://{}/reports/{{{{ parameters.s }}}}/publish\" }}\n",
        peer.address
    );
    let site = Site::start(On::Embedded, &[("default/p", &text)]).await;
    let answer = site.trigger("p", json!({ "s": ".." })).await;
    let failed = site.over(&id(&answer), "FAILED").await;
    assert_eq!(failed["error"]["code"], "HTTP_INVALID", "{failed:#}");
    assert_eq!(peer.requests().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_talkative_step_does_not_drown_the_timeline() {
    let text = "[[steps]]\nname = \"loud\"\n\
                command = [\"sh\", \"-c\", \"yes 0123456789 | head -c 3000000\"]\n\
                [[steps]]\nname = \"next\"\ncommand = [\"true\"]\n";
    let site = Site::start(On::Embedded, &[("default/p", text)]).await;
    let run = site.begin("p").await;
    let done = site.over(&run, "COMPLETE").await;
    for at in 0..2 {
        assert_eq!(done["steps"][at]["status"], "COMPLETE", "{done:#}");
    }
    assert!(site.log(&run).await.contains("the log is full"));
}

/// A step on the store's own database.
struct Sql {
    site: Site,
    database: String,
}

impl Sql {
    async fn start(step: &str) -> Self {
        let site = Site::start_with(On::Postgres, 1, QUICK, "", &[]).await;
        let (url, database) = site.store.clone().expect("it is on PostgreSQL");
        let sql = |text: &str| shared().psql(&database, text).expect("it is taken");
        sql("CREATE TABLE effects (day date, n int, token bigint)");
        site.write("secrets/default/db", &url);
        let text = "[parameters]\nday = { type = \"string\", default = \"2026-01-31\" }\n\
                    n = { type = \"integer\", default = 7 }\n[[steps]]\nname = \"load\"\n";
        site.pipeline("default/p", &format!("{text}{step}"));
        until(async || site.said().contains("1 pipeline")).await;
        Self { site, database }
    }

    fn sql(&self, text: &str) -> String {
        shared().psql(&self.database, text).expect("it is taken")
    }
}

const INSERT: &str = "sql = { url = \"{{ secrets.db }}\", \
     run = \"INSERT INTO effects VALUES (:day, :n, :run_token)\" }\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_takes_values_and_no_words_from_a_trigger() {
    let bed = Sql::start(INSERT).await;
    let run = bed.site.begin("p").await;
    bed.site.over(&run, "COMPLETE").await;
    assert_eq!(bed.sql("SELECT day, n, token FROM effects"), "2026-01-31|7|1");
    let trick = json!({ "day": "2026-01-31'); DROP TABLE effects; --" });
    let answer = bed.site.trigger("p", trick).await;
    let run = bed.site.over(&id(&answer), "FAILED").await;
    assert_eq!(run["error"]["code"], "SQL_22007", "no date: {run:#}");
    assert_eq!(bed.sql("SELECT count(*) FROM effects"), "1");
}

/// The run is taken away while its statement waits. It comes back to a lost lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_a_lost_run_does_not_commit() {
    let step = "sql = { url = \"{{ secrets.db }}\", run = [\n\
                \"INSERT INTO effects VALUES (:day, :n, :run_token)\",\n\
                \"SELECT 1 FROM gate FOR SHARE\"] }\n";
    let bed = Sql::start(step).await;
    bed.sql("CREATE TABLE gate (n int); INSERT INTO gate VALUES (1)");
    let url = bed.site.store.clone().expect("a database").0;
    let (gate, connection) =
        tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("it answers");
    tokio::spawn(connection);
    gate.batch_execute("BEGIN; SELECT 1 FROM gate FOR UPDATE").await.expect("it is free");
    let run = bed.site.begin("p").await;
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                 AND query LIKE '%gate%' AND datname = current_database()";
    until(async || bed.sql(waits) == "1").await;
    let token = bed.site.get("/pipelines/locks").await["items"][0]["token"].clone();
    let body = json!({ "token": token, "reason": "a test" });
    let path = "/pipelines/locks/p/release";
    let (status, answer) =
        bed.site.ask(0, crate::bed::KEY, reqwest::Method::POST, path, Some(&body)).await;
    assert_eq!(status, 200, "{answer}");
    bed.site.over(&run, "FAILED").await;
    // Nothing of it holds the gate any more.
    until(async || bed.sql(waits) == "0").await;
    gate.batch_execute("COMMIT").await.expect("it is ours");
    let again = bed.site.begin("p").await;
    bed.site.over(&again, "COMPLETE").await;
    assert_eq!(bed.sql("SELECT token FROM effects"), "2", "only the second run counts");
}

/// A commit that takes too long may have happened: it is not done again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_nobody_knows_of_is_not_repeated() {
    let postgres = Postgres::start(Durability::Disk).expect("PostgreSQL starts");
    let database = postgres.new_database().expect("a database");
    postgres.psql(&database, "CREATE TABLE effects (n int)").expect("it is taken");
    // From now on a commit that waits for a standby waits for ever.
    let wait = "ALTER SYSTEM SET synchronous_standby_names = 'nobody'";
    postgres.psql("postgres", wait).expect("it is taken");
    postgres.psql("postgres", "SELECT pg_reload_conf()").expect("it is taken");
    let text = "[[steps]]\nname = \"load\"\nlimit = \"2s\"\n\
                retry = { attempts = 3, initial = \"50ms\" }\n\
                sql = { url = \"{{ secrets.db }}\", run = \"INSERT INTO effects VALUES (1)\" }\n";
    let site = Site::start(On::Embedded, &[("default/p", text)]).await;
    site.write("secrets/default/db", &postgres.url(&database));
    let run = site.begin("p").await;
    let failed = site.over(&run, "FAILED").await;
    assert_eq!(failed["error"]["code"], "SQL_COMMIT_UNKNOWN", "{failed:#}");
    assert_eq!(failed["steps"][0]["tries"], 1, "{failed:#}");
    let rows = postgres.psql(&database, "SELECT count(*) FROM effects").expect("it answers");
    assert!(rows == "0" || rows == "1", "{rows} rows");
}

/// Proof that the fence is asked: a role that may not ask it is refused, and nothing is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_on_the_stores_database_asserts_the_run() {
    let bed = Sql::start(INSERT).await;
    let role = format!("loader_{}", bed.database);
    bed.sql(&format!("CREATE ROLE {role} LOGIN; GRANT INSERT ON effects TO {role}"));
    let url =
        bed.site.store.clone().expect("a database").0.replace("postgres@", &format!("{role}@"));
    bed.site.write("secrets/default/db", &url);
    let run = bed.site.begin("p").await;
    let failed = bed.site.over(&run, "FAILED").await;
    assert_eq!(failed["error"]["code"], "SQL_GUARD_DENIED", "{failed:#}");
    assert_eq!(bed.sql("SELECT count(*) FROM effects"), "0");
    bed.sql(&format!("GRANT USAGE ON SCHEMA tenure TO {role}"));
    bed.sql(&format!("GRANT EXECUTE ON FUNCTION tenure.assert_held TO {role}"));
    let run = bed.site.begin("p").await;
    bed.site.over(&run, "COMPLETE").await;
    // Another database has no fence, and needs none.
    let other = shared().new_database().expect("a database");
    shared().psql(&other, "CREATE TABLE effects (day date, n int, token bigint)").expect("taken");
    bed.site.write("secrets/default/db", &shared().url(&other));
    let run = bed.site.begin("p").await;
    bed.site.over(&run, "COMPLETE").await;
    assert_eq!(shared().psql(&other, "SELECT count(*) FROM effects").expect("it answers"), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_of_steps_are_kept_with_the_run() {
    let text =
        "[[steps]]\nname = \"count\"\ncommand = [\"echo\", \"::result {\\\"rows\\\": 3}\"]\n";
    let site = Site::start(On::Embedded, &[("default/p", text)]).await;
    let run = site.begin("p").await;
    let done: Value = site.over(&run, "COMPLETE").await;
    assert_eq!(done["result"], json!({ "count": { "rows": 3 } }), "{done:#}");
}
