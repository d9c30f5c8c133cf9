//! What people do to resources and jobs: put, delete, pause, resume, cancel, retry, discard.

use crate::command::{JobAction, ResourceAction, Submit};
use crate::engine::check_text;
use crate::history::Event;
use crate::id::{JobId, RequestId};
use crate::job::{Asked, Job, JobState};
use crate::key::Text;
use crate::limits;
use crate::outcome::Outcome;
use crate::refusal::Refusal;
use crate::submit::check_size;
use crate::turn::Turn;

impl Turn<'_> {
    /// Does something to the resource. The record is settled.
    pub(crate) fn resource(&mut self, action: &ResourceAction) -> Outcome {
        let result = match action {
            ResourceAction::Put { spec, by } => self.put(spec, by),
            ResourceAction::Delete { by } => self.delete(by),
            ResourceAction::Pause { by, reason } => self.pause(by, reason),
            ResourceAction::Resume { by, reason } => self.resume(by, reason),
            ResourceAction::Submit(ask) => self.submit(ask, None),
        };
        result.unwrap_or_else(Outcome::Refused)
    }

    /// Does something to a job that is not over. The record is settled, so the job may be over now.
    pub(crate) fn live_job(&mut self, id: JobId, action: &JobAction) -> Outcome {
        let result = match action {
            JobAction::Finish { token, finish } => self.finish(id, *token, finish),
            JobAction::Progress { token, percent, message } => {
                self.progress(id, *token, *percent, message)
            }
            JobAction::Log { token, text } => self.log(id, *token, text),
            JobAction::Cancel { by, reason } => self.cancel(id, by, reason),
            JobAction::Retry { .. } => self.retry_now(id),
            JobAction::Discard { .. } => self.job_is(id, "dead"),
        };
        result.unwrap_or_else(Outcome::Refused)
    }

    /// Does something to a job that is over.
    pub(crate) fn past_job(&mut self, job: &mut Box<Job>, action: &JobAction) -> Outcome {
        let result = match action {
            JobAction::Finish { token, .. } => match crate::attempt::finished_before(job, *token) {
                Some(state) => Ok(Outcome::Finished { state, already: true }),
                None => Err(self.lost(*token, "finish")),
            },
            JobAction::Progress { token, .. } => Err(self.lost(*token, "progress")),
            JobAction::Log { token, .. } => Err(self.lost(*token, "log")),
            JobAction::Cancel { .. } if job.state == JobState::Cancelled => {
                Ok(Outcome::Cancelled { state: job.state })
            }
            JobAction::Cancel { .. } => {
                Err(Refusal::JobIs { state: job.state, wanted: "not over" })
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
        self.create();
        let resource = self.record.resource.as_ref().expect("it was made above");
        let generation = resource.generation;
        if resource.spec.as_ref() == Some(spec) {
            return Ok(Outcome::Put { generation, job: None });
        }
        let generation = generation + 1;
        self.tell(Event::Specified { spec: spec.clone(), generation, by: by.clone() });
        let job = self.reconcile();
        Ok(Outcome::Put { generation, job })
    }

    fn delete(&mut self, by: &Text) -> Result<Outcome, Refusal> {
        let Some(resource) = &self.record.resource else { return Err(Refusal::NoSuchResource) };
        if let Some(job) = resource.lane.front() {
            return Err(Refusal::InUse { job: Some(job.id) });
        }
        if self.record.is_live() {
            return Err(Refusal::InUse { job: None });
        }
        self.tell(Event::Deleted { by: by.clone() });
        Ok(Outcome::Deleted)
    }

    fn pause(&mut self, by: &Text, reason: &Text) -> Result<Outcome, Refusal> {
        let asked = self.asked(by, reason)?;
        let Some(resource) = &self.record.resource else { return Err(Refusal::NoSuchResource) };
        if resource.paused.is_none() {
            self.tell(Event::Paused { asked });
        }
        Ok(Outcome::Paused(true))
    }

    fn resume(&mut self, by: &Text, reason: &Text) -> Result<Outcome, Refusal> {
        let asked = self.asked(by, reason)?;
        let Some(resource) = &self.record.resource else { return Err(Refusal::NoSuchResource) };
        if resource.paused.is_some() {
            self.tell(Event::Resumed { asked });
        }
        Ok(Outcome::Paused(false))
    }

    fn cancel(&mut self, id: JobId, by: &Text, reason: &Text) -> Result<Outcome, Refusal> {
        let asked = self.asked(by, reason)?;
        self.ask_to_stop(id, asked);
        let state = self.record.job(id).map_or(JobState::Cancelled, |job| job.state);
        Ok(Outcome::Cancelled { state })
    }

    /// Ends a job that waits; asks one that runs to stop, once.
    pub(crate) fn ask_to_stop(&mut self, id: JobId, asked: Asked) {
        let Some(job) = self.record.job(id) else { return };
        if job.state == JobState::Cancelling {
            return;
        }
        let token = job.token();
        self.tell(Event::Cancelled { id, asked });
        if let Some(token) = token {
            self.notify(token, true);
        }
    }

    /// A job that rests between two attempts is tried at once.
    fn retry_now(&mut self, id: JobId) -> Result<Outcome, Refusal> {
        let Some(job) = self.record.job(id) else { return Err(Refusal::NoSuchJob) };
        if job.state != JobState::Backoff {
            return self.job_is(id, "in backoff or over");
        }
        self.hasten(id);
        Ok(Outcome::Submitted { verdict: crate::job::Verdict::Queued, job: id })
    }

    fn job_is(&self, id: JobId, wanted: &'static str) -> Result<Outcome, Refusal> {
        match self.record.job(id) {
            Some(job) => Err(Refusal::JobIs { state: job.state, wanted }),
            None => Err(Refusal::NoSuchJob),
        }
    }

    /// Makes a new job from one that is over; the policies hold for it as for any other.
    fn redrive(
        &mut self,
        job: &mut Box<Job>,
        request: RequestId,
        by: &Text,
        reason: &Text,
    ) -> Result<Outcome, Refusal> {
        let asked = self.asked(by, reason)?;
        if matches!(job.state, JobState::Redriven | JobState::Discarded)
            && self.record.resource.as_ref().is_none_or(|r| r.answered.of(request).is_none())
        {
            return Err(Refusal::JobIs { state: job.state, wanted: "not dealt with yet" });
        }
        let ask = Submit {
            request,
            operation: job.operation.clone(),
            args: job.args.clone(),
            priority: job.priority,
            run_at: None,
            by: by.clone(),
        };
        let outcome = self.submit(&ask, Some(job.id))?;
        if let Outcome::Submitted { job: next, .. } = outcome
            && job.state == JobState::Dead
        {
            crate::apply::mark(job, JobState::Redriven, Some(next));
            self.tell(Event::Redriven { id: job.id, followed_by: next, asked });
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
        let asked = self.asked(by, reason)?;
        match job.state {
            JobState::Discarded => return Ok(Outcome::Discarded),
            JobState::Dead => {}
            state => return Err(Refusal::JobIs { state, wanted: "dead" }),
        }
        crate::apply::mark(job, JobState::Discarded, None);
        self.tell(Event::Discarded { id: job.id, asked });
        self.changes.finished.push((self.key.clone(), job.clone()));
        Ok(Outcome::Discarded)
    }

    fn asked(&self, by: &Text, reason: &Text) -> Result<Asked, Refusal> {
        check_text("principal", by, limits::SESSION_NAME_BYTES_MAX)?;
        check_text("reason", reason, limits::REASON_BYTES_MAX)?;
        Ok(Asked { by: by.clone(), reason: reason.clone(), at: self.now })
    }
}
