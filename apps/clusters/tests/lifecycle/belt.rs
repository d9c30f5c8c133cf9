//! The advisory lock around the work of a job, on a PostgreSQL server of its own.

use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};
use tenure_testbed::{Durability, Fault, PgBouncer, Postgres, Proxy};

use crate::bed::{Bed, StoreKind};
use crate::common::until;

/// Settings of all tests. The session outlives a busy machine, and a test waits for its end.
const SETTINGS: &str = "advisory_locks = \"BELT_URL\"\nlock_ttl = \"6s\"";
const PASSWORD: &str = "hunter2-of-the-belt";
/// The lock of a cluster, as the documentation names its key.
const OF_DEMO: &str = "locktype = 'advisory' AND objsubid = 1 AND granted AND \
     (classid::bigint << 32 | objid::bigint) = \
     hashtextextended('default/cluster/aws:demo.dev.example.com', 0)";
/// What every check of the lock has, in its bytes.
const CHECK: &[u8] = b"SELECT EXISTS (SELECT 1 FROM pg_locks WHERE pid = pg_backend_pid()";

fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| Postgres::start(Durability::None).expect("PostgreSQL starts"))
}

/// A bed with a database for the belt, behind a proxy.
struct Belted {
    bed: Bed,
    database: String,
    proxy: Proxy,
}

impl Belted {
    fn start() -> Self {
        let proxy = Proxy::start(server().port()).expect("it starts");
        let port = proxy.port();
        Self::at(proxy, port)
    }

    /// Starts a server whose workers use this port.
    fn at(proxy: Proxy, port: u16) -> Self {
        let database = server().new_database().expect("a database");
        // The server trusts everyone, so the password is not needed.
        let url = format!("postgres://postgres:{PASSWORD}@127.0.0.1:{port}/{database}");
        let endpoint = crate::cloud::shared().url();
        let bed = Bed::on(StoreKind::Embedded, &endpoint, SETTINGS, vec![("BELT_URL", url)]);
        Self { bed, database, proxy }
    }

    fn sql(&self, sql: &str) -> String {
        server().psql(&self.database, sql).expect("valid SQL")
    }

    /// Returns the process of the session that has the lock of the cluster `demo`.
    fn holder(&self) -> String {
        self.sql(&format!(
            "SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
             AND d.datname = current_database() WHERE {OF_DEMO}"
        ))
    }

    /// Ends the session that has the lock.
    fn terminate(&self) {
        self.sql(&format!("SELECT pg_terminate_backend({})", self.holder()));
    }

    /// Takes the lock in another session.
    fn hold(&self) -> Holder {
        let sql = "SELECT pg_advisory_lock(hashtextextended(\
             'default/cluster/aws:demo.dev.example.com', 0)); SELECT pg_sleep(600)";
        let mut command = Command::new("psql");
        command.args(["--no-psqlrc", "--quiet", "--command", sql]);
        command.arg("--dbname").arg(server().url(&self.database));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let holder = Holder(child.spawn().expect("psql starts"));
        until(|| !self.holder().is_empty());
        holder
    }

    /// Holds a create in the middle. Returns its job and its token.
    fn create(&self) -> (Value, u64) {
        self.bed.plan("demo", &json!({"create cluster": [{"hold": "infrastructure"}, {}]}));
        let (_, answer) = self.bed.create("demo");
        let token = self.bed.reached("demo", "infrastructure");
        (answer["job"]["id"].clone(), token)
    }

    /// Returns what the job says about its last attempt, once that ended because of the lock.
    fn refused(&self, job: &Value) -> String {
        let error = |job: &Value| self.bed.job(job)["error"].clone();
        until(|| error(job)["code"] == "ADVISORY_LOCK");
        error(job)["message"].as_str().expect("a message").to_owned()
    }

    /// Checks that no log has the password.
    fn check_secrets(&self, job: &Value) {
        let texts = [
            self.bed.read("server.log"),
            self.bed.read("a.log"),
            self.bed.job_log(job),
            self.bed.job(job).to_string(),
            self.bed.show("demo").to_string(),
        ];
        for text in texts {
            assert!(!text.contains(PASSWORD), "{text}");
        }
    }
}

/// A session that has the lock until this is dropped.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn the_lock_is_held_while_a_job_runs() {
    let belted = Belted::start();
    let Belted { bed, .. } = &belted;
    let _worker = bed.worker("a");
    let (job, _) = belted.create();
    assert!(!belted.holder().is_empty());
    bed.go("demo", "infrastructure");
    bed.settled("demo", "READY");
    until(|| belted.holder().is_empty());
    belted.check_secrets(&job);
    bed.check(&["demo"]);
}

#[test]
fn a_job_whose_lock_another_session_has_is_deferred_and_not_counted() {
    let belted = Belted::start();
    let Belted { bed, .. } = &belted;
    let holder = belted.hold();
    let _worker = bed.worker("a");
    let (_, answer) = bed.create("demo");
    let job = &answer["job"]["id"];
    let message = belted.refused(job);
    assert!(message.contains("another session holds it"), "{message}");
    assert_eq!(bed.runs("demo", "create manifests"), 0);
    drop(holder);
    belted.terminate();
    bed.settled("demo", "READY");
    assert_eq!(bed.job(job)["attempt"], 1);
    assert_eq!(bed.runs("demo", "create cluster"), 1);
    belted.check_secrets(job);
}

#[test]
fn a_terminated_session_takes_the_lock_again_and_the_job_continues() {
    let belted = Belted::start();
    let Belted { bed, .. } = &belted;
    let _worker = bed.worker("a");
    let (job, _) = belted.create();
    let before = belted.holder();
    belted.terminate();
    until(|| !["", &before].contains(&&*belted.holder()));
    bed.go("demo", "infrastructure");
    bed.settled("demo", "READY");
    assert_eq!(bed.job(&job)["attempt"], 1);
    assert_eq!(bed.runs("demo", "create cluster"), 1);
    belted.check_secrets(&job);
}

/// The database does not notice, so its session still has the lock.
#[test]
fn a_session_that_is_cut_off_on_one_side_is_replaced() {
    let belted = Belted::start();
    let Belted { bed, proxy, .. } = &belted;
    let _worker = bed.worker("a");
    let (job, _) = belted.create();
    let before = belted.holder();
    proxy.set_fault(Fault::BlackholeBefore(CHECK.to_vec()));
    until(|| proxy.triggered() > 0);
    proxy.set_fault(Fault::None);
    until(|| !["", &before].contains(&&*belted.holder()));
    bed.go("demo", "infrastructure");
    bed.settled("demo", "READY");
    assert_eq!(bed.job(&job)["attempt"], 1);
    assert_eq!(bed.runs("demo", "create cluster"), 1);
}

#[test]
fn a_database_that_is_away_for_longer_than_the_session_lives_stops_the_installer() {
    for fault in [Fault::Down, Fault::Blackhole] {
        let belted = Belted::start();
        let Belted { bed, proxy, .. } = &belted;
        let _worker = bed.worker("a");
        let (job, token) = belted.create();
        proxy.set_fault(fault);
        belted.refused(&job);
        until(|| bed.job(&job)["state"] != "running");
        let log = bed.read("a.log");
        assert!(log.contains("advisory lock lost; stopping the work"), "{log}");
        // Its session ends by itself, but not before the installer is dead.
        let done = bed.journal().len();
        bed.go("demo", "infrastructure");
        until(|| belted.holder().is_empty());
        proxy.set_fault(Fault::None);
        bed.settled("demo", "READY");
        let ended = bed.job(&job);
        let attempts = ended["attempts"].as_array().expect("attempts");
        let outcomes: Vec<_> = attempts.iter().map(|attempt| &attempt["outcome"]).collect();
        assert!(outcomes.iter().any(|outcome| *outcome == "failed"), "{ended:#}");
        let counted = outcomes.iter().filter(|outcome| **outcome != "deferred").count();
        assert_eq!(ended["attempt"], counted, "{ended:#}");
        let late = bed.journal().into_iter().skip(done).any(|entry| entry.token() == token);
        assert!(!late, "the stopped installer did something");
        bed.check(&["demo"]);
        belted.check_secrets(&job);
    }
}

#[test]
fn a_frozen_worker_does_not_keep_the_lock_for_ever() {
    let belted = Belted::start();
    let Belted { bed, .. } = &belted;
    let frozen = bed.worker("a");
    let (job, token) = belted.create();
    frozen.signal("STOP");
    let _other = bed.worker("b");
    bed.settled("demo", "READY");
    frozen.signal("CONT");
    until(|| bed.read("a.log").contains("session lost"));
    assert!(bed.job(&job)["attempt"].as_u64() >= Some(2));
    bed.destroy("demo");
    bed.settled("demo", "DESTROYED");
    let journal = bed.journal();
    let last = journal.iter().rposition(|entry| entry.token() == token).expect("it ran");
    let next = journal.iter().position(|entry| entry.token() > token).expect("it ran");
    assert!(last < next, "the frozen worker did something");
    bed.check(&[]);
}

#[test]
fn a_pooler_is_refused() {
    let bouncer = PgBouncer::start(server()).expect("PgBouncer starts");
    let address = bouncer.url(server(), "postgres");
    let port = address.split_once("127.0.0.1:").and_then(|(_, rest)| rest.split_once('/'));
    let port = port.and_then(|(port, _)| port.parse().ok()).expect("a port");
    let belted = Belted::at(Proxy::start(server().port()).expect("it starts"), port);
    let Belted { bed, .. } = &belted;
    let _worker = bed.worker("a");
    let (_, answer) = bed.create("demo");
    let message = belted.refused(&answer["job"]["id"]);
    assert!(message.contains("through a pooler; give the address of the database"), "{message}");
    assert_eq!(bed.runs("demo", "create manifests"), 0);
    assert_eq!(belted.holder(), "", "no lock is left to the pooler");
    belted.check_secrets(&answer["job"]["id"]);
}

#[test]
fn a_missing_or_wrong_address_is_named_without_its_password() {
    let wrong = format!("postgres://postgres:{PASSWORD}@127.0.0.1:9/belt");
    let invalid = format!("postgres://postgres:{PASSWORD}@127.0.0.1:9/belt?nonsense=1");
    for (env, expected) in [
        (vec![], "the environment variable BELT_URL, which this worker does not have"),
        (vec![("BELT_URL", wrong)], "cannot be reached"),
        (vec![("BELT_URL", invalid)], "the database URL is invalid"),
    ] {
        let bed = Bed::on(StoreKind::Embedded, &crate::cloud::shared().url(), SETTINGS, env);
        let proxy = Proxy::start(server().port()).expect("it starts");
        let belted = Belted { bed, database: String::new(), proxy };
        let _worker = belted.bed.worker("a");
        let (_, answer) = belted.bed.create("demo");
        let message = belted.refused(&answer["job"]["id"]);
        assert!(message.contains(expected), "{message}");
        assert_eq!(belted.bed.runs("demo", "create manifests"), 0);
        belted.check_secrets(&answer["job"]["id"]);
    }
}
