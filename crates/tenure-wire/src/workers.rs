//! The JSON of those who do the work: workers, and the janitor.

use serde::{Deserialize, Serialize};
use tenure_core::{JobId, SessionId};

#[cfg(feature = "openapi")]
use super::schema;

use crate::TenureAnswer;

/// A session that asks for jobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerAnswer {
    /// The session.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub session: SessionId,
    /// Whose it is; `*` for one that works for all tenants.
    pub tenant: String,
    /// What people call it.
    pub name: String,
    /// The kinds it works.
    pub kinds: Vec<String>,
    /// How long ago it asked for jobs.
    pub asked_ms: u64,
    /// How long it lives without a heartbeat.
    pub expires_in_ms: u64,
    /// The jobs it has.
    pub jobs: Vec<WorkerJob>,
}

/// A job that a worker has.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerJob {
    /// The kind of the resource.
    pub kind: String,
    /// The name of the resource.
    pub name: String,
    /// The job.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub job: JobId,
}

/// A controller of an app: a task that one process of the fleet runs at a time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ControllerAnswer {
    /// Its name.
    pub name: String,
    /// The app that it belongs to.
    pub app: String,
    /// The tenure of the process that runs it; null while none does.
    pub tenure: Option<TenureAnswer>,
}

/// `GET /v1/janitor`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JanitorAnswer {
    /// Its duties.
    pub items: Vec<DutyAnswer>,
    /// Whether the janitor of this server is the one that works.
    pub here: bool,
}

/// One duty of the janitor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DutyAnswer {
    /// Its name.
    pub duty: String,
    /// How often it is due.
    pub every_ms: u64,
    /// When it ran last.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Instant>))]
    pub last_run: Option<String>,
    /// How long that took.
    pub duration_ms: u64,
    /// How many things it dealt with then.
    pub count: u64,
    /// How many things it has dealt with since the server started.
    pub total: u64,
    /// How long it is overdue.
    pub lag_ms: u64,
    /// Why it failed last time.
    pub error: Option<String>,
    /// What a person should know of what it found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}
