//! One attempt, from the claim to the store's confirmation of its result.
//!
//! The handler runs in its own task, so a panic is a failure like any other. It is asked to stop,
//! and dropped if it does not. Nothing is reported before the handler has ended, because the report
//! lets the next job begin; the report is retried until the store responds. After a loss nothing is
//! reported.
//!
//! See `context.rs` for what the handler sees, `worker_loop.rs` for where attempts come from.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::de::IgnoredAny;
use tenure_core::retry::{Class, TIME_LIMIT};
use tenure_core::{
    Code, Command, Finish, JobAction, JobState, Outcome, Refusal, StatusUpdate, limits,
};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tracing::Instrument as _;

use super::context::{CancelReason, Context};
use super::handler::{BAD_RESULT, Done, ERROR, Failure, Handler, PANIC};
use super::text::truncate;
use crate::clock::{BootInstant, sleep_until};
use crate::error::Error;
use crate::update::whole_millis;

/// Initial delay before a report that got no response is sent again; doubles with each failure.
const RETRY_BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Maximum delay before a report is sent again.
const RETRY_BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Time after which an aborted handler that has not reached its next `await` is logged as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// Result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptResult {
    /// The store has confirmed the result; the job is in this state.
    Reported(JobState),
    /// The job was handed back unfinished.
    HandedBack,
    /// The tenure was lost.
    Lost,
}

/// How a handler ended; `None` if its future was dropped.
type HandlerEnd = Option<Result<Done, Failure>>;

/// Runs a handler on a job and reports the result to the store.
pub(crate) async fn run_attempt(
    job: Context,
    handler: Arc<dyn Handler>,
    grace: Duration,
    stop_requested: watch::Receiver<bool>,
) -> AttemptResult {
    if job.check().is_err() {
        return settle_lost(&job);
    }
    let mut updates = Box::pin(send_updates(&job));
    let ended =
        HandlerMonitor::new(&job, handler, grace, stop_requested).run(updates.as_mut()).await;
    job.outbox().close();
    tokio::select! {
        biased;
        _ = job.lost() => return settle_lost(&job),
        () = updates => {}
    }
    let (finish, update) = choose_finish(&job, ended);
    report_finish(&job, finish, update).await
}

/// Hands back a job that was not started.
pub(crate) async fn hand_back(job: Context) -> AttemptResult {
    report_finish(&job, Finish::HandBack, None).await
}

fn settle_lost(job: &Context) -> AttemptResult {
    tracing::warn!(job = %job.id(), resource = %job.key(), token = %job.token(),
        "tenure lost; not reporting");
    job.settle();
    AttemptResult::Lost
}

/// Runs a handler and asks it to stop when necessary.
struct HandlerMonitor<'a> {
    job: &'a Context,
    task: Task,
    /// The handler's future must not be dropped.
    must_complete: bool,
    grace: Duration,
    stop_requested: watch::Receiver<bool>,
    handled: HandledEvents,
    /// When the handler will be aborted, or, once aborted, when it counts as stuck.
    until: Option<BootInstant>,
    aborted: bool,
}

/// Events that have already been handled.
#[derive(Default)]
struct HandledEvents {
    lost: bool,
    cancelled: bool,
    limit: bool,
    shutdown: bool,
}

enum Event {
    Ended(HandlerEnd),
    Lost,
    Stop(CancelReason),
    Overdue,
}

impl<'a> HandlerMonitor<'a> {
    fn new(
        job: &'a Context,
        handler: Arc<dyn Handler>,
        grace: Duration,
        stop_requested: watch::Receiver<bool>,
    ) -> Self {
        let must_complete = handler.must_complete();
        let task = Task::start(handler, job.clone());
        let handled = HandledEvents::default();
        Self {
            job,
            task,
            must_complete,
            grace,
            stop_requested,
            handled,
            until: None,
            aborted: false,
        }
    }

    async fn run(mut self, mut updates: Pin<&mut (impl Future<Output = ()> + Send)>) -> HandlerEnd {
        loop {
            let event = tokio::select! {
                biased;
                event = self.next() => event,
                // Sends updates meanwhile; never completes before the outbox is closed.
                () = updates.as_mut() => continue,
            };
            match event {
                Event::Ended(ended) => return ended,
                Event::Lost => self.on_lost(),
                Event::Stop(reason) => self.request_stop(reason),
                Event::Overdue => self.on_overdue(),
            }
        }
    }

    async fn next(&mut self) -> Event {
        let (job, handled) = (self.job, &self.handled);
        let (limit, until) = (job.deadline(), self.until);
        tokio::select! {
            biased;
            ended = &mut self.task.0 => Event::Ended(handler_end(ended)),
            _ = job.lost(), if !handled.lost => Event::Lost,
            () = job.cancel_requested(), if !handled.cancelled => {
                Event::Stop(CancelReason::JobCancelled)
            }
            () = wait_stop_requested(&mut self.stop_requested), if !handled.shutdown => {
                Event::Stop(CancelReason::Shutdown)
            }
            () = sleep_until_some(limit), if limit.is_some() && !handled.limit => {
                Event::Stop(CancelReason::TimeLimit)
            }
            () = sleep_until_some(until), if until.is_some() => Event::Overdue,
        }
    }

    /// Another worker may claim the job soon.
    fn on_lost(&mut self) {
        self.handled.lost = true;
        if !self.must_complete {
            self.abort();
        }
    }

    fn request_stop(&mut self, reason: CancelReason) {
        match reason {
            CancelReason::JobCancelled => self.handled.cancelled = true,
            CancelReason::TimeLimit => self.handled.limit = true,
            CancelReason::Shutdown => self.handled.shutdown = true,
        }
        let already_asked = self.job.is_cancelled();
        self.job.request_stop(reason);
        if self.aborted || self.must_complete {
            return;
        }
        if already_asked && reason == CancelReason::TimeLimit {
            // It was asked to stop before and had its grace period.
            self.abort();
        } else {
            self.until.get_or_insert_with(|| BootInstant::now() + self.grace);
        }
    }

    fn on_overdue(&mut self) {
        self.until = None;
        if self.aborted {
            tracing::error!(job = %self.job.id(), resource = %self.job.key(),
                "handler blocks its thread and cannot be aborted; waiting for it");
        } else {
            self.abort();
        }
    }

    fn abort(&mut self) {
        self.aborted = true;
        self.task.0.abort();
        self.until = Some(BootInstant::now() + STUCK_AFTER);
    }
}

/// Task of a handler; aborted when dropped.
struct Task(JoinHandle<Result<Done, Failure>>);

impl Task {
    fn start(handler: Arc<dyn Handler>, job: Context) -> Self {
        Self(tokio::spawn(async move { handler.run(&job).await }.in_current_span()))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Completes when the worker asks its handlers to stop, or is dropped.
async fn wait_stop_requested(stop_requested: &mut watch::Receiver<bool>) {
    stop_requested.wait_for(|stop| *stop).await.ok();
}

async fn sleep_until_some(instant: Option<BootInstant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

fn handler_end(ended: Result<Result<Done, Failure>, JoinError>) -> HandlerEnd {
    match ended {
        Ok(result) => Some(result),
        Err(error) if error.is_panic() => Some(Err(panic_failure(&*error.into_panic()))),
        Err(_) => None,
    }
}

/// A panic is transient unless the retry rule lists it as permanent.
fn panic_failure(payload: &(dyn Any + Send)) -> Failure {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    Failure::transient(PANIC, text.unwrap_or("the handler panicked"))
}

/// Decides what to report to the store.
type Finished = (Finish, Option<Box<StatusUpdate>>);

fn choose_finish(job: &Context, ended: HandlerEnd) -> Finished {
    let failure = match ended {
        Some(Ok(Done { result: Some(result), .. })) if !is_json(&result) => {
            Some(Failure::permanent(BAD_RESULT, "the result is not a JSON document"))
        }
        Some(Ok(done)) => {
            let (state, result) = (done.state.map(Into::into), done.result.map(Into::into));
            return (Finish::Ok { state, result }, done.update.to_model());
        }
        Some(Err(failure)) => Some(failure),
        None => None,
    };
    let update = failure.as_ref().and_then(|failure| failure.update.to_model());
    let finish = match (job.cancel_reason(), failure) {
        (Some(CancelReason::JobCancelled), _) => Finish::Cancelled,
        (Some(CancelReason::TimeLimit), failure) => {
            let mut exceeded = Failure::new(TIME_LIMIT, CancelReason::TimeLimit);
            exceeded.state = failure.and_then(|failure| failure.state);
            failed_finish(job, &exceeded)
        }
        // Dropped without a stop request: the runtime is shutting down, and the worker with it.
        (Some(CancelReason::Shutdown), _) | (None, None) => Finish::HandBack,
        (None, Some(failure)) => failed_finish(job, &failure),
    };
    (finish, update)
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Truncates a failure to the store's limits and redacts secrets.
fn failed_finish(job: &Context, failure: &Failure) -> Finish {
    let code = job.redact(&failure.code);
    let code: String = code.chars().filter(|c| !c.is_control()).collect();
    let code = if code.is_empty() { ERROR } else { truncate(&code, limits::CODE_BYTES_MAX) };
    let message = job.redact(&failure.message);
    let (code, message) = (code.into(), truncate(&message, limits::MESSAGE_BYTES_MAX).into());
    let delay_ms = failure.delay.map(|delay| whole_millis(delay).min(limits::DELAY_MS_MAX));
    if failure.deferred {
        return Finish::Deferred { delay_ms: delay_ms.unwrap_or(0), code, message };
    }
    let state = failure.state.as_deref().map(Into::into);
    Finish::Failed { code, message, class: failure.class, state, delay_ms }
}

/// Reports the end of the attempt until the store responds or the tenure is lost.
async fn report_finish(
    job: &Context,
    mut finish: Finish,
    mut update: Option<Box<StatusUpdate>>,
) -> AttemptResult {
    let mut backoff = RETRY_BACKOFF_MIN;
    loop {
        let (token, finish_now) = (job.token(), finish.clone());
        let action = JobAction::Finish { token, finish: finish_now, update: update.clone() };
        let response = tokio::select! {
            biased;
            _ = job.lost() => return settle_lost(job),
            response = send_action(job, action) => response,
        };
        match response {
            Ok(Outcome::Finished { state, .. }) => {
                job.settle();
                let handed_back = finish == Finish::HandBack;
                return if handed_back {
                    AttemptResult::HandedBack
                } else {
                    AttemptResult::Reported(state)
                };
            }
            Err(error) if ends_attempt(&error) => {
                job.signal(false);
                return settle_lost(job);
            }
            Err(Error::Refused(refusal)) if finish != Finish::HandBack || update.is_some() => {
                tracing::error!(job = %job.id(), %refusal, "the store refused the result");
                let has_update = update.take().is_some();
                // A failure is reported without the update that may be the cause.
                if !has_update || matches!(finish, Finish::Ok { .. }) {
                    finish = fallback_finish(finish, &refusal);
                }
                continue;
            }
            Ok(other) => tracing::error!(job = %job.id(), ?other, "unexpected response to finish"),
            Err(error) => {
                tracing::warn!(job = %job.id(), %error, "cannot report the result; retrying");
            }
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(RETRY_BACKOFF_MAX);
    }
}

/// Returns what to report instead of a result that the store refused.
fn fallback_finish(finish: Finish, refusal: &Refusal) -> Finish {
    let message = refusal.to_string();
    let message = truncate(&message, limits::MESSAGE_BYTES_MAX).into();
    match finish {
        Finish::Ok { .. } => Finish::Failed {
            code: BAD_RESULT.into(),
            message,
            class: Some(Class::Permanent),
            state: None,
            delay_ms: None,
        },
        Finish::Failed { code, message, class, state: Some(_), delay_ms } => {
            Finish::Failed { code, message, class, state: None, delay_ms }
        }
        Finish::Failed { .. } | Finish::Deferred { .. } | Finish::Cancelled | Finish::HandBack => {
            Finish::HandBack
        }
    }
}

/// Sends the updates in the outbox until it is closed and empty.
async fn send_updates(job: &Context) {
    while let Some(action) = job.outbox().next(job.token()).await {
        send_update(job, action).await;
    }
}

/// Sends one update until the store responds.
async fn send_update(job: &Context, action: JobAction) {
    let mut backoff = RETRY_BACKOFF_MIN;
    loop {
        match send_action(job, action.clone()).await {
            Ok(Outcome::Noted { cancelling: true }) => return job.signal(true),
            Ok(_) => return,
            Err(error) if ends_attempt(&error) => {
                job.signal(false);
                // The caller also waits for the loss.
                return std::future::pending().await;
            }
            Err(Error::Refused(refusal)) => {
                tracing::warn!(job = %job.id(), %refusal, "the store refused an update");
                if matches!(action, JobAction::Status { .. }) {
                    job.log(&format!("[an update of the status was refused: {refusal}]"));
                }
                return;
            }
            Err(error) => {
                tracing::debug!(job = %job.id(), %error, "cannot send an update; retrying");
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(RETRY_BACKOFF_MAX);
            }
        }
    }
}

pub(super) async fn send_action(job: &Context, action: JobAction) -> Result<Outcome, Error> {
    let command = Command::Job { id: job.id(), action };
    match job.session().shared().transport.send(command, Duration::ZERO).await? {
        Outcome::Refused(refusal) => Err(Error::Refused(refusal)),
        outcome => Ok(outcome),
    }
}

/// Returns whether an error means that the attempt was ended by someone else.
pub(super) fn ends_attempt(error: &Error) -> bool {
    let code = error.code();
    matches!(code, Some(Code::Lost | Code::NotFound)) || matches!(error, Error::NotFound(_))
}
