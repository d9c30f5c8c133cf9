//! A server with builds in this process, and nodes that use it over HTTP.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tenure::http::HttpTransport;
use tenure::{Client, Session};
use tenure_app::Apps;
use tenure_bench::clock::now;
use tenure_bench::histogram::Latencies;
use tenure_bench::in_process::InProcess;
use tenure_bench::load::Sample;
use tenure_bench::servers::Scratch;
use tenure_core::Token;
use tenure_store::Store;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::node::api::{BuildApi, SERVER_TIMEOUT};
use crate::order;
use crate::wire::{
    BuildRulesRequest, JoinRequest, PublishRequest, ReserveRequest, ReservedTest, TestOutcome,
    TestResult,
};

/// Number of tests in one request, as a leader sends them.
const CHUNK: usize = 1_000;
/// Time to live of the sessions.
const TTL: Duration = Duration::from_secs(60);

/// A server.
pub(super) struct Target {
    url: String,
    key: String,
    tenant: String,
    stop: CancellationToken,
    task: JoinHandle<Result<()>>,
}

/// A node.
struct Node {
    api: BuildApi,
    session: Session,
    worker: String,
}

impl Target {
    pub(super) async fn start(store: Arc<dyn Store>, scratch: &Scratch) -> Result<Self> {
        let apps = Apps::new(vec![Arc::new(crate::Builds)]);
        let loaded = apps.parse("[builds]\n", scratch.path()).context("declare builds")?;
        let server = InProcess::start(store, scratch, apps, &loaded).await?;
        let (url, key) = (format!("http://{}", server.addr), server.key.clone());
        let stop = CancellationToken::new();
        let task = tokio::spawn(server.serve(stop.clone()));
        let id = tenure_store::random::request_id().to_string();
        let tenant = format!("bench-{}", &id[..8]);
        Ok(Self { url, key, tenant, stop, task })
    }

    pub(super) async fn stop(self) -> Result<()> {
        self.stop.cancel();
        self.task.await?
    }

    async fn node(&self, build: &str, worker: &str) -> Result<Node> {
        let transport = || HttpTransport::new(&self.url, &self.key, &self.tenant);
        let api = BuildApi::new(transport()?, build, SERVER_TIMEOUT);
        let client = Client::with_transport(Arc::new(transport()?), &self.tenant);
        let session = client.session(worker, TTL).await?;
        Ok(Node { api, session, worker: worker.to_owned() })
    }

    /// Measures how long a leader takes to publish tests.
    pub(super) async fn publish(&self, tests: usize) -> Result<Sample> {
        let node = self.node("publish", "leader").await?;
        let list = list(tests);
        let started = now();
        node.lead(&list).await?;
        let elapsed = now() - started;
        let report = node.api.report(false).await?;
        node.close().await;
        ensure!(report.total == tests, "{} tests are published, not {tests}", report.total);
        Ok(sample(tests, elapsed, &Latencies::new()?, elapsed))
    }

    /// Measures the time from the end of a test to the begin of the next one.
    pub(super) async fn queue(
        &self,
        nodes: usize,
        tests_per_node: usize,
        test: Duration,
    ) -> Result<Sample> {
        let leader = self.node("queue", "leader").await?;
        let total = nodes * tests_per_node;
        let term = leader.lead(&list(total)).await?;
        let mut tasks = Vec::new();
        let started = now();
        for n in 0..nodes {
            let node = self.node("queue", &format!("node-{n}")).await?;
            tasks.push(tokio::spawn(async move {
                let latencies = node.work(term, test).await;
                node.close().await;
                latencies
            }));
        }
        let mut latencies = Latencies::new()?;
        for task in tasks {
            latencies.merge(&task.await??)?;
        }
        let elapsed = now() - started;
        let report = leader.api.report(false).await?;
        leader.close().await;
        ensure!(report.passed == total, "{} tests passed, not {total}", report.passed);
        Ok(sample(total, elapsed, &latencies, Duration::ZERO))
    }
}

impl Node {
    fn join_request(&self) -> JoinRequest {
        JoinRequest {
            worker: self.worker.clone(),
            session: Some(self.session.id()),
            tests: None,
            rules: BuildRulesRequest::default(),
            existing: false,
            restart: false,
            wait_ms: 0,
        }
    }

    /// Leads a new build and publishes its tests. Returns the term.
    async fn lead(&self, tests: &[String]) -> Result<Token> {
        let answer = self.api.join(&self.join_request()).await?;
        let leadership = answer.leadership.context("no other node leads")?;
        let (job, term) = (leadership.job, leadership.term);
        let mut first = 0;
        for chunk in tests.chunks(CHUNK) {
            let tests = chunk.to_vec();
            let body = PublishRequest { job, term, first, tests, total: None, digest: None };
            first += self.api.publish(&body).await?.published;
        }
        let (total, digest) = (Some(first), Some(order::digest(tests)));
        let tests = Vec::new();
        self.api.publish(&PublishRequest { job, term, first, tests, total, digest }).await?;
        Ok(term)
    }

    /// Closes the session. Dropping it would block a thread of the runtime that serves it.
    async fn close(self) {
        self.session.close().await;
    }

    /// Runs tests until none is left. Returns the times between two tests.
    async fn work(&self, term: Token, test: Duration) -> Result<Latencies> {
        self.api.join(&self.join_request()).await?;
        let mut latencies = Latencies::new()?;
        let mut results = Vec::new();
        loop {
            let is_first = results.is_empty();
            let body = ReserveRequest {
                worker: self.worker.clone(),
                session: self.session.id(),
                term,
                max: 1,
                wait_ms: 1_000,
                count: false,
                results,
            };
            let started: Instant = now();
            let answer = self.api.reserve(&body).await?;
            if answer.finished {
                return Ok(latencies);
            }
            if !is_first && !answer.tests.is_empty() {
                latencies.record(now() - started);
            }
            if !answer.tests.is_empty() {
                tokio::time::sleep(test).await;
            }
            results = answer.tests.iter().map(|one| passed(one, test)).collect();
        }
    }
}

fn passed(test: &ReservedTest, duration: Duration) -> TestResult {
    TestResult {
        job: test.job,
        token: test.token,
        test: test.test.clone(),
        outcome: TestOutcome::Passed,
        duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        failures: test.failures,
        losses: test.losses,
        code: None,
        message: None,
        known_flaky: false,
    }
}

fn list(tests: usize) -> Vec<String> {
    (0..tests).map(|n| format!("tests/test_module_{:03}.py::test_{n}", n % 100)).collect()
}

fn sample(tests: usize, elapsed: Duration, latencies: &Latencies, total: Duration) -> Sample {
    let spread = latencies.spread();
    let us = total.as_secs_f64() * 1e6;
    let (p50_us, p99_us) = if total.is_zero() { (spread.p50_us, spread.p99_us) } else { (us, us) };
    Sample { pairs: tests as u64, elapsed, p50_us, p99_us }
}
