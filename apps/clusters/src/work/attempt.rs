//! One attempt at a job of a cluster: the status that it reads and writes, its snapshots, and
//! waiting that ends when the attempt has to stop.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tenure::trace::TraceParent;
use tenure::{Context, Failure, Update};
use tokio::sync::watch;

use super::directory::InstallDirectory;
use crate::LoadedClusters;
use crate::advisory::{self, AdvisoryLock};
use crate::artifacts::{ArtifactError, NewSnapshot};
use crate::profile::Profile;
use crate::status::{ClusterSpec, ClusterStatus};

/// Code of an attempt that was stopped.
pub(crate) const STOPPED: &str = "STOPPED";
/// Code of a status or a spec that another program has written.
const BAD_STATUS: &str = "BAD_STATUS";
/// Code of a cluster whose profile is missing or broken on the worker.
const NO_PROFILE: &str = "NO_PROFILE";
/// Code of a failed file operation of the worker.
const WORK_DIR: &str = "WORK_DIR";
/// Code of a snapshot that could not be stored or read.
pub(crate) const ARTIFACTS: &str = "ARTIFACTS";
/// Number of tries to store a snapshot.
const SNAPSHOT_TRIES: u32 = 3;
/// Pause between them.
const SNAPSHOT_PAUSE: Duration = Duration::from_secs(5);

/// One attempt.
pub(crate) struct Attempt<'a> {
    pub(crate) job: &'a Context,
    pub(crate) app: Arc<LoadedClusters>,
    pub(crate) status: ClusterStatus,
    pub(crate) spec: ClusterSpec,
    pub(crate) parent: Option<TraceParent>,
    /// Becomes true when the advisory lock is lost.
    pub(crate) stop: watch::Sender<bool>,
    snapshots: u32,
}

impl<'a> Attempt<'a> {
    /// Reads status and spec of the cluster.
    pub(crate) fn new(
        job: &'a Context,
        app: Arc<LoadedClusters>,
        parent: Option<TraceParent>,
    ) -> Result<Self, Failure> {
        let bad = |what: &str| {
            let what = what.to_owned();
            move |error: serde_json::Error| {
                let why =
                    format!("the {what} of the cluster was written by another program: {error}");
                Failure::permanent(BAD_STATUS, why)
            }
        };
        let status = ClusterStatus::parse(job.status()).map_err(bad("status"))?;
        let spec = ClusterSpec::parse(job.spec()).map_err(bad("spec"))?;
        let stop = watch::Sender::new(false);
        Ok(Self { job, app, status, spec, parent, stop, snapshots: 0 })
    }

    /// Records that this worker has the lock, for those who investigate.
    pub(crate) fn log_lock(&self) {
        let job = self.job;
        // A remote worker does not know the request.
        let request = Some(job.job().request).filter(|request| request.0 != 0);
        tracing::info!(
            cluster = %job.key(), job = %job.id(), request = request.map(tracing::field::display),
            operation = job.operation(), attempt = job.attempt(), token = %job.token(),
            session = %job.session().id(), "lock_acquired"
        );
    }

    /// Takes the advisory lock of the cluster, if it is configured.
    pub(crate) async fn advisory_lock(&self) -> Result<Option<AdvisoryLock>, Failure> {
        let settings = &self.app.settings;
        let Some(variable) = &settings.advisory_locks else { return Ok(None) };
        let grace = Duration::from_millis(settings.stop_grace_ms);
        let lock = advisory::acquire(variable, self.job, grace, self.stop.clone());
        self.unless_stopped(Box::pin(lock)).await?.map(Some)
    }

    /// Returns the profile of the cluster.
    pub(crate) fn profile(&self, name: &str) -> Result<Arc<Profile>, Failure> {
        let found = self.app.profiles.get(name).cloned();
        found.map_err(|why| Failure::permanent(NO_PROFILE, why))
    }

    /// Creates a private directory; `part` distinguishes several of one attempt.
    pub(crate) fn directory(&self, part: &str) -> Result<InstallDirectory, Failure> {
        let work_dir = &self.app.settings.work_dir;
        InstallDirectory::create(work_dir, self.job.id(), self.job.token(), part).map_err(|error| {
            let path = work_dir.display();
            let why = format!("cannot create an install directory in {path}: {error}");
            Failure::transient(WORK_DIR, why)
        })
    }

    /// Changes the status in memory, and returns the update that writes the change.
    pub(crate) fn change(
        &mut self,
        change: impl FnOnce(&mut ClusterStatus),
    ) -> Result<Update, Failure> {
        let before = serde_json::to_value(&self.status)?;
        change(&mut self.status);
        let after = serde_json::to_value(&self.status)?;
        Ok(Update::new().merge(&merge_patch(&before, &after))?)
    }

    /// Changes the status, durably when this returns.
    pub(crate) async fn update(
        &mut self,
        change: impl FnOnce(&mut ClusterStatus),
    ) -> Result<(), Failure> {
        let update = self.change(change)?;
        self.send(update).await
    }

    /// Writes an update.
    pub(crate) async fn send(&self, update: Update) -> Result<(), Failure> {
        Ok(self.unless_stopped(self.job.update(update)).await??)
    }

    /// Stores a snapshot of a directory and points the status at it.
    pub(crate) async fn snapshot(
        &mut self,
        directory: &InstallDirectory,
        phase: &str,
    ) -> Result<(), Failure> {
        let artifacts = self.app.artifacts().map_err(|why| Failure::transient(ARTIFACTS, why))?;
        self.snapshots += 1;
        let worker = self.job.session().id().to_string();
        let new = NewSnapshot {
            tenant: self.job.key().tenant(),
            cluster: self.job.key().name(),
            token: self.job.token(),
            seq: self.snapshots,
            phase,
            job: self.job.id(),
            worker: &worker,
        };
        let mut tries = 0;
        let snapshot = loop {
            tries += 1;
            match self.unless_stopped(artifacts.save(&new, directory.path())).await? {
                Ok(snapshot) => break snapshot,
                Err(error)
                    if tries < SNAPSHOT_TRIES && matches!(error, ArtifactError::Store { .. }) =>
                {
                    self.job.log(&format!("cannot store a snapshot, trying again: {error}"));
                    self.sleep(SNAPSHOT_PAUSE).await?;
                }
                Err(error) => return Err(Failure::transient(ARTIFACTS, error)),
            }
        };
        self.update(|status| status.snapshot = Some(snapshot)).await
    }

    /// Waits, unless the attempt has to stop.
    pub(crate) async fn sleep(&self, duration: Duration) -> Result<(), Failure> {
        self.unless_stopped(tokio::time::sleep(duration)).await
    }

    /// Completes with `work`, or fails as soon as the attempt has to stop.
    pub(crate) async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        let mut stop = self.stop.subscribe();
        tokio::select! {
            biased;
            lost = self.job.lost() => Err(Failure::transient(STOPPED, lost)),
            reason = self.job.cancelled() => Err(Failure::transient(STOPPED, reason)),
            _ = stop.wait_for(|stop| *stop) => Err(advisory::lost()),
            result = work => Ok(result),
        }
    }

    /// Fails if the attempt has to stop.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.job.check().map_err(|lost| Failure::transient(STOPPED, lost))?;
        match self.job.cancel_reason() {
            Some(reason) => Err(Failure::transient(STOPPED, reason)),
            None if *self.stop.borrow() => Err(advisory::lost()),
            None => Ok(()),
        }
    }

    /// Returns the variables that the installer gets in addition to those of its job.
    pub(crate) fn variables(&self) -> BTreeMap<&'static str, String> {
        let mut variables = BTreeMap::new();
        if let Some(endpoint) = &self.app.settings.aws_endpoint {
            variables.insert("AWS_ENDPOINT_URL", endpoint.clone());
        }
        variables
    }
}

/// Converts a failed operation on the install directory.
pub(crate) fn file_failure(error: &io::Error) -> Failure {
    Failure::transient(WORK_DIR, format!("cannot use the install directory: {error}"))
}

/// Returns the merge patch (RFC 7396) that turns an object into another one without nulls.
fn merge_patch(before: &Value, after: &Value) -> Value {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return after.clone();
    };
    let mut patch = Map::new();
    for (name, value) in after {
        match before.get(name) {
            Some(old) if old == value => {}
            Some(old) => drop(patch.insert(name.clone(), merge_patch(old, value))),
            None => drop(patch.insert(name.clone(), value.clone())),
        }
    }
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    Value::Object(patch)
}

/// Removes nulls, which a merge patch cannot write.
pub(crate) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(name, value)| (name, without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patch_has_changes_only_and_removes_what_is_gone() {
        let before = json!({"a": 1, "b": {"x": 1, "y": 2}, "c": [1], "d": "gone"});
        let after = json!({"a": 1, "b": {"x": 3}, "c": [1, 2], "e": true});
        let patch = merge_patch(&before, &after);
        let expected = json!({"b": {"x": 3, "y": null}, "c": [1, 2], "d": null, "e": true});
        assert_eq!(patch, expected);
        assert_eq!(merge_patch(&after, &after), json!({}));
    }

    #[test]
    fn nulls_are_removed_at_every_level() {
        let value = json!({"a": null, "b": {"c": null, "d": [{"e": null, "f": 1}]}});
        assert_eq!(without_nulls(value), json!({"b": {"d": [{"f": 1}]}}));
    }
}
