//! Checks of lanes as wholes: caps on running jobs, and locks that a job in backoff reserves.

use tenure_core::kind::Backoff;
use tenure_core::{JobId, Kinds, LockSet, ResourceKey};

use crate::job_model::{JobModel, ModelJob, Stage, operation_of};

/// Ok, or a description of the violated property.
type CheckResult = Result<(), String>;

impl JobModel {
    /// Checks after a batch that no more jobs run than the kind allows. Not checked within a batch:
    /// its events have no defined order among resources.
    pub fn check_running_caps(&self, key: &ResourceKey, kinds: &Kinds) -> CheckResult {
        let Some(kind) = kinds.get(key.kind()) else { return Ok(()) };
        if kind.running_max.is_none() && kind.tenant_running_max.is_none() {
            return Ok(());
        }
        let of_kind = |job: &&ModelJob| {
            job.key.kind() == key.kind() && matches!(job.stage, Stage::Running(_))
        };
        let all = self.jobs.values().filter(of_kind).count();
        let of_tenant = |job: &&ModelJob| job.key.tenant() == key.tenant();
        let tenant = self.jobs.values().filter(of_kind).filter(of_tenant).count();
        let above = |cap: Option<usize>, n: usize| cap.is_some_and(|cap| n > cap);
        match above(kind.running_max, all) || above(kind.tenant_running_max, tenant) {
            true => Err(format!("{all} jobs of {} run, {tenant} of one tenant", kind.name)),
            false => Ok(()),
        }
    }

    /// Checks that a job which starts takes no lock that a job ahead of it in backoff reserves.
    pub(crate) fn check_reserved(
        &self,
        key: &ResourceKey,
        id: JobId,
        locks: &LockSet,
        kinds: &Kinds,
    ) -> CheckResult {
        let kind = kinds.get(key.kind()).filter(|kind| kind.backoff == Backoff::Reserve);
        let (Some(_), Some(started)) = (kind, self.jobs.get(&id)) else { return Ok(()) };
        let state = self.resources.get(key).map(|resource| &resource.state);
        let ahead = |job: &ModelJob| {
            job.key == *key
                && job.stage == Stage::Waiting
                && job.in_backoff
                && job.place < started.place
        };
        for (other, job) in self.jobs.iter().filter(|(_, job)| ahead(job)) {
            let operation = operation_of(kinds, key, &job.operation)?;
            let taken = operation.locks.iter().find(|lock| locks.contains(lock));
            // Once it is due, a job that the state does not allow reserves nothing.
            let reserves = state.is_some_and(|state| operation.allows(state));
            if let Some(lock) = taken.filter(|_| reserves) {
                return Err(format!(
                    "job {id} takes {key}#{lock}, which job {other} in backoff reserves"
                ));
            }
        }
        Ok(())
    }
}
