//! Management of resources and jobs: put, delete, pause, resume, cancel, retry, discard.

use crate::command::{JobAction, ResourceAction, Submit};
use crate::engine::check_text;
use crate::history::Event;
use crate::id::{JobId, RequestId};
use crate::job::{Job, JobState, RequestedBy, Verdict};
use crate::key::Text;
use crate::limits;
use crate::outcome::Outcome;
use crate::refusal::{JobRequirement, Refusal};
use crate::step_context::StepContext;
use crate::submit::check_size;

impl StepContext<'_> {
    /// Applies an action to the resource. The record is settled.
    pub(crate) fn apply_resource_action(&mut self, action: &ResourceAction) -> Outcome {
        let result = match action {
            ResourceAction::Put { spec, by } => self.put(spec, by),
            ResourceAction::Delete { by } => self.delete(by),
            ResourceAction::Pause { by, reason } => self.pause(by, reason),
            ResourceAction::Resume { by, reason } => self.resume(by, reason),
            ResourceAction::Submit(submit) => self.submit(submit, None),
        };
        result.unwrap_or_else(Outcome::Refused)
    }

    /// Applies an action to a job in the lane. The record is settled.
    pub(crate) fn apply_to_live_job(&mut self, id: JobId, action: &JobAction) -> Outcome {
        let result = match action {
            JobAction::Finish { token, finish } => self.finish(id, *token, finish),
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

    fn put(&mut self, spec: &Text, by: &Text) -> Result<Outcome, Refusal> {
        check_text("principal", by, limits::SESSION_NAME_BYTES_MAX)?;
        check_size("spec", spec, limits::SPEC_BYTES_MAX)?;
        if self.kind().is_none() {
            return Err(Refusal::NotDeclared(format!("the kind {}", self.key.kind())));
        }
        self.ensure_resource();
        let resource = self.record.resource.as_ref().expect("created above");
        let generation = resource.generation;
        if resource.spec.as_ref() == Some(spec) {
            let snapshot = self.record.resource.clone();
            return Ok(Outcome::Put { generation, job: None, snapshot });
        }
        let generation = generation + 1;
        self.append_event(Event::Specified { spec: spec.clone(), generation, by: by.clone() });
        let job = self.reconcile();
        let snapshot = self.record.resource.clone();
        Ok(Outcome::Put { generation, job, snapshot })
    }

    fn delete(&mut self, by: &Text) -> Result<Outcome, Refusal> {
        let Some(resource) = &self.record.resource else { return Err(Refusal::NoSuchResource) };
        if let Some(job) = resource.lane.front() {
            return Err(Refusal::InUse { job: Some(job.id) });
        }
        if self.record.is_live() {
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
