//! Tenure in this process: a server configured like `tenure serve`, and a worker whose handler only
//! records its calls.

use std::sync::Arc;
use std::time::Duration;

use crate::KIND;
use crate::slots::pipeline;
use anyhow::{Context as _, Result};
use tenure::worker::{Context, Done, Failure};
use tenure::{Client, Worker};
use tenure_core::JobId;
use tenure_store::store::Hint;
use tenure_store::{Committer, Store};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::runs::RunRecorder;
use super::triggers::Target;
use tenure_app::Loaded;
use tenure_bench::in_process::InProcess;
use tenure_bench::servers::Scratch;

/// Grace period for runs at the end; none are active unless something went wrong.
const DRAIN: Duration = Duration::from_secs(1);

/// A server and its worker.
pub(crate) struct TenureTarget {
    pub(crate) target: Target,
    committer: Committer,
    stop: CancellationToken,
    tasks: JoinSet<Result<()>>,
}

impl TenureTarget {
    /// Starts both. The worker executes up to `slots` concurrent runs of this tenant only, so that
    /// it takes no runs of others on a database in use.
    pub(crate) async fn start(
        store: Arc<dyn Store>,
        scratch: &Scratch,
        loaded: &Loaded,
        (tenant, pipelines): (&str, &[String]),
        slots: usize,
    ) -> Result<Self> {
        let server = InProcess::start(store, scratch, super::apps(), loaded).await?;
        let (addr, key, runs) = (server.addr, server.key.clone(), RunRecorder::new(pipelines));
        let committer = server.committer.clone();
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        // Before any run, so that no end is missed.
        tasks.spawn(record_ends(committer.clone(), committer.store().watch(), Arc::clone(&runs)));
        let worker = worker(&committer, tenant, slots, &runs).run(stop.clone().cancelled_owned());
        tasks.spawn(async move { worker.await.map(drop).context("execute runs") });
        tasks.spawn(server.serve(stop.clone()));
        let (bearer, tenant) = (format!("Bearer {key}"), tenant.to_owned());
        Ok(Self { target: Target { addr, bearer, tenant, runs }, committer, stop, tasks })
    }

    /// Returns the number of triggers attached to a run according to the store.
    pub(crate) async fn joined(&self, id: JobId) -> Result<u32> {
        let view = self.committer.store().reads().job(id).await?;
        Ok(view.with_context(|| format!("the run {id} does not exist"))?.job.joined)
    }

    /// Stops both. The store is unused afterwards.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.stop.cancel();
        // The third task runs as long as the store exists.
        for _ in 0..2 {
            self.tasks.join_next().await.context("stop the server and its worker")???;
        }
        self.tasks.shutdown().await;
        Ok(())
    }
}

fn worker(committer: &Committer, tenant: &str, slots: usize, runs: &Arc<RunRecorder>) -> Worker {
    let client = Client::with_committer(committer.clone(), tenant);
    let runs = Arc::clone(runs);
    let handler = move |job: Context| {
        let runs = Arc::clone(&runs);
        async move {
            let done = runs.handle(pipeline(job.key().name()), job.id()).await;
            done.map(Done::from).map_err(|error| Failure::permanent("BENCH", error.to_string()))
        }
    };
    Worker::new(&client, "bench").slots(slots).drain(DRAIN).handle(KIND, handler)
}

/// Records the ends of runs.
async fn record_ends(
    committer: Committer,
    mut hints: broadcast::Receiver<Hint>,
    runs: Arc<RunRecorder>,
) -> Result<()> {
    loop {
        match hints.recv().await {
            Ok(Hint::JobsEnded(ids)) => ids.iter().for_each(|id| runs.record_end(*id)),
            // Missed hints are recovered by polling.
            Ok(Hint::Lagged) | Err(RecvError::Lagged(_)) => {
                for id in runs.unfinished() {
                    let view = committer.store().reads().job(id).await?;
                    if view.is_none_or(|view| view.job.state.is_finished()) {
                        runs.record_end(id);
                    }
                }
            }
            Ok(Hint::Granted(_) | Hint::Ready(_) | Hint::Notified(_)) => {}
            Err(RecvError::Closed) => return Ok(()),
        }
    }
}
