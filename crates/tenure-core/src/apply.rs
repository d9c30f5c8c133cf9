//! How an event changes a record: the only code that writes one, in a step and in a replay alike.
//!
//! It decides nothing: an event says all there is to know. A job that is over leaves the lane here
//! and is given to the caller, who keeps it elsewhere.

use crate::answers::Answered;
use crate::history::Event;
use crate::id::{JobId, SessionId};
use crate::job::{Attempt, Begun, Job, JobState, Ran, Verdict};
use crate::key::Text;
use crate::limits;
use crate::record::{How, Recent, Record, Tenure};
use crate::resource::Resource;
use crate::time::Millis;
use crate::token::Token;

impl Record {
    /// Makes the change that an event tells. Gives back the job that was over with it.
    pub fn apply(&mut self, event: &Event, at: Millis) -> Option<Box<Job>> {
        match event {
            Event::Granted { locks, token, session, holder, purpose, request, job, .. } => {
                self.token = *token;
                // Nearly every record has one tenure at most: no room is kept for more.
                self.tenures.reserve_exact(locks.size());
                for lock in locks {
                    self.tenures.push(Tenure {
                        lock: lock.clone(),
                        token: *token,
                        session: *session,
                        request: *request,
                        purpose: purpose.clone(),
                        since: at,
                        job: job.as_ref().map(|begun| begun.id),
                    });
                }
                if let (Some(begun), Some(resource)) = (job, &mut self.resource) {
                    resource.begin(begun, *token, *session, holder, at);
                }
                None
            }
            Event::Ended { locks, token, how, job } => {
                let gone = |t: &mut Tenure| t.token == *token && locks.contains(&t.lock);
                let gone: Vec<Tenure> = self.tenures.extract_if(.., gone).collect();
                self.forget(&gone, *token, how, at);
                let (ran, resource) = (job.as_ref()?, self.resource.as_mut()?);
                resource.end(ran, at)
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

    fn forget(&mut self, gone: &[Tenure], token: Token, how: &How, at: Millis) {
        if let Some(request) = gone.first().map(|tenure| tenure.request) {
            self.remember(Recent { request, token, how: how.ending(), at });
        }
    }
}

impl Resource {
    fn apply(&mut self, event: &Event, at: Millis) -> Option<Box<Job>> {
        match event {
            Event::Specified { spec, generation, .. } => {
                self.spec = Some(spec.clone());
                self.generation = *generation;
            }
            Event::Paused { asked } => self.paused = Some(asked.clone()),
            Event::Resumed { .. } => self.paused = None,
            Event::Submitted { job, place, verdict } => {
                let (request, id, verdict) = (job.request, job.id, *verdict);
                self.answered.remember(Answered { request, job: id, verdict, at });
                self.lane.insert((*place).min(self.lane.len()), job.clone());
            }
            Event::Attached { id, request, .. } => {
                if let Some(job) = self.job_mut(*id) {
                    job.joined += 1;
                }
                let verdict = Verdict::Attached;
                self.answered.remember(Answered { request: *request, job: *id, verdict, at });
            }
            Event::Superseded { id, followed_by } => {
                let mut job = self.leave(*id, at)?;
                (job.state, job.followed_by) = (JobState::Superseded, Some(*followed_by));
                return Some(job);
            }
            Event::Cancelled { id, asked } => {
                let job = self.job_mut(*id)?;
                job.cancel = Some(asked.clone());
                if job.state.is_running() {
                    job.state = JobState::Cancelling;
                    return None;
                }
                job.state = JobState::Cancelled;
                return self.leave(*id, at);
            }
            Event::Incident { id, error, state } => {
                self.enter(state.as_ref(), at);
                let mut job = self.leave(*id, at)?;
                (job.state, job.error) = (JobState::Failed, Some(error.clone()));
                return Some(job);
            }
            _ => {}
        }
        None
    }

    /// An attempt begins: the one place where attempts are counted.
    fn begin(
        &mut self,
        begun: &Begun,
        token: Token,
        session: SessionId,
        worker: &Text,
        at: Millis,
    ) {
        let (before, generation) = (self.state.clone(), self.generation);
        self.enter(begun.state.as_ref(), at);
        let Some(job) = self.job_mut(begun.id) else { return };
        job.state = JobState::Running;
        job.attempt = begun.attempt;
        (job.before, job.generation) = (Some(before), generation);
        (job.progress, job.log_bytes) = (None, 0);
        if job.attempts.len() == limits::ATTEMPTS_KEPT {
            job.attempts.remove(0);
        }
        job.attempts.push(Attempt {
            n: begun.attempt,
            token,
            session,
            worker: worker.clone(),
            started_at: at,
            ended_at: None,
            outcome: None,
            error: None,
        });
    }

    fn end(&mut self, ran: &Ran, at: Millis) -> Option<Box<Job>> {
        self.enter(ran.state.as_ref(), at);
        self.observed = ran.observed.unwrap_or(self.observed);
        let job = self.job_mut(ran.id)?;
        note_end(job, ran, at);
        if ran.then.is_over() { self.leave(ran.id, at) } else { None }
    }
}

fn note_end(job: &mut Job, ran: &Ran, at: Millis) {
    if let Some(attempt) = job.attempts.last_mut() {
        attempt.ended_at = Some(at);
        attempt.outcome = Some(ran.outcome);
        attempt.error.clone_from(&ran.error);
    }
    if ran.outcome == crate::job::AttemptOutcome::HandedBack {
        // It was given back unfinished: that is nobody's failure.
        job.attempt -= 1;
    }
    job.state = ran.then;
    job.due = ran.due.unwrap_or(job.due);
    job.error.clone_from(&ran.error);
    job.result.clone_from(&ran.result);
    job.progress = None;
}

/// The mark that a job which is over gets when a person has dealt with it.
pub(crate) fn mark(job: &mut Job, state: JobState, followed_by: Option<JobId>) {
    job.state = state;
    job.followed_by = followed_by;
}
