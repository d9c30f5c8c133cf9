//! SCALE_WORKERS: changes the number of workers of a running cluster, through its own API.
//!
//! The kubeconfig comes from the newest snapshot. The MachineSets carry the token of the tenure
//! that wrote them last, so a worker that was replaced changes nothing. A cluster that is as wanted
//! is not written, unless an earlier attempt did not end: its last request may still arrive.

use std::time::Duration;

use tenure::{Done, Failure};
use tenure_config::duration;
use tenure_kube::{Error as KubeError, Fence, Kube, KubeOptions, WorkerPools};
use tokio::time::timeout;

use super::attempt::{ARTIFACTS, Attempt};
use crate::config::ScaleArgs;

/// File with the kubeconfig.
const KUBECONFIG: &str = "auth/kubeconfig";
/// Code of a cluster without a stored kubeconfig.
const NO_KUBECONFIG: &str = "NO_KUBECONFIG";
/// Code of an API that cannot be used.
const CLUSTER_API: &str = "CLUSTER_API";
/// Code of nodes that were not ready in time.
const NODES_NOT_READY: &str = "NODES_NOT_READY";

/// Scales the workers of a cluster.
pub(super) async fn scale_workers(attempt: &mut Attempt<'_>) -> Result<Done, Failure> {
    let ScaleArgs { workers } = attempt.job.args()?;
    let before = scale(attempt, workers).await?;
    let update = attempt.change(|status| {
        status.workers = Some(workers);
        status.scaling = false;
        status.last_error = None;
    })?;
    let result = serde_json::json!({ "workers": workers, "before": before });
    Ok(Done::with(&result)?.update(update))
}

/// Returns the number of workers before.
async fn scale(attempt: &mut Attempt<'_>, workers: u32) -> Result<u32, Failure> {
    let kube = connect(attempt).await?;
    let pools = WorkerPools::new(kube);
    let fence = Fence { token: attempt.job.token(), job: attempt.job.id() };
    let interrupted = attempt.status.scaling;
    attempt.update(|status| status.scaling = true).await?;
    attempt.job.progress(5, "scaling the machine sets");
    if interrupted {
        attempt.check()?;
        let mark = attempt.unless_stopped(pools.mark(&fence)).await?;
        mark.map_err(|error| failure(&error))?;
    }
    attempt.check()?;
    let scaled = attempt.unless_stopped(pools.scale(workers, &fence)).await?;
    let scaled = scaled.map_err(|error| failure(&error))?;
    if scaled.changes.is_empty() {
        attempt.job.log(&format!("the machine sets want {workers} workers already"));
    }
    for change in &scaled.changes {
        attempt.job.log(&change.to_string());
    }
    let limit = Duration::from_millis(attempt.app.settings.scale_limit_ms);
    let job = attempt.job;
    let mut last = String::new();
    let observe = |progress: &tenure_kube::Progress| {
        let text = progress.to_string();
        let share = 90 * progress.ready.min(progress.wanted) / progress.wanted.max(1);
        job.progress(5 + u8::try_from(share).unwrap_or(90), &text);
        if text != last {
            job.log(&text);
            last = text;
        }
    };
    let wait = timeout(limit, pools.wait_ready(workers, observe));
    match attempt.unless_stopped(wait).await? {
        Ok(Ok(_)) => Ok(scaled.before),
        Ok(Err(error)) => Err(failure(&error)),
        Err(_) => {
            let limit = duration::format(attempt.app.settings.scale_limit_ms);
            let why = format!("the workers were not ready within {limit}: {last}");
            Err(Failure::transient(NODES_NOT_READY, why))
        }
    }
}

async fn connect(attempt: &Attempt<'_>) -> Result<Kube, Failure> {
    let missing = || {
        let why = "the cluster has no snapshot with a kubeconfig, so its API cannot be used";
        Failure::permanent(NO_KUBECONFIG, why)
    };
    let snapshot = attempt.status.snapshot.as_ref().ok_or_else(missing)?;
    let artifacts = attempt.app.artifacts().map_err(|why| Failure::transient(ARTIFACTS, why))?;
    let read = artifacts.read_secret_file(snapshot, KUBECONFIG);
    let kubeconfig = attempt.unless_stopped(read).await?;
    let kubeconfig =
        kubeconfig.map_err(|error| Failure::transient(ARTIFACTS, error))?.ok_or_else(missing)?;
    let text = String::from_utf8(kubeconfig).map_err(|_| missing())?;
    // The file is data of a cluster: it does not name programs to run here.
    let options = KubeOptions { exec_plugins: false, ..KubeOptions::default() };
    Kube::from_kubeconfig(&text, options).await.map_err(|error| failure(&error))
}

fn failure(error: &KubeError) -> Failure {
    if error.is_transient() {
        Failure::transient(CLUSTER_API, error)
    } else {
        Failure::permanent(CLUSTER_API, error)
    }
}
