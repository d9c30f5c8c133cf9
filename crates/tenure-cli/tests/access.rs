//! Keys, the audit, TLS and sign-in with the real binary.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Server, stderr, stdout, tenure};
use serde_json::Value;
use tempfile::TempDir;

/// A server whose talk can be read.
struct Told {
    child: Child,
    dir: TempDir,
    url: String,
    link: String,
}

impl Told {
    fn start(config: &str, prepare: impl FnOnce(&Path)) -> Self {
        let dir = TempDir::new().expect("a directory");
        prepare(dir.path());
        let file = dir.path().join("tenure.toml");
        fs::write(&file, config).expect("it is writable");
        let mut child = tenure(dir.path())
            .args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--config"])
            .arg(&file)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let (mut url, mut link) = (String::new(), String::new());
        let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        while link.is_empty() {
            let line = lines.next().expect("it goes on talking").expect("text");
            if let Some((_, said)) = line.split_once("listening on ") {
                url = said.to_owned();
            }
            if let Some((_, said)) = line.split_once("within 15 minutes: ") {
                link = said.to_owned();
            }
        }
        // Somebody has to go on listening.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, dir, url, link }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_key_is_made_used_seen_and_revoked() {
    let server = Server::start();
    let made = server.run(&[
        "key", "create", "--tenant", "acme", "--role", "worker", "--name", "ci", "--reason",
        "builds",
    ]);
    assert!(made.status.success(), "{}", stderr(&made));
    let key = stdout(&made).trim().to_owned();
    assert!(key.starts_with("tenure_acme_"), "the tenant is in it, nothing else is printed");
    assert!(stderr(&made).contains("not shown again"), "{}", stderr(&made));

    // The key says for whom: nobody has to name the tenant.
    let with_key = |args: &[&str]| {
        let mut command = server.tenure();
        command.env("TENURE_KEY", &key).args(args).output().expect("the binary runs")
    };
    let held = with_key(&[
        "lock",
        "acquire",
        "cluster/c1",
        "--holder",
        "me",
        "--ttl",
        "60s",
        "-o",
        "json",
    ]);
    assert!(held.status.success(), "{}", stderr(&held));
    assert_eq!(json(&stdout(&held))["tenant"], "acme");
    let ran = with_key(&["exec", "cluster/c2", "--", "true"]);
    assert!(ran.status.success(), "{}", stderr(&ran));

    // What it may not do is said, with what would help.
    let token = json(&stdout(&held))["token"].to_string();
    let token = token.trim_matches('"');
    let denied = with_key(&["lock", "break", "cluster/c1", "--token", token, "--reason", "x"]);
    assert!(!denied.status.success());
    assert!(stderr(&denied).contains("role operator or higher"), "{}", stderr(&denied));
    let other = with_key(&["--tenant", "other", "lock", "ls"]);
    assert!(stderr(&other).contains("bound to its own tenant"), "{}", stderr(&other));

    let listed = json(&stdout(&server.run(&["key", "ls", "-o", "json"])));
    let id = listed["items"][0]["id"].as_str().expect("an id").to_owned();
    assert!(stdout(&server.run(&["key", "ls"])).contains("ci"));
    let revoked = server.run(&["key", "revoke", &id, "--reason", "it leaked"]);
    assert!(revoked.status.success(), "{}", stderr(&revoked));
    let refused = with_key(&["lock", "ls"]);
    assert!(stderr(&refused).contains("valid key"), "{}", stderr(&refused));

    let audit = json(&stdout(&server.run(&["audit", "--limit", "1000", "-o", "json"])));
    let lines = audit["items"].as_array().expect("a list");
    let outcome = |action: &str| {
        let line = lines.iter().find(|line| line["action"] == action);
        line.map(|line| line["outcome"].as_str().unwrap().to_owned())
    };
    assert_eq!(outcome("lock.break").as_deref(), Some("forbidden"));
    assert_eq!(outcome("key.revoke").as_deref(), Some("ok"));
    assert!(stdout(&server.run(&["audit", "--action", "key.revoke"])).contains("it leaked"));
    let secret = key.rsplit('_').next().expect("it has parts");
    let file = fs::read_to_string(server.file("audit.jsonl")).expect("it is there");
    assert!(!file.contains(secret));
}

#[test]
fn keys_outlive_a_crash_of_the_server() {
    let mut server = Server::start();
    let made = server.run(&["key", "create", "--role", "viewer", "--name", "v", "--reason", "r"]);
    let key = stdout(&made).trim().to_owned();
    server.kill();
    server.launch();
    let mut command = server.tenure();
    let seen = command.env("TENURE_KEY", &key).args(["lock", "ls"]).output().expect("it runs");
    assert!(seen.status.success(), "{}", stderr(&seen));
}

#[test]
fn an_address_that_others_can_reach_needs_tls_or_a_word() {
    let dir = TempDir::new().expect("a directory");
    let run = tenure(dir.path())
        .args(["serve", "--listen", "0.0.0.0:0", "--store", "memory:"])
        .output()
        .expect("the binary runs");
    assert!(!run.status.success());
    for remedy in ["tls_certificate", "--plain-http"] {
        assert!(stderr(&run).contains(remedy), "{}", stderr(&run));
    }
}

/// An authority, and a certificate for 127.0.0.1 that it has signed.
fn certificates(dir: &Path) {
    let openssl = |args: &str| {
        let run = Command::new("openssl").args(args.split_whitespace()).current_dir(dir).output();
        let run = run.expect("openssl is there");
        assert!(run.status.success(), "{}", stderr(&run));
    };
    openssl("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ours -keyout ca.key -out ca.crt");
    openssl("req -newkey rsa:2048 -nodes -subj /CN=tenure -keyout server.key -out server.csr");
    fs::write(dir.join("names"), "subjectAltName=IP:127.0.0.1\n").expect("it is ours");
    openssl(
        "x509 -req -days 2 -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile names \
         -out server.crt",
    );
}

#[test]
fn with_a_certificate_it_speaks_tls_and_clients_check_whom_they_talk_to() {
    let config = "[server]\ntls_certificate = \"server.crt\"\ntls_key = \"server.key\"\n";
    let server = Told::start(config, certificates);
    assert!(server.url.starts_with("https://127.0.0.1:"), "{}", server.url);
    let list = |ca: Option<&str>| {
        let mut command = tenure(server.dir.path());
        if let Some(ca) = ca {
            command.env("TENURE_CA", server.dir.path().join(ca));
        }
        command.args(["lock", "ls"]).output().expect("the binary runs")
    };
    let trusted = list(Some("ca.crt"));
    assert!(trusted.status.success(), "{}", stderr(&trusted));
    for ca in [None, Some("server.key"), Some("no-such-file")] {
        let refused = list(ca);
        assert_eq!(refused.status.code(), Some(69), "{ca:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains("ertificate"), "{ca:?}: {}", stderr(&refused));
    }
    let mut plain = tenure(server.dir.path());
    plain.env("TENURE_SERVER", server.url.replace("https", "http"));
    let plain = plain.args(["lock", "ls"]).output().expect("the binary runs");
    assert!(!plain.status.success(), "nothing is answered without TLS");
}

#[test]
fn a_broken_certificate_stops_the_start_with_its_file() {
    let dir = TempDir::new().expect("a directory");
    let config = "[server]\ntls_certificate = \"c.pem\"\ntls_key = \"k.pem\"\n";
    fs::write(dir.path().join("tenure.toml"), config).expect("it is writable");
    fs::write(dir.path().join("c.pem"), "nonsense").expect("it is writable");
    let run = tenure(dir.path())
        .args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--config"])
        .arg(dir.path().join("tenure.toml"))
        .output()
        .expect("the binary runs");
    assert!(!run.status.success());
    assert!(stderr(&run).contains(".pem"), "{}", stderr(&run));
}

#[tokio::test]
async fn the_link_that_is_printed_signs_in_once() {
    let server = Told::start("", |_| {});
    assert!(server.link.starts_with(&server.url), "{}", server.link);
    rustls::crypto::ring::default_provider().install_default().ok();
    let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let http = http.build().expect("a client needs nothing");
    let first = http.get(&server.link).send().await.expect("it answers");
    assert_eq!(first.status(), 303);
    let cookie = first.headers()["set-cookie"].to_str().expect("text").to_owned();
    assert_eq!(http.get(&server.link).send().await.expect("it answers").status(), 401);
    let cookie = cookie.split(';').next().expect("a value").to_owned();
    let home = http.get(&server.url).header("cookie", cookie).send().await.expect("it answers");
    assert!(home.text().await.expect("a page").contains("signed in"));
}
