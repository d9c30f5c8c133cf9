//! Applies events to records, both in a step and in a replay of history.
//!
//! An event carries all data it needs; nothing is decided here. A finished job leaves the lane and
//! is returned to the caller, which stores it elsewhere.
//!
//! Not every change of a record is an event. Steps also write directly, and history does not
//! reproduce: the wait queue and withdrawn requests ([`crate::lock`], [`crate::settle`]), answers
//! to requests that are executed once ([`crate::recent_answers`]), progress and log size of the
//! running attempt ([`crate::attempt`]), and a backoff that is cut short ([`crate::submit`]). The
//! hash chain is advanced by [`crate::history::Chain::seal`].

use crate::canary::{Canary, planted};
use crate::history::Event;
use crate::id::{JobId, SessionId};
use crate::job::{
    Attempt, AttemptOutcome, CompletedAttempt, Job, JobState, StartedAttempt, Verdict,
};
use crate::key::Text;
use crate::limits;
use crate::recent_submits::{RecentSubmit, SubmitDigest};
use crate::record::{RecentRequest, Record, Tenure, TenureEnd};
use crate::resource::Resource;
use crate::status::{Status, merge_patch};
use crate::time::Millis;
use crate::token::Token;

impl Record {
    /// Applies `event` and returns the job that it finished, if any.
    pub fn apply(&mut self, event: &Event, at: Millis) -> Option<Box<Job>> {
        match event {
            Event::Granted {
                locks,
                token,
                session,
                holder,
                purpose,
                max_age_ms,
                request,
                job,
                ..
            } => {
                self.token = *token;
                // Nearly every record has at most one tenure: reserve no spare capacity.
                self.tenures.reserve_exact(locks.size());
                for lock in locks {
                    self.tenures.push(Tenure {
                        lock: lock.clone(),
                        token: *token,
                        session: *session,
                        request: *request,
                        purpose: purpose.clone(),
                        max_age_ms: *max_age_ms,
                        since: at,
                        job: job.as_ref().map(|started| started.id),
                    });
                }
                if let (Some(started), Some(resource)) = (job, &mut self.resource) {
                    resource.start_attempt(started, *token, *session, holder, at);
                }
                None
            }
            Event::Ended { locks, token, how, job } => {
                let ended = |t: &mut Tenure| t.token == *token && locks.contains(&t.lock);
                let ended: Vec<Tenure> = self.tenures.extract_if(.., ended).collect();
                self.remember_end(&ended, *token, how, at);
                let (completed, resource) = (job.as_ref()?, self.resource.as_mut()?);
                resource.end_attempt(completed, at)
            }
            Event::Fenced { token, .. } => {
                self.fenced = *token;
                None
            }
            Event::Created { state } => {
                self.resource = Some(Box::new(Resource::new(state.clone(), at)));
                None
            }
            Event::Deleted { .. } => {
                self.resource = None;
                None
            }
            _ => self.resource.as_mut()?.apply(event, at),
        }
    }

    fn remember_end(&mut self, ended: &[Tenure], token: Token, how: &TenureEnd, at: Millis) {
        if let Some(request) = ended.first().map(|tenure| tenure.request) {
            self.remember_request(RecentRequest { request, token, how: how.kind(), at });
        }
    }
}

impl Resource {
    fn apply(&mut self, event: &Event, at: Millis) -> Option<Box<Job>> {
        match event {
            Event::Specified { spec, generation, request, digest, .. } => {
                self.spec = Some(spec.clone());
                self.generation = *generation;
                self.last_put = *request;
                self.last_put_digest = *digest;
            }
            Event::Observed { token, merge } => self.merge_status(*token, merge, at),
            Event::TimerSet { operation, due, by } => self.set_timer(operation, *due, by),
            Event::TimerFired { operation, .. } => {
                self.timers.retain(|timer| timer.operation != *operation);
            }
            Event::TimerRefused { operation, error } => self.refuse_timer(operation, error, at),
            Event::NotStarted { id, error } => {
                let mut job = self.remove_finished(*id, at)?;
                (job.state, job.error) = (JobState::Failed, Some(error.clone()));
                return Some(job);
            }
            Event::Paused { requested } => self.paused = Some(requested.clone()),
            Event::Resumed { .. } => self.paused = None,
            Event::Submitted { job, position, verdict, precondition } => {
                let digest = SubmitDigest::of_job(job, *precondition, at);
                self.recent_submits.remember(RecentSubmit {
                    request: job.request,
                    job: job.id,
                    verdict: *verdict,
                    at,
                    digest: Some(digest),
                });
                self.lane.insert((*position).min(self.lane.len()), job.clone());
            }
            Event::Attached { id, request, digest, .. } => {
                if let Some(job) = self.job_mut(*id) {
                    job.joined += 1;
                }
                let verdict = Verdict::Attached;
                self.recent_submits.remember(RecentSubmit {
                    request: *request,
                    job: *id,
                    verdict,
                    at,
                    digest: *digest,
                });
            }
            Event::Superseded { id, followed_by } => {
                let mut job = self.remove_finished(*id, at)?;
                (job.state, job.followed_by) = (JobState::Superseded, Some(*followed_by));
                return Some(job);
            }
            Event::Cancelled { id, requested } => {
                let job = self.job_mut(*id)?;
                job.cancel = Some(requested.clone());
                if job.state.is_running() {
                    job.state = JobState::Cancelling;
                    return None;
                }
                job.state = JobState::Cancelled;
                return self.remove_finished(*id, at);
            }
            Event::Incident { id, error, state } => {
                self.set_state(state.as_ref(), at);
                let mut job = self.remove_finished(*id, at)?;
                (job.state, job.error) = (JobState::Failed, Some(error.clone()));
                return Some(job);
            }
            _ => {}
        }
        None
    }

    fn merge_status(&mut self, token: Token, merge: &Text, at: Millis) {
        let current = self.status.as_ref().map_or("{}", |status| &*status.document);
        // The step that appended the event has checked that both are objects.
        if let Ok(merged) = merge_patch(current, merge) {
            self.status = Some(Box::new(Status { document: merged.into(), token, at }));
        }
    }

    /// Starts an attempt. Its number comes from the event.
    fn start_attempt(
        &mut self,
        started: &StartedAttempt,
        token: Token,
        session: SessionId,
        worker: &Text,
        at: Millis,
    ) {
        let (before, generation) = (self.state.clone(), self.generation);
        self.set_state(started.resource_state.as_ref(), at);
        let Some(job) = self.job_mut(started.id) else { return };
        job.state = JobState::Running;
        job.attempt = started.attempt;
        (job.state_before, job.generation) = (Some(before), generation);
        (job.progress, job.log_bytes) = (None, 0);
        if job.attempts.len() == limits::ATTEMPTS_KEPT {
            job.attempts.remove(0);
        }
        job.attempts.push(Attempt {
            n: started.attempt,
            token,
            session,
            worker: worker.clone(),
            started_at: at,
            ended_at: None,
            outcome: None,
            error: None,
        });
    }

    fn end_attempt(&mut self, completed: &CompletedAttempt, at: Millis) -> Option<Box<Job>> {
        self.set_state(completed.resource_state.as_ref(), at);
        self.observed = completed.observed.unwrap_or(self.observed);
        let job = self.job_mut(completed.id)?;
        record_attempt_end(job, completed, at);
        if completed.job_state.is_finished() {
            self.remove_finished(completed.id, at)
        } else {
            None
        }
    }
}

fn record_attempt_end(job: &mut Job, completed: &CompletedAttempt, at: Millis) {
    if let Some(attempt) = job.attempts.last_mut() {
        attempt.ended_at = Some(at);
        attempt.outcome = Some(completed.outcome);
        attempt.error.clone_from(&completed.error);
    }
    match completed.outcome {
        AttemptOutcome::HandedBack => job.attempt -= 1,
        AttemptOutcome::Deferred => {
            job.attempt -= u32::from(!planted(Canary::DeferredCounts));
            job.deferrals += 1;
        }
        _ => job.deferrals = 0,
    }
    job.state = completed.job_state;
    job.due = completed.due.unwrap_or(job.due);
    job.error.clone_from(&completed.error);
    job.result.clone_from(&completed.result);
    job.progress = None;
}

/// Marks a finished job as resolved by an operator.
pub(crate) fn mark_resolved(job: &mut Job, state: JobState, followed_by: Option<JobId>) {
    job.state = state;
    job.followed_by = followed_by;
}
