//! Checks of status, timers, conditions, transfers and stale margins: replies and records against
//! history.

use tenure_core::history::Event;
use tenure_core::job::AttemptOutcome;
use tenure_core::record::TenureEnd;
use tenure_core::resource::Resource;
use tenure_core::{
    Claim, ClaimScope, Command, Finish, JobAction, JobId, LockAction, Millis, Outcome,
    Precondition, Refusal, RequestId, ResourceAction, ResourceKey, StatusUpdate, Token,
};

use crate::history_model::ModelState;
use crate::message::Reply;
use crate::oracle::{CheckResult, Oracle};
use crate::resource_model::ModelResource;
use crate::stats::Stats;

impl Oracle {
    /// Checks a reply about status, timers and conditions against history, as of the batch that was
    /// applied at `now`.
    pub(crate) fn check_resource_reply(&self, reply: &Reply, now: Millis) -> CheckResult {
        let model = &self.history.now;
        check_refused_condition(&reply.outcome)?;
        match (&*reply.command, &reply.outcome) {
            (
                Command::Resource { key, action: ResourceAction::Put(put) },
                Outcome::Put { generation, .. },
            ) => {
                check_condition_of_put(key, put.precondition, *generation)?;
                check_timers_set(model, key, &put.timers, now)
            }
            (
                Command::Resource { key, action: ResourceAction::SetTimers { timers, .. } },
                Outcome::TimersSet { .. },
            ) => check_timers_set(model, key, timers, now),
            (
                Command::Job { id, action: JobAction::Status { token, update } },
                Outcome::Noted { .. },
            ) => check_written(model, *id, *token, update, Some(now)),
            (
                Command::Job { id, action: JobAction::Finish { token, finish, update } },
                Outcome::Finished { already: false, .. },
            ) => {
                check_delay(model, *id, *token, finish)?;
                let Some(update) = update else { return Ok(()) };
                check_written(model, *id, *token, update, Some(now))
            }
            _ => Ok(()),
        }
    }

    /// Checks that an acknowledged status is durable.
    pub(crate) fn check_status_acknowledged(&self, reply: &Reply) -> CheckResult {
        let Command::Job { id, action } = &*reply.command else { return Ok(()) };
        let (token, update) = match (action, &reply.outcome) {
            (JobAction::Status { token, update }, Outcome::Noted { .. }) => (token, update),
            (
                JobAction::Finish { token, update: Some(update), .. },
                Outcome::Finished { already: false, .. },
            ) => (token, update),
            _ => return Ok(()),
        };
        check_written(&self.history.durable, *id, *token, update, None)
    }

    /// Checks that a tenure does not expire before the time to live of its session and the stale
    /// margin of its kind have passed since the session was last renewed.
    pub(crate) fn check_margin(
        &self,
        key: &ResourceKey,
        event: &Event,
        now: Millis,
        stats: &mut Stats,
    ) -> CheckResult {
        let Event::Ended { token, how: TenureEnd::Expired, .. } = event else { return Ok(()) };
        let Some(tenure) = self.history.now.tenure(key, *token) else { return Ok(()) };
        let session = tenure.session;
        let known = self.ttl_ms(session).zip(self.renewed_at.get(&session));
        let Some((ttl_ms, renewed_at)) = known else { return Ok(()) };
        let kind = self.history.kinds.get(key.kind());
        let margin_ms = kind.map_or(0, |kind| kind.stale_margin_ms);
        stats.margin_expiries += u64::from(margin_ms > 0);
        let after_ms = now.since(*renewed_at);
        match after_ms < ttl_ms + margin_ms {
            true => Err(format!(
                "token {token} of {key} expired {after_ms} ms after its renewal, within its ttl of \
                 {ttl_ms} ms and the stale margin of {margin_ms} ms"
            )),
            false => Ok(()),
        }
    }
}

/// Checks that the status and the timers of a resource are what history says, and that no timer is
/// due at `now` without having fired or being refused.
pub fn check_resource(
    key: &ResourceKey,
    is: &Resource,
    expected: &ModelResource,
    now: Millis,
) -> CheckResult {
    let document = is.status.as_ref().map(|status| &*status.document);
    if !expected.has_status(document) {
        let merged = &expected.status;
        return Err(format!("the status of {key} is {document:?}, but its merge is {merged:?}"));
    }
    let written_by = expected.patch.map(|(token, _)| token);
    if is.status.as_ref().map(|status| status.token) != written_by {
        return Err(format!("the status of {key} was written by {written_by:?}: {:?}", is.status));
    }
    for timer in &is.timers {
        if timer.due <= now && timer.refused.is_none() {
            let (operation, late_ms) = (&timer.operation, now.since(timer.due));
            return Err(format!(
                "the timer of {operation} on {key} is set although it was due {late_ms} ms ago: it \
                 did not fire, or it can fire twice"
            ));
        }
    }
    let same = is.timers.len() == expected.timers.len()
        && is.timers.iter().all(|timer| {
            let expected = expected.timers.get(&timer.operation);
            expected.is_some_and(|e| e.due == timer.due && e.refused == timer.refused.is_some())
        });
    match same {
        true => Ok(()),
        false => Err(format!("the timers of {key} are {:?}, not {:?}", is.timers, expected.timers)),
    }
}

/// Checks that a claim which is restricted got a job of its scope.
pub fn check_scope(claim: &Claim, key: &ResourceKey) -> CheckResult {
    let inside = match &claim.only {
        None => true,
        Some(ClaimScope::Resource { tenant, name }) => {
            *key.tenant() == **tenant && *key.name() == **name
        }
        Some(ClaimScope::Group { tenant, group }) => {
            let name = key.name();
            let rest = name.strip_prefix(&**group).and_then(|rest| rest.strip_prefix(':'));
            *key.tenant() == **tenant && rest.is_some_and(|rest| !rest.contains(':'))
        }
    };
    match inside && claim.kinds.iter().any(|kind| **kind == *key.kind()) {
        true => Ok(()),
        false => Err(format!("a claim of {:?} got a job of {key}, outside its scope", claim.only)),
    }
}

/// Checks that each planned transfer granted the locks to the named waiter at once. Returns the
/// requests that were granted so.
pub(crate) fn check_transfers(
    replies: &[Reply],
    events: &[(ResourceKey, Event)],
) -> Result<Vec<RequestId>, String> {
    let mut granted = Vec::new();
    for reply in replies {
        let (
            Command::Lock { key, action: LockAction::Release { token, to: Some(to), .. } },
            Outcome::Released { already: false },
        ) = (&*reply.command, &reply.outcome)
        else {
            continue;
        };
        let released = |(of, event): &(ResourceKey, Event)| {
            let Event::Ended { token: ended, how: TenureEnd::Released, .. } = event else {
                return false;
            };
            of == key && ended == token
        };
        let next = events.windows(2).filter(|pair| released(&pair[0])).map(|pair| &pair[1]);
        let request = next.filter(|(of, _)| of == key).find_map(|(_, event)| match event {
            Event::Granted { holder, session, request, .. }
                if holder == to || session.to_string() == **to =>
            {
                Some(*request)
            }
            _ => None,
        });
        match request {
            Some(request) => granted.push(request),
            None => {
                return Err(format!("token {token} of {key} was not transferred to {to}"));
            }
        }
    }
    Ok(granted)
}

/// Checks that a condition which was reported not to hold did not hold.
fn check_refused_condition(outcome: &Outcome) -> CheckResult {
    let Outcome::Refused(Refusal::PreconditionFailed { wanted, generation }) = outcome else {
        return Ok(());
    };
    let held = match wanted {
        Precondition::Generation(wanted) => *generation == Some(*wanted),
        Precondition::Absent => generation.is_none(),
    };
    match held {
        true => Err(format!("the condition {wanted:?} was refused at {generation:?}")),
        false => Ok(()),
    }
}

/// Checks the generation that an acknowledged conditional put returned: that of its condition, or
/// the next one.
fn check_condition_of_put(
    key: &ResourceKey,
    condition: Option<Precondition>,
    generation: u64,
) -> CheckResult {
    let holds = match condition {
        None => true,
        Some(Precondition::Generation(wanted)) => [wanted, wanted + 1].contains(&generation),
        Some(Precondition::Absent) => generation == 1,
    };
    match holds {
        true => Ok(()),
        false => Err(format!(
            "a put of {key} under the condition {condition:?} was acknowledged, against its \
             condition, with generation {generation}"
        )),
    }
}

fn check_timers_set(
    model: &ModelState,
    key: &ResourceKey,
    timers: &[tenure_core::TimerChange],
    now: Millis,
) -> CheckResult {
    let jobs = &model.job_model;
    // Another command of the batch deleted the resource, possibly before a third created it again.
    let is_deleted = jobs.deleted_at.get(key) == Some(&now);
    let resource = jobs.resources.get(key).filter(|_| !is_deleted);
    resource.map_or(Ok(()), |resource| resource.check_timers_set(timers, now))
}

/// Checks that an acknowledged update was written with its token. Timers are compared as of `now`.
fn check_written(
    model: &ModelState,
    id: JobId,
    token: Token,
    update: &StatusUpdate,
    now: Option<Millis>,
) -> CheckResult {
    let Some(job) = model.job_model.jobs.get(&id) else {
        return Err(format!("a status was acknowledged for the unknown job {id}"));
    };
    if let Some(merge) = &update.merge
        && !model.job_model.patches.contains(&(job.key.clone(), token, merge.clone()))
    {
        let key = &job.key;
        return Err(format!(
            "status {merge} of {key} with token {token} was acknowledged and lost"
        ));
    }
    now.map_or(Ok(()), |now| check_timers_set(model, &job.key, &update.timers, now))
}

/// Checks that a deferral, and the delay that a worker asked for, took effect.
fn check_delay(model: &ModelState, id: JobId, token: Token, finish: &Finish) -> CheckResult {
    let job = model.job_model.jobs.get(&id);
    // A job that was started again in the same batch shows a later end.
    let end = job.and_then(|job| job.last_end).filter(|end| end.token == token);
    let Some(end) = end else { return Ok(()) };
    let (wanted, outcomes) = match finish {
        Finish::Deferred { delay_ms, .. } => {
            // Too many in a row count as failures.
            (Some(*delay_ms), [AttemptOutcome::Deferred, AttemptOutcome::Failed])
        }
        Finish::Failed { delay_ms, .. } => (*delay_ms, [AttemptOutcome::Failed; 2]),
        _ => return Ok(()),
    };
    let delayed = wanted.is_none() || end.delay_ms.is_none() || end.delay_ms == wanted;
    match delayed && outcomes.contains(&end.outcome) {
        true => Ok(()),
        false => Err(format!("job {id} finished as {finish:?}, but history says {end:?}")),
    }
}
