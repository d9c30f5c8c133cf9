//! JSON types of workers, controllers and the janitor.

use serde::{Deserialize, Serialize};
use tenure_core::{JobId, SessionId};

#[cfg(feature = "openapi")]
use super::schema;

use crate::TenureInfo;

/// A session that claims jobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerInfo {
    /// Id of the session.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub session: SessionId,
    /// Tenant; `*` for a worker of all tenants.
    pub tenant: String,
    /// Name of the session.
    pub name: String,
    /// Kinds whose jobs it claims.
    pub kinds: Vec<String>,
    /// Age of the session in milliseconds.
    #[serde(default)]
    pub age_ms: u64,
    /// Time since its last claim in milliseconds.
    pub asked_ms: u64,
    /// Time in milliseconds after which the session expires without a heartbeat.
    pub expires_in_ms: u64,
    /// Jobs it runs.
    pub jobs: Vec<WorkerJobInfo>,
}

/// A job that a worker runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerJobInfo {
    /// Kind of the resource.
    pub kind: String,
    /// Name of the resource.
    pub name: String,
    /// Id of the job.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub job: JobId,
}

/// A controller of an app: a task that one process of the fleet runs at a time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ControllerInfo {
    /// Name.
    pub name: String,
    /// App it belongs to.
    pub app: String,
    /// Tenure of the process that runs it; null while none does.
    pub tenure: Option<TenureInfo>,
}

/// `GET /v1/janitor`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JanitorResponse {
    /// Duties of the janitor.
    pub items: Vec<DutyInfo>,
    /// Whether the janitor of this server is the active one.
    pub here: bool,
}

/// A periodic duty of the janitor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DutyInfo {
    /// Name.
    pub duty: String,
    /// Interval in milliseconds.
    pub every_ms: u64,
    /// Time of the last run.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Instant>))]
    pub last_run: Option<String>,
    /// Duration of the last run in milliseconds.
    pub duration_ms: u64,
    /// Number of items processed by the last run.
    pub count: u64,
    /// Number of items processed since the server started.
    pub total: u64,
    /// Time by which the duty is overdue, in milliseconds.
    pub lag_ms: u64,
    /// Error of the last run, if it failed.
    pub error: Option<String>,
    /// Finding of the last run that needs an operator's attention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}
