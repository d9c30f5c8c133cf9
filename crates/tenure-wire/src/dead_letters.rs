//! JSON types of dead letters: jobs that used up their attempts and wait for an operator.

use serde::{Deserialize, Serialize};
use tenure_core::JobId;

use super::jobs::JobInfo;
use super::object::object;
#[cfg(feature = "openapi")]
use super::schema;

/// `GET /v1/dead`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeadLettersResponse {
    /// Counts by failure, most frequent first. Only on the first page.
    pub groups: Vec<DeadLetterGroup>,
    /// Whether the groups count all dead jobs; a very large number is counted in part.
    pub complete: bool,
    /// Dead jobs, newest first.
    pub items: Vec<JobInfo>,
    /// Value of `cursor` for the next page; null on the last page.
    pub next: Option<String>,
}

/// Dead jobs of one operation with the same failure code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeadLetterGroup {
    /// Kind of their resources.
    pub kind: String,
    /// Their operation.
    pub operation: String,
    /// Failure code.
    pub code: String,
    /// Number of jobs.
    pub count: usize,
    /// Failure message of the newest.
    pub message: String,
    /// Time at which the first of them ended.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub oldest: String,
    /// Time at which the last of them ended.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub newest: String,
}

/// Selects dead jobs. An empty filter selects all dead jobs of the tenant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DeadLetterFilter {
    /// Matches jobs of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Matches jobs of this operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Matches jobs that failed with this code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Matches these jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<schema::Id>>))]
    #[cfg_attr(feature = "openapi", schema(max_items = 1_000))]
    pub ids: Option<Vec<JobId>>,
}

/// `POST /v1/dead/redrive` and `POST /v1/dead/discard`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadLetterRequest {
    /// Selects the dead jobs.
    #[serde(deserialize_with = "object")]
    pub filter: DeadLetterFilter,
    /// Only counts the matching jobs.
    #[serde(default)]
    pub dry_run: bool,
    /// Reason for the action. Not required for a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Result of redriving dead jobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RedriveResponse {
    /// Number of jobs that match the filter.
    pub matched: usize,
    /// Whether more jobs match than one request processes. If so, repeat the request.
    pub more: bool,
    /// Jobs that were submitted again.
    pub redriven: Vec<RedrivenJob>,
    /// Jobs that could not be redriven.
    pub refused: Vec<RefusedJob>,
}

/// A dead job that was submitted again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RedrivenJob {
    /// The dead job.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub from: JobId,
    /// The new job.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub job: JobId,
}

/// Result of discarding dead jobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiscardResponse {
    /// Number of jobs that match the filter.
    pub matched: usize,
    /// Whether more jobs match than one request processes. If so, repeat the request.
    pub more: bool,
    /// Jobs that were discarded.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<schema::Id>))]
    pub discarded: Vec<JobId>,
    /// Jobs that could not be discarded.
    pub refused: Vec<RefusedJob>,
}

/// A dead job that could not be redriven or discarded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RefusedJob {
    /// The job.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub job: JobId,
    /// Stable code of the refusal.
    pub code: String,
    /// What happened and how to resolve it.
    pub detail: String,
}
