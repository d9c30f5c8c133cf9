//! JSON types of the status of a deployment.

use serde::{Deserialize, Serialize};

/// `GET /v1/status`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatusResponse {
    /// Version of the server.
    pub version: String,
    /// Time since the server started in milliseconds; null for a store without a server.
    pub uptime_ms: Option<u64>,
    /// Type of the store: `embedded`, `memory`, ….
    pub store: String,
    /// Safety class of its locks.
    pub safety: String,
    /// Incarnation of the store; changes after a restore or a fail-over.
    pub incarnation: u32,
    /// Tenant that the counts are of; `*` for all tenants.
    pub tenant: String,
    /// Counts of locks.
    pub locks: LockCountsInfo,
    /// Counts of jobs.
    pub jobs: JobCountsInfo,
    /// Counts of workers.
    pub workers: WorkerCountsInfo,
    /// Conditions that need attention.
    pub attention: Vec<AttentionInfo>,
}

/// Counts of locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LockCountsInfo {
    /// Held locks.
    pub held: usize,
    /// Held locks whose session has expired but was not ended yet.
    pub stale: usize,
    /// Requests that wait for a lock.
    pub waiters: usize,
}

/// Counts of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobCountsInfo {
    /// Running jobs, those that are asked to stop included.
    pub running: usize,
    /// Jobs that wait for their first attempt.
    pub queued: usize,
    /// Jobs that wait for another attempt.
    pub backoff: usize,
    /// Dead letters.
    pub dead: usize,
    /// Longest time in milliseconds that a waiting job has been due; 0 if none is.
    pub queue_oldest_ms: u64,
}

/// Counts of workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerCountsInfo {
    /// Sessions that claim jobs.
    pub sessions: usize,
    /// Sessions that run a job.
    pub busy: usize,
}

/// A condition that needs attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttentionInfo {
    /// Stable code: `dead_letters`, `stale_locks`, `overdue`, `old_locks`, `no_worker` or
    /// `readiness`.
    pub code: String,
    /// Description for people.
    pub text: String,
    /// Command that shows more.
    pub command: String,
}
