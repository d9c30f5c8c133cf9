//! What all nodes of a build share: how many requeues were granted, and which tests have failed.
//!
//! Both are lists in the spec of the build, changed under the condition that nobody else has
//! changed it. An entry names its attempt, so that granting it again after a lost response changes
//! nothing.

use tenure_app::{Caller, Problem, Services};
use tenure_core::ResourceKey;

use crate::build::{Build, BuildSpec};
use crate::wire::BuildRules;

/// Maximum number of requeues of a build. The spec, which lists them, has at most 64 KiB.
const REQUEUES_MAX: usize = 1_500;
/// Maximum number of repetitions while other nodes change the spec.
const TRIES_MAX: usize = 1_000;

/// Returns the number of requeues that a build with `total` tests may grant: its tolerance, rounded
/// up.
#[must_use]
pub(crate) fn requeues_max(rules: &BuildRules, total: usize) -> usize {
    const PARTS: u64 = 1_000_000;
    // The tolerance is between 0 and 1, and parts of a million are enough.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most PARTS")]
    let parts = (rules.requeue_tolerance.clamp(0.0, 1.0) * 1e6).round() as u64;
    let max = (total as u64).saturating_mul(parts).div_ceil(PARTS);
    usize::try_from(max).unwrap_or(usize::MAX).min(REQUEUES_MAX)
}

/// Grants a requeue to the failed attempt `entry`, unless all of them are granted.
pub(crate) async fn grant_requeue(
    services: &Services,
    caller: &Caller,
    key: &ResourceKey,
    entry: &str,
) -> Result<bool, Problem> {
    let change = |build: &Build, spec: &mut BuildSpec| {
        if spec.requeued.iter().any(|granted| granted == entry) {
            return Change::Keep(true);
        }
        let total = build.status.published.as_ref().map_or(0, |published| published.total);
        if spec.requeued.len() >= requeues_max(&spec.rules, total) {
            return Change::Keep(false);
        }
        spec.requeued.push(entry.to_owned());
        Change::Write(true)
    };
    update(services, caller, key, change).await
}

/// Returns a requeue that was granted to an attempt whose result does not count.
pub(crate) async fn return_requeue(
    services: &Services,
    caller: &Caller,
    key: &ResourceKey,
    entry: &str,
) -> Result<(), Problem> {
    let change = |_: &Build, spec: &mut BuildSpec| {
        let before = spec.requeued.len();
        spec.requeued.retain(|granted| granted != entry);
        if spec.requeued.len() == before { Change::Keep(()) } else { Change::Write(()) }
    };
    update(services, caller, key, change).await
}

/// Counts failed tests, if the build has a limit of them.
pub(crate) async fn count_failures(
    services: &Services,
    caller: &Caller,
    build: &Build,
    tests: &[usize],
) -> Result<(), Problem> {
    let Some(max) = build.spec.rules.max_failures.filter(|_| !tests.is_empty()) else {
        return Ok(());
    };
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    let change = |_: &Build, spec: &mut BuildSpec| {
        let before = spec.failed.len();
        let new: Vec<usize> =
            tests.iter().copied().filter(|test| !spec.failed.contains(test)).collect();
        // Beyond the limit nothing depends on the number.
        spec.failed.extend(new.into_iter().take(max.saturating_sub(before)));
        if spec.failed.len() == before { Change::Keep(()) } else { Change::Write(()) }
    };
    update(services, caller, &build.key, change).await
}

/// Forgets failures of tests that are run again.
pub(crate) async fn forget_failures(
    services: &Services,
    caller: &Caller,
    key: &ResourceKey,
    tests: &[usize],
) -> Result<(), Problem> {
    let change = |_: &Build, spec: &mut BuildSpec| {
        let before = spec.failed.len();
        spec.failed.retain(|test| !tests.contains(test));
        if spec.failed.len() == before { Change::Keep(()) } else { Change::Write(()) }
    };
    update(services, caller, key, change).await
}

/// What a change does with the spec.
enum Change<T> {
    /// It changed the spec, which is to be written.
    Write(T),
    /// It changed nothing.
    Keep(T),
}

/// Changes the spec, again and again while others change it at the same time.
async fn update<T>(
    services: &Services,
    caller: &Caller,
    key: &ResourceKey,
    change: impl Fn(&Build, &mut BuildSpec) -> Change<T>,
) -> Result<T, Problem> {
    for _ in 0..TRIES_MAX {
        let build = Build::load(services, key).await?;
        let mut spec = build.spec.clone();
        match change(&build, &mut spec) {
            Change::Keep(result) => return Ok(result),
            Change::Write(result) => {
                if build.replace_spec(services, caller, &spec).await? {
                    return Ok(result);
                }
            }
        }
    }
    Err(Problem::unavailable("too many nodes change the build at the same time; retry"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(requeue_tolerance: f64) -> BuildRules {
        BuildRules {
            seed: "1".to_owned(),
            timeout_ms: 1_000,
            max_requeues: 1,
            requeue_tolerance,
            max_failures: None,
            max_losses: 3,
            heartbeat_ms: 1_000,
            stale_ms: 3_000,
            wait_ms: 1_000,
        }
    }

    #[test]
    fn the_number_of_requeues_is_rounded_up_and_bounded() {
        assert_eq!(requeues_max(&rules(0.05), 0), 0);
        assert_eq!(requeues_max(&rules(0.05), 1), 1);
        assert_eq!(requeues_max(&rules(0.05), 20), 1);
        assert_eq!(requeues_max(&rules(0.05), 21), 2);
        assert_eq!(requeues_max(&rules(0.1), 30), 3, "not 4 by an error of floating point");
        assert_eq!(requeues_max(&rules(0.0), 1_000), 0);
        assert_eq!(requeues_max(&rules(1.0), 200_000), REQUEUES_MAX);
    }
}
