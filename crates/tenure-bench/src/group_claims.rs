//! Cost of a claim that is restricted to one group, alone and beside many groups of ready jobs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tenure_core::{
    Claim, ClaimScope, Command, Kind, Kinds, Operation, Outcome, ResourceKey, SessionId,
};
use tenure_store::Store;

use crate::claims::{BATCH, apply_one, finish, submit};
use crate::clock::now;
use crate::cycles::{KIND, WORK};
use crate::histogram::{Latencies, Spread};
use crate::local::open;

/// Number of ready jobs of each group.
const JOBS_PER_GROUP: usize = 100;
const TENANT: &str = "bench";

/// Claims per second and their latency.
pub(crate) struct GroupClaims {
    pub(crate) per_s: f64,
    pub(crate) latency: Spread,
}

/// Measures claims of one group of a new store while `groups` groups have ready jobs. Every claim
/// finds a job, which is finished and submitted again outside the measurement.
pub(crate) async fn cost(
    store: &Arc<dyn Store>,
    groups: usize,
    budget: Duration,
) -> Result<GroupClaims> {
    let kind = Kind::new(KIND).operation(Operation::new(WORK)).grouped();
    store.declare(Arc::new(Kinds::new([kind])?)).await?;
    let session = tenure_store::random::session_id();
    apply_one(store, open(session)).await?;
    let submits = (0..groups * JOBS_PER_GROUP).map(|n| {
        let key = key(n % groups, n / groups)?;
        Ok(submit(&key, tenure_store::random::request_id()))
    });
    let submits = submits.collect::<Result<Vec<_>>>()?;
    for batch in submits.chunks(BATCH) {
        store.apply(batch.to_vec()).await?;
    }
    let (mut latencies, mut claims, mut spent) = (Latencies::new()?, 0u32, Duration::ZERO);
    let started = now();
    while started.elapsed() < budget {
        // In the middle of the order of groups.
        let claim = claim(session, groups / 2);
        let claim_started = now();
        let claimed = apply_one(store, claim).await?;
        let took = claim_started.elapsed();
        latencies.record(took);
        spent += took;
        claims += 1;
        let Outcome::Claimed(jobs) = claimed else { bail!("a claim returned {claimed:?}") };
        ensure!(jobs.len() == 1, "{} jobs were claimed, expected one", jobs.len());
        let key = &jobs[0].tenure.key;
        ensure!(key.group() == Some(&*group(groups / 2)), "a job of another group was claimed");
        apply_one(store, finish(jobs[0].job.id, jobs[0].tenure.token)).await?;
        apply_one(store, submit(key, tenure_store::random::request_id())).await?;
    }
    let per_s = f64::from(claims) / spent.as_secs_f64();
    Ok(GroupClaims { per_s, latency: latencies.spread() })
}

fn group(n: usize) -> String {
    format!("build-{n:04}")
}

fn key(of: usize, n: usize) -> Result<ResourceKey> {
    Ok(ResourceKey::new(TENANT, KIND, &format!("{}:{n:06}", group(of)))?)
}

fn claim(session: SessionId, of: usize) -> Command {
    let (tenant, group) = (TENANT.into(), group(of).into());
    Command::Claim(Claim {
        session,
        request: tenure_store::random::request_id(),
        kinds: vec![KIND.into()],
        max: 1,
        tenant: None,
        only: Some(ClaimScope::Group { tenant, group }),
    })
}
