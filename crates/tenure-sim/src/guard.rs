//! The guard in front of what locks protect: it stores the highest token and refuses lower ones.

use std::collections::BTreeMap;

use tenure_core::{LockName, ResourceKey, Token};

use crate::history_model::{ModelState, ModelTenure};
use crate::message::Effect;
use crate::stats::Stats;

/// Highest token of the accepted effects, per lock.
#[derive(Debug, Default)]
pub struct Guard(BTreeMap<(ResourceKey, LockName), Token>);

impl Guard {
    /// Compares and applies an effect in one step. Checks that a refused effect was stale, and that
    /// the token of an accepted effect was granted.
    pub fn apply(
        &mut self,
        effect: &Effect,
        model: &ModelState,
        stats: &mut Stats,
    ) -> Result<(), String> {
        let Effect { key, token, holder, .. } = effect;
        let seen = |lock: &LockName| self.0.get(&(key.clone(), lock.clone())).copied();
        let newer = effect.locks.iter().filter_map(seen).find(|seen| seen > token);
        let tenure = model.tenure(key, *token);
        if let Some(newer) = newer {
            stats.fenced_writes += 1;
            return match tenure.is_some_and(|tenure| holds_all(tenure, effect)) {
                true => Err(format!(
                    "the guard of {key} refused h{holder}'s current token {token} after {newer}"
                )),
                false => Ok(()),
            };
        }
        stats.effects += 1;
        for lock in &effect.locks {
            self.0.insert((key.clone(), lock.clone()), *token);
        }
        match tenure {
            Some(_) => Ok(()),
            None => Err(format!(
                "h{holder} writes to {key} with token {token}, which was never granted"
            )),
        }
    }
}

fn holds_all(tenure: &ModelTenure, effect: &Effect) -> bool {
    effect.locks.iter().all(|lock| tenure.active_locks.contains(lock))
}
