//! Attempts: a claim starts one, and exactly one event ends it.
//!
//! The grant counts the attempt and moves the resource to its `during` state; the end of the tenure
//! carries the outcome, the next state of the job and the next state of the resource. Hence a job
//! runs if and only if it has a tenure. [`StepContext::repair`] handles damaged stores that violate
//! this.

use crate::canary::{Canary, planted};
use crate::command::{Finish, StatusUpdate};
use crate::engine::check_text;
use crate::history::Event;
use crate::id::{JobId, RequestId, SessionId};
use crate::job::{
    Attempt, AttemptOutcome, CompletedAttempt, Failure, Job, JobState, Progress, StartedAttempt,
};
use crate::key::Text;
use crate::kind::Operation;
use crate::lane::NextJob;
use crate::limits;
use crate::metric_event::MetricEvent;
use crate::outcome::{Assignment, Outcome};
use crate::record::TenureEnd;
use crate::refusal::Refusal;
use crate::retry::{Class, LOCK_BROKEN, LOCK_STATE_LOST, Retry, WORKER_CLOSED, WORKER_TIMEOUT};
use crate::settle::GrantRequest;
use crate::step_context::StepContext;
use crate::submit::check_size;
use crate::token::Token;
use crate::world::LogChunk;

/// Reported result of an attempt, before retry rules are applied.
struct AttemptResult {
    outcome: AttemptOutcome,
    error: Option<Failure>,
    class: Option<Class>,
    state: Option<Text>,
    result: Option<Text>,
    delay_ms: Option<u64>,
}

impl StepContext<'_> {
    /// Starts an attempt of the next job, if one is ready.
    pub(crate) fn start(&mut self, session: SessionId, request: RequestId) -> Option<Assignment> {
        let kind = self.kind()?;
        let NextJob::Ready { job: id, since, .. } = self.record.next_job(kind, self.now) else {
            return None;
        };
        let job = self.record.job(id)?;
        let operation = kind.operations.get(&job.operation)?;
        let counted = if planted(Canary::AttemptCountedTwice) { 2 } else { 1 };
        let attempt = job.attempt + counted;
        let resource_state = operation.during.clone();
        // Time spent in an earlier attempt does not count as waiting.
        let since =
            job.attempts.last().and_then(|last| last.ended_at).map_or(since, |e| e.max(since));
        let grant = GrantRequest {
            locks: operation.locks.clone(),
            session,
            request,
            purpose: Some(operation.name.clone()),
            max_age_ms: None,
            waited_ms: self.now.since(since),
        };
        let tenure =
            self.grant(grant, Some(Box::new(StartedAttempt { id, attempt, resource_state })));
        self.assignment(tenure.token)
    }

    /// Returns what the worker that holds `token` needs to know.
    pub(crate) fn assignment(&self, token: Token) -> Option<Assignment> {
        let job = self.record.job(self.job_of(token)?)?;
        let (operation, kind) = (self.operation(&job.operation), self.kind());
        let declared = kind.zip(operation);
        Some(Assignment {
            tenure: self.tenure_view(token),
            job: Box::new(job.clone()),
            spec: self.record.resource.as_ref()?.spec.clone(),
            status: self.record.resource.as_ref()?.status.as_ref().map(|s| s.document.clone()),
            limit_ms: declared.and_then(|(kind, operation)| kind.limit_ms(self.key, operation)),
            attempts_max: declared
                .map_or(1, |(kind, operation)| kind.retry(self.key, operation).attempts),
        })
    }

    /// Ends an attempt with the result that its worker reports.
    pub(crate) fn finish(
        &mut self,
        id: JobId,
        token: Token,
        finish: &Finish,
        update: Option<&StatusUpdate>,
    ) -> Result<Outcome, Refusal> {
        let Some(job) = self.record.job(id) else { return Err(Refusal::NoSuchJob) };
        let skip_token_check = planted(Canary::FinishWithoutToken) && job.token().is_some();
        if job.token() != Some(token) && !skip_token_check {
            return match already_finished_state(job, token) {
                Some(state) => Ok(Outcome::Finished { state, already: true }),
                None => Err(self.refuse_stale(token, "finish")),
            };
        }
        let operation = self.operation(&job.operation);
        let mut result = Self::parse_finish(finish, operation)?;
        if result.outcome == AttemptOutcome::Deferred && job.deferrals >= limits::DEFERRALS_MAX {
            result.outcome = AttemptOutcome::Failed;
        }
        let update = update.map(|update| self.check_update(update)).transpose()?;
        let token = job.token().unwrap_or(token);
        let completed = self.resolve_attempt(job, operation, result);
        let state = completed.job_state;
        if let Some(update) = update {
            let worker = job.attempts.last().map(|attempt| attempt.worker.clone());
            self.write_update(token, update, &worker.unwrap_or_else(|| "".into()));
        }
        self.end_tenure(token, None, &TenureEnd::Finished, Some(Box::new(completed)));
        self.promote_waiters();
        Ok(Outcome::Finished { state, already: false })
    }

    fn parse_finish(
        finish: &Finish,
        operation: Option<&Operation>,
    ) -> Result<AttemptResult, Refusal> {
        let plain = |outcome| AttemptResult {
            outcome,
            error: None,
            class: None,
            state: None,
            result: None,
            delay_ms: None,
        };
        match finish {
            Finish::Ok { state, result } => {
                check_end_state(state.as_ref(), operation)?;
                check_size("result", result.as_deref().unwrap_or(""), limits::RESULT_BYTES_MAX)?;
                let (state, result) = (state.clone(), result.clone());
                Ok(AttemptResult { state, result, ..plain(AttemptOutcome::Ok) })
            }
            Finish::Failed { code, message, class, state, delay_ms } => {
                check_end_state(state.as_ref(), operation)?;
                check_failure(code, message)?;
                check_delay(*delay_ms)?;
                let error = Some(Failure { code: code.clone(), message: message.clone() });
                let (class, state, delay_ms) = (*class, state.clone(), *delay_ms);
                Ok(AttemptResult { error, class, state, delay_ms, ..plain(AttemptOutcome::Failed) })
            }
            Finish::Deferred { delay_ms, code, message } => {
                check_failure(code, message)?;
                check_delay(Some(*delay_ms))?;
                let error = Some(Failure { code: code.clone(), message: message.clone() });
                let delay_ms = Some(*delay_ms);
                Ok(AttemptResult { error, delay_ms, ..plain(AttemptOutcome::Deferred) })
            }
            Finish::Cancelled => Ok(plain(AttemptOutcome::Cancelled)),
            Finish::HandBack => Ok(plain(AttemptOutcome::HandedBack)),
        }
    }

    /// Returns the outcome of an attempt whose tenure was lost.
    pub(crate) fn lost_attempt(
        &self,
        id: JobId,
        token: Token,
        how: &TenureEnd,
    ) -> Option<Box<CompletedAttempt>> {
        let job = self.record.job(id)?;
        let worker = job.attempts.last().map_or("", |attempt| &attempt.worker);
        let (code, message) = match how {
            _ if token.is_before(self.incarnation) => (
                LOCK_STATE_LOST,
                format!("the store was restored while {worker} worked; look at what it has done"),
            ),
            TenureEnd::Closed => (WORKER_CLOSED, format!("{worker} ended while it worked")),
            TenureEnd::Broken { by, reason } => {
                (LOCK_BROKEN, format!("{by} broke the lock: {reason}"))
            }
            TenureEnd::Expired | TenureEnd::Released | TenureEnd::Finished => {
                (WORKER_TIMEOUT, format!("{worker} stopped renewing its session"))
            }
        };
        let error = Some(Failure { code: code.into(), message: message.into() });
        let outcome = AttemptOutcome::Lost;
        let (class, state, result, delay_ms) = (None, None, None, None);
        let result = AttemptResult { outcome, error, class, state, result, delay_ms };
        Some(Box::new(self.resolve_attempt(job, self.operation(&job.operation), result)))
    }

    /// Drops what the worker's session no longer needs once an attempt has ended.
    pub(crate) fn update_worker_session(
        &mut self,
        completed: &CompletedAttempt,
        id: SessionId,
        token: Token,
    ) {
        let tenure = self.record.tenures.iter().find(|tenure| tenure.token == token);
        let request = tenure.map(|tenure| tenure.request);
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.clear_cancel_requests(self.key, token) {
            self.changes.sessions.push(id);
        }
        if let Some(request) = request.filter(|_| completed.outcome == AttemptOutcome::HandedBack) {
            session.forget_claim(request);
            self.changes.heartbeats.push(id);
        }
    }

    /// Decides the next state of the job and of the resource after an attempt.
    fn resolve_attempt(
        &self,
        job: &Job,
        operation: Option<&Operation>,
        result: AttemptResult,
    ) -> CompletedAttempt {
        let AttemptResult { outcome, error, class, state: chosen, result, delay_ms } = result;
        let default = Retry::default();
        let declared = self.kind().zip(operation);
        let retry = declared.map_or(&default, |(kind, operation)| kind.retry(self.key, operation));
        let end = |state: fn(&Operation) -> &Option<Text>| {
            chosen.clone().or_else(|| operation.and_then(|o| state(o).clone()))
        };
        let cancelling = job.state == JobState::Cancelling;
        let restored = error.as_ref().is_some_and(|error| *error.code == *LOCK_STATE_LOST);
        let mut due = None;
        let (job_state, resource_state) = match outcome {
            AttemptOutcome::Ok if cancelling && !planted(Canary::CompletionOverwritesCancel) => {
                (JobState::Cancelled, end(|o| &o.ok))
            }
            AttemptOutcome::Ok => (JobState::Succeeded, end(|o| &o.ok)),
            _ if cancelling => (JobState::Cancelled, cancelled_state(operation)),
            AttemptOutcome::Cancelled => (JobState::Cancelled, cancelled_state(operation)),
            AttemptOutcome::HandedBack => (JobState::Queued, None),
            AttemptOutcome::Deferred => {
                due = Some(self.now.plus(delay_ms.unwrap_or(0)));
                (JobState::Backoff, None)
            }
            // The retry rule is unknown until the kind is declared again.
            AttemptOutcome::Lost if operation.is_none() && !restored => (JobState::Queued, None),
            AttemptOutcome::Failed | AttemptOutcome::Lost => {
                let code = error.as_ref().map_or("", |error| &error.code);
                match retry.class(code, class) {
                    Class::Permanent => (JobState::Failed, end(|o| &o.failed)),
                    Class::Transient if job.attempt >= retry.attempts => {
                        (JobState::Dead, end(|o| &o.failed))
                    }
                    Class::Transient => {
                        let backoff_ms = || retry.backoff_ms(job.id, job.attempt);
                        due = Some(self.now.plus(delay_ms.unwrap_or_else(backoff_ms)));
                        (JobState::Backoff, None)
                    }
                }
            }
        };
        // Without a declared end state the resource returns to its state before the attempt.
        let changes_state = operation.is_none_or(|operation| operation.during.is_some());
        let resource_state =
            resource_state.or_else(|| job.state_before.clone().filter(|_| changes_state));
        let reconciles = |kind: &crate::kind::Kind| kind.reconcile.as_ref() == Some(&job.operation);
        let reconciled = outcome == AttemptOutcome::Ok && self.kind().is_some_and(reconciles);
        let observed = reconciled.then_some(job.generation);
        CompletedAttempt {
            id: job.id,
            outcome,
            job_state,
            due,
            error,
            result,
            resource_state,
            observed,
        }
    }

    /// Ends orphaned jobs (running without a tenure) and tenures whose job does not run. No step
    /// creates either. Returns the number of tenures that were ended.
    pub(crate) fn repair(&mut self) -> usize {
        let held = |token: Token| self.record.tenures.iter().any(|tenure| tenure.token == token);
        let orphaned = |job: &&Job| job.token().is_some_and(|token| !held(token));
        if let Some(job) = self.record.lane().iter().map(|job| &**job).find(orphaned) {
            let state = self.operation(&job.operation).and_then(|o| o.failed.clone());
            let state = state.or_else(|| job.state_before.clone());
            let message = "the job ran without a lock: the store was restored or damaged".into();
            let error = Failure { code: LOCK_STATE_LOST.into(), message };
            self.changes.metric_events.push(MetricEvent::AttemptEnded {
                key: self.key.clone(),
                operation: job.operation.clone(),
                outcome: AttemptOutcome::Lost,
                code: Some(error.code.clone()),
            });
            let event = Event::Incident { id: job.id, error, state };
            self.append_event(event);
            return self.repair();
        }
        let runs = |job: JobId, token: Token| {
            self.record.job(job).is_some_and(|job| job.token() == Some(token))
        };
        let orphaned =
            self.record.tenures.iter().find(|t| t.job.is_some_and(|job| !runs(job, t.token)));
        if let Some(token) = orphaned.map(|tenure| tenure.token) {
            let reason = "its job is not running: the store was restored or damaged".into();
            self.end_tenure(token, None, &TenureEnd::Broken { by: "tenure".into(), reason }, None);
            return 1 + self.repair();
        }
        0
    }

    /// Stores the progress that a worker reports.
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
        let job = self.running_job_mut(id, token, "progress")?;
        job.progress = Some(Progress { percent, message: message.clone(), at: now });
        let cancelling = job.state == JobState::Cancelling;
        self.changes.progressed.push(self.key.clone());
        Ok(Outcome::Noted { cancelling })
    }

    /// Appends to the log of the running attempt.
    pub(crate) fn log(&mut self, id: JobId, token: Token, text: &Text) -> Result<Outcome, Refusal> {
        if text.contains('\0') {
            // Programs may print NUL, and databases cannot store it in text.
            return self.log(id, token, &text.replace('\0', "?").into());
        }
        check_size("text", text, limits::LOG_CHUNK_BYTES_MAX)?;
        let at = self.now;
        let job = self.running_job_mut(id, token, "log")?;
        let (before, attempt) = (job.log_bytes, job.attempt);
        job.log_bytes += text.len() as u64;
        let cancelling = job.state == JobState::Cancelling;
        let full = job.log_bytes > limits::LOG_BYTES_MAX;
        let text =
            if full { "[the log is full: what follows is dropped]\n".into() } else { text.clone() };
        if before <= limits::LOG_BYTES_MAX {
            self.changes.logs.push(LogChunk { job: id, attempt, at, text });
            self.changes.progressed.push(self.key.clone());
        }
        Ok(Outcome::Noted { cancelling })
    }

    /// Refuses a write on behalf of a job unless its running attempt holds `token`.
    pub(crate) fn check_running(
        &mut self,
        id: JobId,
        token: Token,
        verb: &str,
    ) -> Result<(), Refusal> {
        let unchecked = verb == "status" && planted(Canary::StatusWithoutToken);
        let is_current = |job: &Job| job.token() == Some(token) || unchecked;
        if self.record.job(id).is_some_and(is_current) {
            return Ok(());
        }
        Err(self.refuse_stale(token, verb))
    }

    /// Returns the job whose running attempt holds `token`.
    fn running_job_mut(
        &mut self,
        id: JobId,
        token: Token,
        verb: &str,
    ) -> Result<&mut Job, Refusal> {
        self.check_running(id, token, verb)?;
        let job = self.record.resource.as_mut().and_then(|resource| resource.job_mut(id));
        Ok(job.expect("checked above"))
    }
}

fn check_delay(delay_ms: Option<u64>) -> Result<(), Refusal> {
    match delay_ms.filter(|delay_ms| *delay_ms > limits::DELAY_MS_MAX) {
        Some(got) => {
            let max = limits::DELAY_MS_MAX;
            Err(Refusal::Invalid(format!("delay_ms is {got}; it must be at most {max}")))
        }
        None => Ok(()),
    }
}

/// Returns the state of the job if its worker already finished the attempt that held `token`.
pub(crate) fn already_finished_state(job: &Job, token: Token) -> Option<JobState> {
    let has_token = |attempt: &&Attempt| attempt.token == token;
    let outcome = job.attempts.iter().find(has_token)?.outcome?;
    (outcome != AttemptOutcome::Lost).then_some(job.state)
}

fn cancelled_state(operation: Option<&Operation>) -> Option<Text> {
    let operation = operation?;
    operation.cancelled.clone().or_else(|| operation.failed.clone())
}

fn check_end_state(state: Option<&Text>, operation: Option<&Operation>) -> Result<(), Refusal> {
    let (Some(state), Some(operation)) = (state, operation) else { return Ok(()) };
    if operation.end_states().any(|end| end == state) {
        return Ok(());
    }
    let allowed: Vec<&str> = operation.end_states().map(|state| &**state).collect();
    let (name, allowed) = (&operation.name, allowed.join(", "));
    Err(Refusal::Invalid(format!(
        "{name} cannot end in the state {state}; it may end in {allowed}"
    )))
}

fn check_failure(code: &Text, message: &Text) -> Result<(), Refusal> {
    check_text("code", code, limits::CODE_BYTES_MAX)?;
    if code.is_empty() {
        return Err(Refusal::Invalid("the code of the failure is empty".to_owned()));
    }
    check_size("message", message, limits::MESSAGE_BYTES_MAX)
}
