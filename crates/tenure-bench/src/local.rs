//! Pairs on a store in this process, and on the engine alone.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use tenure_core::{
    Acquire, Claimant, Command, LockAction, LockName, Millis, Outcome, RequestId, ResourceKey,
    SessionId, Token, World, step,
};
use tenure_store::{Committer, Store};

use crate::clock::now;
use crate::load::{Pairs, Sample};

/// Number of locks that each worker cycles through. Workers share none, so pairs are uncontended.
pub(crate) const LOCKS_PER_WORKER: u64 = 16;
/// Longer than any measurement.
const TTL_MS: u64 = 3_600_000;

/// One worker on a store in this process.
pub(crate) struct LocalPairs {
    committer: Committer,
    session: SessionId,
    keys: Vec<ResourceKey>,
    next: usize,
}

impl LocalPairs {
    pub(crate) async fn open(committer: Committer, worker: usize) -> Result<Self> {
        let session = tenure_store::random::session_id();
        committer.submit(open(session)).await?;
        let key = |n| ResourceKey::new("bench", "lock", &format!("w{worker}-{n}"));
        let keys = (0..LOCKS_PER_WORKER).map(key).collect::<Result<_, _>>()?;
        Ok(Self { committer, session, keys, next: 0 })
    }
}

impl Pairs for LocalPairs {
    async fn pair(&mut self, _: u64) -> Result<()> {
        self.next = (self.next + 1) % self.keys.len();
        let key = &self.keys[self.next];
        let request = tenure_store::random::request_id();
        let granted = self.committer.submit(acquire(key, self.session, request, 0)).await?;
        let released = self.committer.submit(release(key, token(&granted)?)).await?;
        match released {
            Outcome::Released { already: false } => Ok(()),
            other => bail!("the release returned {other:?}"),
        }
    }
}

/// Returns the command that opens the session of a worker.
pub(crate) fn open(session: SessionId) -> Command {
    Command::Open { session, tenant: "bench".into(), name: "bench".into(), ttl_ms: TTL_MS }
}

/// Returns a request for a lock.
pub(crate) fn acquire_request(session: SessionId, request: RequestId, wait_ms: u64) -> Acquire {
    let claimant = Claimant::Session(session);
    Acquire {
        locks: LockName::main().into(),
        claimant,
        request,
        wait_ms,
        purpose: None,
        max_age_ms: None,
        tenant: None,
    }
}

/// Returns the command that acquires a lock.
pub(crate) fn acquire(
    key: &ResourceKey,
    session: SessionId,
    request: RequestId,
    wait_ms: u64,
) -> Command {
    let action = LockAction::Acquire(acquire_request(session, request, wait_ms));
    Command::Lock { key: key.clone(), action }
}

/// Returns the command that releases a lock.
pub(crate) fn release(key: &ResourceKey, token: Token) -> Command {
    Command::Lock { key: key.clone(), action: LockAction::Release { token, locks: None, to: None } }
}

/// Returns the token of a grant.
pub(crate) fn token(outcome: &Outcome) -> Result<Token> {
    match outcome {
        Outcome::Granted(view) => Ok(view.token),
        other => bail!("the acquire returned {other:?}"),
    }
}

/// Measures pairs on a store through its committer.
pub(crate) async fn measure(
    store: Arc<dyn Store>,
    in_flight: usize,
    budget: Duration,
) -> Result<Sample> {
    across(&[Committer::start(store)], in_flight, budget).await
}

/// Measures pairs spread evenly over several servers.
pub(crate) async fn across(
    servers: &[Committer],
    in_flight: usize,
    budget: Duration,
) -> Result<Sample> {
    let open = |worker: usize| LocalPairs::open(servers[worker % servers.len()].clone(), worker);
    super::load::pairs(in_flight, budget, open).await
}

/// Measures commands per second of the engine alone on one core, without a store.
pub(crate) fn engine(budget: Duration) -> Result<f64> {
    let mut world = World::default();
    let session = SessionId(1);
    step(&mut world, &open(session), Millis(0));
    let key = |n| ResourceKey::new("bench", "lock", &format!("e{n}"));
    let keys = (0..1_024).map(key).collect::<Result<Vec<_>, _>>()?;
    let (mut commands, mut request, started) = (0u32, 0, now());
    while started.elapsed() < budget {
        for key in &keys {
            request += 1;
            let command = acquire(key, session, RequestId(request), 0);
            let granted = step(&mut world, &command, Millis(1));
            step(&mut world, &release(key, token(&granted)?), Millis(1));
            commands += 2;
        }
        // A store would write these and drop them.
        drop(world.take_changes());
    }
    Ok(f64::from(commands) / started.elapsed().as_secs_f64())
}
