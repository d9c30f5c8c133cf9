//! What a process wants: which locks of which resource, and for how long it would wait.

use tenure_core::{
    Acquire, Claimant, Command, LockAction, LockName, LockSet, RequestId, ResourceKey,
};

use crate::holder::Env;
use crate::plan::Mood;

/// What a process wants.
#[derive(Clone, Debug)]
pub struct Want {
    /// Of which resource.
    pub key: ResourceKey,
    /// Which locks.
    pub locks: LockSet,
    /// Under which id.
    pub request: RequestId,
    /// How long it may wait in the queue.
    pub wait_ms: u64,
    /// With a session of its own that lives so long.
    pub solo_ttl_ms: Option<u64>,
}

impl Want {
    /// The request for it.
    pub(crate) fn command(&self, claimant: Claimant) -> Command {
        let acquire = Acquire {
            locks: self.locks.clone(),
            claimant,
            request: self.request,
            wait_ms: self.wait_ms,
            purpose: None,
        };
        Command::Lock { key: self.key.clone(), action: LockAction::Acquire(acquire) }
    }
}

/// A resource with jobs, whose locks are taken by hand now and then.
fn draw_lane(env: &mut Env<'_>) -> (ResourceKey, Vec<LockName>) {
    // Only those that everybody may hold.
    let lanes: Vec<_> = env.plan.lanes.iter().filter(|key| key.tenant() == "t").collect();
    let Some(key) = lanes.get(env.rng.below(lanes.len().max(1))) else {
        return env.plan.resources[0].clone();
    };
    let locks = ["main", "config", "panic"].map(|name| name.parse().expect("a plain name"));
    ((*key).clone(), locks.to_vec())
}

/// Draws something to want.
pub(crate) fn draw_want(with_lanes: bool, env: &mut Env<'_>) -> Want {
    let (key, mut locks) = match with_lanes && env.rng.chance(80) {
        true => draw_lane(env),
        false => env.plan.resources[env.rng.below(env.plan.resources.len())].clone(),
    };
    while locks.len() > 1 && env.rng.chance(600) {
        locks.remove(env.rng.below(locks.len()));
    }
    let calm = env.mood != Mood::Faulty;
    let wait_ms = match env.rng.chance(200) && !calm {
        true => 0,
        false => env.rng.within(3_000, 20_000),
    };
    let solo = env.rng.chance(250);
    let solo_ttl_ms = solo.then(|| env.rng.within(2_000, 10_000));
    let locks = LockSet::new(locks).unwrap_or_else(|_| LockName::main().into());
    Want { key, locks, request: RequestId(env.rng.id()), wait_ms, solo_ttl_ms }
}
