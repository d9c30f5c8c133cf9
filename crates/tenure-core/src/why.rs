//! Explains the state of a job or a resource: "what is it waiting for?".
//!
//! Whether a job may start is decided by [`crate::lane`]; this module only words the answer.

use std::fmt;
use std::sync::Arc;

use crate::id::JobId;
use crate::job::{Failure, Job, JobState, Progress, RequestedBy};
use crate::key::{LockName, Text};
use crate::kind::{Kind, Operation};
use crate::lane::Blocker;
use crate::limits;
use crate::outcome::TenureView;
use crate::record::Record;
use crate::resource::Resource;
use crate::time::Millis;
use crate::token::Token;

/// What an explanation needs besides the record.
#[derive(Clone, Debug, Default)]
pub struct EngineContext {
    /// Declaration of the resource's kind, if it has one.
    pub kind: Option<Arc<Kind>>,
    /// Current tenures of the resource.
    pub tenures: Vec<TenureView>,
    /// Number of live workers that claim this kind.
    pub workers: usize,
    /// Number of running jobs of this kind, over all tenants and of this tenant.
    pub running: (usize, usize),
    /// Store time.
    pub now: Millis,
}

/// Why a job is in its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// An attempt is running.
    Running {
        /// Display name of the worker.
        worker: Text,
        /// Time since it started.
        for_ms: u64,
        /// Token of the attempt's tenure.
        token: Token,
        /// Reported progress.
        progress: Option<Progress>,
        /// Cancel request.
        cancel: Option<RequestedBy>,
    },
    /// The resource is paused.
    Paused(RequestedBy),
    /// The kind or the operation is not declared.
    NotDeclared,
    /// In backoff after a failed attempt.
    Backoff {
        /// Time until the next attempt.
        for_ms: u64,
        /// Number of attempts so far.
        attempt: u32,
        /// Error of the latest attempt.
        error: Option<Failure>,
    },
    /// Its latest attempt was deferred by its worker.
    Deferred {
        /// Time until the next attempt.
        for_ms: u64,
        /// Number of consecutive attempts that were deferred.
        deferrals: u32,
        /// Reason of the latest deferral.
        error: Option<Failure>,
    },
    /// Scheduled for later.
    Scheduled {
        /// Time until it is due.
        for_ms: u64,
    },
    /// The state of the resource does not allow it.
    State {
        /// Current state.
        state: Text,
        /// States it may start from.
        from: Vec<Text>,
    },
    /// Another job is ahead.
    Behind {
        /// The other job.
        job: JobId,
        /// Its operation.
        operation: Text,
        /// Its state.
        state: JobState,
        /// Display name of its worker, if it is running.
        worker: Option<Text>,
        /// Time since it started or, if it waits, since it was submitted.
        for_ms: u64,
    },
    /// A lock that it needs is held, and not by a job.
    Held(Box<TenureView>),
    /// The kind is at its concurrency cap.
    AtCap {
        /// Number of running jobs.
        running: usize,
        /// Cap.
        max: usize,
        /// Whether it is the cap per tenant.
        of_tenant: bool,
    },
    /// It could start, but no worker claims its kind.
    NoWorker,
    /// It could start: the next worker with a free slot takes it.
    Ready {
        /// Number of workers that claim its kind.
        workers: usize,
    },
    /// It is finished.
    Finished {
        /// Final state.
        state: JobState,
        /// Error, if it failed.
        error: Option<Failure>,
    },
    /// The resource has no unfinished job, and its last one is a dead letter or failed permanently.
    LastFailed {
        /// The job.
        job: JobId,
        /// Whether it is a dead letter.
        is_dead: bool,
        /// Its operation.
        operation: Text,
        /// Time since its last attempt ended.
        for_ms: u64,
        /// Error of its last attempt.
        error: Option<Failure>,
    },
    /// The resource has no unfinished job; a timer will submit one.
    Timer {
        /// Operation that is submitted.
        operation: Text,
        /// Time until then.
        for_ms: u64,
        /// Why the submit was refused, if it was: it is repeated every minute.
        error: Option<Failure>,
    },
    /// The resource has no unfinished job.
    Idle,
}

impl Why {
    /// Returns the machine-readable name.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Running { cancel: None, .. } => "running",
            Self::Running { .. } => "cancelling",
            Self::Paused(_) => "paused",
            Self::NotDeclared => "not_declared",
            Self::Backoff { .. } => "backoff",
            Self::Deferred { .. } => "deferred",
            Self::Scheduled { .. } => "scheduled",
            Self::State { .. } => "state",
            Self::Behind { .. } => "behind",
            Self::Held(_) => "held",
            Self::AtCap { .. } => "at_cap",
            Self::NoWorker => "no_worker",
            Self::Ready { .. } => "ready",
            Self::Finished { state, .. } => state.as_str(),
            Self::LastFailed { is_dead: true, .. } => JobState::Dead.as_str(),
            Self::LastFailed { is_dead: false, .. } => JobState::Failed.as_str(),
            Self::Timer { .. } => "timer",
            Self::Idle => "idle",
        }
    }
}

/// Explains an unfinished job.
#[must_use]
pub fn explain_job(record: &Record, id: JobId, context: &EngineContext) -> Why {
    let (Some(resource), Some(job)) = (&record.resource, record.job(id)) else { return Why::Idle };
    if let Some(running) = explain_running(job, context) {
        return running;
    }
    if let Some(requested) = &resource.paused {
        return Why::Paused(requested.clone());
    }
    let Some(kind) = context.kind.as_deref() else { return Why::NotDeclared };
    let Some(operation) = kind.operations.get(&job.operation) else { return Why::NotDeclared };
    let Err(blocker) = record.startability(kind, id, context.now) else {
        return explain_startable(kind, context);
    };
    // A running job with the same locks explains both a held lock and the state of the resource.
    if let Some(running) = running_job_in_the_way(resource, kind, operation) {
        return behind(running, context);
    }
    match blocker {
        Blocker::Paused | Blocker::NotDeclared => Why::NotDeclared,
        Blocker::NotDue(due) => explain_not_due(job, due.since(context.now)),
        Blocker::State => {
            Why::State { state: resource.state.clone(), from: operation.from.clone() }
        }
        Blocker::Behind(other) => {
            record.job(other).map_or(Why::NotDeclared, |other| behind(other, context))
        }
        Blocker::Locks => explain_held(record, operation, context),
    }
}

/// Explains the running job of a resource or, if none runs, the first in its lane. Returns the job,
/// if any.
#[must_use]
pub fn explain_resource(record: &Record, context: &EngineContext) -> (Option<JobId>, Why) {
    let running = record.lane().iter().find(|job| job.state.is_running());
    let Some(job) = running.or_else(|| record.lane().front()) else {
        let paused = record.resource.as_ref().and_then(|resource| resource.paused.clone());
        if let Some(requested) = paused {
            return (None, Why::Paused(requested));
        }
        let held = context.tenures.first().map(|tenure| Why::Held(Box::new(tenure.clone())));
        return (None, held.unwrap_or(Why::Idle));
    };
    (Some(job.id), explain_job(record, job.id, context))
}

/// Explains a resource without unfinished jobs by its last job, and returns that job if it needs
/// the attention of an operator; otherwise by its next timer.
#[must_use]
pub fn explain_idle(record: &Record, last: Option<&Job>, now: Millis) -> (Option<JobId>, Why) {
    let needs_attention = |job: &&Job| matches!(job.state, JobState::Dead | JobState::Failed);
    let Some(job) = last.filter(needs_attention) else {
        let timers = record.resource.iter().flat_map(|resource| &resource.timers);
        let next = timers.min_by_key(|timer| timer.next_check(now));
        let why = next.map(|timer| Why::Timer {
            operation: timer.operation.clone(),
            for_ms: timer.next_check(now).since(now),
            error: timer.refused.as_ref().map(|(error, _)| error.clone()),
        });
        return (None, why.unwrap_or(Why::Idle));
    };
    let why = Why::LastFailed {
        job: job.id,
        is_dead: job.state == JobState::Dead,
        operation: job.operation.clone(),
        for_ms: now.since(job.ended_at.unwrap_or(job.submitted_at)),
        error: job.error.clone(),
    };
    (Some(job.id), why)
}

/// Explains a finished job.
#[must_use]
pub fn explain_finished_job(job: &Job) -> Why {
    Why::Finished { state: job.state, error: job.error.clone() }
}

fn explain_running(job: &Job, context: &EngineContext) -> Option<Why> {
    let token = job.token()?;
    let attempt = job.attempts.last()?;
    Some(Why::Running {
        worker: attempt.worker.clone(),
        for_ms: context.now.since(attempt.started_at),
        token,
        progress: job.progress.clone(),
        cancel: job.cancel.clone(),
    })
}

/// Returns a running job that needs one of the operation's locks.
fn running_job_in_the_way<'a>(
    resource: &'a Resource,
    kind: &Kind,
    operation: &Operation,
) -> Option<&'a Job> {
    let shares_lock = |job: &&Job| {
        let needed = kind.operations.get(&job.operation);
        let mut locks = needed.iter().flat_map(|needed| needed.locks.iter());
        locks.any(|lock| operation.locks.contains(lock))
    };
    let running = resource.lane.iter().map(|job| &**job).filter(|job| job.state.is_running());
    running.into_iter().find(shares_lock)
}

fn behind(other: &Job, context: &EngineContext) -> Why {
    let attempt = other.attempts.last().filter(|_| other.state.is_running());
    Why::Behind {
        job: other.id,
        operation: other.operation.clone(),
        state: other.state,
        worker: attempt.map(|attempt| attempt.worker.clone()),
        for_ms: context.now.since(attempt.map_or(other.submitted_at, |attempt| attempt.started_at)),
    }
}

fn explain_not_due(job: &Job, for_ms: u64) -> Why {
    let error = job.error.clone();
    match job.state {
        JobState::Backoff if job.deferrals > 0 => {
            Why::Deferred { for_ms, deferrals: job.deferrals, error }
        }
        JobState::Backoff => Why::Backoff { for_ms, attempt: job.attempt, error },
        _ => Why::Scheduled { for_ms },
    }
}

fn explain_held(record: &Record, operation: &Operation, context: &EngineContext) -> Why {
    let holder = |lock: &LockName| record.tenure(lock).map(|tenure| tenure.token);
    let token = operation.locks.iter().find_map(holder);
    let view = context.tenures.iter().find(|view| Some(view.token) == token);
    // Without a holder its locks are reserved for a request in the wait queue, which waits for a
    // tenure of other locks.
    let view = view.or(context.tenures.first());
    view.map_or(Why::Ready { workers: context.workers }, |view| Why::Held(Box::new(view.clone())))
}

fn explain_startable(kind: &Kind, context: &EngineContext) -> Why {
    let (all, tenant) = context.running;
    for (running, max, of_tenant) in
        [(all, kind.running_max, false), (tenant, kind.tenant_running_max, true)]
    {
        if let Some(max) = max.filter(|max| running >= *max) {
            return Why::AtCap { running, max, of_tenant };
        }
    }
    match context.workers {
        0 => Why::NoWorker,
        workers => Why::Ready { workers },
    }
}

impl Why {
    fn write_deferred(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Deferred { for_ms, deferrals, error } = self else { return Ok(()) };
        write!(f, "deferred by its worker for {}, ", HumanDuration(*for_ms))?;
        write!(f, "{deferrals} of at most {} times in a row", limits::DEFERRALS_MAX)?;
        match error {
            Some(error) => write!(f, ": {} {}", error.code, error.message),
            None => Ok(()),
        }
    }

    fn write_timer(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Timer { operation, for_ms, error } = self else { return Ok(()) };
        write!(f, "idle: a timer submits {operation} in {}", HumanDuration(*for_ms))?;
        match error {
            Some(error) => write!(f, "; it was refused: {}", error.message),
            None => Ok(()),
        }
    }

    fn write_running(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Running { worker, for_ms, progress, cancel, .. } = self else { return Ok(()) };
        write!(f, "running on {worker} for {}", HumanDuration(*for_ms))?;
        if let Some(Progress { percent, message, .. }) = progress {
            write!(f, ", at {percent} %")?;
            if !message.is_empty() {
                write!(f, ": {message}")?;
            }
        }
        match cancel {
            Some(requested) => write!(f, "; asked to stop by {}", requested.by),
            None => Ok(()),
        }
    }
}

impl Why {
    fn write_last_failed(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::LastFailed { job, is_dead, operation, for_ms, error } = self else {
            return Ok(());
        };
        let age = HumanDuration(*for_ms);
        match is_dead {
            true => write!(f, "{operation} (job {job}) has been a dead letter for {age}")?,
            false => write!(f, "{operation} (job {job}) failed permanently {age} ago")?,
        }
        if let Some(error) = error {
            write!(f, ", with {}: {}", error.code, error.message)?;
        }
        write!(f, ". Retry it with `tenure job retry {job} --reason TEXT`")?;
        match is_dead {
            true => write!(
                f,
                ", or discard it with `tenure dead discard {job} --reason TEXT`; `tenure dead ls` \
                 lists all dead letters"
            ),
            false => f.write_str("; `tenure job ls --state failed` lists all such jobs"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running { .. } => self.write_running(f),
            Self::Paused(requested) => {
                write!(
                    f,
                    "the resource is paused by {}: {}. Resume it",
                    requested.by, requested.reason
                )
            }
            Self::NotDeclared => {
                f.write_str("its kind or operation is no longer declared. Declare it, or cancel")
            }
            Self::Backoff { for_ms, attempt, error } => {
                write!(f, "in backoff for {} after attempt {attempt}", HumanDuration(*for_ms))?;
                match error {
                    Some(error) => write!(f, " failed with {}: {}", error.code, error.message),
                    None => Ok(()),
                }
            }
            Self::Deferred { .. } => self.write_deferred(f),
            Self::Timer { .. } => self.write_timer(f),
            Self::Scheduled { for_ms } => {
                write!(f, "scheduled to start in {}", HumanDuration(*for_ms))
            }
            Self::State { state, from } => write!(
                f,
                "the resource is {state}; it may start from {}. Run an operation that leads there, \
                 or cancel",
                from.join(", ")
            ),
            Self::Behind { job, operation, state, worker, for_ms } => {
                write!(f, "waits behind {operation} (job {job}), which is {}", state.as_str())?;
                if let Some(worker) = worker {
                    write!(f, " on {worker}")?;
                }
                write!(f, " for {}", HumanDuration(*for_ms))
            }
            Self::Held(tenure) => {
                write!(f, "{} holds the lock for {}", tenure.holder, HumanDuration(tenure.age_ms))?;
                match &tenure.purpose {
                    Some(purpose) => write!(f, ": {purpose}"),
                    None => Ok(()),
                }
            }
            Self::AtCap { running, max, of_tenant } => {
                let scope = if *of_tenant { "per tenant" } else { "in total" };
                write!(f, "{running} jobs of this kind are running; the limit is {max} {scope}")
            }
            Self::NoWorker => f.write_str("no worker claims jobs of this kind. Start one"),
            Self::Ready { workers } => {
                write!(f, "ready: the next free worker of {workers} takes it")
            }
            Self::Finished { state, error } => {
                write!(f, "finished: {}", state.as_str())?;
                match error {
                    Some(error) => write!(f, " with {}: {}", error.code, error.message),
                    None => Ok(()),
                }
            }
            Self::LastFailed { .. } => self.write_last_failed(f),
            Self::Idle => f.write_str("idle: no unfinished jobs"),
        }
    }
}

/// Formats a duration for display.
pub struct HumanDuration(pub u64);

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.0 / 1_000;
        match s {
            0 => write!(f, "{} ms", self.0),
            1..60 => write!(f, "{s} s"),
            60..3_600 => write!(f, "{} min {} s", s / 60, s % 60),
            _ => write!(f, "{} h {} min", s / 3_600, s / 60 % 60),
        }
    }
}
