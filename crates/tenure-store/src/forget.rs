//! What pruning may forget: resources that do not exist any more and have no history left.
//!
//! A deleted resource, or one that was only locked, leaves a row as long as it has history. That of
//! an ephemeral kind is forgotten with its history. The decision is a step of the engine,
//! [`LockAction::Forget`]; this module only selects candidates.

use tenure_core::{Command, Kinds, LockAction, Millis, Outcome, ResourceKey};

/// Returns whether an idle resource without state may be forgotten. `last_at` is the time of its
/// last history entry, if any is left.
pub(crate) fn may_forget(
    kinds: &Kinds,
    key: &ResourceKey,
    last_at: Option<Millis>,
    now: Millis,
) -> bool {
    match (last_at, kinds.ephemeral_ms(key)) {
        (None, _) => true,
        (Some(last_at), Some(ephemeral_ms)) => now.since(last_at) > ephemeral_ms,
        (Some(_), None) => false,
    }
}

/// Returns the command that forgets a resource whose last history entry is number `n`.
pub(crate) fn command(key: &ResourceKey, n: u64) -> Command {
    Command::Lock { key: key.clone(), action: LockAction::Forget { n } }
}

/// Returns the number of resources that were forgotten.
pub(crate) fn count(outcomes: &[Outcome]) -> usize {
    outcomes.iter().filter(|outcome| **outcome == Outcome::Forgotten).count()
}
