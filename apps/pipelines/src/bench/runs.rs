//! Record of runs for Tenure and for the baseline: starts, ends and overlaps.
//!
//! The handler is the same for both. It only records its calls, and can hold a run open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result};
use tenure_core::JobId;
use tokio::sync::watch;

use tenure_bench::clock::now;

/// Records the runs of pipelines.
pub(crate) struct RunRecorder {
    pipelines: HashMap<String, Arc<PipelineRecord>>,
    /// Runs that have started and not ended.
    active: Mutex<HashMap<JobId, Arc<PipelineRecord>>>,
    overlaps: AtomicU64,
}

/// Record of one pipeline.
#[derive(Default)]
struct PipelineRecord {
    busy: AtomicBool,
    /// Number of starts.
    starts: AtomicU64,
    /// Latest run and its start.
    latest: watch::Sender<Option<(JobId, Instant)>>,
    /// Run that ended last.
    ended: watch::Sender<Option<JobId>>,
    /// Whether its runs are held open until they are released.
    held: watch::Sender<bool>,
}

impl RunRecorder {
    pub(crate) fn new(pipelines: &[String]) -> Arc<Self> {
        let pipelines = pipelines.iter().map(|name| (name.clone(), Arc::default())).collect();
        Arc::new(Self { pipelines, active: Mutex::default(), overlaps: AtomicU64::new(0) })
    }

    /// The handler of a run.
    pub(crate) async fn handle(&self, pipeline: &str, id: JobId) -> Result<()> {
        let at = now();
        let record = self.record(pipeline)?;
        if record.busy.swap(true, Ordering::SeqCst) {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        // Also cleared if the run is lost and the future dropped: the next run is not an overlap.
        let _busy = BusyGuard(record);
        record.starts.fetch_add(1, Ordering::SeqCst);
        self.active().insert(id, Arc::clone(record));
        record.latest.send_replace(Some((id, at)));
        record.held.subscribe().wait_for(|held| !held).await.context("hold a run")?;
        Ok(())
    }

    /// Records the end of a run.
    pub(crate) fn record_end(&self, id: JobId) {
        if let Some(record) = self.active().remove(&id) {
            record.ended.send_replace(Some(id));
        }
    }

    /// Returns the runs that have started and whose end is not recorded.
    pub(crate) fn unfinished(&self) -> Vec<JobId> {
        self.active().keys().copied().collect()
    }

    /// Holds the runs of a pipeline open until they are released.
    pub(crate) fn hold(&self, pipeline: &str) -> Result<()> {
        self.record(pipeline)?.held.send_replace(true);
        Ok(())
    }

    pub(crate) fn release(&self, pipeline: &str) -> Result<()> {
        self.record(pipeline)?.held.send_replace(false);
        Ok(())
    }

    /// Waits until the handler of a run is called, and returns that time.
    pub(crate) async fn wait_for_start(&self, pipeline: &str, id: JobId) -> Result<Instant> {
        let mut latest = self.record(pipeline)?.latest.subscribe();
        let is_it = |latest: &Option<(JobId, Instant)>| latest.is_some_and(|(run, _)| run == id);
        let found = *latest.wait_for(is_it).await.context("wait for the start of a run")?;
        Ok(found.context("wait for the start of a run")?.1)
    }

    /// Waits until a run has ended.
    pub(crate) async fn wait_for_end(&self, pipeline: &str, id: JobId) -> Result<()> {
        let mut ended = self.record(pipeline)?.ended.subscribe();
        ended.wait_for(|ended| *ended == Some(id)).await.context("wait for the end of a run")?;
        Ok(())
    }

    /// Returns the number of starts of a pipeline.
    pub(crate) fn starts(&self, pipeline: &str) -> Result<u64> {
        Ok(self.record(pipeline)?.starts.load(Ordering::SeqCst))
    }

    /// Returns the number of runs that started while another one of their pipeline was active.
    pub(crate) fn overlaps(&self) -> u64 {
        self.overlaps.load(Ordering::SeqCst)
    }

    fn record(&self, pipeline: &str) -> Result<&Arc<PipelineRecord>> {
        self.pipelines.get(pipeline).with_context(|| format!("{pipeline} is unknown"))
    }

    fn active(&self) -> MutexGuard<'_, HashMap<JobId, Arc<PipelineRecord>>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks a pipeline as busy until dropped.
struct BusyGuard<'a>(&'a PipelineRecord);

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: JobId = JobId(1);

    fn runs() -> Arc<RunRecorder> {
        RunRecorder::new(&["a".to_owned(), "b".to_owned()])
    }

    #[tokio::test]
    async fn run_is_held_until_it_is_released() {
        let runs = runs();
        runs.hold("a").unwrap();
        let handled = {
            let runs = Arc::clone(&runs);
            tokio::spawn(async move { runs.handle("a", ID).await })
        };
        let before = runs.wait_for_start("a", ID).await.unwrap();
        assert!(before <= now() && !handled.is_finished());
        runs.handle("b", JobId(2)).await.unwrap();
        runs.release("a").unwrap();
        handled.await.unwrap().unwrap();
        assert_eq!((runs.starts("a").unwrap(), runs.overlaps()), (1, 0));
        assert!(runs.hold("c").is_err());
    }

    #[tokio::test]
    async fn concurrent_runs_of_one_pipeline_are_an_overlap() {
        let runs = runs();
        runs.hold("a").unwrap();
        let first = runs.handle("a", ID);
        let second = runs.handle("a", JobId(2));
        let release = async {
            runs.wait_for_start("a", JobId(2)).await.unwrap();
            runs.release("a").unwrap();
        };
        let (one, two, ()) = tokio::join!(first, second, release);
        one.and(two).unwrap();
        assert_eq!(runs.overlaps(), 1);
        runs.handle("a", JobId(3)).await.unwrap();
        assert_eq!(runs.overlaps(), 1);
    }

    #[tokio::test]
    async fn end_is_recorded_once_and_wakes_waiters() {
        let runs = runs();
        runs.handle("a", ID).await.unwrap();
        assert_eq!(runs.unfinished(), [ID]);
        runs.record_end(JobId(7));
        runs.record_end(ID);
        runs.wait_for_end("a", ID).await.unwrap();
        assert!(runs.unfinished().is_empty());
    }
}
