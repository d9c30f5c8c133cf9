//! The JSON of work: jobs claimed, told of, finished.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_core::key::InvalidName;
use tenure_core::retry::Class;
use tenure_core::{Assignment, Finish, JobState, RequestId, SessionId, Text, Token};

use super::jobs::JobAnswer;
use super::locks::TenureAnswer;
#[cfg(feature = "openapi")]
use super::schema;
use super::{document, documents, values};

/// `POST /v1/jobs/claim`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({
    "session": "0123456789abcdef0123456789abcdef", "kinds": ["report"], "wait_ms": 20_000
})))]
pub struct ClaimBody {
    /// The worker.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub session: SessionId,
    /// Of these kinds.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<schema::KindName>))]
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 256))]
    pub kinds: Vec<String>,
    /// At most so many.
    #[serde(default = "one")]
    #[cfg_attr(feature = "openapi", schema(value_type = schema::ClaimSize))]
    pub max: usize,
    /// How long to wait for the first, at most a minute.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Count))]
    pub wait_ms: u64,
}

fn one() -> usize {
    1
}

/// The answer to a claim.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimAnswer {
    /// The jobs that the worker has now; perhaps none.
    pub jobs: Vec<AssignmentAnswer>,
}

/// A job in the hands of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AssignmentAnswer {
    /// The job.
    pub job: JobAnswer,
    /// The tenure of the attempt.
    pub tenure: TenureAnswer,
    /// What the resource should be like.
    pub spec: Option<Value>,
    /// The longest the attempt may take.
    pub limit_ms: Option<u64>,
    /// Attempts in all.
    pub attempts_max: u32,
}

impl AssignmentAnswer {
    /// What a worker is told.
    #[must_use]
    pub fn of(assignment: &Assignment) -> Self {
        Self {
            job: JobAnswer::of(&assignment.tenure.key, &assignment.job),
            tenure: TenureAnswer::of(&assignment.tenure),
            spec: values(assignment.spec.as_ref()),
            limit_ms: assignment.limit_ms,
            attempts_max: assignment.attempts_max,
        }
    }

    /// The assignment that is meant; `request` is the claim that got it.
    pub fn to_assignment(&self, request: RequestId) -> Result<Assignment, InvalidName> {
        let mut tenure = self.tenure.to_view()?;
        tenure.request = request;
        Ok(Assignment {
            tenure,
            job: Box::new(self.job.to_job()),
            spec: documents(self.spec.as_ref()),
            limit_ms: self.limit_ms,
            attempts_max: self.attempts_max,
        })
    }
}

/// `POST /v1/jobs/{id}/progress`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({
    "token": 1, "percent": 40, "message": "copying"
})))]
pub struct ProgressBody {
    /// The tenure of the attempt.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Fence))]
    pub token: Token,
    /// From 0 to 100.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Percent))]
    pub percent: u8,
    /// What it does now.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Doing))]
    pub message: String,
}

/// `POST /v1/jobs/{id}/logs`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "token": 1, "text": "one\ntwo\n" })))]
pub struct LogBody {
    /// The tenure of the attempt.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Fence))]
    pub token: Token,
    /// Whole lines.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::LogText))]
    pub text: String,
}

/// The answer to progress and to a piece of log.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NotedAnswer {
    /// Whether the job is asked to stop.
    pub cancelling: bool,
}

/// What an attempt came to, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishWord {
    /// Done.
    Ok,
    /// Failed.
    Failed,
    /// Stopped, as was asked.
    Cancelled,
    /// Given back unfinished.
    HandedBack,
}

/// `POST /v1/jobs/{id}/finish`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishBody {
    /// The tenure of the attempt.
    pub token: Token,
    /// What it came to.
    pub outcome: FinishWord,
    /// Another end state than the declared one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// What it gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Why it failed, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Why it failed, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether trying again may help, if the worker knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transient: Option<bool>,
}

impl FinishBody {
    /// What a worker says.
    #[must_use]
    pub fn of(token: Token, finish: &Finish) -> Self {
        let plain = |outcome| Self {
            token,
            outcome,
            state: None,
            result: None,
            code: None,
            message: None,
            transient: None,
        };
        let text = |text: &Option<Text>| text.as_deref().map(str::to_owned);
        match finish {
            Finish::Ok { state, result } => {
                let result = values(result.as_ref());
                Self { state: text(state), result, ..plain(FinishWord::Ok) }
            }
            Finish::Failed { code, message, class, state } => Self {
                state: text(state),
                code: Some(code.to_string()),
                message: Some(message.to_string()),
                transient: class.map(|class| class == Class::Transient),
                ..plain(FinishWord::Failed)
            },
            Finish::Cancelled => plain(FinishWord::Cancelled),
            Finish::HandBack => plain(FinishWord::HandedBack),
        }
    }

    /// What is meant, or which field does not go with the outcome.
    pub fn to_finish(&self) -> Result<Finish, String> {
        let state = self.state.as_deref().map(Into::into);
        let failure = self.code.is_some() || self.message.is_some() || self.transient.is_some();
        match self.outcome {
            FinishWord::Ok if failure => {
                Err("`code`, `message` and `transient` go with the outcome `failed`".to_owned())
            }
            FinishWord::Ok => Ok(Finish::Ok { state, result: self.result.as_ref().map(document) }),
            FinishWord::Failed if self.result.is_some() => {
                Err("`result` goes with the outcome `ok`".to_owned())
            }
            FinishWord::Failed => {
                let code = self.code.as_deref().ok_or("the outcome `failed` needs a `code`")?;
                let message = self.message.as_deref().unwrap_or_default().into();
                let class = |helps| if helps { Class::Transient } else { Class::Permanent };
                let class = self.transient.map(class);
                Ok(Finish::Failed { code: code.into(), message, class, state })
            }
            FinishWord::Cancelled | FinishWord::HandedBack
                if failure || self.state.is_some() || self.result.is_some() =>
            {
                Err("only `ok` and `failed` have a `state`, a `result` or an error".to_owned())
            }
            FinishWord::Cancelled => Ok(Finish::Cancelled),
            FinishWord::HandedBack => Ok(Finish::HandBack),
        }
    }
}

/// The answer to a finish.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FinishAnswer {
    /// Where that leaves the job.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::JobStateWord))]
    pub state: JobState,
    /// It had been finished before.
    pub already: bool,
}
