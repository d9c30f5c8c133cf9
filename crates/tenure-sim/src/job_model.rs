//! A model of jobs and resource states, rebuilt from history events alone.
//!
//! Every event is checked against the ones before it: a job is submitted once, attempts are
//! consecutive and allowed, a cancel is final, a job ends once. [`crate::job_checks`] compares
//! replies and records with this model, [`crate::resource_model`] has status and timers.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::history::Event;
use tenure_core::job::{AttemptOutcome, CompletedAttempt, Job, StartedAttempt};
use tenure_core::record::TenureEnd;
use tenure_core::retry::NOT_STARTED;
use tenure_core::{
    JobId, JobState, Kinds, LockSet, Millis, Operation, ResourceKey, Text, Token, limits,
};

use crate::resource_model::ModelResource;

/// Ok, or a description of the violated property.
type CheckResult = Result<(), String>;

/// Lifecycle stage of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Queued or in backoff.
    Waiting,
    /// Running under this tenure.
    Running(Token),
    /// Ended in this state.
    Ended(JobState),
}

/// A job according to history.
#[derive(Clone, Debug)]
pub struct ModelJob {
    /// Resource of the job.
    pub key: ResourceKey,
    /// Operation of the job.
    pub operation: Text,
    /// Lifecycle stage.
    pub stage: Stage,
    /// Number of counted attempts.
    pub attempts: u32,
    /// Whether cancellation was requested while it ran.
    pub cancelled: bool,
    /// Latest end of an attempt.
    pub last_end: Option<ModelEnd>,
    /// Whether its resource was forgotten, and it with it.
    pub forgotten: bool,
    /// Generation of the resource when the latest attempt started.
    started_generation: u64,
    /// Number of consecutive attempts that were deferred.
    deferrals: u32,
    /// Earliest time of its first start.
    due: Millis,
    /// Whether it has ever started.
    started: bool,
    /// Whether it waits because its last attempt has failed or was deferred.
    pub(crate) in_backoff: bool,
    /// Place in the lane: jobs with a lower one are ahead of it.
    pub(crate) place: (i32, usize),
}

impl ModelJob {
    /// Returns the earliest time of its first start, if it waits for that.
    pub(crate) fn first_start(&self) -> Option<Millis> {
        (self.stage == Stage::Waiting && !self.started).then_some(self.due)
    }
}

/// The end of an attempt according to history.
#[derive(Clone, Copy, Debug)]
pub struct ModelEnd {
    /// Token of its tenure.
    pub token: Token,
    /// Its outcome.
    pub outcome: AttemptOutcome,
    /// Time from its end to the next attempt, if there is one.
    pub delay_ms: Option<u64>,
}

/// Jobs and states of all resources.
#[derive(Clone, Debug, Default)]
pub struct JobModel {
    /// All jobs, including ended ones.
    pub jobs: BTreeMap<JobId, ModelJob>,
    /// All resources that exist.
    pub resources: BTreeMap<ResourceKey, ModelResource>,
    /// Highest generation that each key ever had; a recreated resource starts over.
    pub max_generation: BTreeMap<ResourceKey, u64>,
    /// All status patches, with the tokens that wrote them.
    pub patches: BTreeSet<(ResourceKey, Token, Text)>,
    /// When each resource was last deleted.
    pub deleted_at: BTreeMap<ResourceKey, Millis>,
}

impl JobModel {
    /// Returns the number of jobs that have not ended, of one resource or of all.
    #[must_use]
    pub fn unfinished(&self, key: Option<&ResourceKey>) -> usize {
        let is_match = |job: &&ModelJob| key.is_none_or(|key| job.key == *key);
        let jobs = self.jobs.values().filter(is_match);
        jobs.filter(|job| !matches!(job.stage, Stage::Ended(_))).count()
    }

    /// Returns whether any resource has a timer.
    #[must_use]
    pub fn has_timers(&self) -> bool {
        self.resources.values().any(|resource| !resource.timers.is_empty())
    }

    /// Applies one event that occurred at `at`.
    pub fn apply(
        &mut self,
        key: &ResourceKey,
        event: &Event,
        at: Millis,
        kinds: &Kinds,
    ) -> CheckResult {
        if let Some(resource) = self.resources.get_mut(key) {
            resource.check_event(key, event)?;
        }
        match event {
            Event::Granted { job: Some(start), token, locks, .. } => {
                self.start_attempt(key, start, (*token, locks), at, kinds)
            }
            Event::Granted { job: None, .. } | Event::Fenced { .. } => Ok(()),
            Event::Ended { job: Some(end), token, how, .. } => {
                self.end_attempt(key, end, (*token, how), at, kinds)
            }
            Event::Ended { job: None, token, .. } => self.check_no_running_job(key, *token),
            Event::Submitted { job, .. } => self.add_job(key, job, at),
            Event::Attached { id, .. } => match self.job(*id)? {
                ModelJob { stage: Stage::Ended(_), .. } | ModelJob { cancelled: true, .. } => {
                    Err(format!("a submit attached to job {id}, which can no longer finish"))
                }
                _ => Ok(()),
            },
            Event::NotStarted { id, error } => {
                let in_time = self.start_deadline(key, *id, kinds)?.is_none_or(|by| at < by);
                if in_time || self.job(*id)?.started || *error.code != *NOT_STARTED {
                    return Err(format!("job {id} failed with {error:?} at {}", at.0));
                }
                self.end_waiting_job(*id, JobState::Failed)
            }
            Event::Superseded { id, .. } => self.end_waiting_job(*id, JobState::Superseded),
            Event::Cancelled { id, .. } => self.cancel(*id),
            Event::Redriven { id, .. } => self.settle_dead_job(*id, JobState::Redriven),
            Event::Discarded { id, .. } => self.settle_dead_job(*id, JobState::Discarded),
            Event::Incident { id, .. } => Err(format!("job {id} ran without a tenure")),
            _ => self.apply_to_resource(key, event, at),
        }
    }

    /// Forgets a resource that does not exist, with its ended jobs.
    pub(crate) fn forget(&mut self, key: &ResourceKey) -> CheckResult {
        for (id, job) in self.jobs.iter_mut().filter(|(_, job)| job.key == *key) {
            if !matches!(job.stage, Stage::Ended(_)) {
                return Err(format!("{key} was forgotten with the unfinished job {id}"));
            }
            job.forgotten = true;
        }
        match self.resources.contains_key(key) {
            true => Err(format!("{key} was forgotten but exists")),
            false => Ok(()),
        }
    }

    fn job(&mut self, id: JobId) -> Result<&mut ModelJob, String> {
        self.jobs.get_mut(&id).ok_or_else(|| format!("job {id} was never submitted"))
    }

    fn apply_to_resource(&mut self, key: &ResourceKey, event: &Event, at: Millis) -> CheckResult {
        if let Event::Created { state } = event {
            return match self.resources.insert(key.clone(), ModelResource::new(state.clone())) {
                Some(_) => Err(format!("{key} was created twice")),
                None => Ok(()),
            };
        }
        if matches!(event, Event::Deleted { .. }) {
            let live = |job: &ModelJob| job.key == *key && !matches!(job.stage, Stage::Ended(_));
            self.resources.remove(key);
            self.deleted_at.insert(key.clone(), at);
            return match self.jobs.values().any(live) {
                true => Err(format!("{key} was deleted before all its jobs ended")),
                false => Ok(()),
            };
        }
        let runs_with = |token: Token| {
            self.jobs.values().any(|job| job.key == *key && job.stage == Stage::Running(token))
        };
        if let Event::Observed { token, .. } = event
            && !runs_with(*token)
        {
            return Err(format!("token {token}, which runs no job, wrote the status of {key}"));
        }
        let resource = self.resources.get_mut(key);
        let resource = resource.ok_or_else(|| format!("{key} does not exist"))?;
        match event {
            Event::Observed { token, merge } => {
                self.patches.insert((key.clone(), *token, merge.clone()));
                resource.merge(*token, merge, at)?;
            }
            Event::TimerSet { operation, due, .. } => resource.set_timer(operation, *due, at)?,
            Event::TimerFired { operation, .. } => resource.fire_timer(key, operation, at)?,
            Event::TimerRefused { operation, .. } => resource.refuse_timer(key, operation, at)?,
            Event::Specified { generation, .. } => {
                resource.generation = *generation;
                let max_generation = self.max_generation.entry(key.clone()).or_default();
                *max_generation = (*max_generation).max(*generation);
            }
            Event::Paused { .. } => resource.paused = true,
            Event::Resumed { .. } => resource.paused = false,
            _ => {}
        }
        Ok(())
    }

    fn add_job(&mut self, key: &ResourceKey, job: &Job, at: Millis) -> CheckResult {
        let resource = self.resources.get_mut(key);
        let resource = resource.ok_or_else(|| format!("{key} has jobs but does not exist"))?;
        let first = resource.job_of_request.insert(job.request, (job.id, at));
        let ended =
            |id: &JobId| self.jobs.get(id).is_none_or(|job| matches!(job.stage, Stage::Ended(_)));
        // A deleted resource forgets its requests, and any resource does after some time. Both are
        // documented limits.
        let remembered =
            |(id, then): &(JobId, Millis)| at.since(*then) <= limits::RECENT_TTL_MS || !ended(id);
        if let Some((first, _)) = first.filter(remembered) {
            let (request, second) = (job.request, job.id);
            return Err(format!("request {request} on {key} created job {first}, then {second}"));
        }
        let model_job = ModelJob {
            key: key.clone(),
            operation: job.operation.clone(),
            stage: Stage::Waiting,
            attempts: 0,
            cancelled: false,
            last_end: None,
            forgotten: false,
            started_generation: 0,
            deferrals: 0,
            due: job.due.max(at),
            started: false,
            in_backoff: false,
            place: (-job.priority, self.jobs.len()),
        };
        match self.jobs.insert(job.id, model_job) {
            Some(_) => Err(format!("job {} was submitted twice", job.id)),
            None => Ok(()),
        }
    }

    fn start_attempt(
        &mut self,
        key: &ResourceKey,
        start: &StartedAttempt,
        (token, locks): (Token, &LockSet),
        at: Millis,
        kinds: &Kinds,
    ) -> CheckResult {
        let id = start.id;
        let resource = self.resources.get(key).ok_or_else(|| format!("{key} does not exist"))?;
        let (state, generation) = (resource.state.clone(), resource.generation);
        if resource.paused {
            return Err(format!("job {id} starts on paused {key}"));
        }
        let start_deadline = self.start_deadline(key, id, kinds)?;
        self.check_reserved(key, id, locks, kinds)?;
        let job = self.job(id)?;
        let operation = operation_of(kinds, key, &job.operation)?;
        let attempts_max = operation.retry.attempts;
        if job.stage != Stage::Waiting {
            return Err(format!("job {id} starts while it is {:?}", job.stage));
        }
        if !job.started && at < job.due {
            return Err(format!("job {id} starts {} ms before it is due", job.due.since(at)));
        }
        if let Some(late_ms) = start_deadline.filter(|by| at >= *by).map(|by| at.since(by)) {
            return Err(format!("job {id} starts {late_ms} ms after its start deadline"));
        }
        if start.attempt != job.attempts + 1 || start.attempt > attempts_max {
            let (n, before) = (start.attempt, job.attempts);
            return Err(format!("job {id} starts attempt {n}/{attempts_max} after {before}"));
        }
        if !operation.allows(&state)
            || operation.locks != *locks
            || start.resource_state != operation.during
        {
            return Err(format!("job {id} may not start on {key} in state {state}"));
        }
        (job.stage, job.attempts, job.started_generation) =
            (Stage::Running(token), start.attempt, generation);
        (job.started, job.in_backoff) = (true, false);
        self.set_state(key, start.resource_state.as_ref());
        Ok(())
    }

    /// Returns the instant at which a job that has never started fails, if it does.
    fn start_deadline(
        &self,
        key: &ResourceKey,
        id: JobId,
        kinds: &Kinds,
    ) -> Result<Option<Millis>, String> {
        let job = self.jobs.get(&id).ok_or_else(|| format!("job {id} was never submitted"))?;
        let deadline_ms = operation_of(kinds, key, &job.operation)?.start_deadline_ms;
        Ok(deadline_ms.filter(|_| !job.started).map(|ms| job.due.plus(ms)))
    }

    fn end_attempt(
        &mut self,
        key: &ResourceKey,
        end: &CompletedAttempt,
        (token, how): (Token, &TenureEnd),
        at: Millis,
        kinds: &Kinds,
    ) -> CheckResult {
        let CompletedAttempt { id, outcome, job_state: then, .. } = *end;
        let job = self.job(id)?;
        if job.stage != Stage::Running(token) {
            return Err(format!("job {id} ends with token {token} while it is {:?}", job.stage));
        }
        if job.cancelled && then != JobState::Cancelled {
            let then = then.as_str();
            return Err(format!("job {id} was cancelled and ended as {then}: the cancel was lost"));
        }
        let operation = operation_of(kinds, key, &job.operation)?;
        let counted = job.attempts;
        let last = counted >= operation.retry.attempts;
        let valid = match then {
            JobState::Succeeded => outcome == AttemptOutcome::Ok && *how == TenureEnd::Finished,
            JobState::Backoff => {
                end.due.is_some() && (!last || outcome == AttemptOutcome::Deferred)
            }
            JobState::Dead => last,
            JobState::Queued => outcome == AttemptOutcome::HandedBack,
            // An attempt whose worker was lost is retried or dead, never failed.
            JobState::Failed => outcome == AttemptOutcome::Failed,
            JobState::Cancelled => true,
            _ => false,
        };
        if !valid {
            let then = then.as_str();
            return Err(format!("job {id} is {then} after attempt {counted} ended {outcome:?}"));
        }
        job.in_backoff = then == JobState::Backoff;
        let uncounted = matches!(outcome, AttemptOutcome::HandedBack | AttemptOutcome::Deferred);
        job.attempts -= u32::from(uncounted);
        job.last_end =
            Some(ModelEnd { token, outcome, delay_ms: end.due.map(|due| due.since(at)) });
        match outcome {
            AttemptOutcome::Deferred if job.deferrals == limits::DEFERRALS_MAX => {
                let n = job.deferrals + 1;
                return Err(format!("job {id} is deferred {n} times in a row and never counted"));
            }
            AttemptOutcome::Deferred => job.deferrals += 1,
            AttemptOutcome::HandedBack => {}
            _ => job.deferrals = 0,
        }
        job.stage = if then.is_finished() { Stage::Ended(then) } else { Stage::Waiting };
        let (started_generation, reconciles) = (job.started_generation, job.operation.clone());
        self.set_state(key, end.resource_state.as_ref());
        self.check_observed(key, end, started_generation, &reconciles, kinds)
    }

    /// Checks that a reconcile observes the generation that its attempt started with.
    fn check_observed(
        &mut self,
        key: &ResourceKey,
        end: &CompletedAttempt,
        started_generation: u64,
        operation: &Text,
        kinds: &Kinds,
    ) -> CheckResult {
        let kind = kinds.get(key.kind());
        let reconcile = kind.and_then(|kind| kind.reconcile.as_ref());
        let Some(resource) = self.resources.get_mut(key) else { return Ok(()) };
        let done = end.outcome == AttemptOutcome::Ok && reconcile == Some(operation);
        if end.observed != done.then_some(started_generation) {
            let (id, observed) = (end.id, end.observed);
            return Err(format!(
                "job {id} started at generation {started_generation} of {key}, \
                 but observed {observed:?}"
            ));
        }
        resource.observed = end.observed.unwrap_or(resource.observed);
        if reconcile.is_some() {
            let stale = resource.observed < resource.generation;
            resource.behind = end.job_state == JobState::Succeeded && stale;
        }
        Ok(())
    }

    /// Checks that a tenure which ended without a job outcome has no running job.
    fn check_no_running_job(&self, key: &ResourceKey, token: Token) -> CheckResult {
        let runs = |job: &ModelJob| job.key == *key && job.stage == Stage::Running(token);
        match self.jobs.iter().find(|(_, job)| runs(job)) {
            Some((id, _)) => Err(format!("token {token} of {key} ended but job {id} still runs")),
            None => Ok(()),
        }
    }

    fn set_state(&mut self, key: &ResourceKey, state: Option<&Text>) {
        if let (Some(resource), Some(state)) = (self.resources.get_mut(key), state) {
            resource.state = state.clone();
        }
    }

    fn end_waiting_job(&mut self, id: JobId, state: JobState) -> CheckResult {
        let job = self.job(id)?;
        if job.stage != Stage::Waiting {
            return Err(format!("job {id} is {} while it is {:?}", state.as_str(), job.stage));
        }
        job.stage = Stage::Ended(state);
        let key = job.key.clone();
        // The waiting reconcile job was removed on purpose, so the change is not lost.
        self.clear_behind(&key);
        Ok(())
    }

    fn cancel(&mut self, id: JobId) -> CheckResult {
        let job = self.job(id)?;
        match job.stage {
            Stage::Waiting => self.end_waiting_job(id, JobState::Cancelled),
            Stage::Running(_) if !job.cancelled => {
                job.cancelled = true;
                Ok(())
            }
            stage => Err(format!("job {id} is cancelled while it is {stage:?}")),
        }
    }

    fn settle_dead_job(&mut self, id: JobId, state: JobState) -> CheckResult {
        let job = self.job(id)?;
        if job.stage != Stage::Ended(JobState::Dead) {
            return Err(format!("job {id} is {} while it is {:?}", state.as_str(), job.stage));
        }
        job.stage = Stage::Ended(state);
        Ok(())
    }

    fn clear_behind(&mut self, key: &ResourceKey) {
        if let Some(resource) = self.resources.get_mut(key) {
            resource.behind = false;
        }
    }

    /// Checks after a batch that no timer of a resource fired without being removed.
    pub fn check_timers_fired_once(&self, key: &ResourceKey) -> CheckResult {
        self.resources.get(key).map_or(Ok(()), |resource| resource.check_batch_end(key))
    }

    /// Checks after a batch that a spec change made during a reconcile has a job that covers it.
    pub fn check_no_change_lost(&mut self, key: &ResourceKey, kinds: &Kinds) -> CheckResult {
        let behind = self.resources.get(key).is_some_and(|resource| resource.behind);
        let Some(kind) = kinds.get(key.kind()).filter(|_| behind) else { return Ok(()) };
        self.clear_behind(key);
        let generation = self.resources.get(key).map_or(0, |resource| resource.generation);
        let covers_change = |job: &ModelJob| match job.stage {
            Stage::Waiting => true,
            Stage::Running(_) => job.started_generation == generation,
            Stage::Ended(_) => false,
        };
        let is_match =
            |job: &&ModelJob| job.key == *key && Some(&job.operation) == kind.reconcile.as_ref();
        match self.jobs.values().filter(is_match).any(covers_change) {
            true => Ok(()),
            false => {
                Err(format!("generation {generation} of {key} changed during a sync and is lost"))
            }
        }
    }
}

pub(crate) fn operation_of<'a>(
    kinds: &'a Kinds,
    key: &ResourceKey,
    operation: &Text,
) -> Result<&'a Operation, String> {
    let kind = kinds.get(key.kind());
    let found = kind.and_then(|kind| kind.operations.get(operation));
    found.ok_or_else(|| format!("{key} has no operation {operation}"))
}
