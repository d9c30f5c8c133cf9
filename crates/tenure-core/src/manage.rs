//! Management of resources and jobs: put, delete, pause, resume, cancel, retry, discard.

use crate::canary::{Canary, planted};
use crate::command::{JobAction, Precondition, Put, ResourceAction, Submit};
use crate::engine::check_text;
use crate::history::Event;
use crate::id::{JobId, RequestId};
use crate::job::{Job, JobState, RequestedBy, Verdict};
use crate::key::Text;
use crate::limits;
use crate::outcome::Outcome;
use crate::recent_submits::PutDigest;
use crate::refusal::{JobRequirement, Refusal};
use crate::step_context::StepContext;
use crate::submit::check_size;

impl StepContext<'_> {
    /// Applies an action to the resource. The record is settled.
    pub(crate) fn apply_resource_action(&mut self, action: &ResourceAction) -> Outcome {
        let result = match action {
            ResourceAction::Put(put) => self.put(put),
            ResourceAction::SetTimers { timers, by, precondition } => {
                self.set_timers(timers, by, *precondition)
            }
            ResourceAction::Delete { by, precondition } => self.delete(by, *precondition),
            ResourceAction::Pause { by, reason } => self.pause(by, reason),
            ResourceAction::Resume { by, reason } => self.resume(by, reason),
            ResourceAction::Submit(submit) => self.submit(submit, None),
        };
        result.unwrap_or_else(Outcome::Refused)
    }

    /// Applies an action to a job in the lane. The record is settled.
    pub(crate) fn apply_to_live_job(&mut self, id: JobId, action: &JobAction) -> Outcome {
        let result = match action {
            JobAction::Finish { token, finish, update } => {
                self.finish(id, *token, finish, update.as_deref())
            }
            JobAction::Status { token, update } => self.update_status(id, *token, update),
            JobAction::Progress { token, percent, message } => {
                self.progress(id, *token, *percent, message)
            }
            JobAction::Log { token, text } => self.log(id, *token, text),
            JobAction::Cancel { by, reason } => self.cancel(id, by, reason),
            JobAction::Retry { .. } => self.retry_now(id),
            JobAction::Discard { .. } => self.refuse_job_state(id, JobRequirement::Dead),
        };
        result.unwrap_or_else(Outcome::Refused)
    }

    /// Applies an action to a finished job.
    pub(crate) fn apply_to_finished_job(
        &mut self,
        job: &mut Box<Job>,
        action: &JobAction,
    ) -> Outcome {
        let result = match action {
            JobAction::Finish { token, .. } => {
                match crate::attempt::already_finished_state(job, *token) {
                    Some(state) => Ok(Outcome::Finished { state, already: true }),
                    None => Err(self.refuse_stale(*token, "finish")),
                }
            }
            JobAction::Progress { token, .. } => Err(self.refuse_stale(*token, "progress")),
            JobAction::Status { token, .. } => Err(self.refuse_stale(*token, "status")),
            JobAction::Log { token, .. } => Err(self.refuse_stale(*token, "log")),
            JobAction::Cancel { .. } if job.state == JobState::Cancelled => {
                Ok(Outcome::Cancelled { state: job.state })
            }
            JobAction::Cancel { .. } => {
                Err(Refusal::WrongJobState { state: job.state, wanted: JobRequirement::Unfinished })
            }
            JobAction::Retry { request, by, reason } => self.redrive(job, *request, by, reason),
            JobAction::Discard { by, reason } => self.discard(job, by, reason),
        };
        result.unwrap_or_else(Outcome::Refused)
    }

    fn put(&mut self, put: &Put) -> Result<Outcome, Refusal> {
        let Put { spec, by, request, precondition, timers } = put;
        check_text("principal", by, limits::SESSION_NAME_BYTES_MAX)?;
        check_size("spec", spec, limits::SPEC_BYTES_MAX)?;
        if self.kind().is_none() {
            return Err(Refusal::NotDeclared(format!("the kind {}", self.key.kind())));
        }
        self.check_group()?;
        if let Some(resource) = &self.record.resource
            && request.is_some()
            && resource.last_put == *request
        {
            let is_other =
                resource.last_put_digest.is_some_and(|digest| digest != PutDigest::new(put));
            if is_other || resource.spec.as_ref() != Some(spec) {
                return Err(Refusal::RequestReused);
            }
            return Ok(self.put_outcome(None));
        }
        self.check_precondition(*precondition)?;
        self.check_timers(timers)?;
        self.ensure_resource();
        let resource = self.record.resource.as_ref().expect("created above");
        let mut job = None;
        if resource.spec.as_ref() != Some(spec) {
            self.append_event(Event::Specified {
                spec: spec.clone(),
                generation: resource.generation + 1,
                by: by.clone(),
                request: *request,
                digest: request.map(|_| PutDigest::new(put)),
            });
            job = self.reconcile();
        }
        self.write_timers(timers, by);
        self.fire_timers();
        Ok(self.put_outcome(job))
    }

    fn put_outcome(&self, job: Option<JobId>) -> Outcome {
        let snapshot = self.record.resource.clone();
        let generation = snapshot.as_ref().map_or(0, |resource| resource.generation);
        Outcome::Put { generation, job, snapshot }
    }

    /// Checks the name of a resource of a grouped kind.
    pub(crate) fn check_group(&self) -> Result<(), Refusal> {
        if self.kind().is_some_and(|kind| kind.grouped) && self.key.group().is_none() {
            let (kind, name) = (self.key.kind(), self.key.name());
            return Err(Refusal::Invalid(format!(
                "{name} has no group: names of the kind {kind} have the form GROUP:REST"
            )));
        }
        Ok(())
    }

    /// Checks a condition on the resource.
    pub(crate) fn check_precondition(
        &self,
        precondition: Option<Precondition>,
    ) -> Result<(), Refusal> {
        let Some(wanted) = precondition else { return Ok(()) };
        let generation = self.record.resource.as_ref().map(|resource| resource.generation);
        let holds = match wanted {
            Precondition::Generation(wanted) => generation == Some(wanted),
            Precondition::Absent => generation.is_none(),
        };
        if holds || planted(Canary::PreconditionIgnored) {
            return Ok(());
        }
        Err(Refusal::PreconditionFailed { wanted, generation })
    }

    fn delete(
        &mut self,
        by: &Text,
        precondition: Option<Precondition>,
    ) -> Result<Outcome, Refusal> {
        let Some(resource) = &self.record.resource else { return Err(Refusal::NoSuchResource) };
        self.check_precondition(precondition)?;
        if let Some(job) = resource.lane.front() {
            return Err(Refusal::InUse { job: Some(job.id) });
        }
        if !self.record.tenures.is_empty() || !self.record.queue.is_empty() {
            return Err(Refusal::InUse { job: None });
        }
        self.append_event(Event::Deleted { by: by.clone() });
        Ok(Outcome::Deleted)
    }

    fn pause(&mut self, by: &Text, reason: &Text) -> Result<Outcome, Refusal> {
        let requested = self.requested_by(by, reason)?;
        let Some(resource) = &self.record.resource else { return Err(Refusal::NoSuchResource) };
        if resource.paused.is_none() {
            self.append_event(Event::Paused { requested });
        }
        Ok(Outcome::Paused(true))
    }

    fn resume(&mut self, by: &Text, reason: &Text) -> Result<Outcome, Refusal> {
        let requested = self.requested_by(by, reason)?;
        let Some(resource) = &self.record.resource else { return Err(Refusal::NoSuchResource) };
        if resource.paused.is_some() {
            self.append_event(Event::Resumed { requested });
        }
        Ok(Outcome::Paused(false))
    }

    fn cancel(&mut self, id: JobId, by: &Text, reason: &Text) -> Result<Outcome, Refusal> {
        let requested = self.requested_by(by, reason)?;
        self.request_cancel(id, requested);
        let state = self.record.job(id).map_or(JobState::Cancelled, |job| job.state);
        Ok(Outcome::Cancelled { state })
    }

    /// Ends a waiting job, or requests a running one to stop. Has no effect if it is stopping
    /// already.
    pub(crate) fn request_cancel(&mut self, id: JobId, requested: RequestedBy) {
        let Some(job) = self.record.job(id) else { return };
        if job.state == JobState::Cancelling {
            return;
        }
        let token = job.token();
        self.append_event(Event::Cancelled { id, requested });
        if let Some(token) = token {
            self.notify_holder(token, true);
        }
    }

    /// Ends the backoff of a job so that it is retried at once.
    fn retry_now(&mut self, id: JobId) -> Result<Outcome, Refusal> {
        let Some(job) = self.record.job(id) else { return Err(Refusal::NoSuchJob) };
        if job.state != JobState::Backoff {
            return self.refuse_job_state(id, JobRequirement::InBackoffOrFinished);
        }
        self.wake_early(id);
        Ok(self.submitted(Verdict::Queued, id))
    }

    fn refuse_job_state(&self, id: JobId, wanted: JobRequirement) -> Result<Outcome, Refusal> {
        match self.record.job(id) {
            Some(job) => Err(Refusal::WrongJobState { state: job.state, wanted }),
            None => Err(Refusal::NoSuchJob),
        }
    }

    /// Submits a finished job again as a new one, subject to the usual policies.
    fn redrive(
        &mut self,
        job: &mut Box<Job>,
        request: RequestId,
        by: &Text,
        reason: &Text,
    ) -> Result<Outcome, Refusal> {
        let requested = self.requested_by(by, reason)?;
        if matches!(job.state, JobState::Redriven | JobState::Discarded)
            && self.record.resource.as_ref().is_none_or(|r| r.recent_submits.get(request).is_none())
        {
            return Err(Refusal::WrongJobState {
                state: job.state,
                wanted: JobRequirement::Unresolved,
            });
        }
        let submit = Submit {
            request,
            operation: job.operation.clone(),
            args: job.args.clone(),
            priority: job.priority,
            run_at: None,
            precondition: None,
            by: by.clone(),
        };
        let outcome = self.submit(&submit, Some(job.id))?;
        if let Outcome::Submitted { job: next, .. } = outcome
            && job.state == JobState::Dead
        {
            crate::apply::mark_resolved(job, JobState::Redriven, Some(next));
            self.append_event(Event::Redriven { id: job.id, followed_by: next, requested });
            self.changes.finished.push((self.key.clone(), job.clone()));
        }
        Ok(outcome)
    }

    fn discard(
        &mut self,
        job: &mut Box<Job>,
        by: &Text,
        reason: &Text,
    ) -> Result<Outcome, Refusal> {
        let requested = self.requested_by(by, reason)?;
        match job.state {
            JobState::Discarded => return Ok(Outcome::Discarded),
            JobState::Dead => {}
            state => return Err(Refusal::WrongJobState { state, wanted: JobRequirement::Dead }),
        }
        crate::apply::mark_resolved(job, JobState::Discarded, None);
        self.append_event(Event::Discarded { id: job.id, requested });
        self.changes.finished.push((self.key.clone(), job.clone()));
        Ok(Outcome::Discarded)
    }

    fn requested_by(&self, by: &Text, reason: &Text) -> Result<RequestedBy, Refusal> {
        check_text("principal", by, limits::SESSION_NAME_BYTES_MAX)?;
        check_text("reason", reason, limits::REASON_BYTES_MAX)?;
        Ok(RequestedBy { by: by.clone(), reason: reason.clone(), at: self.now })
    }
}
