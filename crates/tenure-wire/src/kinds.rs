//! JSON types of declared kinds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tenure_core::kind::Backoff;
use tenure_core::retry::Retry;
use tenure_core::{Kind, LockName, Operation, Text};

/// A declared kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KindInfo {
    /// Name.
    pub name: String,
    /// States of its resources.
    pub states: Vec<String>,
    /// State of a new resource.
    pub initial: String,
    /// Operations, sorted by name.
    pub operations: Vec<OperationInfo>,
    /// Operation that is submitted while the desired and the observed generation differ.
    pub reconcile: Option<String>,
    /// What a lane does while a job is in backoff: `hold` blocks it, `reserve` lets jobs run that
    /// need none of its locks, `pass` lets the next job run.
    pub backoff: String,
    /// Maximum number of running jobs.
    pub running_max: Option<usize>,
    /// Maximum number of running jobs per tenant.
    pub tenant_running_max: Option<usize>,
    /// Whether names have the form `GROUP:REST`.
    #[serde(default)]
    pub grouped: bool,
    /// Time in milliseconds after which a deleted resource leaves with its jobs and history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral_ms: Option<u64>,
    /// Time in milliseconds for which locks stay held after the session of their holder expired.
    #[serde(default)]
    pub stale_margin_ms: u64,
}

/// An operation of a kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OperationInfo {
    /// Name.
    pub name: String,
    /// States from which it may start; empty for any.
    pub from: Vec<String>,
    /// State of the resource while it runs.
    pub during: Option<String>,
    /// State after success.
    pub ok: Option<String>,
    /// State after the last attempt failed.
    pub failed: Option<String>,
    /// State after it was cancelled while running.
    pub cancelled: Option<String>,
    /// Additional end states that a worker may choose.
    pub ends: Vec<String>,
    /// Locks that it holds while it runs.
    pub locks: Vec<String>,
    /// Time limit of one attempt in milliseconds.
    pub limit_ms: Option<u64>,
    /// Time in milliseconds after which a job that has not started fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_deadline_ms: Option<u64>,
    /// Retry policy.
    pub retry: RetryInfo,
    /// Policy by the name of the queued or running operation that it meets.
    pub meets: BTreeMap<String, String>,
    /// Whether it is executed by a declared command rather than by a handler.
    pub command: bool,
}

/// Retry policy: number of attempts and the backoff between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetryInfo {
    /// Maximum number of attempts.
    pub attempts: u32,
    /// Backoff after the first failure in milliseconds.
    pub initial_ms: u64,
    /// Factor by which each further backoff grows.
    pub factor: f64,
    /// Maximum backoff in milliseconds.
    pub max_ms: u64,
    /// Failure codes that are retried.
    pub transient: Vec<String>,
    /// Failure codes that are not retried.
    pub permanent: Vec<String>,
}

impl KindInfo {
    /// Converts a declared kind.
    #[must_use]
    pub fn new(kind: &Kind) -> Self {
        Self {
            name: kind.name.to_string(),
            states: texts(&kind.states),
            initial: kind.initial.to_string(),
            operations: kind.operations.values().map(OperationInfo::new).collect(),
            reconcile: text(kind.reconcile.as_ref()),
            backoff: match kind.backoff {
                Backoff::Hold => "hold".to_owned(),
                Backoff::Reserve => "reserve".to_owned(),
                Backoff::Pass => "pass".to_owned(),
            },
            running_max: kind.running_max,
            tenant_running_max: kind.tenant_running_max,
            grouped: kind.grouped,
            ephemeral_ms: kind.ephemeral_ms,
            stale_margin_ms: kind.stale_margin_ms,
        }
    }
}

impl OperationInfo {
    fn new(operation: &Operation) -> Self {
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
            start_deadline_ms: operation.start_deadline_ms,
            retry: RetryInfo::new(&operation.retry),
            meets: meets.map(|(name, policy)| (name.to_string(), policy.as_str().into())).collect(),
            command: !operation.run.is_empty(),
        }
    }
}

impl RetryInfo {
    fn new(retry: &Retry) -> Self {
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
