//! Cost of a claim on an empty store, and with a million idle resources and finished jobs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tenure_core::{
    Claim, Command, Finish, JobAction, JobId, Outcome, Put, RequestId, ResourceAction, ResourceKey,
    SessionId, Submit, Token,
};
use tenure_store::Store;

use crate::clock::now;
use crate::cycles::{KIND, WORK, kinds};
use crate::histogram::{Latencies, Spread};
use crate::local::open;

/// Commands in one batch while the store is filled.
pub(crate) const BATCH: usize = 2_000;
/// Maximum number of jobs of one claim.
const CLAIM_MAX: usize = 256;

/// Measures claims that find one ready resource, one at a time.
pub(crate) async fn cost(store: &Arc<dyn Store>, budget: Duration) -> Result<Spread> {
    store.declare(kinds()?).await?;
    let session = tenure_store::random::session_id();
    apply_one(store, open(session)).await?;
    let key = ResourceKey::new("bench", KIND, "claimed")?;
    let mut latencies = Latencies::new()?;
    let started = now();
    while started.elapsed() < budget {
        apply_one(store, submit(&key, tenure_store::random::request_id())).await?;
        let claim_started = now();
        let claimed = apply_one(store, claim(session, 1)).await?;
        latencies.record(claim_started.elapsed());
        let Outcome::Claimed(jobs) = claimed else { bail!("a claim returned {claimed:?}") };
        ensure!(jobs.len() == 1, "{} jobs were ready, expected one", jobs.len());
        apply_one(store, finish(jobs[0].job.id, jobs[0].tenure.token)).await?;
    }
    Ok(latencies.spread())
}

/// Fills a store with idle resources and finished jobs.
pub(crate) async fn fill(store: &Arc<dyn Store>, idle: usize, past: usize) -> Result<()> {
    for from in (0..idle).step_by(BATCH) {
        let put = |n: usize| -> Result<Command> {
            let key = ResourceKey::new("bench", KIND, &format!("idle-{n:07}"))?;
            let action = ResourceAction::Put(Put::new("{}".into(), "bench".into()));
            Ok(Command::Resource { key, action })
        };
        let batch: Result<Vec<_>> = (from..(from + BATCH).min(idle)).map(put).collect();
        store.apply(batch?).await?;
        log_progress("idle resources", from + BATCH, idle);
    }
    let session = tenure_store::random::session_id();
    apply_one(store, open(session)).await?;
    for from in (0..past).step_by(BATCH) {
        run_jobs(store, session, from, BATCH.min(past - from)).await?;
        log_progress("finished jobs", from + BATCH, past);
    }
    Ok(())
}

/// Submits, claims and finishes jobs in batches.
async fn run_jobs(
    store: &Arc<dyn Store>,
    session: SessionId,
    from: usize,
    count: usize,
) -> Result<()> {
    let key = |n: usize| ResourceKey::new("bench", KIND, &format!("past-{:05}", n % 50_000));
    let mut batch = Vec::with_capacity(count);
    for n in from..from + count {
        batch.push(submit(&key(n)?, tenure_store::random::request_id()));
    }
    store.apply(batch).await?;
    let mut left = count;
    while left > 0 {
        let claimed = apply_one(store, claim(session, CLAIM_MAX)).await?;
        let Outcome::Claimed(jobs) = claimed else { bail!("a claim returned {claimed:?}") };
        ensure!(!jobs.is_empty(), "{left} jobs are not ready");
        left -= jobs.len();
        let finishes = jobs.iter().map(|job| finish(job.job.id, job.tenure.token)).collect();
        store.apply(finishes).await?;
    }
    Ok(())
}

fn log_progress(what: &str, done: usize, total: usize) {
    if done.is_multiple_of(BATCH * 50) {
        tracing::info!(done, total, "filling with {what}");
    }
}

pub(crate) async fn apply_one(store: &Arc<dyn Store>, command: Command) -> Result<Outcome> {
    let mut outcomes = store.apply(vec![command]).await?;
    match outcomes.pop() {
        Some(Outcome::Refused(refusal)) => bail!("refused: {refusal}"),
        Some(outcome) => Ok(outcome),
        None => bail!("a command returned no outcome"),
    }
}

pub(crate) fn submit(key: &ResourceKey, request: RequestId) -> Command {
    let submit = Submit {
        request,
        operation: WORK.into(),
        args: None,
        priority: 0,
        run_at: None,
        by: "bench".into(),
        precondition: None,
    };
    Command::Resource { key: key.clone(), action: ResourceAction::Submit(submit) }
}

fn claim(session: SessionId, max: usize) -> Command {
    let request = tenure_store::random::request_id();
    Command::Claim(Claim {
        session,
        request,
        kinds: vec![KIND.into()],
        max,
        tenant: None,
        only: None,
    })
}

pub(crate) fn finish(id: JobId, token: Token) -> Command {
    let finish = Finish::Ok { state: None, result: None };
    Command::Job { id, action: JobAction::Finish { token, finish, update: None } }
}
