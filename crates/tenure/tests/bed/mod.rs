//! What the tests of workers need: a store, a way to it that can be cut, and jobs to look at.
//!
//! Nothing here sleeps to let something happen: [`until`] waits for a condition, with a limit.

#![allow(dead_code, reason = "each test crate uses its part")]

pub(crate) mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tempfile::TempDir;
use tenure::{Client, Error, Link, Worker};
use tenure_core::retry::Retry;
use tenure_core::{Command, Job, JobId, JobState, Kind, Kinds, Operation, Outcome, ResourceKey};
use tenure_store::store::{HistoryQuery, LogQuery};
use tenure_store::{Committer, Embedded, Memory, Store};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) const TTL: Duration = Duration::from_secs(3);

/// How a link misbehaves.
#[derive(Clone, Default)]
pub(crate) struct Faults {
    /// Requests do not arrive.
    pub(crate) cut: Arc<AtomicBool>,
    /// Requests arrive, and their answers get lost.
    pub(crate) mute: Arc<AtomicBool>,
    /// Answers to reports get lost once.
    pub(crate) mute_finish_once: Arc<AtomicBool>,
    /// Answers to claims that got something get lost once.
    pub(crate) mute_claim_once: Arc<AtomicBool>,
}

/// A way to the store that can be cut.
struct Cable {
    committer: Committer,
    faults: Faults,
}

#[async_trait]
impl Link for Cable {
    async fn send(&self, command: Command, patience: Duration) -> Result<Outcome, Error> {
        let lost = || Err(Error::Unavailable("the cable is cut".to_owned()));
        if self.faults.cut.load(Ordering::SeqCst) {
            return lost();
        }
        let outcome = self.committer.send(command, patience).await?;
        let faults = &self.faults;
        let once = match &outcome {
            Outcome::Finished { .. } => faults.mute_finish_once.swap(false, Ordering::SeqCst),
            Outcome::Claimed(jobs) if !jobs.is_empty() => {
                faults.mute_claim_once.swap(false, Ordering::SeqCst)
            }
            _ => false,
        };
        let mute = once || faults.mute.load(Ordering::SeqCst) || faults.cut.load(Ordering::SeqCst);
        if mute { lost() } else { Ok(outcome) }
    }

    fn twin(&self) -> Result<Box<dyn Link>, Error> {
        let (committer, faults) = (self.committer.clone(), self.faults.clone());
        Ok(Box::new(Self { committer, faults }))
    }
}

/// A store with kinds, and ways to it.
pub(crate) struct Bed {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) committer: Committer,
    pub(crate) client: Client,
    _dir: Option<TempDir>,
}

impl Bed {
    pub(crate) async fn memory(kinds: impl IntoIterator<Item = Kind>) -> Self {
        Self::on(Arc::new(Memory::new()), kinds, None).await
    }

    pub(crate) async fn embedded(kinds: impl IntoIterator<Item = Kind>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let store = Embedded::open(&dir.path().join("tenure.db")).expect("a store");
        Self::on(Arc::new(store), kinds, Some(dir)).await
    }

    /// One of each.
    pub(crate) async fn each(kinds: impl IntoIterator<Item = Kind>) -> [Self; 2] {
        let kinds: Vec<Kind> = kinds.into_iter().collect();
        [Self::memory(kinds.clone()).await, Self::embedded(kinds).await]
    }

    async fn on(
        store: Arc<dyn Store>,
        kinds: impl IntoIterator<Item = Kind>,
        dir: Option<TempDir>,
    ) -> Self {
        let kinds = Kinds::new(kinds).expect("kinds that make sense");
        store.declare(Arc::new(kinds)).await.expect("the store is there");
        let committer = Committer::start(Arc::clone(&store));
        let client = Client::within(committer.clone(), "default");
        Self { store, committer, client, _dir: dir }
    }

    /// A client whose way can be cut, and that gets no hints.
    pub(crate) fn cable(&self) -> (Client, Faults) {
        let faults = Faults::default();
        let cable = Cable { committer: self.committer.clone(), faults: faults.clone() };
        (Client::over(Arc::new(cable), "default"), faults)
    }

    pub(crate) async fn submit(&self, resource: &str, operation: &str) -> JobId {
        self.client.submit(resource, operation).send().await.expect("it is taken").job
    }

    pub(crate) async fn job(&self, id: JobId) -> Job {
        let shown = self.store.reads().job(id).await.expect("the store is there");
        *shown.expect("the job is known").job
    }

    /// The job, when it is over or in one of these states.
    pub(crate) async fn job_in(&self, id: JobId, states: &[JobState]) -> Job {
        let there = || async { states.contains(&self.job(id).await.state) };
        until(&format!("the job is one of {states:?}"), there).await;
        self.job(id).await
    }

    pub(crate) async fn over(&self, id: JobId) -> Job {
        until("the job is over", || async { self.job(id).await.state.is_over() }).await;
        self.job(id).await
    }

    pub(crate) async fn running(&self, id: JobId) -> Job {
        self.job_in(id, &[JobState::Running]).await
    }

    pub(crate) async fn log(&self, id: JobId) -> String {
        let (mut text, mut after) = (String::new(), 0);
        loop {
            let query = LogQuery { job: id, after, limit: 100 };
            let lines = self.store.reads().logs(query).await.expect("the store is there");
            let Some(last) = lines.last() else { return text };
            after = last.position;
            lines.iter().for_each(|line| text.push_str(&line.text));
        }
    }

    /// The history of a resource, oldest first.
    pub(crate) async fn history(&self, resource: &str) -> String {
        let key: ResourceKey = format!("default/{resource}").parse().expect("a name");
        let query = HistoryQuery::Of { key, before: None, limit: 1000 };
        let lines = self.store.reads().history(query).await.expect("the store is there");
        lines.iter().rev().map(|line| format!("{}\n", line.text)).collect()
    }
}

/// A worker that runs until it is told to stop.
pub(crate) struct Running {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<tenure::worker::Summary, Error>>,
}

impl Running {
    pub(crate) fn start(worker: Worker) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async {
            stopped.await.ok();
        };
        Self { stop: Some(stop), task: tokio::spawn(worker.run(shutdown)) }
    }

    /// Tells it to stop, without waiting for that.
    pub(crate) fn tell(&mut self) {
        drop(self.stop.take());
    }

    pub(crate) async fn end(self) -> tenure::worker::Summary {
        drop(self.stop);
        let ended = tokio::time::timeout(Duration::from_secs(60), self.task).await;
        ended.expect("the worker ends").expect("it does not panic").expect("it may work")
    }

    /// Drops the worker in the middle of its work.
    pub(crate) fn abort(self) {
        self.task.abort();
    }
}

/// A kind with one operation.
pub(crate) fn kind(operation: Operation) -> Kind {
    Kind::new("thing").operation(operation)
}

pub(crate) fn retries(attempts: u32) -> Retry {
    Retry { attempts, initial_ms: 1, factor: 1.0, max_ms: 1, ..Retry::default() }
}

/// Waits for a condition; the limit only ends a test that has failed.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let patient = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), patient).await;
    waited.unwrap_or_else(|_| panic!("waited in vain until {what}"));
}
