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

/// Draws something to want.
pub(crate) fn draw_want(env: &mut Env<'_>) -> Want {
    let resource = env.rng.below(env.plan.resources.len());
    let (key, names) = &env.plan.resources[resource];
    let mut locks: Vec<LockName> = names.clone();
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
    Want { key: key.clone(), locks, request: RequestId(env.rng.id()), wait_ms, solo_ttl_ms }
}
