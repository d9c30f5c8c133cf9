//! Cycles of jobs in calls: producers submit many jobs in one call, workers claim as many and
//! finish them in one call. Closed loop: a producer waits until as many were worked as it submits.
//!
//! This is how other job queues are measured that take jobs in calls of 64, say; see `bench/peers`.
//! As there, a job is under way until it was worked, and counts when its end is durable and
//! answered.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tenure_core::{Assignment, Outcome, Refusal, ResourceKey, limits};
use tenure_store::{Committer, Store};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cycles::{
    Floor, Measured, Shape, Ticket, Times, all_over, check_over, claimed, done, keys, kinds,
    submission,
};
use crate::local::open;

/// Producers, and workers, as the peers have.
const EACH: usize = 4;
/// All producers wait for jobs together.
const PRODUCERS: usize = 0;
/// Most calls of a worker that finish jobs at once.
const FINISHING_MAX: usize = 4;

/// Keeps up to `in_flight` jobs under way on a store in this process for `budget`.
pub(crate) async fn local(
    store: Arc<dyn Store>,
    shape: Shape,
    in_flight: usize,
    size: usize,
    budget: Duration,
) -> Result<Measured> {
    let committer = Committer::start(store);
    committer.store().declare(kinds()?).await?;
    let floor = Floor::new(shape, 1, budget);
    floor.allow(PRODUCERS, in_flight);
    let keys = keys(shape.resources)?;
    let ended = CancellationToken::new();
    let (mut producers, mut workers) = (JoinSet::new(), JoinSet::new());
    for _ in 0..EACH {
        let (floor, keys) = (Arc::clone(&floor), Arc::clone(&keys));
        producers.spawn(produce(committer.clone(), Arc::clone(&floor), keys, shape, size));
        workers.spawn(work(committer.clone(), floor, ended.clone(), size));
    }
    all_over(&floor, producers, workers, &ended).await
}

async fn produce(
    committer: Committer,
    floor: Arc<Floor>,
    keys: Arc<Vec<ResourceKey>>,
    shape: Shape,
    size: usize,
) -> Result<()> {
    let jobs = u32::try_from(size).context("count the jobs of a call")?;
    while floor.open() {
        floor.wait_for(PRODUCERS, jobs).await?;
        let call = (0..size).map(|_| submission(&floor, &keys, shape, PRODUCERS));
        let (resources, commands): (Vec<usize>, Vec<_>) = call.unzip();
        for (resource, outcome) in resources.into_iter().zip(committer.submit_all(commands).await) {
            match outcome? {
                Outcome::Submitted { .. } => {}
                Outcome::Refused(Refusal::LaneFull) => {
                    floor.refused(resource);
                    floor.allow(PRODUCERS, 1);
                }
                other => bail!("a submit was answered with {other:?}"),
            }
        }
    }
    Ok(())
}

/// Works until no job can come any more.
async fn work(
    committer: Committer,
    floor: Arc<Floor>,
    ended: CancellationToken,
    size: usize,
) -> Result<Times> {
    let session = tenure_store::random::session_id();
    committer.submit(open(session)).await?;
    let mut times = Times::new()?;
    let mut calls = JoinSet::new();
    loop {
        // It asks for more while the last ones are being finished.
        let jobs = claimed(&committer, &floor, session, size.min(limits::CLAIM_MAX)).await?;
        while let Some(done) = calls.try_join_next() {
            done??;
        }
        while calls.len() >= FINISHING_MAX
            && let Some(done) = calls.join_next().await
        {
            done??;
        }
        if jobs.is_empty() {
            if calls.is_empty() && ended.is_cancelled() {
                return Ok(times);
            }
            continue;
        }
        let mut tickets = Vec::with_capacity(jobs.len());
        for job in &jobs {
            tickets.push(floor.started(job.job.args.as_deref().unwrap_or(""), &mut times)?);
        }
        floor.allow(PRODUCERS, jobs.len());
        calls.spawn(finish(committer.clone(), Arc::clone(&floor), jobs, tickets));
    }
}

/// Finishes jobs in one call.
async fn finish(
    committer: Committer,
    floor: Arc<Floor>,
    jobs: Vec<Assignment>,
    tickets: Vec<Ticket>,
) -> Result<()> {
    tickets.into_iter().for_each(|ticket| floor.finishing(ticket));
    for outcome in committer.submit_all(jobs.iter().map(done).collect()).await {
        check_over(&outcome?)?;
        floor.count();
    }
    Ok(())
}
