//! Rolling restart of servers on one database under load, as in an upgrade: no request fails
//! permanently, and no holder loses its lock.

#[path = "fleet/clock.rs"]
mod clock;
mod common;
#[path = "fleet/process.rs"]
mod process;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{free_address, http, stderr, stdout, tenure};
use process::Process;
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure::Client;
use tenure_testbed::{Durability, Postgres};

use clock::{stopwatch, until};

const KINDS: &str = "[kinds.db.operations.create]\n";
/// Time after which an unanswered request has failed permanently.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
const CLIENTS: usize = 6;
/// TTL of the holders.
const TTL: Duration = Duration::from_secs(10);

struct Site {
    servers: [Process; 2],
    listen: [String; 2],
    key: String,
    database: String,
    postgres: Postgres,
    dir: TempDir,
}

impl Site {
    fn start() -> Self {
        let postgres = Postgres::start(Durability::Disk).expect("PostgreSQL starts");
        let database = postgres.new_database().expect("a database");
        let store = postgres.url(&database);
        let dir = TempDir::new().expect("a directory");
        let key = "k".repeat(40);
        write_private(&dir.path().join("key"), &key);
        std::fs::write(dir.path().join("kinds.toml"), KINDS).expect("it is writable");
        let listen = [free_address(), free_address()];
        let file = |name: &str| dir.path().join(name).display().to_string();
        let servers = [0, 1].map(|n| {
            let (config, admin) = (file("kinds.toml"), file("key"));
            let data = dir.path().join(format!("server{n}"));
            let mut args = vec!["serve", "--listen", &listen[n], "--store", &store];
            args.extend(["--config", &config, "--admin-key-file", &admin, "--linger", "300ms"]);
            Process::new(&data, dir.path().join(format!("{n}.log")), &args, None)
        });
        let mut site = Self { servers, listen, key, database, postgres, dir };
        for n in 0..2 {
            site.launch(n);
        }
        site
    }

    /// Starts a server and waits until it is ready.
    fn launch(&mut self, n: usize) {
        self.servers[n].launch();
        let (server, listen) = (&mut self.servers[n], &self.listen[n]);
        until(|| {
            assert_eq!(server.poll_exit(), None, "server {n} has exited: {}", server.log());
            let ready = http(listen, &["GET /readyz HTTP/1.1"], "");
            match ready.map_err(|error| error.to_string())? {
                answer if answer.starts_with("HTTP/1.1 200") => Ok(()),
                answer => Err(answer),
            }
        });
    }

    fn restart(&mut self, n: usize) {
        self.servers[n].signal("TERM");
        let server = &mut self.servers[n];
        let code = until(|| server.poll_exit().ok_or_else(|| "it still runs".to_owned()));
        assert_eq!(code, Some(0), "{}", server.log());
        self.launch(n);
    }

    fn url(&self, n: usize) -> String {
        format!("http://{}", self.listen[n])
    }

    fn logs(&self) -> String {
        self.servers.iter().map(Process::log).collect()
    }
}

/// What the clients have observed.
#[derive(Default)]
struct ClientStats {
    stop: AtomicBool,
    answered: AtomicUsize,
    unavailable: AtomicUsize,
    /// Connections that were refused.
    refused: AtomicUsize,
    /// Connections that were closed before the response.
    cut: AtomicUsize,
    problems: Mutex<Vec<String>>,
    jobs: Mutex<BTreeSet<String>>,
}

impl ClientStats {
    fn report(&self, what: String) {
        self.problems.lock().expect("no panic").push(what);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn answered(&self) -> usize {
        self.answered.load(Ordering::SeqCst)
    }
}

/// A client that follows the contract: requests without an answer, or answered with 503, are
/// retried with the same key at the other server, after the `retry-after` of a 503.
struct Caller {
    http: reqwest::Client,
    urls: [String; 2],
    key: String,
    stats: Arc<ClientStats>,
    name: String,
    sent: usize,
}

impl Caller {
    fn new(site: &Site, stats: &Arc<ClientStats>, n: usize) -> Self {
        let http = reqwest::Client::builder().tls_backend_preconfigured(
            tenure::http::tls::plain_http_config().expect("it needs nothing"),
        );
        Self {
            http: http.timeout(Duration::from_secs(5)).build().expect("a client"),
            urls: [site.url(0), site.url(1)],
            key: site.key.clone(),
            stats: Arc::clone(stats),
            name: format!("caller-{n}"),
            sent: n,
        }
    }

    async fn post(&mut self, path: &str, body: &Value) -> Option<Value> {
        self.sent += 1;
        let id = format!("{} {}", self.name, self.sent);
        self.post_as(&id, path, body).await
    }

    /// Returns the answer, or `None` if the request has failed permanently.
    async fn post_as(&self, id: &str, path: &str, body: &Value) -> Option<Value> {
        let started = stopwatch();
        let mut last = String::new();
        for n in self.sent.. {
            if started.elapsed() > REQUEST_TIMEOUT {
                break;
            }
            let url = format!("{}{path}", self.urls[n % 2]);
            let request = self.http.post(url).bearer_auth(&self.key).header("idempotency-key", id);
            let answer = match request.json(body).send().await {
                Ok(answer) => answer,
                Err(error) => {
                    let counter =
                        if error.is_connect() { &self.stats.refused } else { &self.stats.cut };
                    counter.fetch_add(1, Ordering::SeqCst);
                    last = format!("{error:?}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            };
            let (status, after) = (answer.status(), answer.headers().get("retry-after").cloned());
            let text = answer.text().await.unwrap_or_default();
            if status.as_u16() == 503 {
                self.stats.unavailable.fetch_add(1, Ordering::SeqCst);
                let after = after.and_then(|after| after.to_str().ok()?.parse().ok());
                let Some(after) = after else {
                    self.stats.report(format!("503 without retry-after: {text}"));
                    return None;
                };
                last = text;
                tokio::time::sleep(Duration::from_secs(after)).await;
                continue;
            }
            if status.is_success() {
                self.stats.answered.fetch_add(1, Ordering::SeqCst);
                return Some(serde_json::from_str(&text).expect("it is JSON"));
            }
            last = format!("{status}: {text}");
            break;
        }
        self.stats.report(format!("{id}: {path} has failed permanently: {last}"));
        None
    }

    /// Acquires, renews and releases a lock, and submits a job twice with one key, until stopped.
    async fn run(mut self) {
        let lock = format!("/v1/locks/door/{}", self.name);
        let mut highest = 0;
        while !self.stats.stopped() {
            let body = json!({ "holder": self.name, "ttl_ms": 60_000, "wait_ms": 5_000 });
            let Some(held) = self.post(&format!("{lock}/acquire"), &body).await else { return };
            let token = held["token"].as_u64().expect("a token");
            if token <= highest {
                self.stats.report(format!("{}: {token} after {highest}", self.name));
            }
            highest = token;
            let token = json!({ "token": token });
            for verb in ["renew", "release"] {
                if self.post(&format!("{lock}/{verb}"), &token).await.is_none() {
                    return;
                }
            }
            let path = format!("/v1/resources/db/{}/jobs", self.name);
            self.sent += 1;
            let id = format!("{} {}", self.name, self.sent);
            let mut jobs = BTreeSet::new();
            for _ in 0..2 {
                let body = json!({ "operation": "create" });
                let Some(created) = self.post_as(&id, &path, &body).await else { return };
                jobs.insert(created["job"]["id"].as_str().expect("an id").to_owned());
                self.sent += 1;
            }
            if jobs.len() != 1 {
                self.stats.report(format!("one key created {jobs:?}"));
            }
            self.stats.jobs.lock().expect("no panic").extend(jobs);
        }
    }
}

fn write_private(path: &Path, text: &str) {
    use std::os::unix::fs::OpenOptionsExt as _;
    let file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(path);
    file.expect("it is writable").write_all(text.as_bytes()).expect("it is writable");
}

#[test]
fn a_rolling_restart_fails_no_request_and_loses_no_lock() {
    let mut site = Site::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let stats = Arc::new(ClientStats::default());
    let caller = |n| runtime.spawn(Caller::new(&site, &stats, n).run());
    let callers: Vec<_> = (0..CLIENTS).map(caller).collect();
    let hold = |n: usize| {
        let (url, key) = (site.url(n), site.key.clone());
        runtime.block_on(async move {
            let client = Client::connect(&url, &key).await.expect("a running server");
            let session = client.session(&format!("holder-{n}"), TTL).await.expect("it answers");
            let lock = session.lock(&format!("kept/k{n}")).expect("a name");
            let tenure = lock.acquire().await.expect("it is free");
            (session, tenure)
        })
    };
    let holders = [hold(0), hold(1)];
    for n in [0, 1, 0, 1] {
        let before = stats.answered();
        site.restart(n);
        // The load continues afterwards, and the holders are unaffected.
        until(|| match stats.answered() - before {
            answered if answered >= 60 => Ok(()),
            answered => Err(format!("{answered} answers: {:?}\n{}", stats.problems, site.logs())),
        });
        for (_, tenure) in &holders {
            assert_eq!(tenure.check(), Ok(()), "restart of {n}: {}", site.logs());
        }
    }
    stats.stop.store(true, Ordering::SeqCst);
    for caller in callers {
        runtime.block_on(caller).expect("no caller panics");
    }
    assert_eq!(*stats.problems.lock().expect("no panic"), [] as [String; 0], "{}", site.logs());
    let (answered, again) = (stats.answered(), stats.unavailable.load(Ordering::SeqCst));
    let [refused, cut] = [&stats.refused, &stats.cut].map(|one| one.load(Ordering::SeqCst));
    println!("{answered} answers, {again} unavailable, {refused} refused, {cut} cut");
    for (n, (session, tenure)) in holders.into_iter().enumerate() {
        let token = tenure.token().0;
        let mut show = tenure_at(&site, 1 - n);
        let shown = show.args(["lock", "show", &format!("kept/k{n}"), "-o", "json"]).output();
        let shown: Value = serde_json::from_slice(&shown.expect("it runs").stdout).expect("JSON");
        assert_eq!(shown["tenures"][0]["token"], token, "{shown}");
        runtime.block_on(tenure.release()).expect("it is still held");
        runtime.block_on(session.close());
    }
    let verified = tenure_at(&site, 0).arg("verify").output().expect("it runs");
    assert!(verified.status.success(), "{}{}", stdout(&verified), stderr(&verified));
    // Verification has flushed the projection.
    let created = site.postgres.psql(&site.database, "SELECT count(*) FROM tenure.jobs");
    let known = stats.jobs.lock().expect("no panic").len().to_string();
    assert_eq!(
        created.expect("it answers").trim(),
        known,
        "a repeated submit created a second job"
    );
}

fn tenure_at(site: &Site, n: usize) -> std::process::Command {
    let mut command = tenure(site.dir.path());
    command.env("TENURE_KEY", &site.key).env("TENURE_SERVER", site.url(n));
    command
}

/// Sends a request on a keep-alive connection and reads the response.
fn get(connection: &mut BufReader<TcpStream>, path: &str) -> (String, String) {
    let head = format!("GET {path} HTTP/1.1\r\nhost: tenure\r\n\r\n");
    connection.get_mut().write_all(head.as_bytes()).expect("it is open");
    let (mut head, mut length) = (String::new(), 0);
    while !head.ends_with("\r\n\r\n") {
        let from = head.len();
        assert_ne!(connection.read_line(&mut head).expect("it answers"), 0, "cut: {head}");
        if let Some(value) = head[from..].strip_prefix("content-length: ") {
            length = value.trim().parse().expect("a number");
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body).expect("all of it");
    (head, String::from_utf8(body).expect("text"))
}

#[test]
fn a_lingering_server_is_not_ready_still_answers_and_closes_connections() {
    let dir = TempDir::new().expect("a directory");
    let listen = free_address();
    let args = ["serve", "--listen", &listen, "--store", "memory:", "--linger", "4s"];
    let mut server = Process::new(dir.path(), dir.path().join("log"), &args, None);
    server.launch();
    let open = || {
        let stream = until(|| TcpStream::connect(&listen).map_err(|error| error.to_string()));
        BufReader::new(stream)
    };
    let (mut first, mut second) = (open(), open());
    for connection in [&mut first, &mut second] {
        let (head, _) = get(connection, "/readyz");
        assert!(head.starts_with("HTTP/1.1 200") && !head.contains("connection: close"), "{head}");
    }
    server.signal("TERM");
    until(|| if server.log().contains("stopping") { Ok(()) } else { Err(server.log()) });
    let (head, body) = get(&mut first, "/readyz");
    assert!(head.starts_with("HTTP/1.1 503") && head.contains("connection: close"), "{head}");
    assert!(body.contains("shutting down"), "{body}");
    let (head, _) = get(&mut second, "/healthz");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("connection: close"), "{head}");
    let (head, _) = get(&mut open(), "/healthz");
    assert!(head.starts_with("HTTP/1.1 200"), "new connections are still answered: {head}");
    assert_eq!(until(|| server.poll_exit().ok_or_else(|| server.log())), Some(0));
}
