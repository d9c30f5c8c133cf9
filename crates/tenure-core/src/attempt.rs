//! Attempts: a claim begins one, and exactly one thing ends it.
//!
//! Beginning and ending are one event each: the grant that counts the attempt and moves the
//! resource, and the end of tenure that says what the attempt came to, where that leaves the job,
//! and which state the resource is in. So there is never a running job without a tenure, nor a
//! tenure of a job that does not run; should a damaged store show one, [`Turn::mend`] says so.

use crate::canary::{Canary, planted};
use crate::command::Finish;
use crate::engine::check_text;
use crate::fact::Fact;
use crate::history::Event;
use crate::id::{JobId, RequestId, SessionId};
use crate::job::{Attempt, AttemptOutcome, Begun, Failure, Job, JobState, Progress, Ran};
use crate::key::Text;
use crate::kind::Operation;
use crate::lane::Next;
use crate::limits;
use crate::outcome::{Assignment, Outcome};
use crate::record::How;
use crate::refusal::Refusal;
use crate::retry::{Class, LOCK_BROKEN, LOCK_STATE_LOST, Retry, WORKER_CLOSED, WORKER_TIMEOUT};
use crate::settle::Wish;
use crate::submit::check_size;
use crate::token::Token;
use crate::turn::Turn;
use crate::world::LogPiece;

/// What became of an attempt, before it is decided what that means.
struct Came {
    outcome: AttemptOutcome,
    error: Option<Failure>,
    class: Option<Class>,
    state: Option<Text>,
    result: Option<Text>,
}

impl Turn<'_> {
    /// Begins an attempt at the job that is next, if one is.
    pub(crate) fn start(&mut self, session: SessionId, request: RequestId) -> Option<Assignment> {
        let kind = self.kind()?;
        let Next::Ready { job: id, since, .. } = self.record.next(kind, self.now) else {
            return None;
        };
        let job = self.record.job(id)?;
        let operation = kind.operations.get(&job.operation)?;
        let counted = if planted(Canary::AttemptCountedTwice) { 2 } else { 1 };
        let attempt = job.attempt + counted;
        let state = operation.during.clone();
        // An earlier attempt was no waiting.
        let since =
            job.attempts.last().and_then(|last| last.ended_at).map_or(since, |e| e.max(since));
        let wish = Wish {
            locks: operation.locks.clone(),
            session,
            request,
            purpose: Some(operation.name.clone()),
            waited_ms: self.now.since(since),
        };
        let tenure = self.grant(wish, Some(Box::new(Begun { id, attempt, state })));
        self.assignment(tenure.token)
    }

    /// What the worker of a tenure needs to know.
    pub(crate) fn assignment(&self, token: Token) -> Option<Assignment> {
        let job = self.record.job(self.job_of(token)?)?;
        let (operation, kind) = (self.operation(&job.operation), self.kind());
        let declared = kind.zip(operation);
        Some(Assignment {
            tenure: self.view_of(token),
            job: Box::new(job.clone()),
            spec: self.record.resource.as_ref()?.spec.clone(),
            limit_ms: declared.and_then(|(kind, of)| kind.limit_ms(self.key, of)),
            attempts_max: declared.map_or(1, |(kind, of)| kind.retry(self.key, of).attempts),
        })
    }

    /// The worker says what its attempt came to.
    pub(crate) fn finish(
        &mut self,
        id: JobId,
        token: Token,
        finish: &Finish,
    ) -> Result<Outcome, Refusal> {
        let Some(job) = self.record.job(id) else { return Err(Refusal::NoSuchJob) };
        let careless = planted(Canary::FinishWithoutToken) && job.token().is_some();
        if job.token() != Some(token) && !careless {
            return match finished_before(job, token) {
                Some(state) => Ok(Outcome::Finished { state, already: true }),
                None => Err(self.lost(token, "finish")),
            };
        }
        let operation = self.operation(&job.operation);
        let result = Self::read_finish(finish, operation)?;
        let token = job.token().unwrap_or(token);
        let ran = self.come_to(job, operation, result);
        let then = ran.then;
        self.end(token, None, &How::Finished, Some(Box::new(ran)));
        self.promote();
        Ok(Outcome::Finished { state: then, already: false })
    }

    fn read_finish(finish: &Finish, operation: Option<&Operation>) -> Result<Came, Refusal> {
        let plain = |outcome| Came { outcome, error: None, class: None, state: None, result: None };
        match finish {
            Finish::Ok { state, result } => {
                check_choice(state.as_ref(), operation)?;
                check_size("result", result.as_deref().unwrap_or(""), limits::RESULT_BYTES_MAX)?;
                let (state, result) = (state.clone(), result.clone());
                Ok(Came { state, result, ..plain(AttemptOutcome::Ok) })
            }
            Finish::Failed { code, message, class, state } => {
                check_choice(state.as_ref(), operation)?;
                check_failure(code, message)?;
                let error = Some(Failure { code: code.clone(), message: message.clone() });
                let (class, state) = (*class, state.clone());
                Ok(Came { error, class, state, ..plain(AttemptOutcome::Failed) })
            }
            Finish::Cancelled => Ok(plain(AttemptOutcome::Cancelled)),
            Finish::HandBack => Ok(plain(AttemptOutcome::HandedBack)),
        }
    }

    /// An attempt was lost with its tenure.
    pub(crate) fn lost_attempt(&self, id: JobId, token: Token, how: &How) -> Option<Box<Ran>> {
        let job = self.record.job(id)?;
        let worker = job.attempts.last().map_or("", |attempt| &attempt.worker);
        let (code, message) = match how {
            _ if token.is_before(self.incarnation) => (
                LOCK_STATE_LOST,
                format!("the store was restored while {worker} worked; look at what it has done"),
            ),
            How::Closed => (WORKER_CLOSED, format!("{worker} ended while it worked")),
            How::Broken { by, reason } => (LOCK_BROKEN, format!("{by} broke the lock: {reason}")),
            How::Expired | How::Released | How::Finished => {
                (WORKER_TIMEOUT, format!("{worker} stopped renewing its session"))
            }
        };
        let error = Some(Failure { code: code.into(), message: message.into() });
        let outcome = AttemptOutcome::Lost;
        let result = Came { outcome, error, class: None, state: None, result: None };
        Some(Box::new(self.come_to(job, self.operation(&job.operation), result)))
    }

    /// What the session of a worker need not know any more when an attempt is over.
    pub(crate) fn close_attempt(&mut self, ran: &Ran, id: SessionId, token: Token) {
        let tenure = self.record.tenures.iter().find(|tenure| tenure.token == token);
        let request = tenure.map(|tenure| tenure.request);
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.ended(self.key, token) {
            self.changes.sessions.push(id);
        }
        if let Some(request) = request.filter(|_| ran.outcome == AttemptOutcome::HandedBack) {
            session.unclaim(request);
            self.changes.beats.push(id);
        }
    }

    /// Where the end of an attempt leaves the job and the resource.
    fn come_to(&self, job: &Job, operation: Option<&Operation>, result: Came) -> Ran {
        let Came { outcome, error, class, state: chosen, result } = result;
        let default = Retry::default();
        let declared = self.kind().zip(operation);
        let retry = declared.map_or(&default, |(kind, of)| kind.retry(self.key, of));
        let end = |state: fn(&Operation) -> &Option<Text>| {
            chosen.clone().or_else(|| operation.and_then(|o| state(o).clone()))
        };
        let cancelling = job.state == JobState::Cancelling;
        let restored = error.as_ref().is_some_and(|error| *error.code == *LOCK_STATE_LOST);
        let mut due = None;
        let (then, state) = match outcome {
            AttemptOutcome::Ok if cancelling && !planted(Canary::CompletionOverwritesCancel) => {
                (JobState::Cancelled, end(|o| &o.ok))
            }
            AttemptOutcome::Ok => (JobState::Succeeded, end(|o| &o.ok)),
            _ if cancelling => (JobState::Cancelled, cancelled_state(operation)),
            AttemptOutcome::Cancelled => (JobState::Cancelled, cancelled_state(operation)),
            AttemptOutcome::HandedBack => (JobState::Queued, None),
            // Whether it may be tried again is not known until its kind is declared again.
            AttemptOutcome::Lost if operation.is_none() && !restored => (JobState::Queued, None),
            AttemptOutcome::Failed | AttemptOutcome::Lost => {
                let code = error.as_ref().map_or("", |error| &error.code);
                match retry.class(code, class) {
                    Class::Permanent => (JobState::Failed, end(|o| &o.failed)),
                    Class::Transient if job.attempt >= retry.attempts => {
                        (JobState::Dead, end(|o| &o.failed))
                    }
                    Class::Transient => {
                        due = Some(self.now.plus(retry.rest_ms(job.id, job.attempt)));
                        (JobState::Backoff, None)
                    }
                }
            }
        };
        // Whatever has no end state of its own is as it was before.
        let moved = operation.is_none_or(|operation| operation.during.is_some());
        let state = state.or_else(|| job.before.clone().filter(|_| moved));
        let reconciles = |kind: &crate::kind::Kind| kind.reconcile.as_ref() == Some(&job.operation);
        let reconciled = outcome == AttemptOutcome::Ok && self.kind().is_some_and(reconciles);
        let observed = reconciled.then_some(job.generation);
        Ran { id: job.id, outcome, then, due, error, result, state, observed }
    }

    /// Finds what no step can bring about: running jobs without a tenure, and tenures whose job
    /// does not run. Says how many tenures it ended.
    pub(crate) fn mend(&mut self) -> usize {
        let held = |token: Token| self.record.tenures.iter().any(|tenure| tenure.token == token);
        let torn = |job: &&Job| job.token().is_some_and(|token| !held(token));
        if let Some(job) = self.record.lane().iter().map(|job| &**job).find(torn) {
            let state = self.operation(&job.operation).and_then(|o| o.failed.clone());
            let state = state.or_else(|| job.before.clone());
            let message = "the job ran without a lock: the store was restored or damaged".into();
            let error = Failure { code: LOCK_STATE_LOST.into(), message };
            self.changes.facts.push(Fact::Tried {
                key: self.key.clone(),
                operation: job.operation.clone(),
                outcome: AttemptOutcome::Lost,
                code: Some(error.code.clone()),
            });
            let event = Event::Incident { id: job.id, error, state };
            self.tell(event);
            return self.mend();
        }
        let runs = |job: JobId, token: Token| {
            self.record.job(job).is_some_and(|job| job.token() == Some(token))
        };
        let stray =
            self.record.tenures.iter().find(|t| t.job.is_some_and(|job| !runs(job, t.token)));
        if let Some(token) = stray.map(|tenure| tenure.token) {
            let reason = "its job is not running: the store was restored or damaged".into();
            self.end(token, None, &How::Broken { by: "tenure".into(), reason }, None);
            return 1 + self.mend();
        }
        0
    }

    /// The worker says how far it has come.
    pub(crate) fn progress(
        &mut self,
        id: JobId,
        token: Token,
        percent: u8,
        message: &Text,
    ) -> Result<Outcome, Refusal> {
        check_text("message", message, limits::MESSAGE_BYTES_MAX)?;
        if percent > 100 {
            return Err(Refusal::Invalid(format!("percent is {percent}; it must be at most 100")));
        }
        let now = self.now;
        let job = self.worked(id, token, "progress")?;
        job.progress = Some(Progress { percent, message: message.clone(), at: now });
        let cancelling = job.state == JobState::Cancelling;
        self.changes.moved.push(self.key.clone());
        Ok(Outcome::Noted { cancelling })
    }

    /// The worker writes to the log of its attempt.
    pub(crate) fn log(&mut self, id: JobId, token: Token, text: &Text) -> Result<Outcome, Refusal> {
        if text.contains('\0') {
            // No text of a database has one, and a program may print anything.
            return self.log(id, token, &text.replace('\0', "?").into());
        }
        check_size("text", text, limits::LOG_PIECE_BYTES_MAX)?;
        let at = self.now;
        let job = self.worked(id, token, "log")?;
        let (before, attempt) = (job.log_bytes, job.attempt);
        job.log_bytes += text.len() as u64;
        let cancelling = job.state == JobState::Cancelling;
        let full = job.log_bytes > limits::LOG_BYTES_MAX;
        let text =
            if full { "[the log is full: what follows is dropped]\n".into() } else { text.clone() };
        if before <= limits::LOG_BYTES_MAX {
            self.changes.logs.push(LogPiece { job: id, attempt, at, text });
            self.changes.moved.push(self.key.clone());
        }
        Ok(Outcome::Noted { cancelling })
    }

    /// The job whose attempt runs under a token.
    fn worked(&mut self, id: JobId, token: Token, verb: &str) -> Result<&mut Job, Refusal> {
        if self.record.job(id).is_none_or(|job| job.token() != Some(token)) {
            return Err(self.lost(token, verb));
        }
        let job = self.record.resource.as_mut().and_then(|resource| resource.job_mut(id));
        Ok(job.expect("it was there a moment ago"))
    }
}

/// The state of a job whose attempt with this token was finished by its worker before.
pub(crate) fn finished_before(job: &Job, token: Token) -> Option<JobState> {
    let mine = |attempt: &&Attempt| attempt.token == token;
    let outcome = job.attempts.iter().find(mine)?.outcome?;
    (outcome != AttemptOutcome::Lost).then_some(job.state)
}

fn cancelled_state(operation: Option<&Operation>) -> Option<Text> {
    let operation = operation?;
    operation.cancelled.clone().or_else(|| operation.failed.clone())
}

fn check_choice(state: Option<&Text>, operation: Option<&Operation>) -> Result<(), Refusal> {
    let (Some(state), Some(operation)) = (state, operation) else { return Ok(()) };
    if operation.choices().any(|choice| choice == state) {
        return Ok(());
    }
    let known: Vec<&str> = operation.choices().map(|state| &**state).collect();
    let (name, known) = (&operation.name, known.join(", "));
    Err(Refusal::Invalid(format!("{name} cannot end in the state {state}; it may end in {known}")))
}

fn check_failure(code: &Text, message: &Text) -> Result<(), Refusal> {
    check_text("code", code, limits::CODE_BYTES_MAX)?;
    if code.is_empty() {
        return Err(Refusal::Invalid("the code of the failure is empty".to_owned()));
    }
    check_size("message", message, limits::MESSAGE_BYTES_MAX)
}
