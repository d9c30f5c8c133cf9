//! Batched job cycles: producers submit many jobs in one call, workers claim as many and finish
//! them in one call. Closed loop: a producer waits until as many jobs have started as it submits.
//!
//! Other job queues, which accept batches of for example 64 jobs, are measured in the same way; see
//! `bench/peers`. As there, a job counts when its end is durable and acknowledged.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tenure_core::{Assignment, Outcome, Refusal, ResourceKey, limits};
use tenure_store::{Committer, Store};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cycles::{
    KeyDistribution, LoadState, Measured, Ticket, Times, check_finished, claim_jobs,
    finish_command, join_all, keys, kinds, submission,
};
use crate::local::open;

/// Number of producers and of workers, as in `bench/peers`.
const PRODUCERS_AND_WORKERS: usize = 4;
/// Index of the one permit pool that all producers share.
const PRODUCER_POOL: usize = 0;
/// Maximum number of concurrent finish calls of a worker.
const FINISHING_MAX: usize = 4;

/// Keeps up to `in_flight` jobs in flight on a store in this process for `budget`.
pub(crate) async fn local(
    store: Arc<dyn Store>,
    distribution: KeyDistribution,
    in_flight: usize,
    size: usize,
    budget: Duration,
) -> Result<Measured> {
    let committer = Committer::start(store);
    committer.store().declare(kinds()?).await?;
    let state = LoadState::new(distribution, 1, budget);
    state.allow(PRODUCER_POOL, in_flight);
    let keys = keys(distribution.resources)?;
    let producers_ended = CancellationToken::new();
    let (mut producers, mut workers) = (JoinSet::new(), JoinSet::new());
    for _ in 0..PRODUCERS_AND_WORKERS {
        let (state, keys) = (Arc::clone(&state), Arc::clone(&keys));
        producers.spawn(produce(committer.clone(), Arc::clone(&state), keys, distribution, size));
        workers.spawn(work(committer.clone(), state, producers_ended.clone(), size));
    }
    join_all(&state, producers, workers, &producers_ended).await
}

async fn produce(
    committer: Committer,
    state: Arc<LoadState>,
    keys: Arc<Vec<ResourceKey>>,
    distribution: KeyDistribution,
    size: usize,
) -> Result<()> {
    let jobs = u32::try_from(size).context("count the jobs of a call")?;
    while state.is_open() {
        state.wait_for(PRODUCER_POOL, jobs).await?;
        let call = (0..size).map(|_| submission(&state, &keys, distribution, PRODUCER_POOL));
        let (resources, commands): (Vec<usize>, Vec<_>) = call.unzip();
        for (resource, outcome) in resources.into_iter().zip(committer.submit_all(commands).await) {
            match outcome? {
                Outcome::Submitted { .. } => {}
                Outcome::Refused(Refusal::LaneFull) => {
                    state.refused(resource);
                    state.allow(PRODUCER_POOL, 1);
                }
                other => bail!("a submit returned {other:?}"),
            }
        }
    }
    Ok(())
}

/// Executes jobs until no more can come.
async fn work(
    committer: Committer,
    state: Arc<LoadState>,
    producers_ended: CancellationToken,
    size: usize,
) -> Result<Times> {
    let session = tenure_store::random::session_id();
    committer.submit(open(session)).await?;
    let mut times = Times::new()?;
    let mut calls = JoinSet::new();
    loop {
        // Claims the next jobs while the last ones are being finished.
        let jobs = claim_jobs(&committer, &state, session, size.min(limits::CLAIM_MAX)).await?;
        while let Some(done) = calls.try_join_next() {
            done??;
        }
        while calls.len() >= FINISHING_MAX
            && let Some(done) = calls.join_next().await
        {
            done??;
        }
        if jobs.is_empty() {
            if calls.is_empty() && producers_ended.is_cancelled() {
                return Ok(times);
            }
            continue;
        }
        let mut tickets = Vec::with_capacity(jobs.len());
        for job in &jobs {
            tickets.push(state.started(job.job.args.as_deref().unwrap_or(""), &mut times)?);
        }
        state.allow(PRODUCER_POOL, jobs.len());
        calls.spawn(finish(committer.clone(), Arc::clone(&state), jobs, tickets));
    }
}

/// Finishes jobs in one call.
async fn finish(
    committer: Committer,
    state: Arc<LoadState>,
    jobs: Vec<Assignment>,
    tickets: Vec<Ticket>,
) -> Result<()> {
    tickets.into_iter().for_each(|ticket| state.finishing(ticket));
    for outcome in committer.submit_all(jobs.iter().map(finish_command).collect()).await {
        check_finished(&outcome?)?;
        state.count();
    }
    Ok(())
}
