//! The cost of a claim, beside nothing and beside a million idle resources and finished jobs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tenure_core::{
    Claim, Command, Finish, JobAction, JobId, Outcome, RequestId, ResourceAction, ResourceKey,
    SessionId, Submit, Token,
};
use tenure_store::Store;

use crate::cycles::{KIND, WORK, kinds};
use crate::histogram::{Latencies, Spread};
use crate::load::now;
use crate::local::open;

/// Commands in one batch while the store is filled.
const BATCH: usize = 2_000;
/// Most jobs that one claim may take.
const CLAIM_MAX: usize = 256;

/// Measures claims that find one ready resource, one at a time.
pub(crate) async fn cost(store: &Arc<dyn Store>, budget: Duration) -> Result<Spread> {
    store.declare(kinds()?).await?;
    let session = tenure_store::random::session_id();
    one(store, open(session)).await?;
    let key = ResourceKey::new("bench", KIND, "claimed")?;
    let mut latencies = Latencies::new()?;
    let started = now();
    while started.elapsed() < budget {
        one(store, submit(&key, tenure_store::random::request_id())).await?;
        let began = now();
        let claimed = one(store, claim(session, 1)).await?;
        latencies.record(began.elapsed());
        let Outcome::Claimed(jobs) = claimed else { bail!("a claim was refused: {claimed:?}") };
        ensure!(jobs.len() == 1, "{} jobs were ready, not one", jobs.len());
        one(store, finish(jobs[0].job.id, jobs[0].tenure.token)).await?;
    }
    Ok(latencies.spread())
}

/// Fills a store with idle resources and finished jobs.
pub(crate) async fn fill(store: &Arc<dyn Store>, idle: usize, past: usize) -> Result<()> {
    for from in (0..idle).step_by(BATCH) {
        let put = |n: usize| -> Result<Command> {
            let key = ResourceKey::new("bench", KIND, &format!("idle-{n:07}"))?;
            let action = ResourceAction::Put { spec: "{}".into(), by: "bench".into() };
            Ok(Command::Resource { key, action })
        };
        let batch: Result<Vec<_>> = (from..(from + BATCH).min(idle)).map(put).collect();
        store.apply(batch?).await?;
        progress("idle resources", from + BATCH, idle);
    }
    let session = tenure_store::random::session_id();
    one(store, open(session)).await?;
    for from in (0..past).step_by(BATCH) {
        cycles(store, session, from, BATCH.min(past - from)).await?;
        progress("finished jobs", from + BATCH, past);
    }
    Ok(())
}

/// Runs jobs through, a batch at a time.
async fn cycles(
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
        let claimed = one(store, claim(session, CLAIM_MAX)).await?;
        let Outcome::Claimed(jobs) = claimed else { bail!("a claim was refused: {claimed:?}") };
        ensure!(!jobs.is_empty(), "{left} jobs are not ready");
        left -= jobs.len();
        let finishes = jobs.iter().map(|job| finish(job.job.id, job.tenure.token)).collect();
        store.apply(finishes).await?;
    }
    Ok(())
}

fn progress(what: &str, done: usize, all: usize) {
    if done.is_multiple_of(BATCH * 50) {
        tracing::info!(done, all, "filling with {what}");
    }
}

async fn one(store: &Arc<dyn Store>, command: Command) -> Result<Outcome> {
    let mut outcomes = store.apply(vec![command]).await?;
    match outcomes.pop() {
        Some(Outcome::Refused(refusal)) => bail!("refused: {refusal}"),
        Some(outcome) => Ok(outcome),
        None => bail!("a command was not answered"),
    }
}

fn submit(key: &ResourceKey, request: RequestId) -> Command {
    let submit = Submit {
        request,
        operation: WORK.into(),
        args: None,
        priority: 0,
        run_at: None,
        by: "bench".into(),
    };
    Command::Resource { key: key.clone(), action: ResourceAction::Submit(submit) }
}

fn claim(session: SessionId, max: usize) -> Command {
    let request = tenure_store::random::request_id();
    Command::Claim(Claim { session, request, kinds: vec![KIND.into()], max })
}

fn finish(id: JobId, token: Token) -> Command {
    let finish = Finish::Ok { state: None, result: None };
    Command::Job { id, action: JobAction::Finish { token, finish } }
}
