//! What the load knows of runs, whoever runs them: which one began when, and whether two of one
//! pipeline ran at once.
//!
//! The handler here is the same for Tenure and for its peer. It does nothing but say that it was
//! called, and holds its run if it is told to.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result};
use tenure_core::JobId;
use tokio::sync::watch;

use tenure_bench::load::now;

/// The runs of some pipelines.
pub(crate) struct Runs {
    places: HashMap<String, Arc<Place>>,
    /// Runs that have begun and are not over.
    going: Mutex<HashMap<JobId, Arc<Place>>>,
    overlaps: AtomicU64,
}

/// A pipeline.
#[derive(Default)]
struct Place {
    busy: AtomicBool,
    /// How often a run has begun.
    begun: AtomicU64,
    /// The run that began last, and when.
    latest: watch::Sender<Option<(JobId, Instant)>>,
    /// The run that was over last.
    over: watch::Sender<Option<JobId>>,
    /// Whether its runs are to go on until they are let go.
    held: watch::Sender<bool>,
}

impl Runs {
    pub(crate) fn of(pipelines: &[String]) -> Arc<Self> {
        let places = pipelines.iter().map(|name| (name.clone(), Arc::default())).collect();
        Arc::new(Self { places, going: Mutex::default(), overlaps: AtomicU64::new(0) })
    }

    /// The handler of a run.
    pub(crate) async fn handle(&self, pipeline: &str, id: JobId) -> Result<()> {
        let at = now();
        let place = self.place(pipeline)?;
        if place.busy.swap(true, Ordering::SeqCst) {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        // Also when its run is lost and it is dropped: the next one is no overlap.
        let _busy = Busy(place);
        place.begun.fetch_add(1, Ordering::SeqCst);
        self.going().insert(id, Arc::clone(place));
        place.latest.send_replace(Some((id, at)));
        place.held.subscribe().wait_for(|held| !held).await.context("hold a run")?;
        Ok(())
    }

    /// A run is over, as whoever keeps it says.
    pub(crate) fn over(&self, id: JobId) {
        if let Some(place) = self.going().remove(&id) {
            place.over.send_replace(Some(id));
        }
    }

    /// Runs that have begun and of whose end nothing was heard.
    pub(crate) fn not_over(&self) -> Vec<JobId> {
        self.going().keys().copied().collect()
    }

    /// Has the runs of a pipeline go on until they are let go.
    pub(crate) fn hold(&self, pipeline: &str) -> Result<()> {
        self.place(pipeline)?.held.send_replace(true);
        Ok(())
    }

    pub(crate) fn let_go(&self, pipeline: &str) -> Result<()> {
        self.place(pipeline)?.held.send_replace(false);
        Ok(())
    }

    /// Waits until the handler of a run was called, and says when that was.
    pub(crate) async fn began(&self, pipeline: &str, id: JobId) -> Result<Instant> {
        let mut latest = self.place(pipeline)?.latest.subscribe();
        let is_it = |latest: &Option<(JobId, Instant)>| latest.is_some_and(|(run, _)| run == id);
        let found = *latest.wait_for(is_it).await.context("wait for a run to begin")?;
        Ok(found.context("wait for a run to begin")?.1)
    }

    /// Waits until a run is over.
    pub(crate) async fn until_over(&self, pipeline: &str, id: JobId) -> Result<()> {
        let mut over = self.place(pipeline)?.over.subscribe();
        over.wait_for(|over| *over == Some(id)).await.context("wait for the end of a run")?;
        Ok(())
    }

    /// How often a run of a pipeline has begun.
    pub(crate) fn begun(&self, pipeline: &str) -> Result<u64> {
        Ok(self.place(pipeline)?.begun.load(Ordering::SeqCst))
    }

    /// How often a run began while another of its pipeline ran.
    pub(crate) fn overlaps(&self) -> u64 {
        self.overlaps.load(Ordering::SeqCst)
    }

    fn place(&self, pipeline: &str) -> Result<&Arc<Place>> {
        self.places.get(pipeline).with_context(|| format!("{pipeline} is none of ours"))
    }

    fn going(&self) -> MutexGuard<'_, HashMap<JobId, Arc<Place>>> {
        self.going.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pipeline whose handler is at work, until it is dropped.
struct Busy<'a>(&'a Place);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: JobId = JobId(1);

    fn runs() -> Arc<Runs> {
        Runs::of(&["a".to_owned(), "b".to_owned()])
    }

    #[tokio::test]
    async fn a_run_is_held_until_it_is_let_go() {
        let runs = runs();
        runs.hold("a").unwrap();
        let handled = {
            let runs = Arc::clone(&runs);
            tokio::spawn(async move { runs.handle("a", ID).await })
        };
        let before = runs.began("a", ID).await.unwrap();
        assert!(before <= now() && !handled.is_finished());
        runs.handle("b", JobId(2)).await.unwrap();
        runs.let_go("a").unwrap();
        handled.await.unwrap().unwrap();
        assert_eq!((runs.begun("a").unwrap(), runs.overlaps()), (1, 0));
        assert!(runs.hold("c").is_err());
    }

    #[tokio::test]
    async fn a_run_that_begins_beside_another_of_its_pipeline_is_an_overlap() {
        let runs = runs();
        runs.hold("a").unwrap();
        let first = runs.handle("a", ID);
        let second = runs.handle("a", JobId(2));
        let let_go = async {
            runs.began("a", JobId(2)).await.unwrap();
            runs.let_go("a").unwrap();
        };
        let (one, two, ()) = tokio::join!(first, second, let_go);
        one.and(two).unwrap();
        assert_eq!(runs.overlaps(), 1);
        runs.handle("a", JobId(3)).await.unwrap();
        assert_eq!(runs.overlaps(), 1);
    }

    #[tokio::test]
    async fn an_end_is_heard_once_and_by_whoever_waits_for_it() {
        let runs = runs();
        runs.handle("a", ID).await.unwrap();
        assert_eq!(runs.not_over(), [ID]);
        runs.over(JobId(7));
        runs.over(ID);
        runs.until_over("a", ID).await.unwrap();
        assert!(runs.not_over().is_empty());
    }
}
