//! The JSON of dead letters: jobs that used up their attempts and wait for a person.

use serde::{Deserialize, Serialize};
use tenure_core::JobId;

use super::jobs::JobAnswer;
use super::object::object;
#[cfg(feature = "openapi")]
use super::schema;

/// `GET /v1/dead`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeadAnswer {
    /// What they died of, the most frequent first; only with the first page.
    pub groups: Vec<DeadGroup>,
    /// Whether the groups count all of them; very many are counted in part.
    pub complete: bool,
    /// The jobs, newest first.
    pub items: Vec<JobAnswer>,
    /// Give it as `cursor` for the next page; nothing when this is the last.
    pub next: Option<String>,
}

/// Dead jobs that died of the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeadGroup {
    /// The kind of their resources.
    pub kind: String,
    /// Their verb.
    pub operation: String,
    /// Why they failed, for programs.
    pub code: String,
    /// How many they are.
    pub count: usize,
    /// What the newest of them said.
    pub message: String,
    /// When the first of them was over.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub oldest: String,
    /// When the last of them was over.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub newest: String,
}

/// Which dead jobs; all of the tenant's when nothing is said.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DeadFilter {
    /// Only of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only of this verb.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Only those that failed with this code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Only these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<schema::Id>>))]
    #[cfg_attr(feature = "openapi", schema(max_items = 1_000))]
    pub ids: Option<Vec<JobId>>,
}

/// `POST /v1/dead/redrive` and `POST /v1/dead/discard`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadBody {
    /// Which.
    #[serde(deserialize_with = "object")]
    pub filter: DeadFilter,
    /// Only count them.
    #[serde(default)]
    pub dry_run: bool,
    /// Why; not needed for a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The answer to a redrive.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RedriveAnswer {
    /// How many the filter found.
    pub matched: usize,
    /// There are more than one request deals with: send another.
    pub more: bool,
    /// Those that are tried again.
    pub redriven: Vec<Redriven>,
    /// Those that are not.
    pub refused: Vec<Unmoved>,
}

/// A dead job that is tried again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Redriven {
    /// The dead job.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub from: JobId,
    /// The job that was made from it.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub job: JobId,
}

/// The answer to discarding dead jobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiscardAnswer {
    /// How many the filter found.
    pub matched: usize,
    /// There are more than one request deals with: send another.
    pub more: bool,
    /// Those that were thrown away.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<schema::Id>))]
    pub discarded: Vec<JobId>,
    /// Those that were not.
    pub refused: Vec<Unmoved>,
}

/// A dead job with which nothing could be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Unmoved {
    /// The job.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub job: JobId,
    /// The stable code of the refusal.
    pub code: String,
    /// What happened and what to do.
    pub detail: String,
}
