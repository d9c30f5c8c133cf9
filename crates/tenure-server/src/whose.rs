//! Whose a session or a job is. That of a job never changes, so it is asked of the store once. The
//! id of a session that is over can be used again, by anybody: that is asked each time.
//!
//! Keys of all tenants are not asked. For others everything that is not their tenant's is as if it
//! were not there.

use tenure_core::{JobId, Refusal, SessionId, Text};
use tenure_store::Reads;

use crate::auth::Caller;
use crate::known::Known;
use crate::problem::Problem;

/// What is remembered.
#[derive(Default)]
pub(crate) struct Whose {
    jobs: Known<Text>,
}

impl Whose {
    /// Refuses a job that is not there for the caller.
    pub(crate) async fn check_job(
        &self,
        caller: &Caller,
        id: JobId,
        reads: &dyn Reads,
    ) -> Result<(), Problem> {
        if caller.only().is_none() {
            return Ok(());
        }
        let tenant = match self.jobs.get(id) {
            Some(tenant) => Some(tenant),
            None => {
                let shown = reads.job(id).await?;
                let tenant = shown.map(|shown| Text::from(shown.key.tenant()));
                tenant.inspect(|tenant| self.jobs.note(id, tenant.clone()))
            }
        };
        match tenant {
            Some(tenant) if caller.sees(&tenant) => Ok(()),
            _ => Err(Refusal::NoSuchJob.into()),
        }
    }
}

/// Refuses a session that is another tenant's, as if it were over.
pub(crate) async fn check_session(
    caller: &Caller,
    id: SessionId,
    reads: &dyn Reads,
) -> Result<(), Problem> {
    let Some(home) = caller.bound() else { return Ok(()) };
    match reads.session(id).await? {
        Some(tenant) if tenant == *home => Ok(()),
        _ => Err(Refusal::SessionOver.into()),
    }
}
