//! The guard in front of what locks protect: it remembers the highest token and refuses lower ones.

use std::collections::BTreeMap;

use tenure_core::{LockName, ResourceKey, Token};

use crate::books::{Facts, Told};
use crate::message::Effect;
use crate::stats::Stats;

/// The highest token that each lock's effects have carried.
#[derive(Debug, Default)]
pub struct Guard(BTreeMap<(ResourceKey, LockName), Token>);

impl Guard {
    /// An effect lands: compared and done in one step, or refused. A refused one was stale, and an
    /// accepted one had been granted.
    pub fn land(
        &mut self,
        effect: &Effect,
        facts: &Facts,
        stats: &mut Stats,
    ) -> Result<(), String> {
        let Effect { key, token, holder, .. } = effect;
        let seen = |lock: &LockName| self.0.get(&(key.clone(), lock.clone())).copied();
        let newer = effect.locks.iter().filter_map(seen).find(|seen| seen > token);
        let told = facts.tenure(key, *token);
        if let Some(newer) = newer {
            stats.fenced_writes += 1;
            return match told.is_some_and(|told| holds_all(told, effect)) {
                true => Err(format!(
                    "the guard of {key} refused h{holder}'s present token {token} after {newer}"
                )),
                false => Ok(()),
            };
        }
        stats.effects += 1;
        for lock in &effect.locks {
            self.0.insert((key.clone(), lock.clone()), *token);
        }
        match told {
            Some(_) => Ok(()),
            None => Err(format!("h{holder} acts on {key} with token {token}, never granted")),
        }
    }
}

fn holds_all(told: &Told, effect: &Effect) -> bool {
    effect.locks.iter().all(|lock| told.left.contains(lock))
}
