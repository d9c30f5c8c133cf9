//! The real server process: crashes, restarts, startup errors and exit codes.

mod common;

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Server, stderr, stdout, tenure, until};
use tenure::http::HttpTransport;
use tenure::wire::ResourceLocksResponse;
use tenure::{Client, Transport};
use tenure_core::{Acquire, Claimant, Command, LockAction, LockName, Outcome, ResourceKey, Token};

/// What the workers have had acknowledged.
#[derive(Default)]
struct Ledger {
    /// The highest acknowledged token of each lock.
    highest: Mutex<HashMap<String, Token>>,
    /// Acknowledged tenures whose release has not been sent.
    held: Mutex<HashMap<String, Token>>,
    grants: AtomicU64,
    stop: AtomicBool,
}

/// Acquires and releases its own locks, and retries requests without an answer.
async fn acquire_and_release(transport: HttpTransport, worker: usize, ledger: Arc<Ledger>) {
    for n in 0.. {
        if ledger.stop.load(Ordering::SeqCst) {
            return;
        }
        let name = format!("w{worker}-{}", n % 4);
        let key = ResourceKey::new("default", "cluster", &name).expect("a good name");
        let acquire = Acquire {
            locks: LockName::main().into(),
            claimant: Claimant::Solo { name: name.as_str().into(), ttl_ms: 60_000 },
            request: tenure_store::random::request_id(),
            wait_ms: 0,
            purpose: None,
            max_age_ms: None,
            tenant: None,
        };
        let acquire = Command::Lock { key: key.clone(), action: LockAction::Acquire(acquire) };
        let Some(Outcome::Granted(view)) = send_with_retries(&transport, &ledger, acquire).await
        else {
            return;
        };
        let token = view.token;
        let before = ledger.highest.lock().expect("no panic").insert(name.clone(), token);
        assert!(before.is_none_or(|before| before < token), "{name}: {before:?} then {token}");
        ledger.held.lock().expect("no panic").insert(name.clone(), token);
        ledger.grants.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(5)).await;
        ledger.held.lock().expect("no panic").remove(&name);
        let release = LockAction::Release { token, locks: None, to: None };
        match send_with_retries(&transport, &ledger, Command::Lock { key, action: release }).await {
            Some(Outcome::Released { .. }) => {}
            Some(other) => panic!("the release was answered with {other:?}"),
            None => return,
        }
    }
}

/// Retries a command until it is answered or the test stops.
async fn send_with_retries(
    transport: &HttpTransport,
    ledger: &Ledger,
    command: Command,
) -> Option<Outcome> {
    loop {
        match transport.send(command.clone(), Duration::ZERO).await {
            Ok(outcome) => return Some(outcome),
            Err(error) if error.is_unavailable() => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(error) => panic!("{error}"),
        }
        if ledger.stop.load(Ordering::SeqCst) {
            return None;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_kills_under_load_lose_no_acknowledged_grant() {
    let mut server = Server::start();
    let (url, key) = (server.url(), server.key());
    let transport = || HttpTransport::new(&url, &key, "default").expect("an address");
    let ledger = Arc::new(Ledger::default());
    let spawn =
        |worker| tokio::spawn(acquire_and_release(transport(), worker, Arc::clone(&ledger)));
    let workers: Vec<_> = (0..8).map(spawn).collect();
    let client = Client::connect(&url, &key).await.expect("a running server");
    // A holder that only sends heartbeats: no restart may cost it its lock.
    let session = client.session("holder", Duration::from_secs(10)).await.expect("it answers");
    let tenure = session.lock("cluster/kept").expect("a name").acquire().await.expect("it is free");
    for kill in 0..20 {
        let target = ledger.grants.load(Ordering::SeqCst) + 40;
        let grants = Arc::clone(&ledger);
        let load = move || until(|| grants.grants.load(Ordering::SeqCst) >= target);
        tokio::task::spawn_blocking(load).await.expect("the load continues");
        let reader = transport();
        server.kill();
        // Grants that are acknowledged and whose release was not sent must survive.
        let acknowledged = ledger.held.lock().expect("no panic").clone();
        server.launch();
        for (name, token) in acknowledged {
            let path = format!("/v1/locks/cluster/{name}");
            let shown: ResourceLocksResponse = reader.get(&path).await.expect("it answers");
            assert!(shown.token >= token, "kill {kill}: {name} went back to {}", shown.token);
        }
        assert_eq!(tenure.check(), Ok(()), "kill {kill}: the live holder lost its lock");
    }
    ledger.stop.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.await.expect("no token went back");
    }
    let shown: ResourceLocksResponse =
        transport().get("/v1/locks/cluster/kept").await.expect("it answers");
    assert_eq!(shown.tenures[0].token, tenure.token());
    tenure.release().await.expect("it is still held");
    let verified = server.run(&["verify"]);
    assert!(verified.status.success(), "{}", stdout(&verified));
}

#[test]
fn a_graceful_stop_removes_the_address_file_and_keeps_the_locks() {
    let mut server = Server::start();
    server.run(&["lock", "acquire", "cluster/c1", "--ttl", "1h", "--holder", "ann"]);
    server.signal("TERM");
    assert!(server.wait().success());
    assert!(!server.file("server.url").exists());
    server.launch();
    let shown = stdout(&server.run(&["lock", "show", "cluster/c1"]));
    assert!(shown.contains("ann"), "{shown}");
}

#[test]
fn a_port_or_file_in_use_is_reported_with_the_remedy() {
    let server = Server::start();
    let other = tempfile::tempdir().expect("a temporary directory");
    let output = tenure(other.path()).args(["serve", "--listen", server.listen()]).output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("choose another address with --listen"),
        "{}",
        stderr(&output)
    );
    let output = server.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("in use by another server"), "{}", stderr(&output));
}

#[test]
fn a_mounted_admin_key_is_used_and_none_is_created() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("mounted");
    fs::write(&file, "m".repeat(40)).expect("it is writable");
    let tenure = |args: &[&str]| {
        let mut command = tenure(dir.path());
        command.env("TENURE_ADMIN_KEY_FILE", &file).args(args);
        command
    };
    let serve = ["serve", "--listen", "127.0.0.1:0", "--store", "memory:"];
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).expect("it is ours");
    let refused = tenure(&serve).output().expect("it runs");
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("mode 0440"), "{}", stderr(&refused));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o440)).expect("it is ours");
    let mut server = tenure(&serve).stderr(std::process::Stdio::null()).spawn().expect("it starts");
    until(|| dir.path().join("server.url").exists());
    let listed = tenure(&["lock", "ls", "-o", "json"]).output().expect("it runs");
    server.kill().expect("it is ours");
    server.wait().expect("it is ours");
    assert!(listed.status.success(), "{}", stderr(&listed));
    assert!(!dir.path().join("admin.key").exists());
}

#[test]
fn unusable_data_locations_are_reported() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("file");
    fs::write(&file, "not a directory").expect("it is writable");
    let output = tenure(&file).arg("serve").output().expect("it runs");
    assert!(stderr(&output).contains("choose another with --data DIR"), "{}", stderr(&output));
    let data = dir.path().join("data");
    fs::create_dir(&data).expect("it is writable");
    fs::write(data.join("tenure.db"), "my notes ".repeat(200)).expect("it is writable");
    let output =
        tenure(&data).args(["serve", "--listen", "127.0.0.1:0"]).output().expect("it runs");
    assert!(stderr(&output).contains("is not a Tenure store"), "{}", stderr(&output));
    let output = tenure(&data).args(["serve", "--store", "mysql://x"]).output().expect("it runs");
    assert!(stderr(&output).contains("memory:, embedded:PATH"), "{}", stderr(&output));
}

#[test]
fn a_data_directory_in_which_everyone_can_create_files_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("a temporary directory");
    for mode in [0o777, 0o1777] {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).expect("it is ours");
        let output = tenure(dir.path()).args(["serve", "--listen", "127.0.0.1:0"]).output();
        let output = output.expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{mode:o}");
        let remedy = format!("chmod 700 {}", dir.path().display());
        assert!(stderr(&output).contains(&remedy), "{}", stderr(&output));
        assert_eq!(fs::read_dir(dir.path()).expect("it exists").count(), 0, "nothing is created");
    }
}

#[test]
fn errors_have_distinct_exit_codes() {
    let server = Server::start();
    let code = |args: &[&str]| server.run(args).status.code();
    assert_eq!(code(&["lock", "acquire", "cluster/c1", "--ttl", "1h"]), Some(0));
    assert_eq!(code(&["lock", "acquire", "cluster/c1"]), Some(3));
    assert_eq!(code(&["lock", "show", "cluster/none"]), Some(4));
    assert_eq!(code(&["lock", "break", "cluster/c1", "--token", "9", "--reason", "x"]), Some(5));
    assert_eq!(code(&["lock", "renew", "cluster/c1", "--token", "9"]), Some(6));
    assert_eq!(code(&["lock", "acquire", "cluster/c2", "--ttl", "10ms"]), Some(2));
    assert_eq!(code(&["lock", "acquire", "nonsense"]), Some(2));
    assert_eq!(code(&["--server", "http://127.0.0.1:1", "lock", "ls"]), Some(69));
    assert_eq!(code(&["--key", "wrong", "lock", "ls"]), Some(5));
    let listed = server.run(&["lock", "ls", "-o", "json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    assert_eq!(listed["items"][0]["lock"], "cluster/c1");
    assert_eq!(code(&["lock", "release", "cluster/c1", "--token", "1"]), Some(0));
    assert_eq!(code(&["verify"]), Some(0));
    assert_eq!(code(&["completions", "bash"]), Some(0));
}

/// Compiles a library that makes flushes to disk fail while `switch` exists, and returns the
/// environment that loads it.
fn failing_flushes(dir: &std::path::Path, switch: PathBuf) -> Vec<(&'static str, PathBuf)> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server/failing_flush.c");
    let library = dir.join("failing_flush.so");
    let mut cc = std::process::Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source);
    assert!(cc.status().expect("a C compiler").success());
    vec![("LD_PRELOAD", library), ("FAILING_FLUSH", switch)]
}

#[test]
fn after_a_failed_flush_everything_is_refused_until_a_restart_and_nothing_is_lost() {
    let mut server = Server::start();
    server.kill();
    let switch = server.file("failing");
    server.set_env(failing_flushes(server.data(), switch.clone()));
    server.launch();
    let acquire = |server: &Server, lock: &str| {
        server.run(&["lock", "acquire", lock, "--ttl", "1h", "--holder", "ann"])
    };
    for n in 0..3 {
        let granted = acquire(&server, &format!("db/before-{n}"));
        assert!(granted.status.success(), "{}", stderr(&granted));
    }
    fs::write(&switch, "").expect("it is writable");
    let failed = acquire(&server, "db/during");
    assert_eq!(failed.status.code(), Some(69), "{}", stdout(&failed));
    assert!(stderr(&failed).contains("cannot write"), "{}", stderr(&failed));
    // The disk works again, but what it has lost is unknown.
    fs::remove_file(&switch).expect("it is there");
    for n in 0..3 {
        let refused = acquire(&server, &format!("db/after-{n}"));
        assert_eq!(refused.status.code(), Some(69), "{}", stdout(&refused));
        assert!(stderr(&refused).contains("a flush to disk failed"), "{}", stderr(&refused));
    }
    let release = server.run(&["lock", "release", "db/before-0", "--token", "1"]);
    assert_eq!(release.status.code(), Some(69), "{}", stdout(&release));
    let ready = common::http(server.listen(), &["GET /readyz HTTP/1.1"], "").expect("it answers");
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");

    server.kill();
    server.launch();
    let held = stdout(&server.run(&["lock", "ls"]));
    for n in 0..3 {
        assert!(held.contains(&format!("db/before-{n}")), "{held}");
        assert!(!held.contains(&format!("db/after-{n}")), "{held}");
        let again = acquire(&server, &format!("db/after-{n}"));
        assert!(again.status.success(), "{}", stderr(&again));
    }
    assert!(server.run(&["verify"]).status.success());
}
