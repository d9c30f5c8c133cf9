//! The context of an attempt: the job, its tenure, and the means to observe cancellation and report
//! progress.
//!
//! A context also owns the attempt: when the last clone is dropped before the attempt was settled,
//! the job is handed back, and the heartbeat thread retries that until it is confirmed. So a job is
//! never left in `running` by a process that no longer works on it.
//!
//! See `attempt.rs`, which creates one for each claimed job and reports its result.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tenure_core::{
    Assignment, Command, Finish, Job, JobAction, JobId, LockSet, Outcome, Refusal, ResourceKey,
    Text, Token,
};
use tokio::sync::watch;

use super::attempt::{ends_attempt, send_action};
use super::handler::{BAD_ARGS, Failure};
use super::outbox::Outbox;
use super::redact::{Redactor, StreamState};
use super::text::{LOGGED_BYTES_MAX, strip_control, truncate};
use crate::clock::BootInstant;
use crate::error::Error;
use crate::session::{CleanupCommand, Session};
use crate::tenure::{Lost, TrackedTenure};
use crate::transport::RETRY_DELAY;
use crate::update::Update;

/// Reason why the work should stop although the tenure is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelReason {
    /// The job was cancelled.
    JobCancelled,
    /// The attempt exceeded its time limit.
    TimeLimit,
    /// The worker is shutting down; the job is handed back.
    Shutdown,
}

impl fmt::Display for CancelReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::JobCancelled => "the job was cancelled",
            Self::TimeLimit => "the attempt exceeded its time limit",
            Self::Shutdown => "the worker is shutting down",
        })
    }
}

/// One attempt at a job, as seen by its handler.
///
/// Cloning is cheap. The attempt counts as being worked on while a clone is alive.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    tenure: TrackedTenure,
    job: Box<Job>,
    spec: Option<Text>,
    status: Option<Text>,
    locks: LockSet,
    attempts_max: u32,
    deadline: Option<BootInstant>,
    stop_requests: watch::Sender<StopRequests>,
    outbox: Outbox,
    redactor: RwLock<Option<Redactor>>,
    stream: Mutex<StreamState>,
    settled: AtomicBool,
}

/// Why the handler was asked to stop.
#[derive(Clone, Copy, Debug, Default)]
struct StopRequests {
    first: Option<CancelReason>,
    shutdown: bool,
}

impl Context {
    pub(crate) fn new(session: Session, assignment: Assignment) -> Self {
        let Assignment { tenure, job, spec, status, limit_ms, attempts_max } = assignment;
        // The response may be a repeated one, so the tenure may be older than this moment.
        let started = BootInstant::now() - Duration::from_millis(tenure.age_ms);
        Self(Arc::new(Inner {
            tenure: TrackedTenure::new(session, tenure.key, tenure.token),
            job,
            spec,
            status,
            locks: tenure.locks,
            attempts_max,
            deadline: limit_ms.map(|limit| started + Duration::from_millis(limit)),
            stop_requests: watch::Sender::default(),
            outbox: Outbox::default(),
            redactor: RwLock::default(),
            stream: Mutex::default(),
            settled: AtomicBool::new(false),
        }))
    }

    /// Returns the job as it was when the attempt began.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.0.job
    }

    /// Returns the id of the job.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.0.job.id
    }

    /// Returns the name of the operation.
    #[must_use]
    pub fn operation(&self) -> &str {
        &self.0.job.operation
    }

    /// Returns the arguments as JSON; `null` if there are none.
    #[must_use]
    pub fn args_json(&self) -> &str {
        self.0.job.args.as_deref().unwrap_or("null")
    }

    /// Deserializes the arguments.
    ///
    /// # Errors
    ///
    /// Fails with a permanent failure with the code `BAD_ARGS` if the arguments do not match `T`.
    pub fn args<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let bad_args =
            |error| Failure::permanent(BAD_ARGS, format!("cannot deserialize the args: {error}"));
        serde_json::from_str(self.args_json()).map_err(bad_args)
    }

    /// Returns the key of the resource.
    #[must_use]
    pub fn key(&self) -> &ResourceKey {
        &self.0.tenure.key
    }

    /// Returns the locks that the attempt holds.
    #[must_use]
    pub fn locks(&self) -> &LockSet {
        &self.0.locks
    }

    /// Returns the fencing token. Pass it to every system that is written to by the attempt.
    #[must_use]
    pub fn token(&self) -> Token {
        self.0.tenure.token
    }

    /// Returns the number of this attempt, starting at 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.job.attempt
    }

    /// Returns the maximum number of attempts of the job.
    #[must_use]
    pub fn attempts_max(&self) -> u32 {
        self.0.attempts_max
    }

    /// Returns the desired state of the resource (`spec`) as JSON.
    #[must_use]
    pub fn spec(&self) -> Option<&str> {
        self.0.spec.as_deref()
    }

    /// Returns the status of the resource as JSON, as it was when the attempt began.
    #[must_use]
    pub fn status(&self) -> Option<&str> {
        self.0.status.as_deref()
    }

    /// Writes status and timers of the resource with the token of the attempt. Retries while the
    /// server is unavailable.
    ///
    /// # Errors
    ///
    /// Fails if the tenure is lost: then nothing is written. Fails if the update is refused, for
    /// example because the status would be too large.
    pub async fn update(&self, update: Update) -> Result<(), Error> {
        let Some(update) = update.to_model() else { return Ok(()) };
        loop {
            let action = JobAction::Status { token: self.token(), update: update.clone() };
            let result = tokio::select! {
                biased;
                _ = self.lost() => {
                    let (how, current) = (None, None);
                    let lost = Refusal::Lost { token: self.token(), how, current };
                    return Err(Error::Refused(lost));
                }
                result = send_action(self, action) => result,
            };
            match result {
                Ok(Outcome::Noted { cancelling }) => {
                    if cancelling {
                        self.signal(true);
                    }
                    return Ok(());
                }
                Ok(other) => return Err(Error::from_outcome("update", other)),
                Err(error) if error.is_unavailable() => {
                    tracing::warn!(job = %self.id(), %error, "cannot write the status; retrying");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(error) => {
                    if ends_attempt(&error) {
                        self.signal(false);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Returns the instant at which the time limit of the attempt is exceeded.
    #[must_use]
    pub fn deadline(&self) -> Option<BootInstant> {
        self.0.deadline
    }

    /// Returns the session of the worker.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.0.tenure.session
    }

    /// Returns an error if the tenure is lost.
    ///
    /// Call it right before each effect that is not protected by the token.
    pub fn check(&self) -> Result<(), Lost> {
        self.0.tenure.check()
    }

    /// Completes when the tenure is lost, never before.
    pub async fn lost(&self) -> Lost {
        self.0.tenure.lost().await
    }

    /// Completes when the work should stop: the job was cancelled, exceeded its time limit, or its
    /// worker is shutting down. A handler that does not stop within the grace period is dropped.
    pub async fn cancelled(&self) -> CancelReason {
        let mut requests = self.0.stop_requests.subscribe();
        let observed = requests.wait_for(|requests| requests.first.is_some()).await;
        let first = observed.ok().and_then(|requests| requests.first);
        first.expect("the sender lives as long as this context")
    }

    /// Completes when the worker is shutting down, also if the job was cancelled before.
    #[cfg(feature = "exec")]
    pub(crate) async fn shutdown_requested(&self) {
        let mut requests = self.0.stop_requests.subscribe();
        // The sender lives as long as this context.
        requests.wait_for(|requests| requests.shutdown).await.ok();
    }

    /// Returns whether the work should stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancel_reason().is_some()
    }

    /// Returns why the work should stop, if it should.
    #[must_use]
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.0.stop_requests.borrow().first
    }

    /// Reports the progress of the work. Does not block: only the latest value is sent, at a
    /// limited rate.
    pub fn progress(&self, percent: u8, message: &str) {
        self.0.outbox.progress(percent, &self.redact(message).replace(char::is_control, " "));
    }

    /// Appends to the log of the attempt, with secrets redacted.
    pub fn log(&self, text: &str) {
        let mut stream = self.0.stream.lock().expect("redacting a line does not panic");
        for line in text.lines() {
            self.log_line(&mut stream, "", &strip_control(line), false);
        }
    }

    /// Reserves `bytes` of the log for [`Context::log_reserved`].
    pub fn reserve_log(&self, bytes: u64) {
        self.0.outbox.reserve(bytes);
    }

    /// Appends a line to the reserved part of the log, which also has capacity when the log is
    /// full.
    ///
    /// For lines that programs parse: the line is written verbatim, so the caller must redact
    /// secrets.
    pub fn log_reserved(&self, line: &str) {
        self.0.outbox.log_reserved(&line.replace(char::is_control, " "));
    }

    /// Redacts `secret` in the log, in progress messages and in failures from now on.
    pub fn add_secret(&self, secret: &str) {
        let mut redactor = self.0.redactor.write().unwrap_or_else(PoisonError::into_inner);
        redactor.get_or_insert_with(|| self.new_redactor()).add_secret(secret);
    }

    /// Appends a line of another source, prefixed with `label`.
    ///
    /// Returns the redacted line, or `None` if all of it is redacted.
    pub(crate) fn log_line(
        &self,
        stream: &mut StreamState,
        label: &str,
        line: &str,
        truncated: bool,
    ) -> Option<String> {
        let redacted = self.with_redactor(|redactor| stream.redact_line(redactor, line))?;
        let logged = truncate(&redacted, LOGGED_BYTES_MAX);
        if self.0.outbox.is_full() {
            // The line would be dropped anyway.
        } else if truncated || logged.len() < redacted.len() {
            self.0.outbox.log(&format!("{label}{logged} [line truncated]"));
        } else if label.is_empty() {
            self.0.outbox.log(logged);
        } else {
            self.0.outbox.log(&format!("{label}{logged}"));
        }
        Some(redacted)
    }

    /// Returns `text` with secrets redacted.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        self.with_redactor(|redactor| redactor.redact(text))
    }

    fn with_redactor<T>(&self, mut redact: impl FnMut(&Redactor) -> T) -> T {
        {
            let redactor = self.0.redactor.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(redactor) = &*redactor {
                return redact(redactor);
            }
        }
        let mut redactor = self.0.redactor.write().unwrap_or_else(PoisonError::into_inner);
        redact(redactor.get_or_insert_with(|| self.new_redactor()))
    }

    fn new_redactor(&self) -> Redactor {
        Redactor::new(self.0.job.args.as_deref())
    }

    pub(crate) fn outbox(&self) -> &Outbox {
        &self.0.outbox
    }

    /// Completes when the job is cancelled.
    pub(crate) async fn cancel_requested(&self) {
        self.0.tenure.cancelled().await;
    }

    /// Asks the handler to stop; the first reason wins.
    pub(crate) fn request_stop(&self, reason: CancelReason) {
        self.0.stop_requests.send_modify(|requests| {
            requests.first.get_or_insert(reason);
            requests.shutdown |= reason == CancelReason::Shutdown;
        });
    }

    /// Signals what the store has responded: the tenure is lost, or the job was cancelled.
    pub(crate) fn signal(&self, cancel: bool) {
        self.session().shared().signal_tenure(self.key(), self.token(), cancel);
    }

    /// Marks the attempt as settled: the store knows its result, or no longer needs it.
    pub(crate) fn settle(&self) {
        self.0.settled.store(true, Ordering::Relaxed);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.settled.load(Ordering::Relaxed) && self.tenure.check().is_ok() {
            let action = JobAction::Finish {
                token: self.tenure.token,
                finish: Finish::HandBack,
                update: None,
            };
            self.tenure
                .session
                .enqueue_cleanup(CleanupCommand(Command::Job { id: self.job.id, action }));
        }
    }
}
