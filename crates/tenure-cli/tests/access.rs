//! API keys, the audit log, TLS and sign-in with the real binary.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Server, stderr, stdout, tenure, until};
use serde_json::Value;
use tempfile::TempDir;
use tenure_testbed::{Fault, Proxy};

/// A server whose startup messages are parsed.
struct ParsedServer {
    child: Child,
    dir: TempDir,
    url: String,
    sign_in_link: String,
}

impl ParsedServer {
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
        let (mut url, mut sign_in_link) = (String::new(), String::new());
        let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        while sign_in_link.is_empty() {
            let line = lines.next().expect("another line").expect("text");
            if let Some((_, value)) = line.split_once("listening on ") {
                url = value.to_owned();
            }
            if let Some((_, value)) = line.split_once("within 15 minutes: ") {
                sign_in_link = value.to_owned();
            }
        }
        // Keep draining the pipe, or the server would block on it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, dir, url, sign_in_link }
    }
}

impl Drop for ParsedServer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_key_can_be_created_used_listed_and_revoked() {
    let server = Server::start();
    let created = server.run(&[
        "key", "create", "--tenant", "acme", "--role", "worker", "--name", "ci", "--reason",
        "builds",
    ]);
    assert!(created.status.success(), "{}", stderr(&created));
    let key = stdout(&created).trim().to_owned();
    assert!(key.starts_with("tenure_acme_"), "only the key is printed, and it names its tenant");
    assert!(stderr(&created).contains("not shown again"), "{}", stderr(&created));

    // The key determines the tenant.
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

    // Denied requests are answered with the remedy.
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
    let revoked = server.run(&["key", "revoke", &id[4..], "--reason", "it leaked"]);
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
fn lists_of_one_tenant_and_of_all_tenants_are_distinguished() {
    let server = Server::start();
    for tenant in ["acme", "beta"] {
        let tenant_args = ["--tenant", tenant, "--reason", "r"];
        let key = ["key", "create", "--role", "viewer", "--name", tenant];
        let lock = ["lock", "acquire", "cluster/c1", "--holder", "ann", "--ttl", "1h"];
        for args in [key.as_slice(), lock.as_slice()] {
            let output = server.run(&[args, &tenant_args].concat());
            assert!(output.status.success(), "{}", stderr(&output));
        }
    }
    let locks = stdout(&server.run(&["lock", "ls", "--tenant", "*"]));
    let mut rows: Vec<Vec<&str>> =
        locks.lines().map(|line| line.split_whitespace().take(2).collect()).collect();
    rows[1..].sort_unstable();
    assert_eq!(rows[..3], [["TENANT", "LOCK"], ["acme", "cluster/c1"], ["beta", "cluster/c1"]]);
    let locks = stdout(&server.run(&["lock", "ls", "--tenant", "acme"]));
    assert!(locks.trim_start().starts_with("LOCK") && locks.lines().count() == 2, "{locks}");

    let tenants = |args: &[&str]| {
        let list = json(&stdout(&server.run(&[args, &["-o", "json"]].concat())));
        let items = list["items"].as_array().expect("a list").iter();
        let tenants = items.map(|item| item["tenant"].as_str().expect("a tenant").to_owned());
        tenants.collect::<BTreeSet<String>>()
    };
    let both = || BTreeSet::from(["acme".to_owned(), "beta".to_owned()]);
    for list in ["key ls", "audit --action key.create"] {
        let list: Vec<&str> = list.split(' ').collect();
        assert_eq!(tenants(&list), both(), "{list:?}");
        assert_eq!(tenants(&[&list, &["--tenant", "*"][..]].concat()), both(), "{list:?}");
        let one = tenants(&[&list, &["--tenant", "acme"][..]].concat());
        assert_eq!(one, BTreeSet::from(["acme".to_owned()]), "{list:?}");
        assert_eq!(tenants(&[&list, &["--tenant", "gamma"][..]].concat()), BTreeSet::new());
    }
    // The limit applies to the entries of the tenant.
    let audit = ["audit", "--action", "key.create", "--limit", "1", "--tenant", "acme"];
    assert_eq!(tenants(&audit), BTreeSet::from(["acme".to_owned()]));
}

#[test]
fn keys_survive_a_server_crash() {
    let mut server = Server::start();
    let created =
        server.run(&["key", "create", "--role", "viewer", "--name", "v", "--reason", "r"]);
    let key = stdout(&created).trim().to_owned();
    server.kill();
    server.launch();
    let mut command = server.tenure();
    let listed = command.env("TENURE_KEY", &key).args(["lock", "ls"]).output().expect("it runs");
    assert!(listed.status.success(), "{}", stderr(&listed));
}

#[test]
fn a_non_loopback_address_requires_tls_or_plain_http() {
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

/// Creates a CA and a certificate for 127.0.0.1 signed by it.
fn create_certificates(dir: &Path) {
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
fn a_server_with_a_certificate_serves_tls_and_clients_verify_it() {
    let config = "[server]\ntls_certificate = \"server.crt\"\ntls_key = \"server.key\"\n";
    let server = ParsedServer::start(config, create_certificates);
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
    let text = stderr(&list(Some("server.key")));
    assert!(text.contains("there is no certificate in"), "{text}");
    let mut renamed = tenure(server.dir.path());
    renamed.env("TENURE_CA", server.dir.path().join("ca.crt"));
    renamed.env("TENURE_SERVER", server.url.replace("127.0.0.1", "localhost"));
    let renamed = renamed.args(["lock", "ls"]).output().expect("the binary runs");
    let text = stderr(&renamed);
    assert!(text.contains("is for 127.0.0.1, not for localhost; use a name of"), "{text}");
    let mut plain = tenure(server.dir.path());
    plain.env("TENURE_SERVER", server.url.replace("https", "http"));
    let plain = plain.args(["lock", "ls"]).output().expect("the binary runs");
    assert!(!plain.status.success(), "plain HTTP must not be answered");
    assert!(stderr(&plain).contains("use https:// in its address"), "{}", stderr(&plain));
    assert!(stderr(&list(None)).contains("TENURE_CA"), "{}", stderr(&list(None)));

    let without_tls = Server::start();
    let mut encrypted = without_tls.tenure();
    encrypted.env("TENURE_SERVER", without_tls.url().replace("http", "https"));
    encrypted.env("TENURE_CA", server.dir.path().join("ca.crt"));
    let encrypted = encrypted.args(["lock", "ls"]).output().expect("the binary runs");
    assert_eq!(encrypted.status.code(), Some(69));
    let text = stderr(&encrypted);
    assert!(text.contains("does not speak TLS on this port; use http://"), "{text}");
}

#[test]
fn a_ca_certificate_is_no_server_certificate() {
    let config = "[server]\ntls_certificate = \"ca.crt\"\ntls_key = \"ca.key\"\n";
    let server = ParsedServer::start(config, create_certificates);
    let mut list = tenure(server.dir.path());
    list.env("TENURE_CA", server.dir.path().join("ca.crt"));
    let refused = list.args(["lock", "ls"]).output().expect("the binary runs");
    assert_eq!(refused.status.code(), Some(69));
    let text = stderr(&refused);
    assert!(text.contains("the server uses the certificate of a CA as its own"), "{text}");
    assert!(!text.contains("CaUsedAsEndEntity"), "{text}");

    let dir = server.dir.path();
    let config = config.replace("ca.key", "server.key");
    fs::write(dir.join("mismatch.toml"), config).expect("it is writable");
    let run = tenure(dir)
        .args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--config"])
        .arg(dir.join("mismatch.toml"))
        .output()
        .expect("the binary runs");
    assert!(!run.status.success());
    let text = stderr(&run);
    assert!(text.contains("server.key does not belong to the first certificate in"), "{text}");
    assert!(!text.contains("KeyMismatch"), "{text}");
}

#[test]
fn an_invalid_certificate_prevents_the_start_and_is_named() {
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
    let text = stderr(&run);
    assert!(text.contains("c.pem") && text.contains("does not contain a certificate"), "{text}");
}

#[tokio::test]
async fn the_printed_sign_in_link_works_once() {
    let server = ParsedServer::start("", |_| {});
    assert!(server.sign_in_link.starts_with(&server.url), "{}", server.sign_in_link);
    rustls::crypto::ring::default_provider().install_default().ok();
    let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let http = http.build().expect("a client");
    let first = http.get(&server.sign_in_link).send().await.expect("it answers");
    assert_eq!(first.status(), 303);
    let cookie = first.headers()["set-cookie"].to_str().expect("text").to_owned();
    assert_eq!(http.get(&server.sign_in_link).send().await.expect("it answers").status(), 401);
    let cookie = cookie.split(';').next().expect("a value").to_owned();
    let home = http.get(&server.url).header("cookie", cookie).send().await.expect("it answers");
    assert!(home.text().await.expect("a page").contains("signed in"));
}

#[test]
fn a_holder_over_tls_survives_cut_connections_and_is_dead_before_the_next_one_is_granted() {
    const TTL: Duration = Duration::from_secs(3);
    let config = "[server]\ntls_certificate = \"server.crt\"\ntls_key = \"server.key\"\n";
    let server = ParsedServer::start(config, create_certificates);
    let port = server.url.rsplit_once(':').expect("an address").1.parse().expect("a port");
    let proxy = Proxy::start(port).expect("a free port");
    let through = |url: &str| {
        let mut command = tenure(server.dir.path());
        command.env("TENURE_CA", server.dir.path().join("ca.crt")).env("TENURE_SERVER", url);
        command
    };
    let (marker, log) = (server.dir.path().join("pid"), server.dir.path().join("log"));
    let script = format!("echo $$ > {}; exec sleep 600", marker.display());
    let mut holder = through(&format!("https://127.0.0.1:{}", proxy.port()))
        .args(["exec", "--ttl", "3s", "db/main", "--", "sh", "-c", &script])
        .stderr(fs::File::create(&log).expect("it is writable"))
        .spawn()
        .expect("the binary starts");
    let pid = || fs::read_to_string(&marker).unwrap_or_default().trim().to_owned();
    let is_running = || !pid().is_empty() && Path::new("/proc").join(pid()).exists();
    until(is_running);
    // Connections last for less than the interval of heartbeats: each needs a new handshake.
    for cut in 1..=8 {
        let started = tenure_store::clock::stopwatch();
        until(|| started.elapsed() > TTL / 6);
        assert!(is_running(), "cut {cut}: {}", fs::read_to_string(&log).unwrap_or_default());
        proxy.disconnect_all();
    }
    let list = || stdout(&through(&server.url).args(["lock", "ls"]).output().expect("it runs"));
    assert!(list().contains("db/main"), "{}", list());
    // Nothing is answered any more, and no connection fails.
    proxy.set_fault(Fault::Blackhole);
    let next = ["lock", "acquire", "db/main", "--ttl", "1h", "--wait", "20s", "--holder", "bob"];
    let next = through(&server.url).args(next).output().expect("it runs");
    assert!(next.status.success(), "{}", stderr(&next));
    assert!(!is_running(), "the command outlives its lock");
    assert_eq!(holder.wait().expect("it is ours").code(), Some(122));
}
