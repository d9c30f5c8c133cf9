//! How the OpenAPI document describes bodies whose fields depend on each other.
//!
//! Nothing is read with these types: each describes the type that is named in its `as`, or, for
//! `NeededReason`, the stricter use of `ReasonBody`.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::dead::DeadFilter;
use super::locks::Locks;
use super::schema;

/// For a session, or for somebody without one.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = AcquireBody)]
pub enum AcquireBodies {
    /// For somebody without a session.
    Alone(AcquireAlone),
    /// For a session.
    InSession(AcquireInSession),
}

/// For somebody without a session: the tenure has one of its own.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "holder": "ann", "ttl_ms": 30_000, "purpose": "install" }))]
pub struct AcquireAlone {
    /// The lock, or several, all or none; `main` when nothing is said.
    pub lock: Option<Locks>,
    /// The name of the holder.
    #[schema(value_type = schema::HolderName)]
    pub holder: String,
    /// How long it lives without a renewal.
    #[schema(value_type = schema::Ttl)]
    pub ttl_ms: u64,
    /// How long to wait in the queue.
    #[schema(value_type = Option<schema::QueueWait>)]
    pub wait_ms: Option<u64>,
    /// Answer after this long although it still waits; ask again with the same `Idempotency-Key`.
    #[schema(value_type = Option<schema::Count>)]
    pub poll_ms: Option<u64>,
    /// What for.
    #[schema(value_type = Option<schema::Purpose>)]
    pub purpose: Option<String>,
}

/// For a session that was opened before.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcquireInSession {
    /// The lock, or several, all or none; `main` when nothing is said.
    pub lock: Option<Locks>,
    /// The session that holds.
    #[schema(value_type = schema::Id)]
    pub session: String,
    /// How long to wait in the queue.
    #[schema(value_type = Option<schema::QueueWait>)]
    pub wait_ms: Option<u64>,
    /// Answer after this long although it still waits; ask again with the same `Idempotency-Key`.
    #[schema(value_type = Option<schema::Count>)]
    pub poll_ms: Option<u64>,
    /// What for.
    #[schema(value_type = Option<schema::Purpose>)]
    pub purpose: Option<String>,
}

/// What goes with each outcome.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = FinishBody)]
pub enum FinishBodies {
    /// Done.
    Done(FinishDone),
    /// Failed.
    Failed(FinishFailed),
    /// Neither.
    Stopped(FinishStopped),
}

/// The attempt is done.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "token": 1, "outcome": "ok", "result": { "rows": 3 } }))]
pub struct FinishDone {
    /// The tenure of the attempt.
    #[schema(value_type = schema::Fence)]
    pub token: u64,
    /// Done.
    pub outcome: DoneWord,
    /// Another end state than the declared one.
    pub state: Option<String>,
    /// What it gave.
    pub result: Option<Value>,
}

/// The attempt failed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishFailed {
    /// The tenure of the attempt.
    #[schema(value_type = schema::Fence)]
    pub token: u64,
    /// Failed.
    pub outcome: FailedWord,
    /// Another end state than the declared one.
    pub state: Option<String>,
    /// Why it failed, for programs.
    #[schema(value_type = schema::FailureCode)]
    pub code: String,
    /// Why it failed, for people.
    #[schema(value_type = Option<schema::FailureMessage>)]
    pub message: Option<String>,
    /// Whether trying again may help, if the worker knows.
    pub transient: Option<bool>,
}

/// The attempt stopped, as was asked, or was given back unfinished.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishStopped {
    /// The tenure of the attempt.
    #[schema(value_type = schema::Fence)]
    pub token: u64,
    /// Which of the two.
    pub outcome: StoppedWord,
}

/// Done.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DoneWord {
    /// Done.
    Ok,
}

/// Failed.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailedWord {
    /// Failed.
    Failed,
}

/// Neither done nor failed.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoppedWord {
    /// Stopped, as was asked.
    Cancelled,
    /// Given back unfinished; it does not count as an attempt.
    HandedBack,
}

/// Which dead jobs, and why; a rehearsal needs no reason.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = DeadBody)]
pub enum DeadBodies {
    /// Do it.
    Deed(DeadDeed),
    /// Only count.
    Rehearsal(DeadRehearsal),
}

/// Deals with all that the filter finds.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadDeed {
    /// Which.
    pub filter: DeadFilter,
    /// Not only count them.
    #[serde(default)]
    #[schema(value_type = schema::OnlyFalse)]
    pub dry_run: bool,
    /// Why.
    #[schema(value_type = schema::Reason)]
    pub reason: String,
}

/// Only counts what the filter finds.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "filter": { "kind": "report", "code": "NO_ROOM" }, "dry_run": true }))]
pub struct DeadRehearsal {
    /// Which.
    pub filter: DeadFilter,
    /// Only count them.
    #[schema(value_type = schema::OnlyTrue)]
    pub dry_run: bool,
    /// Not needed, and not looked at.
    pub reason: Option<String>,
}

/// A reason, where one is needed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "reason": "maintenance" }))]
pub struct NeededReason {
    /// Why.
    #[schema(value_type = schema::Reason)]
    pub reason: String,
}
