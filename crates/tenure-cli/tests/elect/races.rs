//! The ten races of a master that sets up a build, each with the promise that excludes it.
//!
//! A master is elected by claiming the job `setup` of the build: the token of the attempt is its
//! term. Publishing is the end of that job with its token, in one step. Masters here speak HTTP and
//! send no heartbeat, like a process that is frozen from the first moment; in races 6 and 7 they
//! are processes behind a network that fails.
//!
//! What belongs to the app, and not to the engine, is tested there: the order of the tests as a
//! function of the seed (4), and what is cached about a queue (8).

use std::time::Duration;

use serde_json::{Value, json};
use tenure::http::HttpTransport;
use tenure::{Client, Error, Precondition, Refusal};
use tenure_core::Code;
use tenure_testbed::{Fault, Proxy};
use tenure_wire::parse_instant;

use crate::common::{Server, until};
use crate::harness::{
    Candidate, LEAD, candidates, expect_fenced, expect_terms, leader, wait_for_tree,
};

const KINDS: &str = r#"
[kinds.build]
states = ["NEW", "SETUP", "READY"]
initial = "NEW"
[kinds.build.operations.setup]
from = ["NEW"]
during = "SETUP"
ok = "READY"
failed = "NEW"
retry = { attempts = 5, initial = "1ms" }
meets = { setup = "attach" }

[kinds.test]
grouped = true
[kinds.test.operations.run]
"#;

/// Time to live of a master that is to be replaced.
const FROZEN_TTL_MS: u64 = 1_000;
/// Time to live of a master that is not: longer than any test takes.
const TTL_MS: u64 = 300_000;
/// Time for which a claim waits; it is repeated.
const WAIT_MS: u64 = 10_000;

pub(crate) struct Site {
    pub(crate) server: Server,
    http: HttpTransport,
    client: Client,
}

/// A master that was elected.
#[derive(Clone, Debug)]
pub(crate) struct Master {
    pub(crate) job: String,
    pub(crate) term: u64,
    assignment: Value,
}

impl Site {
    pub(crate) async fn start() -> Self {
        let server = Server::start_with(Some(KINDS));
        let http = || HttpTransport::new(&server.url(), &server.key(), "default").expect("a URL");
        let client = Client::with_transport(std::sync::Arc::new(http()), "default");
        Self { http: http(), client, server }
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.http.get(path).await.expect("it is there")
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Result<Value, Error> {
        self.http.post(path, None, &body, Duration::from_secs(30)).await
    }

    pub(crate) async fn submit(&self, args: Value) -> Result<Value, Error> {
        let body = json!({ "operation": "setup", "args": args });
        self.post("/v1/resources/build/b1/jobs", body).await
    }

    /// Opens a session that sends no heartbeat.
    pub(crate) async fn session(&self, name: &str, ttl_ms: u64) -> Value {
        let body = json!({ "name": name, "ttl_ms": ttl_ms });
        self.post("/v1/sessions", body).await.expect("it is valid")["session"].clone()
    }

    /// Stands for election: claims the setup of the build.
    async fn claim(&self, session: &Value, wait_ms: u64) -> Option<Master> {
        let only = json!({ "kind": "build", "name": "b1" });
        let body = json!({ "session": session, "only": only, "max": 1, "wait_ms": wait_ms });
        let claimed = self.post("/v1/jobs/claim", body).await.expect("it may claim");
        let assignment = claimed["jobs"].get(0)?.clone();
        let job = assignment["job"]["id"].as_str().expect("an id").to_owned();
        let term = assignment["tenure"]["token"].as_u64().expect("a token");
        Some(Master { job, term, assignment })
    }

    /// Submits the setup and elects its first master.
    async fn first(&self, ttl_ms: u64) -> Master {
        self.submit(json!({ "seed": 42 })).await.expect("it is allowed");
        let session = self.session("a", ttl_ms).await;
        self.claim(&session, 0).await.expect("nobody leads")
    }

    /// Elects the next master, when the lease of the one before it is over.
    pub(crate) async fn next(&self) -> Master {
        let session = self.session("b", TTL_MS).await;
        loop {
            if let Some(master) = self.claim(&session, WAIT_MS).await {
                return master;
            }
        }
    }

    /// Asserts that nobody else is elected.
    async fn expect_no_other(&self) {
        let session = self.session("b", TTL_MS).await;
        let other = self.claim(&session, 0).await;
        assert!(other.is_none(), "{other:?}");
    }

    /// Publishes the queue: ends the setup with the token of the master.
    pub(crate) async fn publish(&self, master: &Master) -> Result<Value, Error> {
        let merge = json!({ "term": master.term });
        let body = json!({ "token": master.term, "outcome": "ok", "merge": merge });
        self.post(&format!("/v1/jobs/{}/finish", master.job), body).await
    }

    async fn expect_lost(&self, master: &Master) {
        let error = self.publish(master).await.expect_err("it was replaced");
        assert_eq!(error.code(), Some(Code::Lost), "{error}");
    }

    /// Asserts that this master has published, and returns the number of elected masters.
    pub(crate) async fn expect_published(&self, master: &Master) -> usize {
        let build = self.get("/v1/resources/build/b1").await;
        assert_eq!(
            (&build["state"], &build["status"]["term"]),
            (&json!("READY"), &json!(master.term))
        );
        assert_eq!(build["status_token"], json!(master.term));
        let job = self.get(&format!("/v1/jobs/{}", master.job)).await;
        assert_eq!(job["state"], "succeeded");
        job["attempts"].as_array().expect("a list").len()
    }

    pub(crate) async fn build_state(&self) -> Value {
        self.get("/v1/resources/build/b1").await["state"].clone()
    }

    /// Waits until the build has no master.
    async fn wait_for_nobody(&self) {
        loop {
            let locks = self.get("/v1/locks/build/b1").await;
            if locks["tenures"].as_array().expect("a list").is_empty() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}

/// 1: `push()` checked the master and then wrote.
#[tokio::test]
async fn race_01_a_master_replaced_between_check_and_publish_publishes_nothing() {
    let site = Site::start().await;
    let old = site.first(FROZEN_TTL_MS).await;
    // The check: it is the master.
    let build = site.get("/v1/locks/build/b1").await;
    assert_eq!(build["tenures"][0]["token"], old.term);
    let new = site.next().await;
    site.expect_lost(&old).await;
    assert_eq!(site.build_state().await, "SETUP", "nothing is published");
    site.publish(&new).await.expect("it is the master");
    site.expect_lost(&old).await;
    assert_eq!(site.expect_published(&new).await, 2);
}

/// 2: the first heartbeat came after the election, and until then the master looked dead.
#[tokio::test]
async fn race_02_a_master_without_a_heartbeat_yet_keeps_its_whole_lease() {
    let site = Site::start().await;
    // Long enough for what follows to happen within it.
    let ttl_ms = 3_000;
    let old = site.first(ttl_ms).await;
    site.expect_no_other().await;
    // Granted and promised in the same step; it counts from the opening of the session.
    let promised = old.assignment["tenure"]["expires_in_ms"].as_u64().expect("it expires");
    assert!(promised > ttl_ms / 2 && promised <= ttl_ms, "{old:?}");
    let new = site.next().await;
    let mut terms = site.client.election("build/b1").expect("a name").terms();
    let mut since = Vec::new();
    while let Some(term) = terms.next().await {
        let term = term.expect("the server is there");
        since.push((term.term.0, parse_instant(&term.since).expect("an instant")));
    }
    assert_eq!((since[0].0, since[1].0), (new.term, old.term));
    assert!(since[0].1.since(since[1].1) >= promised, "by the store's clock: {since:?}");
}

/// 3: the next master ran the setup, although the one before had finished it meanwhile.
#[tokio::test]
async fn race_03_a_finished_setup_cannot_be_taken_over() {
    let site = Site::start().await;
    let master = site.first(TTL_MS).await;
    let session = site.session("b", TTL_MS).await;
    let (published, taken) = tokio::join!(site.publish(&master), site.claim(&session, 200));
    published.expect("it is the master");
    assert!(taken.is_none(), "{taken:?}");
    site.expect_no_other().await;
    let refused = site.submit(json!({})).await.expect_err("the build is ready");
    assert!(matches!(refused, Error::Refused(Refusal::BadTransition { .. })), "{refused}");
    assert_eq!(site.expect_published(&master).await, 1, "one setup");
}

/// 3 again: the publish meets the end of the term, in any order.
#[tokio::test]
async fn race_03_either_the_publish_or_the_take_over_happens() {
    for _ in 0..3 {
        let site = Site::start().await;
        let old = site.first(TTL_MS).await;
        let body = json!({ "token": old.term, "reason": "takeover" });
        let (published, _broken) =
            tokio::join!(site.publish(&old), site.post("/v1/locks/build/b1/break", body));
        if published.is_ok() {
            site.expect_no_other().await;
            assert_eq!(site.expect_published(&old).await, 1);
            continue;
        }
        let new = site.next().await;
        site.expect_lost(&old).await;
        site.publish(&new).await.expect("it is the master");
        assert_eq!(site.expect_published(&new).await, 2);
    }
}

/// 4: the new master shuffled with another seed. All masters get the arguments of the same job.
#[tokio::test]
async fn race_04_every_master_gets_the_same_seed() {
    let site = Site::start().await;
    let old = site.first(FROZEN_TTL_MS).await;
    let attached = site.submit(json!({ "seed": 7 })).await.expect("it attaches");
    assert_eq!(
        (&attached["verdict"], &attached["job"]["id"]),
        (&json!("attached"), &json!(old.job))
    );
    let new = site.next().await;
    for master in [&old, &new] {
        assert_eq!(master.assignment["job"]["args"], json!({ "seed": 42 }));
    }
}

/// 5: without a master the guard was skipped.
#[tokio::test]
async fn race_05_a_missing_master_is_not_me() {
    let site = Site::start().await;
    let old = site.first(FROZEN_TTL_MS).await;
    site.wait_for_nobody().await;
    site.expect_lost(&old).await;
    for term in [old.term + 1, 999] {
        site.expect_lost(&Master { term, ..old.clone() }).await;
    }
    for verb in ["status", "progress"] {
        let body = json!({ "token": old.term, "merge": {}, "percent": 5, "message": "" });
        let body = match verb {
            "status" => json!({ "token": body["token"], "merge": body["merge"] }),
            _ => json!({ "token": body["token"], "percent": 5, "message": "" }),
        };
        let refused = site.post(&format!("/v1/jobs/{}/{verb}", old.job), body).await;
        assert_eq!(refused.expect_err("nobody leads").code(), Some(Code::Lost), "{verb}");
    }
    assert_eq!(site.build_state().await, "NEW");
}

/// Cuts a leader off, and returns when the next one leads: no process of the first was alive then.
fn isolate(fault: Fault) {
    let server = Server::start();
    let port = server.listen().rsplit(':').next().expect("a port").parse().expect("a number");
    let proxy = Proxy::start(port).expect("a proxy");
    let url = format!("http://127.0.0.1:{}", proxy.port());
    let isolated = Candidate::start_at(&server, Some(&url), "a", &[], LEAD);
    wait_for_tree(&server, 2);
    let _next = Candidate::start_waiting(&server, "b", LEAD);
    proxy.set_fault(fault);
    until(|| isolated.said().contains("the leadership is lost"));
    expect_terms(&server, &["a 1", "b 2"]);
    proxy.set_fault(Fault::None);
    proxy.disconnect_all();
    until(|| candidates(&server) == ["a"]);
    assert_eq!(leader(&server), Some(("b".to_owned(), 2)));
    expect_fenced(&server, "1");
}

/// 6: failed heartbeats were logged, and the master worked on.
#[test]
fn race_06_a_master_whose_heartbeats_fail_is_stopped_before_the_next_one_leads() {
    isolate(Fault::Down);
}

/// 7: an isolated master computed on, and wrote when the network was back.
#[test]
fn race_07_an_isolated_master_is_stopped_in_time_and_its_late_write_is_refused() {
    isolate(Fault::Blackhole);
}

/// 8: a worker acted on what it had read about the queue before.
#[tokio::test]
async fn race_08_a_stale_view_of_the_queue_decides_nothing() {
    let site = Site::start().await;
    let master = site.first(TTL_MS).await;
    let (cached, session) = (site.build_state().await, site.session("b", TTL_MS).await);
    assert_eq!(cached, "SETUP");
    site.publish(&master).await.expect("it is the master");
    // It still believes that the build has to be set up.
    assert!(site.claim(&session, 0).await.is_none());
    let refused = site.submit(json!({})).await.expect_err("the build is ready");
    assert_eq!(refused.code(), Some(Code::BadTransition), "{refused}");
    assert_eq!(site.expect_published(&master).await, 1);
}

/// 9: two masters stored the data of one queue.
#[tokio::test]
async fn race_09_data_of_an_unpublished_term_is_never_seen() {
    let site = Site::start().await;
    let store = async |master: &Master, tests: std::ops::Range<u32>| {
        for n in tests {
            let test = format!("test/b1.{}:{n:06}", master.term);
            let test = site.client.resource(&test).expect("a name");
            test.put(&json!({ "by": master.term })).await.expect("it is stored");
        }
    };
    let old = site.first(FROZEN_TTL_MS).await;
    store(&old, 0..2).await;
    let new = site.next().await;
    store(&new, 0..4).await;
    store(&old, 2..4).await;
    site.expect_lost(&old).await;
    site.publish(&new).await.expect("it is the master");
    store(&old, 4..6).await;

    let term = site.get("/v1/resources/build/b1").await["status"]["term"].clone();
    let seen = site.get(&format!("/v1/resources?kind=test&group=b1.{term}")).await;
    let by = |test: &Value| test["spec"]["by"].as_u64();
    let seen: Vec<_> = seen["items"].as_array().expect("a list").iter().map(by).collect();
    assert_eq!(seen, [Some(new.term); 4]);
}

/// 10: the new master used a list of tests of its own.
#[tokio::test]
async fn race_10_another_list_of_tests_is_refused() {
    let site = Site::start().await;
    let build = site.client.resource("build/b1").expect("a name").only_if(Precondition::Absent);
    build.put(&json!({ "tests": "digest-a" })).await.expect("it is the first");
    let refused = build.put(&json!({ "tests": "digest-b" })).await.expect_err("there is one");
    assert_eq!(refused.code(), Some(Code::PreconditionFailed), "{refused}");
    let old = site.first(FROZEN_TTL_MS).await;
    let new = site.next().await;
    for master in [&old, &new] {
        assert_eq!(master.assignment["spec"], json!({ "tests": "digest-a" }));
    }
}
