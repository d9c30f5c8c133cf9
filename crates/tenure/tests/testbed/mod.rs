//! Test bed for workers: a store, a transport with fault injection, and access to jobs.
//!
//! Nothing here sleeps for a fixed time: [`wait_until`] polls a condition, with a timeout.

#![allow(dead_code, reason = "each test crate uses its part")]

pub(crate) mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tempfile::TempDir;
use tenure::transport::Queries;
use tenure::{Client, Error, Transport, Worker};
use tenure_core::retry::Retry;
use tenure_core::{Command, Job, JobId, JobState, Kind, Kinds, Operation, Outcome, ResourceKey};
use tenure_store::store::{HistoryQuery, LogQuery};
use tenure_store::{Committer, Embedded, Memory, Store};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) const TTL: Duration = Duration::from_secs(3);

/// Faults injected by [`FaultyTransport`].
#[derive(Clone, Default)]
pub(crate) struct Faults {
    /// Requests are dropped.
    pub(crate) drop_requests: Arc<AtomicBool>,
    /// Requests are applied and their responses dropped.
    pub(crate) drop_responses: Arc<AtomicBool>,
    /// Drops the response to one finish command.
    pub(crate) drop_finish_response_once: Arc<AtomicBool>,
    /// Drops the response to one claim that was granted jobs.
    pub(crate) drop_claim_response_once: Arc<AtomicBool>,
}

/// Transport with fault injection.
struct FaultyTransport {
    committer: Committer,
    faults: Faults,
}

#[async_trait]
impl Transport for FaultyTransport {
    async fn send(&self, command: Command, max_wait: Duration) -> Result<Outcome, Error> {
        let fault = || Err(Error::Unavailable("injected fault".to_owned()));
        if self.faults.drop_requests.load(Ordering::SeqCst) {
            return fault();
        }
        let outcome = self.committer.send(command, max_wait).await?;
        let faults = &self.faults;
        let drop_once = match &outcome {
            Outcome::Finished { .. } => {
                faults.drop_finish_response_once.swap(false, Ordering::SeqCst)
            }
            Outcome::Claimed(jobs) if !jobs.is_empty() => {
                faults.drop_claim_response_once.swap(false, Ordering::SeqCst)
            }
            _ => false,
        };
        let drop_response = drop_once
            || faults.drop_responses.load(Ordering::SeqCst)
            || faults.drop_requests.load(Ordering::SeqCst);
        if drop_response { fault() } else { Ok(outcome) }
    }

    fn queries(&self) -> &dyn Queries {
        &self.committer
    }

    fn open_dedicated(&self) -> Result<Box<dyn Transport>, Error> {
        let (committer, faults) = (self.committer.clone(), self.faults.clone());
        Ok(Box::new(Self { committer, faults }))
    }
}

/// Store with kinds, and clients of it.
pub(crate) struct TestBed {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) committer: Committer,
    pub(crate) client: Client,
    _dir: Option<TempDir>,
}

impl TestBed {
    pub(crate) async fn memory(kinds: impl IntoIterator<Item = Kind>) -> Self {
        Self::on(Arc::new(Memory::new()), kinds, None).await
    }

    pub(crate) async fn embedded(kinds: impl IntoIterator<Item = Kind>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let store = Embedded::open(&dir.path().join("tenure.db")).expect("a store");
        Self::on(Arc::new(store), kinds, Some(dir)).await
    }

    /// Creates a test bed on each embedded store.
    pub(crate) async fn each(kinds: impl IntoIterator<Item = Kind>) -> [Self; 2] {
        let kinds: Vec<Kind> = kinds.into_iter().collect();
        [Self::memory(kinds.clone()).await, Self::embedded(kinds).await]
    }

    async fn on(
        store: Arc<dyn Store>,
        kinds: impl IntoIterator<Item = Kind>,
        dir: Option<TempDir>,
    ) -> Self {
        let kinds = Kinds::new(kinds).expect("valid kinds");
        store.declare(Arc::new(kinds)).await.expect("the store is available");
        let committer = Committer::start(Arc::clone(&store));
        let client = Client::with_committer(committer.clone(), "default");
        Self { store, committer, client, _dir: dir }
    }

    /// Returns a client with fault injection and without hints.
    pub(crate) fn faulty_client(&self) -> (Client, Faults) {
        let faults = Faults::default();
        let transport =
            FaultyTransport { committer: self.committer.clone(), faults: faults.clone() };
        (Client::with_transport(Arc::new(transport), "default"), faults)
    }

    pub(crate) async fn submit(&self, resource: &str, operation: &str) -> JobId {
        self.client.submit(resource, operation).send().await.expect("the job is accepted").job.id()
    }

    pub(crate) async fn job(&self, id: JobId) -> Job {
        let view = self.store.reads().job(id).await.expect("the store is available");
        *view.expect("the job is known").job
    }

    /// Waits until the job is in one of these states.
    pub(crate) async fn wait_for_state(&self, id: JobId, states: &[JobState]) -> Job {
        let in_state = || async { states.contains(&self.job(id).await.state) };
        wait_until(&format!("the job is one of {states:?}"), in_state).await;
        self.job(id).await
    }

    pub(crate) async fn wait_finished(&self, id: JobId) -> Job {
        wait_until("the job is finished", || async { self.job(id).await.state.is_finished() })
            .await;
        self.job(id).await
    }

    pub(crate) async fn wait_running(&self, id: JobId) -> Job {
        self.wait_for_state(id, &[JobState::Running]).await
    }

    pub(crate) async fn log(&self, id: JobId) -> String {
        let (mut text, mut after) = (String::new(), 0);
        loop {
            let query = LogQuery { job: id, after, limit: 100 };
            let lines = self.store.reads().logs(query).await.expect("the store is available");
            let Some(last) = lines.last() else { return text };
            after = last.position;
            lines.iter().for_each(|line| text.push_str(&line.text));
        }
    }

    /// Returns the history of a resource, oldest first.
    pub(crate) async fn history(&self, resource: &str) -> String {
        let key: ResourceKey = format!("default/{resource}").parse().expect("a name");
        let query = HistoryQuery::Of { key, before: None, limit: 1000 };
        let lines = self.store.reads().history(query).await.expect("the store is available");
        lines.iter().rev().map(|line| format!("{}\n", line.text)).collect()
    }
}

/// Worker that runs until it is stopped.
pub(crate) struct RunningWorker {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<tenure::worker::Summary, Error>>,
}

impl RunningWorker {
    pub(crate) fn start(worker: Worker) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async {
            stopped.await.ok();
        };
        Self { stop: Some(stop), task: tokio::spawn(worker.run(shutdown)) }
    }

    /// Requests shutdown without waiting for it.
    pub(crate) fn request_stop(&mut self) {
        drop(self.stop.take());
    }

    pub(crate) async fn stop(self) -> tenure::worker::Summary {
        drop(self.stop);
        let ended = tokio::time::timeout(Duration::from_secs(60), self.task).await;
        ended
            .expect("the worker stops")
            .expect("it does not panic")
            .expect("the worker is permitted")
    }

    /// Drops the worker while it runs.
    pub(crate) fn abort(self) {
        self.task.abort();
    }
}

/// Returns a kind with one operation.
pub(crate) fn kind(operation: Operation) -> Kind {
    Kind::new("thing").operation(operation)
}

pub(crate) fn retries(attempts: u32) -> Retry {
    Retry { attempts, initial_ms: 1, factor: 1.0, max_ms: 1, ..Retry::default() }
}

/// Waits for a condition; the timeout only ends a failed test.
pub(crate) async fn wait_until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let poll = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), poll).await;
    waited.unwrap_or_else(|_| panic!("timed out waiting until {what}"));
}
