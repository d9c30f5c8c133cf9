//! The JSON of jobs: submitted, cancelled, looked at. What workers say is in `work`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_core::job::{Attempt, AttemptOutcome, Failure, Progress, RequestedBy};
use tenure_core::key::InvalidName;
use tenure_core::{Job, JobId, JobState, Kind, RequestId, ResourceKey, SessionId, Token, Verdict};

#[cfg(feature = "openapi")]
use super::schema;
use super::{documents, instant, millis, values};

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobAnswer {
    /// The identity.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub id: JobId,
    /// Whose it is.
    pub tenant: String,
    /// The kind of the resource.
    pub kind: String,
    /// The name of the resource.
    pub name: String,
    /// The verb.
    pub operation: String,
    /// Its arguments.
    pub args: Option<Value>,
    /// Higher goes first within its tenant.
    pub priority: i32,
    /// Who wants it.
    pub by: String,
    /// Where it is in its life.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::JobStateWord))]
    pub state: JobState,
    /// Attempts that have started and count.
    pub attempt: u32,
    /// How many it may have in all; only told of a single job, and while its kind is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts_max: Option<u32>,
    /// The latest attempts, the present one last.
    pub attempts: Vec<AttemptAnswer>,
    /// When it was submitted.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub submitted_at: String,
    /// It does not start before.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub due_at: String,
    /// When it was over.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Instant>))]
    pub ended_at: Option<String>,
    /// Why the latest attempt failed.
    pub error: Option<FailureAnswer>,
    /// How far the present attempt has come.
    pub progress: Option<ProgressAnswer>,
    /// What it gave.
    pub result: Option<Value>,
    /// How many other submits got its id.
    pub joined: u32,
    /// Who asked it to stop.
    pub cancel: Option<AskedAnswer>,
    /// The job that it does over.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Id>))]
    pub retry_of: Option<JobId>,
    /// The job that took its place, or that was made from it.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Id>))]
    pub followed_by: Option<JobId>,
    /// The generation of the resource that its latest attempt saw.
    pub generation: u64,
}

impl JobAnswer {
    /// A job of a resource.
    #[must_use]
    pub fn of(key: &ResourceKey, job: &Job) -> Self {
        Self {
            id: job.id,
            tenant: key.tenant().to_owned(),
            kind: key.kind().to_owned(),
            name: key.name().to_owned(),
            operation: job.operation.to_string(),
            args: values(job.args.as_ref()),
            priority: job.priority,
            by: job.by.to_string(),
            state: job.state,
            attempt: job.attempt,
            attempts_max: None,
            attempts: job.attempts.iter().map(AttemptAnswer::of).collect(),
            submitted_at: instant(job.submitted_at),
            due_at: instant(job.due),
            ended_at: job.ended_at.map(instant),
            error: job.error.as_ref().map(FailureAnswer::of),
            progress: job.progress.as_ref().map(ProgressAnswer::of),
            result: values(job.result.as_ref()),
            joined: job.joined,
            cancel: job.cancel.as_ref().map(AskedAnswer::of),
            retry_of: job.retry_of,
            followed_by: job.followed_by,
            generation: job.generation,
        }
    }

    /// The same, with how many attempts its kind allows.
    #[must_use]
    pub fn under(mut self, kind: Option<&Kind>, key: &ResourceKey) -> Self {
        self.attempts_max = kind.and_then(|kind| {
            let operation = kind.operations.get(self.operation.as_str())?;
            Some(kind.retry(key, operation).attempts)
        });
        self
    }

    /// The resource.
    pub fn key(&self) -> Result<ResourceKey, InvalidName> {
        ResourceKey::new(&self.tenant, &self.kind, &self.name)
    }

    /// The job that is meant, apart from what does not travel: its request, and what only the
    /// lane and the store need to know.
    #[must_use]
    pub fn to_job(&self) -> Job {
        Job {
            id: self.id,
            request: RequestId(0),
            operation: self.operation.as_str().into(),
            args: documents(self.args.as_ref()),
            priority: self.priority,
            by: self.by.as_str().into(),
            submitted_at: millis(&self.submitted_at),
            due: millis(&self.due_at),
            state: self.state,
            attempt: self.attempt,
            attempts: self.attempts.iter().map(AttemptAnswer::to_attempt).collect(),
            cancel: self.cancel.as_ref().map(AskedAnswer::to_asked),
            progress: self.progress.as_ref().map(ProgressAnswer::to_progress),
            error: self.error.as_ref().map(FailureAnswer::to_failure),
            result: documents(self.result.as_ref()),
            ended_at: self.ended_at.as_deref().map(millis),
            joined: self.joined,
            generation: self.generation,
            state_before: None,
            retry_of: self.retry_of,
            followed_by: self.followed_by,
            previous: None,
            log_bytes: 0,
        }
    }
}

/// One try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttemptAnswer {
    /// Counts from 1.
    pub n: u32,
    /// What people call the worker.
    pub worker: String,
    /// The session of the worker.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub session: SessionId,
    /// The tenure it ran under.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Fence))]
    pub token: Token,
    /// When it began.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub started_at: String,
    /// When it ended.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Instant>))]
    pub ended_at: Option<String>,
    /// How it ended.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::AttemptWord>))]
    pub outcome: Option<AttemptOutcome>,
    /// Why it failed, for programs.
    pub code: Option<String>,
    /// Why it failed, for people.
    pub message: Option<String>,
}

impl AttemptAnswer {
    fn of(attempt: &Attempt) -> Self {
        Self {
            n: attempt.n,
            worker: attempt.worker.to_string(),
            session: attempt.session,
            token: attempt.token,
            started_at: instant(attempt.started_at),
            ended_at: attempt.ended_at.map(instant),
            outcome: attempt.outcome,
            code: attempt.error.as_ref().map(|error| error.code.to_string()),
            message: attempt.error.as_ref().map(|error| error.message.to_string()),
        }
    }

    fn to_attempt(&self) -> Attempt {
        let message = self.message.as_deref().unwrap_or_default();
        let error =
            self.code.as_deref().map(|code| Failure { code: code.into(), message: message.into() });
        Attempt {
            n: self.n,
            token: self.token,
            session: self.session,
            worker: self.worker.as_str().into(),
            started_at: millis(&self.started_at),
            ended_at: self.ended_at.as_deref().map(millis),
            outcome: self.outcome,
            error,
        }
    }
}

/// Why something failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailureAnswer {
    /// For programs.
    pub code: String,
    /// For people.
    pub message: String,
}

impl FailureAnswer {
    /// Converts a failure of the model.
    #[must_use]
    pub fn of(failure: &Failure) -> Self {
        Self { code: failure.code.to_string(), message: failure.message.to_string() }
    }

    fn to_failure(&self) -> Failure {
        Failure { code: self.code.as_str().into(), message: self.message.as_str().into() }
    }
}

/// How far an attempt has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProgressAnswer {
    /// From 0 to 100.
    pub percent: u8,
    /// What it does now.
    pub message: String,
    /// When it said so.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub at: String,
}

impl ProgressAnswer {
    /// Converts progress of the model.
    #[must_use]
    pub fn of(progress: &Progress) -> Self {
        let (percent, at) = (progress.percent, instant(progress.at));
        Self { percent, message: progress.message.to_string(), at }
    }

    fn to_progress(&self) -> Progress {
        let message = self.message.as_str().into();
        Progress { percent: self.percent, message, at: millis(&self.at) }
    }
}

/// Who asked for something, why and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AskedAnswer {
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub at: String,
}

impl AskedAnswer {
    /// Converts a request of the model.
    #[must_use]
    pub fn of(asked: &RequestedBy) -> Self {
        let (by, reason) = (asked.by.to_string(), asked.reason.to_string());
        Self { by, reason, at: instant(asked.at) }
    }

    pub(super) fn to_asked(&self) -> RequestedBy {
        let (by, reason) = (self.by.as_str().into(), self.reason.as_str().into());
        RequestedBy { by, reason, at: millis(&self.at) }
    }
}

/// `POST /v1/resources/{kind}/{name}/jobs`
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({
    "operation": "build", "args": { "steps": 3 }
})))]
pub struct SubmitBody {
    /// The verb.
    pub operation: String,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Value>,
    /// Higher goes first within the tenant.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Priority))]
    pub priority: i32,
    /// Not before this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Instant>))]
    pub run_at: Option<String>,
}

/// The answer to a submit and to a retry.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SubmitAnswer {
    /// What it came to.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::VerdictWord))]
    pub verdict: Verdict,
    /// The job that counts.
    pub job: JobAnswer,
}

/// `POST …/cancel`, `…/retry`, `…/discard`, `…/pause`, `…/resume`
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "reason": "not needed" })))]
pub struct ReasonBody {
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Note>))]
    pub reason: Option<String>,
}

/// The answer to a cancel.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CancelAnswer {
    /// `cancelled` when it waited, `cancelling` when it runs.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::JobStateWord))]
    pub state: JobState,
}

/// The answer to discarding one job.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiscardedAnswer {
    /// Always true.
    pub discarded: bool,
}

/// `GET /v1/jobs/{id}/logs`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogsAnswer {
    /// Pieces, oldest first.
    pub items: Vec<LogAnswer>,
    /// Give it as `after` to go on from here, now or when there is more.
    pub next: u64,
}

/// A piece of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogAnswer {
    /// The place among all pieces.
    pub position: u64,
    /// The number of the attempt.
    pub attempt: u32,
    /// When it was written.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub at: String,
    /// Whole lines.
    pub text: String,
}
