//! JSON types of the clusters API.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tenure_core::{JobId, Token};
use tenure_wire::schema::{self, string, string_enum};
use tenure_wire::{FailureInfo, JobInfo, ProgressInfo};
use utoipa::ToSchema;

use crate::request::{ClusterTtl, WorkerCount};
use crate::state::ClusterState;

tenure_wire::schemas! {
    /// Id of a cluster: `PLATFORM:NAME.BASE_DOMAIN`.
    ClusterId => string().min_length(Some(1)).max_length(Some(200))
        .pattern(Some("^[0-9A-Za-z._:@+=-]+$")).examples(["aws:demo.dev.example.com"]);
    /// State of a cluster.
    ClusterStateName => string_enum(ClusterState::ALL.iter().map(|state| state.as_str()));
}

/// A cluster.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterInfo {
    /// Tenant.
    pub tenant: String,
    /// Id: `PLATFORM:NAME.BASE_DOMAIN`.
    #[schema(value_type = ClusterId)]
    pub id: String,
    /// Name.
    pub name: String,
    /// Platform.
    pub platform: String,
    /// Base domain.
    pub base_domain: String,
    /// State. Between two attempts of a job it is the state before the job.
    #[schema(value_type = ClusterStateName)]
    pub state: String,
    /// Time of the last change of the state.
    #[schema(value_type = schema::Instant)]
    pub since: String,
    /// Profile.
    pub profile: String,
    /// OpenShift version.
    pub version: String,
    /// Region.
    pub region: String,
    /// Number of workers; the requested number until the cluster runs.
    pub workers: u32,
    /// Owner.
    pub owner: String,
    /// Tags.
    pub tags: BTreeMap<String, String>,
    /// Whether what a failed create leaves is kept.
    pub preserve_on_failure: bool,
    /// Whether something is kept now.
    pub preserved: bool,
    /// Time of the request.
    #[schema(value_type = Option<schema::Instant>)]
    pub created_at: Option<String>,
    /// Time of the automatic destroy.
    #[schema(value_type = Option<schema::Instant>)]
    pub expires_at: Option<String>,
    /// Id of the installation that may exist in the cloud.
    pub infra_id: Option<String>,
    /// UUID of the cluster.
    pub cluster_id: Option<String>,
    /// Addresses, once the cluster runs.
    pub outputs: Option<OutputsInfo>,
    /// What is being done or waits.
    pub operation: Option<ClusterOperationInfo>,
    /// Last failure.
    pub last_error: Option<ClusterErrorInfo>,
    /// Whether jobs are prevented from starting.
    pub paused: bool,
}

/// Addresses of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputsInfo {
    /// Address of the API.
    pub api_url: String,
    /// Address of the web console.
    pub console_url: Option<String>,
}

/// The operation of a cluster that runs or waits.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterOperationInfo {
    /// Job.
    #[schema(value_type = schema::Id)]
    pub job: JobId,
    /// Operation.
    pub operation: String,
    /// State of the job.
    #[schema(value_type = schema::JobState)]
    pub state: String,
    /// Number of the attempt; 0 before the first one.
    pub attempt: u32,
    /// Progress.
    pub progress: Option<ProgressInfo>,
    /// Worker that has the lock.
    pub worker: Option<String>,
    /// Start of the attempt.
    #[schema(value_type = Option<schema::Instant>)]
    pub started_at: Option<String>,
    /// Estimated time to its end, from earlier installs.
    pub remaining_ms: Option<u64>,
    /// Time of the next attempt, during a backoff.
    #[schema(value_type = Option<schema::Instant>)]
    pub next_attempt_at: Option<String>,
    /// Failure of the previous attempt.
    pub error: Option<FailureInfo>,
    /// Number of further operations that wait.
    pub waiting: usize,
}

/// The last failure of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterErrorInfo {
    /// Operation.
    pub operation: String,
    /// Job.
    #[schema(value_type = schema::Id)]
    pub job: JobId,
    /// Attempt.
    pub attempt: u32,
    /// Code.
    pub code: String,
    /// Class, which decides about retries.
    pub class: Option<String>,
    /// Message.
    pub message: String,
    /// What failures of the same kind have in common, if no rule knows them.
    pub fingerprint: Option<String>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClusterVerdict {
    /// The operation can start.
    Started,
    /// The operation waits.
    Queued,
    /// The same operation was requested before; it is the one that counts.
    Attached,
    /// It replaces an operation that was waiting.
    Replaced,
    /// The cluster is already as requested; nothing was submitted.
    Exists,
}

/// Answer to a request that changes a cluster.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterResponse {
    /// What became of the request.
    pub verdict: ClusterVerdict,
    /// Id of the cluster.
    #[schema(value_type = ClusterId)]
    pub id: String,
    /// The job that counts; none if the cluster is already as requested.
    pub job: Option<JobInfo>,
}

/// Request to change the number of workers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"workers": 5}))]
pub struct ScaleRequest {
    /// Number of worker nodes.
    #[schema(value_type = WorkerCount)]
    pub workers: u32,
}

/// Request to change the time to live.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"ttl_ms": 86_400_000}))]
pub struct ExtendRequest {
    /// Time from now to the automatic destroy; `0` keeps the cluster until it is destroyed.
    #[schema(value_type = ClusterTtl)]
    pub ttl_ms: u64,
}

/// Answer to a change of the time to live.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ExtendResponse {
    /// Id of the cluster.
    #[schema(value_type = ClusterId)]
    pub id: String,
    /// Time of the automatic destroy.
    #[schema(value_type = Option<schema::Instant>)]
    pub expires_at: Option<String>,
}

/// What a running cluster is reached by.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterOutputsResponse {
    /// Id of the cluster.
    #[schema(value_type = ClusterId)]
    pub id: String,
    /// Addresses.
    pub outputs: OutputsInfo,
    /// Id of the installation in the cloud.
    pub infra_id: Option<String>,
    /// Place of the newest snapshot of the install directory.
    pub snapshot: Option<String>,
}

/// Credentials of the administrator of a cluster.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct CredentialsResponse {
    /// Id of the cluster.
    #[schema(value_type = ClusterId)]
    pub id: String,
    /// The kubeconfig.
    pub kubeconfig: String,
    /// Password of the user `kubeadmin`.
    pub password: Option<String>,
}

/// A profile.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ProfileInfo {
    /// Name.
    pub name: String,
    /// Description.
    pub description: Option<String>,
    /// Why it cannot be used; its file is broken.
    pub problem: Option<String>,
    /// Platform.
    pub platform: Option<String>,
    /// Versions; the first one is the default.
    pub versions: Vec<String>,
    /// Regions; the first one is the default.
    pub regions: Vec<String>,
    /// Base domains of the tenant; the first one is the default.
    pub base_domains: Vec<String>,
    /// Minimum, default and maximum number of workers.
    pub workers: Option<WorkerBounds>,
    /// Minimum, default and maximum time to live.
    pub ttl_ms: Option<TtlBounds>,
    /// Tags that a request must have.
    pub required_tags: Vec<String>,
}

/// Bounds of the number of workers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct WorkerBounds {
    /// Minimum.
    pub min: u32,
    /// Default.
    pub default: u32,
    /// Maximum.
    pub max: u32,
}

/// Bounds of the time to live, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct TtlBounds {
    /// Minimum.
    pub min: u64,
    /// Default; none if the cluster is kept until it is destroyed.
    pub default: Option<u64>,
    /// Maximum.
    pub max: u64,
    /// Whether a cluster has to have one.
    pub required: bool,
}

/// The queue on SQS.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct QueueResponse {
    /// Name of the queue.
    pub queue: String,
    /// Number of messages that wait.
    pub waiting: u64,
    /// Number of messages that were received and not deleted yet.
    pub in_flight: u64,
    /// Name of the dead-letter queue.
    pub dead_letter_queue: String,
    /// Number of messages in it.
    pub dead_letters: u64,
    /// Differences between the attributes of the queues and the configuration.
    pub problems: Vec<String>,
}

/// Answer to a redrive of dead messages.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct RedriveQueueResponse {
    /// Number of messages that were sent again.
    pub sent: u64,
    /// Number of messages that cannot be read and stay.
    pub unreadable: u64,
}

/// One lock of a cluster is shown with the columns of older systems, too.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterLockResponse {
    /// Id of the cluster.
    #[schema(value_type = ClusterId)]
    pub cluster_id: String,
    /// The lock, if it is held.
    pub lock: Option<JobLockInfo>,
}

/// A held lock.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JobLockInfo {
    /// Job.
    #[schema(value_type = Option<schema::Id>)]
    pub job_id: Option<JobId>,
    /// Time of the grant.
    #[schema(value_type = schema::Instant)]
    pub locked_at: String,
    /// Worker.
    pub locked_by: String,
    /// Time at which it expires without another heartbeat.
    #[schema(value_type = schema::Instant)]
    pub expires_at: String,
    /// Token.
    #[schema(value_type = schema::FencingToken)]
    pub token: Token,
}
