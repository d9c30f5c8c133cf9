//! The JSON of kinds: what is declared.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tenure_core::kind::Backoff;
use tenure_core::retry::Retry;
use tenure_core::{Kind, LockName, Operation, Text};

/// A class of resources.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KindAnswer {
    /// Its name.
    pub name: String,
    /// Its states.
    pub states: Vec<String>,
    /// The state of a new resource.
    pub initial: String,
    /// Its operations, by name.
    pub operations: Vec<OperationAnswer>,
    /// The operation that runs while desired and observed generation differ.
    pub reconcile: Option<String>,
    /// `hold` or `pass`: what a lane does while its first job rests between two attempts.
    pub backoff: String,
    /// Most jobs that run at once.
    pub running_max: Option<usize>,
    /// Most jobs that run at once for one tenant.
    pub tenant_running_max: Option<usize>,
}

/// A verb of a kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OperationAnswer {
    /// Its name.
    pub name: String,
    /// The states it may start from; empty for any.
    pub from: Vec<String>,
    /// The state of the resource while it runs.
    pub during: Option<String>,
    /// The state after success.
    pub ok: Option<String>,
    /// The state after the last failure.
    pub failed: Option<String>,
    /// The state after it was cancelled while it ran.
    pub cancelled: Option<String>,
    /// Further states that a worker may choose to end in.
    pub ends: Vec<String>,
    /// The locks that it holds while it runs.
    pub locks: Vec<String>,
    /// The longest one attempt may take.
    pub limit_ms: Option<u64>,
    /// When to try again.
    pub retry: RetryAnswer,
    /// What happens when it meets a present operation of this name.
    pub meets: BTreeMap<String, String>,
    /// Whether a command does it, and not a worker with a handler.
    pub command: bool,
}

/// How many attempts a job has, and how long it rests between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetryAnswer {
    /// Attempts in all.
    pub attempts: u32,
    /// The rest after the first failure.
    pub initial_ms: u64,
    /// What each further rest is multiplied by.
    pub factor: f64,
    /// The longest rest.
    pub max_ms: u64,
    /// Codes of failures that are tried again.
    pub transient: Vec<String>,
    /// Codes of failures that are final at once.
    pub permanent: Vec<String>,
}

impl KindAnswer {
    /// A declared kind.
    #[must_use]
    pub fn of(kind: &Kind) -> Self {
        Self {
            name: kind.name.to_string(),
            states: texts(&kind.states),
            initial: kind.initial.to_string(),
            operations: kind.operations.values().map(OperationAnswer::of).collect(),
            reconcile: text(kind.reconcile.as_ref()),
            backoff: match kind.backoff {
                Backoff::Hold => "hold".to_owned(),
                Backoff::Pass => "pass".to_owned(),
            },
            running_max: kind.running_max,
            tenant_running_max: kind.tenant_running_max,
        }
    }
}

impl OperationAnswer {
    fn of(operation: &Operation) -> Self {
        let meets = operation.meets.iter();
        Self {
            name: operation.name.to_string(),
            from: texts(&operation.from),
            during: text(operation.during.as_ref()),
            ok: text(operation.ok.as_ref()),
            failed: text(operation.failed.as_ref()),
            cancelled: text(operation.cancelled.as_ref()),
            ends: texts(&operation.ends),
            locks: operation.locks.iter().map(LockName::to_string).collect(),
            limit_ms: operation.limit_ms,
            retry: RetryAnswer::of(&operation.retry),
            meets: meets.map(|(name, policy)| (name.to_string(), policy.as_str().into())).collect(),
            command: !operation.run.is_empty(),
        }
    }
}

impl RetryAnswer {
    fn of(retry: &Retry) -> Self {
        Self {
            attempts: retry.attempts,
            initial_ms: retry.initial_ms,
            factor: retry.factor,
            max_ms: retry.max_ms,
            transient: texts(&retry.transient),
            permanent: texts(&retry.permanent),
        }
    }
}

fn text(text: Option<&Text>) -> Option<String> {
    text.map(Text::to_string)
}

fn texts(texts: &[Text]) -> Vec<String> {
    texts.iter().map(Text::to_string).collect()
}
