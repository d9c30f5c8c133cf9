//! Two workers with the lock of one cluster at once, which must never happen: if the continuous
//! verification of the history finds it nevertheless, everything that may work on the cluster is
//! stopped, and nothing works on it again until an operator has looked.

use std::time::Duration;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};
use tenure_core::history::{Entry, Event};
use tenure_core::retry::Class;
use tenure_core::verify::Problem;
use tenure_core::{
    Command, Finish, JobAction, LockAction, Outcome, Precondition, Put, ResourceAction,
    ResourceKey, SessionId, TenureView, Text,
};
use tenure_store::StoreError;
use tenure_store::store::HistoryQuery;
use tenure_wire::to_document;

use crate::names::CLUSTER;
use crate::status::ClusterSpec;

/// Principal of what the duty does.
const BY: &str = "janitor";
/// Code of a job that was stopped.
const DUPLICATE_HOLDERS: &str = "DUPLICATE_HOLDERS";
/// Number of the newest events in which holders are searched.
const EVENTS_MAX: usize = 200;

/// Stops what works on clusters whose history contradicts itself.
pub(crate) struct DuplicateHolders;

#[async_trait]
impl Duty for DuplicateHolders {
    fn name(&self) -> &'static str {
        "cluster_duplicate_holders"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(10)
    }

    async fn run(&mut self, cx: &DutyContext) -> Result<DutyReport, StoreError> {
        let mut stopped = 0;
        for problem in cx.violations.of_kind(CLUSTER) {
            stopped += usize::from(stop(cx, &problem).await?);
        }
        Ok(DutyReport::done(stopped))
    }
}

/// Stops everything that may work on a cluster. Returns `false` if that was done before.
async fn stop(cx: &DutyContext, problem: &Problem) -> Result<bool, StoreError> {
    let Problem { key, n, what } = problem;
    let Some(detail) = cx.store().reads().show(key).await? else { return Ok(false) };
    // Nothing runs on a cluster that has left the lists.
    let Some(resource) = detail.record.resource.as_ref() else { return Ok(false) };
    let mut spec = ClusterSpec::parse(resource.spec.as_deref()).unwrap_or_default();
    // An operator who has resumed the cluster is not asked again after a restart.
    if spec.incident.is_some_and(|incident| incident >= *n) {
        return Ok(false);
    }
    let reason: Text = format!("the history contradicts itself at entry {n}: {what}").into();
    tracing::error!(cluster = %key, entry = n, violation = %what,
        "incident: two workers may have had the lock of a cluster; it is paused, and both stop");
    let pause = ResourceAction::Pause { by: BY.into(), reason: reason.clone() };
    cx.committer.submit(Command::Resource { key: key.clone(), action: pause }).await?;
    // Before the tenures end: afterwards nobody holds anything.
    let sessions = holders(cx, key).await?;
    for tenure in &detail.tenures {
        cx.committer.submit(end(key, tenure, &reason)).await?;
    }
    for session in sessions {
        cx.committer.submit(Command::Close { session, tenant: None }).await?;
    }
    spec.incident = Some(*n);
    let spec = serde_json::to_value(spec).expect("plain data");
    // If the spec has changed meanwhile, the next run repeats all of this.
    let precondition = Some(Precondition::Generation(resource.generation));
    let put = Put { precondition, ..Put::new(to_document(&spec), BY.into()) };
    let put = ResourceAction::Put(put);
    let outcome = cx.committer.submit(Command::Resource { key: key.clone(), action: put }).await?;
    Ok(matches!(outcome, Outcome::Put { .. }))
}

/// Returns what ends a tenure, and its job as failed: an operator decides whether it is retried. It
/// has no effect on a tenure that has ended meanwhile.
fn end(key: &ResourceKey, tenure: &TenureView, reason: &Text) -> Command {
    let (token, message) = (tenure.token, reason.clone());
    let Some(id) = tenure.job else {
        let by = BY.into();
        let action = LockAction::Break { token, locks: None, by, reason: message, end_job: false };
        return Command::Lock { key: key.clone(), action };
    };
    let class = Some(Class::Permanent);
    let code = DUPLICATE_HOLDERS.into();
    let finish = Finish::Failed { code, message, class, state: None, delay_ms: None };
    Command::Job { id, action: JobAction::Finish { token, finish, update: None } }
}

/// Returns the sessions that were granted the lock and may still work under it.
async fn holders(cx: &DutyContext, key: &ResourceKey) -> Result<Vec<SessionId>, StoreError> {
    let query = HistoryQuery::Of { key: key.clone(), before: None, limit: EVENTS_MAX };
    let rows = cx.store().reads().history(query).await?;
    // Newest first: the end of a tenure comes before its grant.
    let (mut ended, mut holders) = (Vec::new(), Vec::new());
    for row in rows {
        let Ok(entry) = Entry::parse(&row.text) else { continue };
        match entry.event {
            Event::Ended { token, .. } => ended.push(token),
            Event::Granted { token, session, .. } if !ended.contains(&token) => {
                holders.push(session);
            }
            _ => {}
        }
    }
    Ok(holders)
}
