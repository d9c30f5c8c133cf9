//! Why a job or a resource is where it is: the answer to "what is it waiting for?".
//!
//! It asks the same questions in the same order as the lane does, so what it says is what holds the
//! job up. Nothing is decided here.

use std::fmt;

use crate::id::JobId;
use crate::job::{Asked, Failure, Job, JobState, Progress};
use crate::key::{LockName, Text};
use crate::kind::{Backoff, Kind, Operation};
use crate::lane::Hurdle;
use crate::outcome::TenureView;
use crate::record::Record;
use crate::resource::Resource;
use crate::time::Millis;
use crate::token::Token;

/// What else there is to know beside the record.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The present tenures of the resource.
    pub tenures: Vec<TenureView>,
    /// How many living workers ask for jobs of this kind.
    pub workers: usize,
    /// How many jobs of this kind run, of all tenants and of this one.
    pub running: (usize, usize),
    /// Store time.
    pub now: Millis,
}

/// Why a job is where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// An attempt is under way.
    Running {
        /// What people call the worker.
        worker: Text,
        /// For how long already.
        for_ms: u64,
        /// The tenure of the attempt.
        token: Token,
        /// How far it has come.
        progress: Option<Progress>,
        /// Who asked it to stop.
        cancel: Option<Asked>,
    },
    /// Somebody paused the resource.
    Paused(Asked),
    /// The kind or the operation is not declared.
    NotDeclared,
    /// It rests after a failed attempt.
    Backoff {
        /// For how long still.
        for_ms: u64,
        /// How many attempts were counted.
        attempt: u32,
        /// Why the latest failed.
        error: Option<Failure>,
    },
    /// It is scheduled for later.
    Scheduled {
        /// For how long still.
        for_ms: u64,
    },
    /// The state of the resource does not allow it.
    State {
        /// The state.
        state: Text,
        /// The states it may start from.
        from: Vec<Text>,
    },
    /// Another job is first.
    Behind {
        /// The job.
        job: JobId,
        /// Its verb.
        operation: Text,
        /// Where that one is in its life.
        state: JobState,
        /// What people call its worker, when it runs.
        worker: Option<Text>,
        /// Since how long it has been there.
        for_ms: u64,
    },
    /// Somebody holds a lock that it needs, and it is no job.
    Held(Box<TenureView>),
    /// As many jobs run as the kind allows.
    AtCap {
        /// How many run.
        running: usize,
        /// How many may.
        max: usize,
        /// Whether the cap is that of the tenant.
        of_tenant: bool,
    },
    /// It could start, but no worker asks for jobs of its kind.
    NoWorker,
    /// It could start: the next worker with a free slot takes it.
    Ready {
        /// How many workers ask for jobs of its kind.
        workers: usize,
    },
    /// It is over.
    Over {
        /// How.
        state: JobState,
        /// Why, when it failed.
        error: Option<Failure>,
    },
    /// The resource has no job that is not over.
    Idle,
}

impl Why {
    /// The word for it, for programs.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Running { cancel: None, .. } => "running",
            Self::Running { .. } => "cancelling",
            Self::Paused(_) => "paused",
            Self::NotDeclared => "not_declared",
            Self::Backoff { .. } => "backoff",
            Self::Scheduled { .. } => "scheduled",
            Self::State { .. } => "state",
            Self::Behind { .. } => "behind",
            Self::Held(_) => "held",
            Self::AtCap { .. } => "at_cap",
            Self::NoWorker => "no_worker",
            Self::Ready { .. } => "ready",
            Self::Over { state, .. } => state.word(),
            Self::Idle => "idle",
        }
    }
}

/// Why a job that is not over is where it is.
#[must_use]
pub fn of_job(record: &Record, kind: Option<&Kind>, id: JobId, around: &Surroundings) -> Why {
    let (Some(resource), Some(job)) = (&record.resource, record.job(id)) else { return Why::Idle };
    if let Some(running) = running(job, around) {
        return running;
    }
    if let Some(asked) = &resource.paused {
        return Why::Paused(asked.clone());
    }
    let Some(kind) = kind else { return Why::NotDeclared };
    let Some(operation) = kind.operations.get(&job.operation) else { return Why::NotDeclared };
    if let Some(first) = in_the_way(record, resource, kind, job, operation, around) {
        return first;
    }
    match record.hurdle(resource, kind, job, &[], around.now) {
        Some(Hurdle::NotDeclared) => Why::NotDeclared,
        Some(Hurdle::NotDue(due)) => not_due(job, due.since(around.now)),
        Some(Hurdle::State) => {
            Why::State { state: resource.state.clone(), from: operation.from.clone() }
        }
        Some(Hurdle::Locks) => held(record, operation, around),
        None => startable(kind, around),
    }
}

/// Why the first job of a resource is where it is; with the job, if there is one.
#[must_use]
pub fn of_resource(
    record: &Record,
    kind: Option<&Kind>,
    around: &Surroundings,
) -> (Option<JobId>, Why) {
    let running = record.lane().iter().find(|job| job.state.is_running());
    let Some(job) = running.or_else(|| record.lane().front()) else {
        let paused = record.resource.as_ref().and_then(|resource| resource.paused.clone());
        if let Some(asked) = paused {
            return (None, Why::Paused(asked));
        }
        let held = around.tenures.first().map(|tenure| Why::Held(Box::new(tenure.clone())));
        return (None, held.unwrap_or(Why::Idle));
    };
    (Some(job.id), of_job(record, kind, job.id, around))
}

/// Why a job that is over is where it is.
#[must_use]
pub fn of_past(job: &Job) -> Why {
    Why::Over { state: job.state, error: job.error.clone() }
}

fn running(job: &Job, around: &Surroundings) -> Option<Why> {
    let token = job.token()?;
    let attempt = job.attempts.last()?;
    Some(Why::Running {
        worker: attempt.worker.clone(),
        for_ms: around.now.since(attempt.started_at),
        token,
        progress: job.progress.clone(),
        cancel: job.cancel.clone(),
    })
}

/// The job that is in the way: one that runs with a lock that this one needs, one that rests and
/// holds the lane, or one that is first and wants the same locks.
fn in_the_way(
    record: &Record,
    resource: &Resource,
    kind: &Kind,
    job: &Job,
    operation: &Operation,
    around: &Surroundings,
) -> Option<Why> {
    let shares = |other: &Job| {
        let wants = kind.operations.get(&other.operation)?;
        wants.locks.iter().any(|lock| operation.locks.contains(lock)).then_some(())
    };
    let behind = |other: &Job| Why::Behind {
        job: other.id,
        operation: other.operation.clone(),
        state: other.state,
        worker: other
            .attempts
            .last()
            .filter(|_| other.state.is_running())
            .map(|a| a.worker.clone()),
        for_ms: around.now.since(match other.attempts.last() {
            Some(attempt) if other.state.is_running() => attempt.started_at,
            _ => other.submitted_at,
        }),
    };
    for other in resource.lane.iter().filter(|other| other.id != job.id) {
        if other.state.is_running() && shares(other).is_some() {
            return Some(behind(other));
        }
    }
    for other in resource.lane.iter().take_while(|other| other.id != job.id) {
        if other.state.is_running() {
            continue;
        }
        let holds = match record.hurdle(resource, kind, other, &[], around.now) {
            Some(Hurdle::NotDue(_)) => {
                other.state == JobState::Backoff && kind.backoff == Backoff::Hold
            }
            Some(Hurdle::Locks) | None => shares(other).is_some(),
            Some(Hurdle::State | Hurdle::NotDeclared) => false,
        };
        if holds {
            return Some(behind(other));
        }
    }
    None
}

fn not_due(job: &Job, for_ms: u64) -> Why {
    match job.state {
        JobState::Backoff => {
            Why::Backoff { for_ms, attempt: job.attempt, error: job.error.clone() }
        }
        _ => Why::Scheduled { for_ms },
    }
}

fn held(record: &Record, operation: &Operation, around: &Surroundings) -> Why {
    let mine = |lock: &LockName| record.tenure(lock).map(|tenure| tenure.token);
    let token = operation.locks.iter().find_map(mine);
    let view = around.tenures.iter().find(|view| Some(view.token) == token);
    // Nobody holds it, then somebody in the queue is first and will have it in a moment.
    view.map_or(Why::Ready { workers: around.workers }, |view| Why::Held(Box::new(view.clone())))
}

fn startable(kind: &Kind, around: &Surroundings) -> Why {
    let (all, tenant) = around.running;
    for (running, max, of_tenant) in
        [(all, kind.running_max, false), (tenant, kind.tenant_running_max, true)]
    {
        if let Some(max) = max.filter(|max| running >= *max) {
            return Why::AtCap { running, max, of_tenant };
        }
    }
    match around.workers {
        0 => Why::NoWorker,
        workers => Why::Ready { workers },
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running { worker, for_ms, progress, cancel, .. } => {
                write!(f, "running on {worker} for {}", Span(*for_ms))?;
                if let Some(Progress { percent, message, .. }) = progress {
                    write!(f, ", at {percent} %")?;
                    if !message.is_empty() {
                        write!(f, ": {message}")?;
                    }
                }
                match cancel {
                    Some(asked) => write!(f, "; asked to stop by {}", asked.by),
                    None => Ok(()),
                }
            }
            Self::Paused(asked) => {
                write!(f, "the resource is paused by {}: {}. Resume it", asked.by, asked.reason)
            }
            Self::NotDeclared => {
                f.write_str("its kind or operation is not declared any more. Declare it, or cancel")
            }
            Self::Backoff { for_ms, attempt, error } => {
                write!(f, "rests for {} after attempt {attempt}", Span(*for_ms))?;
                match error {
                    Some(error) => write!(f, " failed with {}: {}", error.code, error.message),
                    None => Ok(()),
                }
            }
            Self::Scheduled { for_ms } => write!(f, "scheduled to start in {}", Span(*for_ms)),
            Self::State { state, from } => write!(
                f,
                "the resource is {state}; it may start from {}. Run an operation that leads there, \
                 or cancel",
                from.join(", ")
            ),
            Self::Behind { job, operation, state, worker, for_ms } => {
                write!(f, "waits behind {operation} (job {job}), which is {}", state.word())?;
                if let Some(worker) = worker {
                    write!(f, " on {worker}")?;
                }
                write!(f, " for {}", Span(*for_ms))
            }
            Self::Held(tenure) => {
                write!(f, "{} holds the lock for {}", tenure.holder, Span(tenure.age_ms))?;
                match &tenure.purpose {
                    Some(purpose) => write!(f, ": {purpose}"),
                    None => Ok(()),
                }
            }
            Self::AtCap { running, max, of_tenant } => {
                let whose = if *of_tenant { "for one tenant" } else { "at once" };
                write!(f, "{running} jobs of this kind run; {max} may {whose}")
            }
            Self::NoWorker => f.write_str("no worker asks for jobs of this kind. Start one"),
            Self::Ready { workers } => {
                write!(f, "ready: the next free one of {workers} workers takes it")
            }
            Self::Over { state, error } => {
                write!(f, "over: {}", state.word())?;
                match error {
                    Some(error) => write!(f, " with {}: {}", error.code, error.message),
                    None => Ok(()),
                }
            }
            Self::Idle => f.write_str("nothing is to be done"),
        }
    }
}

/// A duration as people say it.
struct Span(u64);

impl fmt::Display for Span {
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
