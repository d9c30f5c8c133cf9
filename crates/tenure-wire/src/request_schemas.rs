//! OpenAPI schemas of request bodies whose fields depend on each other.
//!
//! These types are never deserialized: each describes the type named in its `as`, or, for
//! `RequiredReasonRequest`, the stricter use of `ReasonRequest`.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::dead_letters::DeadLetterFilter;
use super::locks::Locks;
use super::observed::TimerRequests;
use super::schema;

/// Acquires locks, with or without a session.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = AcquireRequest)]
pub enum AcquireRequestSchema {
    /// Without a session.
    Standalone(StandaloneAcquireRequest),
    /// For an open session.
    InSession(SessionAcquireRequest),
}

/// Acquires locks without a session: the tenure is renewed on its own.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "holder": "ann", "ttl_ms": 30_000, "purpose": "install" }))]
pub struct StandaloneAcquireRequest {
    /// The lock, or several, all or none. Defaults to `main`.
    pub lock: Option<Locks>,
    /// Name of the holder.
    #[schema(value_type = schema::HolderName)]
    pub holder: String,
    /// Time in milliseconds after which the tenure expires unless it is renewed.
    #[schema(value_type = schema::Ttl)]
    pub ttl_ms: u64,
    /// Maximum time to wait in the queue, in milliseconds.
    #[schema(value_type = Option<schema::QueueWait>)]
    pub wait_ms: Option<u64>,
    /// Time in milliseconds after which the server responds even if the request is still waiting.
    /// Repeat the request with the same `Idempotency-Key` to keep waiting.
    #[schema(value_type = Option<schema::Uint64>)]
    pub poll_ms: Option<u64>,
    /// Purpose of the tenure, for display.
    #[schema(value_type = Option<schema::Purpose>)]
    pub purpose: Option<String>,
    /// Age in milliseconds above which the lock is reported by metrics and a warning; defaults to
    /// that of its kind. It never ends the tenure.
    #[schema(value_type = Option<schema::LockMaxAge>)]
    pub max_age_ms: Option<u64>,
}

/// Acquires locks for an open session.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionAcquireRequest {
    /// The lock, or several, all or none. Defaults to `main`.
    pub lock: Option<Locks>,
    /// Session that becomes the holder.
    #[schema(value_type = schema::Id)]
    pub session: String,
    /// Maximum time to wait in the queue, in milliseconds.
    #[schema(value_type = Option<schema::QueueWait>)]
    pub wait_ms: Option<u64>,
    /// Time in milliseconds after which the server responds even if the request is still waiting.
    /// Repeat the request with the same `Idempotency-Key` to keep waiting.
    #[schema(value_type = Option<schema::Uint64>)]
    pub poll_ms: Option<u64>,
    /// Purpose of the tenure, for display.
    #[schema(value_type = Option<schema::Purpose>)]
    pub purpose: Option<String>,
    /// Age in milliseconds above which the lock is reported by metrics and a warning; defaults to
    /// that of its kind. It never ends the tenure.
    #[schema(value_type = Option<schema::LockMaxAge>)]
    pub max_age_ms: Option<u64>,
}

/// Ends an attempt. The outcome determines which other fields are allowed.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = FinishRequest)]
pub enum FinishRequestSchema {
    /// The attempt succeeded.
    Succeeded(FinishSucceededRequest),
    /// The attempt failed.
    Failed(FinishFailedRequest),
    /// The attempt could not do its work yet.
    Deferred(FinishDeferredRequest),
    /// The attempt was cancelled or handed back.
    Stopped(FinishStoppedRequest),
}

/// The attempt succeeded.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "token": 1, "outcome": "ok", "result": { "rows": 3 } }))]
pub struct FinishSucceededRequest {
    /// Token of the attempt's tenure.
    #[schema(value_type = schema::FencingToken)]
    pub token: u64,
    /// Outcome of the attempt.
    pub outcome: SucceededOutcome,
    /// End state of the resource, if it differs from the declared one.
    pub state: Option<String>,
    /// Result of the job.
    pub result: Option<Value>,
    /// Merge patch (RFC 7396) for the status of the resource.
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    pub merge: Option<Value>,
    /// Timers to set, by operation; `null` removes a timer.
    #[serde(default)]
    pub timers: TimerRequests,
}

/// The attempt failed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishFailedRequest {
    /// Token of the attempt's tenure.
    #[schema(value_type = schema::FencingToken)]
    pub token: u64,
    /// Outcome of the attempt.
    pub outcome: FailedOutcome,
    /// End state of the resource, if it differs from the declared one.
    pub state: Option<String>,
    /// Failure code for programs.
    #[schema(value_type = schema::FailureCode)]
    pub code: String,
    /// Failure message for people.
    #[schema(value_type = Option<schema::FailureMessage>)]
    pub message: Option<String>,
    /// Whether a retry may help, if the worker knows.
    pub transient: Option<bool>,
    /// Backoff before the next attempt in milliseconds, instead of that of the retry policy.
    #[schema(value_type = Option<schema::Delay>)]
    pub delay_ms: Option<u64>,
    /// Merge patch (RFC 7396) for the status of the resource.
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    pub merge: Option<Value>,
    /// Timers to set, by operation; `null` removes a timer.
    #[serde(default)]
    pub timers: TimerRequests,
}

/// The attempt was cancelled on request, or handed back unfinished.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishStoppedRequest {
    /// Token of the attempt's tenure.
    #[schema(value_type = schema::FencingToken)]
    pub token: u64,
    /// Outcome of the attempt.
    pub outcome: StoppedOutcome,
    /// Merge patch (RFC 7396) for the status of the resource.
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    pub merge: Option<Value>,
    /// Timers to set, by operation; `null` removes a timer.
    #[serde(default)]
    pub timers: TimerRequests,
}

/// The attempt could not do its work yet. It is repeated after the delay and is not counted, unless
/// it was deferred 100 times in a row.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "token": 1, "outcome": "deferred", "delay_ms": 60_000, "code": "QUOTA"
}))]
pub struct FinishDeferredRequest {
    /// Token of the attempt's tenure.
    #[schema(value_type = schema::FencingToken)]
    pub token: u64,
    /// Outcome of the attempt.
    pub outcome: DeferredOutcome,
    /// Time until the next attempt in milliseconds.
    #[schema(value_type = schema::Delay)]
    pub delay_ms: u64,
    /// Reason for programs.
    #[schema(value_type = schema::FailureCode)]
    pub code: String,
    /// Message for people.
    #[schema(value_type = Option<schema::FailureMessage>)]
    pub message: Option<String>,
    /// Merge patch (RFC 7396) for the status of the resource.
    #[schema(value_type = Option<BTreeMap<String, Value>>)]
    pub merge: Option<Value>,
    /// Timers to set, by operation; `null` removes a timer.
    #[serde(default)]
    pub timers: TimerRequests,
}

/// The attempt succeeded.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SucceededOutcome {
    /// Succeeded.
    Ok,
}

/// The attempt failed.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailedOutcome {
    /// Failed.
    Failed,
}

/// The attempt could not do its work yet.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeferredOutcome {
    /// Deferred.
    Deferred,
}

/// The attempt neither succeeded nor failed.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoppedOutcome {
    /// Cancelled on request.
    Cancelled,
    /// Handed back unfinished. Does not count as an attempt.
    HandedBack,
}

/// Redrives or discards dead jobs. A dry run needs no reason.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = DeadLetterRequest)]
pub enum DeadLetterRequestSchema {
    /// Apply the action.
    Action(DeadLetterAction),
    /// Only count the matching jobs.
    DryRun(DeadLetterDryRun),
}

/// Applies the action to all dead jobs that match the filter.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadLetterAction {
    /// Selects the dead jobs.
    pub filter: DeadLetterFilter,
    /// Must be false or absent.
    #[serde(default)]
    #[schema(value_type = schema::OnlyFalse)]
    pub dry_run: bool,
    /// Reason for the action, for the audit log.
    #[schema(value_type = schema::Reason)]
    pub reason: String,
}

/// Counts the dead jobs that match the filter, and changes nothing.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "filter": { "kind": "report", "code": "NO_ROOM" }, "dry_run": true }))]
pub struct DeadLetterDryRun {
    /// Selects the dead jobs.
    pub filter: DeadLetterFilter,
    /// Must be true.
    #[schema(value_type = schema::OnlyTrue)]
    pub dry_run: bool,
    /// Ignored.
    pub reason: Option<String>,
}

/// A request that requires a reason.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "reason": "maintenance" }))]
pub struct RequiredReasonRequest {
    /// Reason for the action, for the audit log and the history.
    #[schema(value_type = schema::Reason)]
    pub reason: String,
}
