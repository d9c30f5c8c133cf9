//! What a handler knows and can do: the job, its tenure, and the ways to hear and to be heard.
//!
//! A context also owns the attempt: when the last one is dropped and nobody has said what the
//! attempt came to, the job is handed back, and the heartbeat repeats that until it has arrived. So
//! a job is never left running by a process that does not work on it any more.
//!
//! Next: `attempt.rs`, which makes one for each claim and says what the attempt came to.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tenure_core::{
    Assignment, Command, Finish, Job, JobAction, JobId, LockSet, ResourceKey, Text, Token,
};
use tokio::sync::watch;

use super::handler::{BAD_ARGS, Failure};
use super::lines::{SHOWN_BYTES_MAX, at_most, plain};
use super::outbox::Outbox;
use super::redact::{Redactor, Stream};
use crate::clock::BootInstant;
use crate::session::{Errand, Session};
use crate::tenure::{Hold, Lost};

/// Why the work should stop although the tenure is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// Somebody cancelled the job.
    Cancelled,
    /// The attempt took longer than it may.
    TimeLimit,
    /// The worker is going away, and the job is handed back.
    Shutdown,
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cancelled => "the job was cancelled",
            Self::TimeLimit => "the attempt took longer than it may",
            Self::Shutdown => "the worker is going away",
        })
    }
}

/// One attempt at a job, as its handler sees it; cheap to clone.
///
/// As long as a clone lives, the attempt counts as being worked on.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    hold: Hold,
    job: Box<Job>,
    spec: Option<Text>,
    locks: LockSet,
    attempts_max: u32,
    deadline: Option<BootInstant>,
    halt: watch::Sender<Option<Halt>>,
    outbox: Outbox,
    redactor: RwLock<Option<Redactor>>,
    stream: Mutex<Stream>,
    settled: AtomicBool,
}

impl Context {
    pub(crate) fn new(session: Session, assignment: Assignment) -> Self {
        let Assignment { tenure, job, spec, limit_ms, attempts_max } = assignment;
        // An answer that was lost and asked for again is older than it looks.
        let started = BootInstant::now() - Duration::from_millis(tenure.age_ms);
        Self(Arc::new(Inner {
            hold: Hold::new(session, tenure.key, tenure.token),
            job,
            spec,
            locks: tenure.locks,
            attempts_max,
            deadline: limit_ms.map(|limit| started + Duration::from_millis(limit)),
            halt: watch::Sender::new(None),
            outbox: Outbox::default(),
            redactor: RwLock::default(),
            stream: Mutex::default(),
            settled: AtomicBool::new(false),
        }))
    }

    /// The job, as it was when the attempt began.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.0.job
    }

    /// The id of the job.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.0.job.id
    }

    /// The verb.
    #[must_use]
    pub fn operation(&self) -> &str {
        &self.0.job.operation
    }

    /// The arguments as JSON; `null` when there are none.
    #[must_use]
    pub fn args_json(&self) -> &str {
        self.0.job.args.as_deref().unwrap_or("null")
    }

    /// The arguments.
    ///
    /// # Errors
    ///
    /// When they are not what was expected: a permanent failure with the code `BAD_ARGS`.
    pub fn args<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let bad = |error| Failure::permanent(BAD_ARGS, format!("cannot read the args: {error}"));
        serde_json::from_str(self.args_json()).map_err(bad)
    }

    /// The resource.
    #[must_use]
    pub fn key(&self) -> &ResourceKey {
        &self.0.hold.key
    }

    /// The locks that are held.
    #[must_use]
    pub fn locks(&self) -> &LockSet {
        &self.0.locks
    }

    /// The fencing number: give it to whatever you write to.
    #[must_use]
    pub fn token(&self) -> Token {
        self.0.hold.token
    }

    /// The number of this attempt, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.job.attempt
    }

    /// How many attempts the job has in all.
    #[must_use]
    pub fn attempts_max(&self) -> u32 {
        self.0.attempts_max
    }

    /// What the resource should be like, as JSON.
    #[must_use]
    pub fn spec(&self) -> Option<&str> {
        self.0.spec.as_deref()
    }

    /// When the attempt has taken as long as it may.
    #[must_use]
    pub fn deadline(&self) -> Option<BootInstant> {
        self.0.deadline
    }

    /// The session of the worker.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.0.hold.session
    }

    /// Says whether the tenure is held, to be asked right before each effect.
    pub fn check(&self) -> Result<(), Lost> {
        self.0.hold.check()
    }

    /// Waits until the tenure is lost. Never returns while it is held.
    pub async fn lost(&self) -> Lost {
        self.0.hold.lost().await
    }

    /// Waits until the work should stop: the job was cancelled, took too long, or its worker is
    /// going away. A handler that does not stop within a while is dropped.
    pub async fn cancelled(&self) -> Halt {
        let mut halt = self.0.halt.subscribe();
        let known = halt.wait_for(Option::is_some).await.map(|halt| *halt);
        known.ok().flatten().expect("the sender is in this very context")
    }

    /// Whether the work should stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.halt().is_some()
    }

    /// Why the work should stop, if it should.
    #[must_use]
    pub fn halt(&self) -> Option<Halt> {
        *self.0.halt.borrow()
    }

    /// Says how far the work has come. Costs nothing: the latest is sent now and then.
    pub fn progress(&self, percent: u8, message: &str) {
        self.0.outbox.progress(percent, &self.redact(message).replace(char::is_control, " "));
    }

    /// Writes to the log of the attempt, without what looks secret.
    pub fn log(&self, text: &str) {
        let mut stream = self.0.stream.lock().expect("cleaning a line does not panic");
        for line in text.lines() {
            self.log_line(&mut stream, "", &plain(line), false);
        }
    }

    /// Keeps so many bytes of the log for [`Context::mark`].
    pub fn reserve_marks(&self, bytes: u64) {
        self.0.outbox.reserve(bytes);
    }

    /// Writes a line to the log that has room there also when the log is full, as far as it was
    /// kept. For those who read the log as data: it is written as it is, so whoever writes it takes
    /// out what is secret.
    pub fn mark(&self, line: &str) {
        self.0.outbox.mark(&line.replace(char::is_control, " "));
    }

    /// From now on this is not seen in log, progress and failures, wherever it stands.
    pub fn keep_secret(&self, secret: &str) {
        let mut redactor = self.0.redactor.write().unwrap_or_else(PoisonError::into_inner);
        redactor.get_or_insert_with(|| self.new_redactor()).keep_secret(secret);
    }

    /// Writes a line that came from a source of its own, with a word before it that says which.
    ///
    /// Gives the line without its secrets, if anything of it may be seen at all.
    pub(crate) fn log_line(
        &self,
        stream: &mut Stream,
        label: &str,
        line: &str,
        cut: bool,
    ) -> Option<String> {
        let clean = self.with_redactor(|redactor| stream.clean(redactor, line))?;
        let shown = at_most(&clean, SHOWN_BYTES_MAX);
        if self.0.outbox.is_full() {
            // What is dropped need not be put together.
        } else if cut || shown.len() < clean.len() {
            self.0.outbox.log(&format!("{label}{shown} [the rest of this line was dropped]"));
        } else if label.is_empty() {
            self.0.outbox.log(shown);
        } else {
            self.0.outbox.log(&format!("{label}{shown}"));
        }
        Some(clean)
    }

    /// A text without what looks secret.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        self.with_redactor(|redactor| redactor.text(text))
    }

    fn with_redactor<T>(&self, mut clean: impl FnMut(&Redactor) -> T) -> T {
        {
            let redactor = self.0.redactor.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(redactor) = &*redactor {
                return clean(redactor);
            }
        }
        let mut redactor = self.0.redactor.write().unwrap_or_else(PoisonError::into_inner);
        clean(redactor.get_or_insert_with(|| self.new_redactor()))
    }

    fn new_redactor(&self) -> Redactor {
        Redactor::new(self.0.job.args.as_deref())
    }

    pub(crate) fn outbox(&self) -> &Outbox {
        &self.0.outbox
    }

    /// Waits until somebody cancels the job.
    pub(crate) async fn cancel_asked(&self) {
        self.0.hold.cancelled().await;
    }

    /// Tells the handler to stop; the first reason stays.
    pub(crate) fn stop(&self, why: Halt) {
        self.0.halt.send_if_modified(|halt| {
            let first = halt.is_none();
            halt.get_or_insert(why);
            first
        });
    }

    /// Tells everybody what the store has said: the tenure is over, or the job is cancelled.
    pub(crate) fn tell(&self, cancel: bool) {
        self.session().shared().tell(self.key(), self.token(), cancel);
    }

    /// The store knows what the attempt came to, or does not care any more.
    pub(crate) fn settle(&self) {
        self.0.settled.store(true, Ordering::Relaxed);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.settled.load(Ordering::Relaxed) && self.hold.check().is_ok() {
            let action = JobAction::Finish { token: self.hold.token, finish: Finish::HandBack };
            self.hold.session.deliver(Errand(Command::Job { id: self.job.id, action }));
        }
    }
}
