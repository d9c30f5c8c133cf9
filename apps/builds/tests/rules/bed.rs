//! A server with builds on a store with a clock that only the test moves, and nodes that speak its
//! API.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_app::LiveConfig;
use tenure_server::Config;
use tenure_store::clock::{Clock, ManualClock};
use tenure_store::embedded::Options;
use tenure_store::{Embedded, Memory, Store};

use crate::common::{Server, apps, config};

/// Time without a heartbeat after which a node is lost.
pub(crate) const STALE_MS: u64 = 30_000;
/// Step of the clock: shorter than what the store takes for a stall of its own.
const STEP_MS: u64 = 500;

pub(crate) struct Bed {
    pub(crate) server: Server,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) live: LiveConfig,
    clock: ManualClock,
    keys: AtomicU64,
    _dir: TempDir,
}

impl Bed {
    pub(crate) async fn start() -> Self {
        Self::start_on(|_, clock| Arc::new(Memory::with_clock(clock))).await
    }

    /// Starts a server on the embedded store.
    pub(crate) async fn start_embedded() -> Self {
        Self::start_on(|dir, clock| {
            let clock: Option<Arc<dyn Clock>> = Some(Arc::new(clock));
            let options = Options { clock, ..Options::default() };
            Arc::new(Embedded::open_with(&dir.join("tenure.db"), options).expect("it opens"))
        })
        .await
    }

    async fn start_on(open: impl FnOnce(&Path, ManualClock) -> Arc<dyn Store>) -> Self {
        let (clock, dir) = (ManualClock::default(), TempDir::new().expect("a directory"));
        let store = open(dir.path(), clock.clone());
        let live = apps().parse("[builds]\n", dir.path()).expect("valid").live();
        let config = Config { live: live.clone(), ..config(Arc::default()) };
        let server = Server::run(Arc::clone(&store), config).await;
        Self { server, store, live, clock, keys: AtomicU64::new(0), _dir: dir }
    }

    /// Moves the clock far ahead, past the end of everything.
    pub(crate) fn skip(&self, ms: u64) {
        self.clock.advance(ms);
    }

    /// Advances the clock; the sessions of `alive` send a heartbeat at each step.
    pub(crate) async fn advance(&self, ms: u64, alive: &[&Node<'_>]) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(STEP_MS);
            self.clock.advance(step);
            for node in alive {
                node.beat().await;
            }
            self.store.sweep().await.expect("the store works");
            left -= step;
        }
    }

    pub(crate) async fn node(&self, worker: &str) -> Node<'_> {
        let body = json!({ "name": worker, "ttl_ms": STALE_MS });
        let (status, answer) = self.server.post("/v1/sessions", body).await;
        assert_eq!(status, 200, "{answer}");
        let session = answer["session"].as_str().expect("an id").to_owned();
        Node { bed: self, worker: worker.to_owned(), session }
    }

    pub(crate) async fn show(&self, build: &str) -> Value {
        let (status, answer) = self.server.get(&format!("/v1/builds/{build}")).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub(crate) async fn report(&self, build: &str) -> Value {
        let (status, answer) =
            self.server.get(&format!("/v1/builds/{build}/report?all=true")).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }
}

/// A node: a session and the requests that it sends.
pub(crate) struct Node<'a> {
    bed: &'a Bed,
    pub(crate) worker: String,
    pub(crate) session: String,
}

/// The right of a leader to publish.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Leadership {
    pub(crate) job: String,
    pub(crate) term: u64,
}

impl Node<'_> {
    /// Sends a request with a key of its own.
    pub(crate) async fn post(&self, build: &str, verb: &str, body: Value) -> (u16, Value) {
        let key = self.bed.keys.fetch_add(1, Ordering::Relaxed).to_string();
        self.bed.server.post_as(&format!("/v1/builds/{build}/{verb}"), &key, body).await
    }

    pub(crate) async fn beat(&self) -> u16 {
        let path = format!("/v1/sessions/{}/beat", self.session);
        self.bed.server.post(&path, json!({ "seen": 0 })).await.0
    }

    pub(crate) async fn join_with(&self, build: &str, more: Value) -> (u16, Value) {
        let mut body = json!({ "worker": self.worker, "session": self.session });
        let more = more.as_object().expect("an object").clone();
        body.as_object_mut().expect("an object").extend(more);
        self.post(build, "join", body).await
    }

    /// Joins a build. Returns the leadership if this node is elected.
    pub(crate) async fn join(&self, build: &str) -> Option<Leadership> {
        let (status, answer) = self.join_with(build, json!({})).await;
        assert_eq!(status, 200, "{answer}");
        leadership(&answer)
    }

    /// Joins a build that this node creates with rules, and leads it.
    pub(crate) async fn create(&self, build: &str, rules: Value) -> Leadership {
        let (status, answer) = self.join_with(build, json!({ "rules": rules })).await;
        assert_eq!(status, 200, "{answer}");
        leadership(&answer).expect("it is elected")
    }

    /// Publishes part of the tests.
    pub(crate) async fn push(
        &self,
        build: &str,
        leadership: &Leadership,
        first: usize,
        tests: &[&str],
    ) -> (u16, Value) {
        let Leadership { job, term } = leadership;
        let body = json!({ "job": job, "term": term, "first": first, "tests": tests });
        self.post(build, "publish", body).await
    }

    /// Ends the publication.
    pub(crate) async fn finish(
        &self,
        build: &str,
        leadership: &Leadership,
        total: usize,
    ) -> (u16, Value) {
        let Leadership { job, term } = leadership;
        let body = json!({
            "job": job, "term": term, "first": total, "tests": [], "total": total,
            "digest": "0".repeat(64),
        });
        self.post(build, "publish", body).await
    }

    /// Publishes all tests.
    pub(crate) async fn publish(&self, build: &str, leadership: &Leadership, tests: &[&str]) {
        for answer in [
            self.push(build, leadership, 0, tests).await,
            self.finish(build, leadership, tests.len()).await,
        ] {
            assert_eq!(answer.0, 200, "{}", answer.1);
        }
    }

    /// Leads a new build and publishes its tests. Returns the term.
    pub(crate) async fn start(&self, build: &str, rules: Value, tests: &[&str]) -> u64 {
        let leadership = self.create(build, rules).await;
        self.publish(build, &leadership, tests).await;
        leadership.term
    }

    /// Acknowledges results and reserves tests.
    pub(crate) async fn reserve_with(
        &self,
        build: &str,
        term: u64,
        max: usize,
        results: Vec<Value>,
    ) -> Value {
        let body = json!({
            "worker": self.worker, "session": self.session, "term": term, "max": max,
            "results": results,
        });
        let (status, answer) = self.post(build, "reserve", body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Reserves tests.
    pub(crate) async fn reserve(&self, build: &str, term: u64, max: usize) -> Vec<Value> {
        let answer = self.reserve_with(build, term, max, Vec::new()).await;
        answer["tests"].as_array().expect("a list").clone()
    }

    /// Reserves the only test that is available.
    pub(crate) async fn take(&self, build: &str, term: u64) -> Value {
        let mut tests = self.reserve(build, term, 1).await;
        assert_eq!(tests.len(), 1, "one test is available");
        tests.remove(0)
    }

    /// Acknowledges one result. Returns the verdict.
    pub(crate) async fn ack(&self, build: &str, term: u64, result: Value) -> String {
        let body = json!({ "worker": self.worker, "term": term, "results": [result] });
        let (status, answer) = self.post(build, "ack", body).await;
        assert_eq!(status, 200, "{answer}");
        answer["verdicts"][0].as_str().expect("a verdict").to_owned()
    }
}

/// Returns the leadership of an answer to `join`.
pub(crate) fn leadership(answer: &Value) -> Option<Leadership> {
    let leadership = answer.get("leadership").filter(|leadership| !leadership.is_null())?;
    assert_eq!(answer["role"], "leader");
    Some(Leadership {
        job: leadership["job"].as_str().expect("an id").to_owned(),
        term: leadership["term"].as_u64().expect("a number"),
    })
}

/// Returns the result of a reserved test.
pub(crate) fn result(test: &Value, outcome: &str) -> Value {
    json!({
        "job": test["job"], "token": test["token"], "test": test["test"], "outcome": outcome,
        "failures": test["failures"], "losses": test["losses"], "duration_ms": 7,
    })
}

pub(crate) fn passed(test: &Value) -> Value {
    result(test, "passed")
}

pub(crate) fn failed(test: &Value) -> Value {
    let mut result = result(test, "failed");
    result["code"] = json!("EXIT_1");
    result["message"] = json!("expected 1, got 2");
    result
}
