//! Tenure in this process: a server as `tenure serve` has it, and a worker beside it whose handler
//! only says that it was called.

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

use super::runs::Runs;
use super::triggers::Site;
use tenure_app::Loaded;
use tenure_bench::in_process::InProcess;
use tenure_bench::servers::Scratch;

/// How long runs may go on at the end; none do, unless something went wrong.
const DRAIN: Duration = Duration::from_secs(1);

/// The server and its worker.
pub(crate) struct Ours {
    pub(crate) site: Site,
    committer: Committer,
    stop: CancellationToken,
    tasks: JoinSet<Result<()>>,
}

impl Ours {
    /// Starts both; the worker has this many runs at once, of this tenant only: on a database that
    /// somebody uses it takes no run of others.
    pub(crate) async fn start(
        store: Arc<dyn Store>,
        scratch: &Scratch,
        loaded: &Loaded,
        (tenant, pipelines): (&str, &[String]),
        slots: usize,
    ) -> Result<Self> {
        let server = InProcess::start(store, scratch, super::apps(), loaded).await?;
        let (addr, key, runs) = (server.addr, server.key.clone(), Runs::of(pipelines));
        let committer = server.committer.clone();
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        // Before anything runs: no end is missed.
        tasks.spawn(listen(committer.clone(), committer.store().watch(), Arc::clone(&runs)));
        let worker = worker(&committer, tenant, slots, &runs).run(stop.clone().cancelled_owned());
        tasks.spawn(async move { worker.await.map(drop).context("work runs") });
        tasks.spawn(server.serve(stop.clone()));
        let (bearer, tenant) = (format!("Bearer {key}"), tenant.to_owned());
        Ok(Self { site: Site { addr, bearer, tenant, runs }, committer, stop, tasks })
    }

    /// How many triggers a run got beside the first, as the store has it.
    pub(crate) async fn joined(&self, id: JobId) -> Result<u32> {
        let shown = self.committer.store().reads().job(id).await?;
        Ok(shown.with_context(|| format!("the run {id} is not there"))?.job.joined)
    }

    /// Ends both in order. Nobody is at the store then.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.stop.cancel();
        // One of the three goes on for as long as there is a store.
        for _ in 0..2 {
            self.tasks.join_next().await.context("end the server and its worker")???;
        }
        self.tasks.shutdown().await;
        Ok(())
    }
}

fn worker(committer: &Committer, tenant: &str, slots: usize, runs: &Arc<Runs>) -> Worker {
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

/// Hears which runs are over.
async fn listen(
    committer: Committer,
    mut hints: broadcast::Receiver<Hint>,
    runs: Arc<Runs>,
) -> Result<()> {
    loop {
        match hints.recv().await {
            Ok(Hint::JobsEnded(ids)) => ids.iter().for_each(|id| runs.over(*id)),
            // What was missed is found by asking.
            Ok(Hint::Lagged) | Err(RecvError::Lagged(_)) => {
                for id in runs.not_over() {
                    let shown = committer.store().reads().job(id).await?;
                    if shown.is_none_or(|shown| shown.job.state.is_finished()) {
                        runs.over(id);
                    }
                }
            }
            Ok(Hint::Granted(_) | Hint::Ready(_) | Hint::Notified(_)) => {}
            Err(RecvError::Closed) => return Ok(()),
        }
    }
}
