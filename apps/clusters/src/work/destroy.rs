//! DESTROY and JANITOR_DESTROY: remove a cluster, and verify that nothing is left.
//!
//! The installer finds what to destroy by the infra id of `metadata.json`, which the status of the
//! cluster has. Its exit code alone proves nothing: a destroy is complete when the cloud has listed
//! no resource of the installation twice.

use std::time::Duration;

use tenure::clock::BootInstant;
use tenure::{Done, Failure, Update};
use tenure_core::Millis;

use super::attempt::{ARTIFACTS, Attempt, file_failure};
use super::directory::METADATA;
use super::failed;
use super::installer;
use crate::failure::Step;
use crate::names::{JANITOR_DESTROY, PURGE};
use crate::state::ClusterState;
use crate::status::{AtExpiry, Infra};

/// Code of a destroy after which the cloud still lists resources.
const RESOURCES_LEFT: &str = "RESOURCES_LEFT";
/// Code of a destroy that cannot be verified.
const NOT_VERIFIED: &str = "NOT_VERIFIED";
/// Maximum number of names of resources in a message.
const NAMES_MAX: usize = 5;
/// Maximum number of runs of the installer that make no progress.
const FUTILE_RUNS_MAX: u32 = 2;
/// Maximum number of queries that fail in a row.
const FAILED_QUERIES_MAX: u32 = 5;
/// Number of empty answers that prove that nothing is left.
const EMPTY_ANSWERS: u32 = 2;

/// Destroys a cluster at the request of a user.
pub(super) async fn destroy(attempt: &mut Attempt<'_>) -> Result<Done, Failure> {
    if attempt.status.infra.is_none()
        && let Some(earlier) = attempt.status.destroyed.clone()
    {
        attempt.job.log("the cluster is destroyed already; verifying that nothing is left");
        if verify(attempt, &earlier).await?.is_empty() {
            return finish(attempt);
        }
        attempt.update(|status| status.infra = Some(earlier)).await?;
    }
    remove_infra(attempt).await?;
    finish(attempt)
}

/// Destroys a cluster whose time to live has elapsed, unless it was extended or is to be kept.
pub(super) async fn janitor_destroy(attempt: &mut Attempt<'_>) -> Result<Done, Failure> {
    let job = attempt.job.job();
    let (why, next) = match attempt.status.at_expiry(&attempt.spec, job.submitted_at) {
        AtExpiry::Destroy => return destroy(attempt).await,
        AtExpiry::Extended(next) => ("the time to live was extended", next),
        AtExpiry::Kept => ("the cluster is kept", None),
    };
    attempt.job.log(&format!("not destroying: {why}"));
    let update = match next {
        Some(Millis(at)) => {
            let at = std::time::UNIX_EPOCH + Duration::from_millis(at);
            Update::new().timer_at(JANITOR_DESTROY, at)
        }
        None => Update::new().remove_timer(JANITOR_DESTROY),
    };
    let done = Done::with(&serde_json::json!({ "skipped": why }))?.update(update);
    let before = job.state_before.as_deref();
    Ok(done.state(before.unwrap_or(ClusterState::DestroyFailed.as_str())))
}

/// Removes what the status says may exist in the cloud.
pub(super) async fn remove_infra(attempt: &mut Attempt<'_>) -> Result<(), Failure> {
    // Without an infra id nothing was created: it is written before the first resource exists.
    let Some(infra) = attempt.status.infra.clone() else { return Ok(()) };
    if !attempt.status.destroying {
        attempt.update(|status| status.destroying = true).await?;
    }
    let limit = Duration::from_millis(attempt.app.settings.destroy_limit_ms);
    let until = BootInstant::now() + limit;
    let (mut left, mut futile) = (usize::MAX, 0);
    let mut run = 0;
    loop {
        run += 1;
        run_installer(attempt, &infra, until, run).await?;
        let remaining = verify(attempt, &infra).await?;
        if remaining.is_empty() {
            break;
        }
        futile = if remaining.len() < left { 0 } else { futile + 1 };
        left = remaining.len();
        if futile >= FUTILE_RUNS_MAX || until.has_passed() {
            let names = remaining[..left.min(NAMES_MAX)].join(", ");
            let why = format!(
                "the installer reported success, but the cloud still lists {left} resources of \
                 {}: {names}",
                infra.infra_id
            );
            return Err(Failure::transient(RESOURCES_LEFT, why));
        }
        attempt.job.log(&format!("the cloud still lists {left} resources; destroying again"));
    }
    attempt
        .update(|status| {
            status.destroyed = status.infra.take();
            status.destroying = false;
        })
        .await
}

/// Runs the installer once.
async fn run_installer(
    attempt: &mut Attempt<'_>,
    infra: &Infra,
    until: BootInstant,
    run: u32,
) -> Result<(), Failure> {
    let directory = attempt.directory(&format!("destroy{run}"))?;
    let metadata = infra.metadata.to_string();
    directory.write(METADATA, &metadata).map_err(|error| file_failure(&error))?;
    let program = attempt.app.destroyer(attempt.status.config.as_ref());
    let args = ["destroy", "cluster"];
    let ended = installer::run(attempt, &program, &directory, &args, until.remaining()).await?;
    if ended.code == Some(0) && !ended.timed_out {
        return Ok(());
    }
    let verdict = failed::classify(attempt, Step::Destroy, &ended, false);
    attempt.job.log(&verdict.line());
    let update = verdict.record(attempt)?;
    Err(verdict.failure().update(update))
}

/// Returns the resources that the cloud lists, after it has listed none twice: then none.
async fn verify(attempt: &Attempt<'_>, infra: &Infra) -> Result<Vec<String>, Failure> {
    let inventory = attempt.app.inventory().map_err(|why| Failure::transient(NOT_VERIFIED, why))?;
    let Some(inventory) = inventory else {
        attempt.job.log("not verified that nothing is left: `verify` is \"none\"");
        return Ok(Vec::new());
    };
    let interval = Duration::from_millis(attempt.app.settings.verify_interval_ms);
    let (mut empty, mut failed) = (0, 0);
    loop {
        match attempt.unless_stopped(inventory.list(infra)).await? {
            Ok(found) if !found.is_empty() => return Ok(found),
            Ok(_) => {
                (empty, failed) = (empty + 1, 0);
                if empty == EMPTY_ANSWERS {
                    attempt.job.log("verified twice: the cloud lists no resource");
                    return Ok(Vec::new());
                }
            }
            Err(error) => {
                failed += 1;
                if failed == FAILED_QUERIES_MAX {
                    return Err(Failure::transient(NOT_VERIFIED, error));
                }
                attempt.job.log(&format!("{error}; trying again"));
            }
        }
        attempt.sleep(interval).await?;
    }
}

fn finish(attempt: &mut Attempt<'_>) -> Result<Done, Failure> {
    let update = attempt.change(|status| {
        status.outputs = None;
        status.workers = None;
        status.preserved = false;
        status.destroying = false;
        status.failures = None;
        status.last_error = None;
    })?;
    let retention = Duration::from_millis(attempt.app.settings.artifact_retention_ms);
    let update = update.remove_timer(JANITOR_DESTROY).timer_after(PURGE, retention);
    Ok(Done::default().update(update))
}

/// Deletes the snapshots of a cluster that was destroyed long ago.
pub(super) async fn purge(attempt: &mut Attempt<'_>) -> Result<Done, Failure> {
    let artifacts = attempt.app.artifacts().map_err(|why| Failure::transient(ARTIFACTS, why))?;
    let (key, token) = (attempt.job.key(), attempt.job.token());
    let delete = artifacts.delete(key.tenant(), key.name(), token);
    let deleted = attempt.unless_stopped(delete).await?;
    let deleted = deleted.map_err(|error| Failure::transient(ARTIFACTS, error))?;
    let update = attempt.change(|status| {
        status.snapshot = None;
        status.destroyed = None;
    })?;
    Ok(Done::with(&serde_json::json!({ "deleted": deleted }))?.update(update))
}
