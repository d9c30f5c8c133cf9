//! Lock requests that processes make.

use tenure_core::{
    Acquire, Claimant, Command, LockAction, LockName, LockSet, RequestId, ResourceKey,
};

use crate::holder::Env;
use crate::plan::Phase;

/// A request for locks of a resource.
#[derive(Clone, Debug)]
pub struct LockRequest {
    /// Resource to lock.
    pub key: ResourceKey,
    /// Locks to acquire.
    pub locks: LockSet,
    /// Request id.
    pub request: RequestId,
    /// Maximum wait in the queue.
    pub wait_ms: u64,
    /// TTL of a solo session; none to use the session of the process.
    pub solo_ttl_ms: Option<u64>,
}

impl LockRequest {
    /// Creates the command for `claimant`.
    pub(crate) fn command(&self, claimant: Claimant) -> Command {
        let acquire = Acquire {
            locks: self.locks.clone(),
            claimant,
            request: self.request,
            wait_ms: self.wait_ms,
            purpose: None,
            max_age_ms: None,
            tenant: None,
        };
        Command::Lock { key: self.key.clone(), action: LockAction::Acquire(acquire) }
    }
}

/// Draws a resource with jobs, whose locks are sometimes acquired directly.
fn draw_lane(env: &mut Env<'_>) -> (ResourceKey, Vec<LockName>) {
    // Only the tenant whose locks every holder may acquire.
    let lanes: Vec<_> = env.plan.lanes.iter().filter(|key| key.tenant() == "t").collect();
    let Some(key) = lanes.get(env.rng.below(lanes.len().max(1))) else {
        return env.plan.resources[0].clone();
    };
    let locks = ["main", "config", "panic"].map(|name| name.parse().expect("a plain name"));
    ((*key).clone(), locks.to_vec())
}

/// Draws a resource that is only locked. The last one is idle most of the time, so that it can be
/// forgotten.
fn draw_resource(env: &mut Env<'_>) -> (ResourceKey, Vec<LockName>) {
    let busy = env.plan.resources.len() - 1;
    let at = if env.rng.chance(100) { busy } else { env.rng.below(busy) };
    env.plan.resources[at].clone()
}

/// Draws a lock request.
pub(crate) fn draw_lock_request(with_lanes: bool, env: &mut Env<'_>) -> LockRequest {
    let (key, mut locks) = match with_lanes && env.rng.chance(80) {
        true => draw_lane(env),
        false => draw_resource(env),
    };
    while locks.len() > 1 && env.rng.chance(600) {
        locks.remove(env.rng.below(locks.len()));
    }
    let faulty = env.phase == Phase::Faulty;
    let wait_ms = match env.rng.chance(200) && faulty {
        true => 0,
        false => env.rng.within(3_000, 20_000),
    };
    let solo = env.rng.chance(250);
    let solo_ttl_ms = solo.then(|| env.rng.within(2_000, 10_000));
    let locks = LockSet::new(locks).unwrap_or_else(|_| LockName::main().into());
    LockRequest { key, locks, request: RequestId(env.rng.id()), wait_ms, solo_ttl_ms }
}
