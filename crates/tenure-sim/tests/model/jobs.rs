//! Job part of a scenario: the possible commands, and the properties of each step.
//!
//! Any worker may finish any attempt with any token granted so far, which covers lost replies,
//! delayed duplicates and workers that return after their session expired.

use std::rc::Rc;
use std::sync::Arc;

use tenure_core::history::Event;
use tenure_core::job::AttemptOutcome;
use tenure_core::recent_submits::RecentSubmit;
use tenure_core::{
    Claim, Command, Finish, Job, JobAction, JobId, Kind, Kinds, LockAction, Millis, Outcome,
    Record, RequestId, ResourceAction, SessionId, StatusUpdate, Submit, Text, Token,
};
use tenure_sim::job_model::Stage;
use tenure_sim::resource_checks::{check_resource, check_scope};

use crate::state::{Scenario, State, StepResult, key};

type CheckResult = Result<(), String>;

/// Job part of a scenario.
#[derive(Default)]
pub(crate) struct JobScenario {
    pub(crate) kinds: Arc<Kinds>,
    pub(crate) submits: Vec<Submit>,
    pub(crate) claims: Vec<Claim>,
    pub(crate) finishes: Vec<Finish>,
    /// Status updates that any attempt makes, also in the step that finishes it.
    pub(crate) updates: Vec<StatusUpdate>,
    /// Puts, deletes and changes of timers.
    pub(crate) actions: Vec<ResourceAction>,
    /// Actions that are executed once; each has its own request id.
    pub(crate) once: Vec<ResourceAction>,
    /// States with more jobs are not explored further.
    pub(crate) jobs_max: usize,
}

/// Request id of the first action that is executed once.
const ONCE_REQUESTS: u128 = 900;

/// Declares the kind of the resource.
pub(crate) fn kinds(kind: Kind) -> Arc<Kinds> {
    assert_eq!(*kind.name, *key().kind(), "the kind of the resource");
    Arc::new(Kinds::new([kind]).expect("the kind is valid"))
}

/// Creates a submit of an operation.
pub(crate) fn submit(request: u128, operation: &str) -> Submit {
    let (request, operation, by) = (RequestId(request), operation.into(), "ann".into());
    Submit { request, operation, args: None, priority: 0, run_at: None, by, precondition: None }
}

/// Creates a claim of a session.
pub(crate) fn claim(request: u128, session: u128) -> Claim {
    let kinds = vec![key().kind().into()];
    Claim {
        session: SessionId(session),
        request: RequestId(request),
        kinds,
        max: 1,
        tenant: None,
        only: None,
    }
}

/// Creates a failure that may be retried.
pub(crate) fn failed() -> Finish {
    Finish::Failed {
        code: "BUSY".into(),
        message: "".into(),
        class: None,
        state: None,
        delay_ms: None,
    }
}

impl State {
    /// Returns all job commands that are possible in this state.
    pub(crate) fn job_commands(&self, scenario: &Scenario) -> Vec<Command> {
        let jobs = &scenario.jobs;
        let resource = |action| Command::Resource { key: key(), action };
        let (by, reason): (Text, Text) = ("ann".into(), "so".into());
        let mut commands = Vec::new();
        commands.extend(jobs.submits.iter().map(|s| resource(ResourceAction::Submit(s.clone()))));
        commands.extend(jobs.claims.iter().cloned().map(Command::Claim));
        commands.extend(jobs.actions.iter().cloned().map(resource));
        let once = jobs.once.iter().cloned().map(resource).zip(ONCE_REQUESTS..);
        commands.extend(once.map(|(command, request)| command.once(RequestId(request))));
        for id in self.job_model.jobs.keys().copied() {
            let (by, reason) = (by.clone(), reason.clone());
            commands.push(Command::Job { id, action: JobAction::Cancel { by, reason } });
            for token in (1..=self.record.token.0).map(Token) {
                let finish = |finish: &Finish| {
                    let finish = finish.clone();
                    Command::Job { id, action: JobAction::Finish { token, finish, update: None } }
                };
                commands.extend(jobs.finishes.iter().map(finish));
                for update in jobs.updates.iter().cloned().map(Box::new) {
                    let action = JobAction::Status { token, update: update.clone() };
                    commands.push(Command::Job { id, action });
                    let finish = jobs.finishes[0].clone();
                    let action = JobAction::Finish { token, finish, update: Some(update) };
                    commands.push(Command::Job { id, action });
                }
            }
        }
        commands
    }

    /// Returns whether the state has more jobs than are explored.
    pub(crate) fn exceeds_job_limit(&self, scenario: &Scenario) -> bool {
        self.job_model.jobs.len() > scenario.jobs.jobs_max
    }
}

/// Forgets the grant of a claim whose job was handed back: it may be assigned another.
pub(crate) fn forget_handed_back(event: &Event, before: &State, granted: &mut Vec<RequestId>) {
    let Event::Ended { job: Some(ran), token, .. } = event else { return };
    let tenure = before.record.tenures.iter().find(|tenure| tenure.token == *token);
    if let Some(tenure) = tenure.filter(|_| ran.outcome == AttemptOutcome::HandedBack) {
        granted.retain(|request| *request != tenure.request);
    }
}

/// Checks the job properties of a step.
pub(crate) fn check_step(
    before: &State,
    command: &Command,
    result: &mut StepResult,
) -> CheckResult {
    if result.after.kinds.iter().next().is_none() {
        return Ok(());
    }
    check_history_applies(before, result)?;
    check_events_rebuild_record(before, result)?;
    check_lane_matches_history(result)?;
    check_resource_matches_history(command, result)?;
    check_scope_of_claim(command, result)?;
    check_stale_finish_is_noop(before, command, result)?;
    check_executed_once(before, command, result)?;
    check_idempotent(command, result)
}

/// Checks that each event is valid after the ones before it, and that no spec change is lost.
fn check_history_applies(before: &State, result: &mut StepResult) -> CheckResult {
    if result.events.is_empty() {
        return Ok(());
    }
    let mut job_model = (*before.job_model).clone();
    for event in &result.events {
        job_model.apply(&key(), event, before.now, &result.after.kinds)?;
    }
    job_model.check_timers_fired_once(&key())?;
    job_model.check_no_change_lost(&key(), &result.after.kinds)?;
    result.after.job_model = Rc::new(job_model);
    Ok(())
}

/// Checks that applying the events to the record before the step gives the record after it.
fn check_events_rebuild_record(before: &State, result: &StepResult) -> CheckResult {
    let mut expected = before.record.clone();
    for event in &result.events {
        expected.apply(event, before.now);
    }
    let after = &result.after.record;
    let same = expected.tenures == after.tenures
        && expected.token == after.token
        && jobs_without_due(&expected) == jobs_without_due(after);
    match same {
        true => Ok(()),
        false => Err("the record differs from its replayed history".to_owned()),
    }
}

/// Returns the job part of a record without due times, which history does not record when a
/// backoff is shortened.
fn jobs_without_due(record: &Record) -> Option<Box<tenure_core::resource::Resource>> {
    let mut resource = record.resource.clone()?;
    resource.lane.iter_mut().for_each(|job| job.due = Millis(0));
    Some(resource)
}

/// Checks that every job is in the stage that history says.
fn check_lane_matches_history(result: &StepResult) -> CheckResult {
    let State { job_model, record, ended, .. } = &result.after;
    for (id, expected) in &job_model.jobs {
        let job = record.job(*id);
        let matches = match expected.stage {
            Stage::Waiting => job.is_some_and(|job| !job.state.is_running()),
            Stage::Running(token) => job.is_some_and(|job| job.token() == Some(token)),
            Stage::Ended(state) => {
                job.is_none() && ended.iter().any(|job| job.id == *id && job.state == state)
            }
        };
        if !matches {
            return Err(format!("job {id} is {job:?}, but history says {:?}", expected.stage));
        }
    }
    Ok(())
}

/// Checks that status and timers are what history says, and that no timer is overdue after a
/// command that settles the record.
fn check_resource_matches_history(command: &Command, result: &StepResult) -> CheckResult {
    let State { job_model, record, .. } = &result.after;
    let settles =
        matches!(command, Command::Lock { .. } | Command::Resource { .. } | Command::Job { .. });
    let now = if settles { result.after.now } else { Millis(0) };
    match (&record.resource, job_model.resources.get(&key())) {
        (Some(is), Some(expected)) => check_resource(&key(), is, expected, now),
        (None, None) => Ok(()),
        (is, expected) => Err(format!("the resource is {is:?}, not {expected:?}")),
    }
}

/// Checks that a restricted claim got nothing outside its scope.
fn check_scope_of_claim(command: &Command, result: &StepResult) -> CheckResult {
    match (command, &result.outcome) {
        (Command::Claim(claim), Outcome::Claimed(jobs)) => {
            jobs.iter().try_for_each(|job| check_scope(claim, &job.tenure.key))
        }
        _ => Ok(()),
    }
}

/// Checks that a finish or a status whose token is not that of the current attempt changes nothing.
fn check_stale_finish_is_noop(
    before: &State,
    command: &Command,
    result: &StepResult,
) -> CheckResult {
    let Command::Job { id, action } = command else { return Ok(()) };
    let (JobAction::Finish { token, .. } | JobAction::Status { token, .. }) = action else {
        return Ok(());
    };
    let settle = Command::Lock { key: key(), action: LockAction::Settle };
    let settled = before.step(&settle).after;
    if settled.record.job(*id).is_some_and(|job| job.token() == Some(*token)) {
        return Ok(());
    }
    let unchanged = settled.record.tenures == result.after.record.tenures
        && settled.record.resource == result.after.record.resource;
    let accepted =
        matches!(result.outcome, Outcome::Finished { already: false, .. } | Outcome::Noted { .. });
    match unchanged && !accepted {
        true => Ok(()),
        false => Err(format!("stale token {token} changed job {id}: {:?}", result.outcome)),
    }
}

/// Checks that a request which the resource remembers changes nothing, whatever came after it.
fn check_executed_once(before: &State, command: &Command, result: &StepResult) -> CheckResult {
    let Command::Once { request, .. } = command else { return Ok(()) };
    let is_remembered = before.record.recent_answers.answered_at(*request).is_some();
    let unchanged = result.events.is_empty() && before.record == result.after.record;
    match is_remembered && !unchanged {
        true => Err(format!("request {request} was executed again: {:?}", result.events)),
        false => Ok(()),
    }
}

/// Checks that a repeated command gets the same reply and changes nothing.
fn check_idempotent(command: &Command, result: &StepResult) -> CheckResult {
    let is_delete =
        matches!(command, Command::Resource { action: ResourceAction::Delete { .. }, .. });
    if !matches!(command, Command::Resource { .. } | Command::Job { .. } | Command::Claim(_))
        || is_delete
    {
        return Ok(());
    }
    let again = result.after.step(command);
    let same = match (&result.outcome, &again.outcome) {
        (Outcome::Claimed(first), Outcome::Claimed(second)) => {
            let ids = |jobs: &[tenure_core::Assignment]| -> Vec<(JobId, Token)> {
                jobs.iter().map(|a| (a.job.id, a.tenure.token)).collect()
            };
            ids(first) == ids(second)
        }
        (Outcome::Finished { state: a, .. }, Outcome::Finished { state: b, .. })
        | (Outcome::Cancelled { state: a }, Outcome::Cancelled { state: b }) => a == b,
        (Outcome::Put { generation: a, .. }, Outcome::Put { generation: b, .. }) => a == b,
        (first, second) => first == second,
    };
    let unchanged = result.after.record.resource == again.after.record.resource
        && result.after.record.tenures == again.after.record.tenures;
    let quiet = |event: &Event| matches!(event, Event::Fenced { .. });
    match same && unchanged && again.events.iter().all(quiet) {
        true => Ok(()),
        false => Err(format!("{command:?} gave {:?}, then {:?}", result.outcome, again.outcome)),
    }
}

/// Replaces job ids by their request ids and clears instants that affect no decision.
pub(crate) fn normalize(record: &mut Record, ended: &mut [Job], kinds: &Kinds, now: Millis) {
    let mut operations = kinds.iter().flat_map(|kind| kind.operations.values());
    let deadlines = operations.any(|operation| operation.start_deadline_ms.is_some());
    let mut names: Vec<(JobId, JobId)> = Vec::new();
    let lane = record.lane().iter().map(|job| &**job);
    for job in lane.chain(ended.iter()) {
        names.push((job.id, JobId(job.request.0)));
    }
    let name = |id: JobId| names.iter().find(|(old, _)| *old == id).map_or(id, |(_, new)| *new);
    for tenure in &mut record.tenures {
        tenure.job = tenure.job.map(name);
    }
    if let Some(resource) = &mut record.resource {
        resource.since = Millis(0);
        resource.last_job = resource.last_job.map(name);
        let plain = |a: RecentSubmit| RecentSubmit { job: name(a.job), at: Millis(0), ..a };
        resource.recent_submits = resource.recent_submits.iter().map(plain).collect();
        for timer in &mut resource.timers {
            timer.due = Millis(timer.due.since(now));
            timer.refused = timer.refused.take().map(|(error, _)| (error, Millis(0)));
        }
        if let Some(status) = &mut resource.status {
            status.at = Millis(0);
        }
        for job in &mut resource.lane {
            let waited_ms = now.since(job.due.max(job.submitted_at));
            normalize_job(job, now, &name);
            if deadlines {
                job.submitted_at = Millis(waited_ms);
            }
        }
    }
    ended.iter_mut().for_each(|job| normalize_job(job, now, &name));
}

fn normalize_job(job: &mut Job, now: Millis, name: &impl Fn(JobId) -> JobId) {
    job.id = name(job.id);
    job.previous = job.previous.map(name);
    job.followed_by = job.followed_by.map(name);
    (job.submitted_at, job.due) = (Millis(0), Millis(job.due.since(now)));
    job.ended_at = job.ended_at.map(|_| Millis(0));
    if let Some(asked) = &mut job.cancel {
        asked.at = Millis(0);
    }
    for attempt in &mut job.attempts {
        attempt.started_at = Millis(0);
        attempt.ended_at = attempt.ended_at.map(|_| Millis(0));
    }
}
