//! The worker of clusters: runs their jobs with the installer.
//!
//! `create.rs`, `destroy.rs` and `scale.rs` are the operations; `attempt.rs` has what they share:
//! the status of the cluster, snapshots, waiting. `installer.rs` runs the installer in a private
//! `directory.rs`, and `failed.rs` decides what a failure means.
//!
//! A worker never touches the cloud itself. The installer, and everything it starts, is dead before
//! another worker can get the lock of the cluster.

pub(crate) mod attempt;
mod create;
mod destroy;
pub(crate) mod directory;
mod failed;
mod installer;
mod scale;

use std::path::Path;

use async_trait::async_trait;
use tenure::trace::TraceParent;
use tenure::{Context, Done, Failure, Handler};
use tenure_app::Live;

use crate::LoadedClusters;
use crate::names::{CREATE, DESTROY, JANITOR_DESTROY, PURGE, SCALE_WORKERS};
use attempt::Attempt;

/// Removes the install directories that dead workers have left on this host.
pub(crate) fn remove_abandoned(work_dir: &Path) {
    match directory::remove_abandoned(work_dir) {
        Ok(0) => {}
        Ok(removed) => tracing::info!(removed, "removed install directories of dead workers"),
        Err(error) => {
            let directory = work_dir.display();
            tracing::warn!(%directory, %error, "cannot look for abandoned install directories");
        }
    }
}

/// Code of a job that reached a worker on which clusters are not configured.
const NOT_CONFIGURED: &str = "NOT_CONFIGURED";

/// Runs the jobs of clusters.
pub(crate) struct ClusterWorker {
    live: Live,
    parent: fn() -> Option<TraceParent>,
}

impl ClusterWorker {
    /// Creates a worker. `parent` returns the parent span of commands.
    pub(crate) fn new(live: Live, parent: fn() -> Option<TraceParent>) -> Self {
        Self { live, parent }
    }
}

#[async_trait]
impl Handler for ClusterWorker {
    async fn run(&self, job: &Context) -> Result<Done, Failure> {
        let app = self.live.app::<LoadedClusters>().ok_or_else(|| {
            Failure::transient(NOT_CONFIGURED, "the tenure.toml of this worker has no [clusters]")
        })?;
        let mut attempt = Attempt::new(job, app, (self.parent)())?;
        attempt.log_lock();
        let _belt = attempt.advisory_lock().await?;
        let result = match job.operation() {
            CREATE => create::create(&mut attempt).await,
            DESTROY => destroy::destroy(&mut attempt).await,
            JANITOR_DESTROY => destroy::janitor_destroy(&mut attempt).await,
            SCALE_WORKERS => scale::scale_workers(&mut attempt).await,
            PURGE => destroy::purge(&mut attempt).await,
            other => {
                Err(Failure::permanent(NOT_CONFIGURED, format!("{other} is not an operation")))
            }
        };
        result.map_err(|failure| failed::record(&mut attempt, failure))
    }

    fn must_complete(&self) -> bool {
        true
    }
}
