//! One attempt, from the claim to the store's confirmation of what it came to.
//!
//! The handler runs in a task of its own, so its panic is a failure like any other. It is told when
//! to stop, and dropped when it does not. Nothing is reported before the handler has ended, because
//! the report lets the next one begin; what is reported is repeated until the store has answered.
//! After a loss nothing is reported at all.
//!
//! Next: `context.rs` for what the handler sees, `shift.rs` for where attempts come from.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::de::IgnoredAny;
use tenure_core::retry::{Class, TIME_LIMIT};
use tenure_core::{Code, Command, Finish, JobAction, JobState, Outcome, Refusal, limits};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tracing::Instrument as _;

use super::context::{Context, Halt};
use super::handler::{BAD_RESULT, Done, ERROR, Failure, Handler, PANIC};
use super::lines::at_most;
use crate::clock::{BootInstant, sleep_until};
use crate::error::Error;

/// First pause before a report that got no answer is sent again; it grows.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a dropped handler may take to come to its next `await` before somebody hears of it.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// What an attempt came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// The store knows; the job is in this state now.
    Reported(JobState),
    /// It was given back unfinished.
    HandedBack,
    /// Its tenure was lost.
    Lost,
}

/// How a handler ended; nothing when its future was dropped.
type Ended = Option<Result<Done, Failure>>;

/// Has a handler work on a job, and sees to it that the store hears what came of it.
pub(crate) async fn attend(
    job: Context,
    handler: Arc<dyn Handler>,
    grace: Duration,
    orders: watch::Receiver<bool>,
) -> Came {
    if job.check().is_err() {
        return lost(&job);
    }
    let mut telling = Box::pin(tell(&job));
    let ended = Watch::new(&job, handler, grace, orders).run(telling.as_mut()).await;
    job.outbox().close();
    tokio::select! {
        biased;
        _ = job.lost() => return lost(&job),
        () = telling => {}
    }
    report(&job, decide(&job, ended)).await
}

/// Gives a job back that was not begun.
pub(crate) async fn give_back(job: Context) -> Came {
    report(&job, Finish::HandBack).await
}

fn lost(job: &Context) -> Came {
    tracing::warn!(job = %job.id(), resource = %job.key(), token = %job.token(),
        "the tenure is lost: nothing is reported");
    job.settle();
    Came::Lost
}

/// Watches over a handler.
struct Watch<'a> {
    job: &'a Context,
    task: Task,
    /// The handler's future may not be dropped.
    winds_up: bool,
    grace: Duration,
    orders: watch::Receiver<bool>,
    seen: Seen,
    /// When the handler is dropped, or, once it is, when it should have ended.
    until: Option<BootInstant>,
    dropped: bool,
}

/// What need not be waited for any more.
#[derive(Default)]
struct Seen {
    lost: bool,
    cancelled: bool,
    limit: bool,
    shutdown: bool,
}

enum Event {
    Ended(Ended),
    Lost,
    Halt(Halt),
    Overdue,
}

impl<'a> Watch<'a> {
    fn new(
        job: &'a Context,
        handler: Arc<dyn Handler>,
        grace: Duration,
        orders: watch::Receiver<bool>,
    ) -> Self {
        let winds_up = handler.winds_up();
        let task = Task::start(handler, job.clone());
        let seen = Seen::default();
        Self { job, task, winds_up, grace, orders, seen, until: None, dropped: false }
    }

    async fn run(mut self, mut telling: Pin<&mut (impl Future<Output = ()> + Send)>) -> Ended {
        loop {
            let event = tokio::select! {
                biased;
                event = self.next() => event,
                // It says what there is to say, and never ends before the outbox is closed.
                () = telling.as_mut() => continue,
            };
            match event {
                Event::Ended(ended) => return ended,
                Event::Lost => self.lose(),
                Event::Halt(why) => self.halt(why),
                Event::Overdue => self.overdue(),
            }
        }
    }

    async fn next(&mut self) -> Event {
        let (job, seen) = (self.job, &self.seen);
        let (limit, until) = (job.deadline(), self.until);
        tokio::select! {
            biased;
            ended = &mut self.task.0 => Event::Ended(ended_how(ended)),
            _ = job.lost(), if !seen.lost => Event::Lost,
            () = job.cancel_asked(), if !seen.cancelled => Event::Halt(Halt::Cancelled),
            () = ordered(&mut self.orders), if !seen.shutdown => Event::Halt(Halt::Shutdown),
            () = at(limit), if limit.is_some() && !seen.limit => Event::Halt(Halt::TimeLimit),
            () = at(until), if until.is_some() => Event::Overdue,
        }
    }

    /// What is lost belongs to somebody else soon.
    fn lose(&mut self) {
        self.seen.lost = true;
        if !self.winds_up {
            self.abort();
        }
    }

    fn halt(&mut self, why: Halt) {
        match why {
            Halt::Cancelled => self.seen.cancelled = true,
            Halt::TimeLimit => self.seen.limit = true,
            Halt::Shutdown => self.seen.shutdown = true,
        }
        let told_before = self.job.is_cancelled();
        self.job.stop(why);
        if self.dropped || self.winds_up {
            return;
        }
        if told_before && why == Halt::TimeLimit {
            // It had its time to stop.
            self.abort();
        } else {
            self.until.get_or_insert_with(|| BootInstant::now() + self.grace);
        }
    }

    fn overdue(&mut self) {
        self.until = None;
        if self.dropped {
            tracing::error!(job = %self.job.id(), resource = %self.job.key(),
                "the handler blocks its thread and cannot be stopped; its job waits for it");
        } else {
            self.abort();
        }
    }

    fn abort(&mut self) {
        self.dropped = true;
        self.task.0.abort();
        self.until = Some(BootInstant::now() + STUCK_AFTER);
    }
}

/// The task of a handler; it does not outlive whoever watches over it.
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

/// Completes when the worker is told to stop its work, or is gone.
async fn ordered(orders: &mut watch::Receiver<bool>) {
    orders.wait_for(|stop| *stop).await.ok();
}

async fn at(instant: Option<BootInstant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

fn ended_how(ended: Result<Result<Done, Failure>, JoinError>) -> Ended {
    match ended {
        Ok(result) => Some(result),
        Err(error) if error.is_panic() => Some(Err(panicked(&*error.into_panic()))),
        Err(_) => None,
    }
}

/// Whoever knows better says so in the retry rule.
fn panicked(payload: &(dyn Any + Send)) -> Failure {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    Failure::transient(PANIC, text.unwrap_or("the handler panicked"))
}

/// What the store is told.
fn decide(job: &Context, ended: Ended) -> Finish {
    let failure = match ended {
        Some(Ok(Done { result: Some(result), .. })) if !is_json(&result) => {
            Some(Failure::permanent(BAD_RESULT, "the result is not a JSON document"))
        }
        Some(Ok(done)) => {
            let (state, result) = (done.state.map(Into::into), done.result.map(Into::into));
            return Finish::Ok { state, result };
        }
        Some(Err(failure)) => Some(failure),
        None => None,
    };
    match (job.halt(), failure) {
        (Some(Halt::Cancelled), _) => Finish::Cancelled,
        (Some(Halt::TimeLimit), failure) => {
            let mut late = Failure::new(TIME_LIMIT, Halt::TimeLimit);
            late.state = failure.and_then(|failure| failure.state);
            failed(job, &late)
        }
        // Dropped without a reason: the runtime is going away, and the worker with it.
        (Some(Halt::Shutdown), _) | (None, None) => Finish::HandBack,
        (None, Some(failure)) => failed(job, &failure),
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// A failure within the bounds of the store, and without what looks secret.
fn failed(job: &Context, failure: &Failure) -> Finish {
    let code = job.redact(&failure.code);
    let code: String = code.chars().filter(|c| !c.is_control()).collect();
    let code = if code.is_empty() { ERROR } else { at_most(&code, limits::CODE_BYTES_MAX) };
    let message = job.redact(&failure.message);
    Finish::Failed {
        code: code.into(),
        message: at_most(&message, limits::MESSAGE_BYTES_MAX).into(),
        class: failure.class,
        state: failure.state.as_deref().map(Into::into),
    }
}

/// Tells the store what the attempt came to, until it has answered or the tenure is lost.
async fn report(job: &Context, mut finish: Finish) -> Came {
    let mut pause = RETRY_PAUSE;
    loop {
        let action = JobAction::Finish { token: job.token(), finish: finish.clone() };
        let answer = tokio::select! {
            biased;
            _ = job.lost() => return lost(job),
            answer = ask(job, action) => answer,
        };
        match answer {
            Ok(Outcome::Finished { state, .. }) => {
                job.settle();
                let handed_back = finish == Finish::HandBack;
                return if handed_back { Came::HandedBack } else { Came::Reported(state) };
            }
            Err(error) if says_lost(&error) => {
                job.tell(false);
                return lost(job);
            }
            Err(Error::Refused(refusal)) if finish != Finish::HandBack => {
                tracing::error!(job = %job.id(), %refusal, "the store does not take the result");
                finish = instead(finish, &refusal);
                continue;
            }
            Ok(other) => tracing::error!(job = %job.id(), ?other, "this answers no finish"),
            Err(error) => tracing::warn!(job = %job.id(), %error, "cannot report, trying on"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_PAUSE_MAX);
    }
}

/// What is reported in place of something that the store does not take.
fn instead(finish: Finish, refusal: &Refusal) -> Finish {
    let why = refusal.to_string();
    let why = at_most(&why, limits::MESSAGE_BYTES_MAX).into();
    match finish {
        Finish::Ok { .. } => Finish::Failed {
            code: BAD_RESULT.into(),
            message: why,
            class: Some(Class::Permanent),
            state: None,
        },
        Finish::Failed { code, message, class, state: Some(_) } => {
            Finish::Failed { code, message, class, state: None }
        }
        Finish::Failed { .. } | Finish::Cancelled | Finish::HandBack => Finish::HandBack,
    }
}

/// Sends what is in the outbox until it is closed and empty.
async fn tell(job: &Context) {
    while let Some(action) = job.outbox().next(job.token()).await {
        note(job, action).await;
    }
}

/// Sends a note until the store has answered.
async fn note(job: &Context, action: JobAction) {
    let mut pause = RETRY_PAUSE;
    loop {
        match ask(job, action.clone()).await {
            Ok(Outcome::Noted { cancelling: true }) => return job.tell(true),
            Ok(_) => return,
            Err(error) if says_lost(&error) => {
                job.tell(false);
                // Whoever waits for the end of this also waits for the loss.
                return std::future::pending().await;
            }
            Err(Error::Refused(refusal)) => {
                tracing::warn!(job = %job.id(), %refusal, "the store does not take a note");
                return;
            }
            Err(error) => {
                tracing::debug!(job = %job.id(), %error, "cannot send a note, trying on");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY_PAUSE_MAX);
            }
        }
    }
}

async fn ask(job: &Context, action: JobAction) -> Result<Outcome, Error> {
    let command = Command::Job { id: job.id(), action };
    match job.session().shared().link.send(command, Duration::ZERO).await? {
        Outcome::Refused(refusal) => Err(Error::Refused(refusal)),
        outcome => Ok(outcome),
    }
}

/// Whether an answer means that the attempt is over without our doing.
fn says_lost(error: &Error) -> bool {
    let code = error.code();
    matches!(code, Some(Code::Lost | Code::NotFound)) || matches!(error, Error::NotFound(_))
}
