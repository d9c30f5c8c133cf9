//! JSON types of the builds API.

mod report;
mod results;

use serde::{Deserialize, Deserializer, Serialize};
use tenure_core::{JobId, SessionId, Token, limits};
use tenure_wire::schema::{self, integer, string, string_enum, text};
use tenure_wire::{FailureInfo, Object};

pub use report::{BuildReportResponse, TestReport, WorkerReport};
pub use results::{
    AckRequest, AckResponse, AckVerdict, ReserveRequest, ReserveResponse, ReservedTest,
    TestOutcome, TestResult,
};

use crate::names::{BUILD_BYTES_MAX, TEST_BYTES_MAX, TESTS_MAX};

/// Maximum number of tests that are published, reserved or acknowledged in one request.
pub const CHUNK_MAX: usize = 4_096;
/// Maximum number of tests that are reserved in one request.
pub const RESERVE_MAX: usize = limits::CLAIM_MAX;
/// Maximum number of requeues per test.
pub const MAX_REQUEUES_MAX: u32 = 50;
/// Maximum number of lost attempts per test.
pub const MAX_LOSSES_MAX: u32 = 40;
/// Maximum number of failures that can be set as a limit.
pub const MAX_FAILURES_MAX: u32 = 2_000;
/// Maximum time limit of a test.
pub const TIMEOUT_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// Maximum length of a seed, in bytes.
pub const SEED_BYTES_MAX: usize = 256;
/// Maximum size of the body of a request that publishes tests.
pub const PUBLISH_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Ids of builds.
const BUILD_PATTERN: &str = "^[0-9A-Za-z][0-9A-Za-z._:@+/-]*$";

tenure_wire::schemas! {
    /// Id of a build.
    BuildId => string().min_length(Some(1)).max_length(Some(BUILD_BYTES_MAX))
        .pattern(Some(BUILD_PATTERN)).examples(["4711"]);
    /// Name of a node.
    WorkerName => text(1, limits::SESSION_NAME_BYTES_MAX).examples(["node-3"]);
    /// Id of a test.
    TestId => text(1, TEST_BYTES_MAX).examples(["tests/test_login.py::test_logout"]);
    /// SHA-256 of a list of tests, in hexadecimal digits.
    Digest => string().pattern(Some("^[0-9a-f]{64}$"))
        .examples(["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]);
    /// Seed of the order of the tests.
    Seed => text(1, SEED_BYTES_MAX).examples(["4711"]);
    /// Number of tests of a build.
    TestCount => integer(0, TESTS_MAX as u64);
    /// Time limit of one run of a test, in milliseconds.
    Timeout => integer(100, TIMEOUT_MS_MAX).examples([30_000]);
    /// Maximum number of requeues per test.
    MaxRequeues => integer(0, u64::from(MAX_REQUEUES_MAX));
    /// Maximum number of lost attempts per test.
    MaxLosses => integer(1, u64::from(MAX_LOSSES_MAX));
    /// Number of failed tests after which the build stops.
    MaxFailures => integer(1, u64::from(MAX_FAILURES_MAX));
    /// Number of tests to reserve.
    ReserveSize => integer(1, RESERVE_MAX as u64);
    /// Status of a build.
    MasterStatusName => string_enum(MasterStatus::ALL.iter().map(|status| status.as_str()));
    /// State of a test.
    TestStateName => string_enum(crate::state::TestState::ALL.iter().map(|state| state.as_str()));
}

/// Status of a build, as its nodes see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MasterStatus {
    /// No node leads.
    None,
    /// The leader prepares the tests.
    Setup,
    /// The tests are published.
    Ready,
    /// Every test has its final result.
    Finished,
    /// The setup failed.
    Failed,
}

impl MasterStatus {
    /// All values.
    pub const ALL: [Self; 5] = [Self::None, Self::Setup, Self::Ready, Self::Finished, Self::Failed];

    /// Returns the spelling in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Setup => "setup",
            Self::Ready => "ready",
            Self::Finished => "finished",
            Self::Failed => "failed",
        }
    }
}

/// A list of tests, described by its length and digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TestListInfo {
    /// Number of tests.
    #[schema(value_type = TestCount)]
    pub total: usize,
    /// SHA-256 of the sorted tests, each followed by a newline.
    #[schema(value_type = Digest)]
    pub digest: String,
}

/// Rules of a build. Those of the node that creates it apply to all nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildRulesRequest {
    /// Seed of the order of the tests. Defaults to the id of the build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Seed>)]
    pub seed: Option<String>,
    /// Time limit of one run of a test. Defaults to 30 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Timeout>)]
    pub timeout_ms: Option<u64>,
    /// Number of times that a failed test is run again. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MaxRequeues>)]
    pub max_requeues: Option<u32>,
    /// Fraction of the tests that may be requeued in total. Defaults to 0.05.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.0, maximum = 1.0)]
    pub requeue_tolerance: Option<f64>,
    /// Number of failed tests after which no more tests are run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MaxFailures>)]
    pub max_failures: Option<u32>,
    /// Number of times that a test may lose its node before it counts as failed. Defaults to 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<MaxLosses>)]
    pub max_losses: Option<u32>,
}

/// Rules of a build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BuildRules {
    /// Seed of the order of the tests.
    pub seed: String,
    /// Time limit of one run of a test.
    pub timeout_ms: u64,
    /// Number of times that a failed test is run again.
    pub max_requeues: u32,
    /// Fraction of the tests that may be requeued in total.
    pub requeue_tolerance: f64,
    /// Number of failed tests after which no more tests are run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_failures: Option<u32>,
    /// Number of times that a test may lose its node before it counts as failed.
    pub max_losses: u32,
    /// Interval between the heartbeats of a node.
    pub heartbeat_ms: u64,
    /// Time without a heartbeat after which a node has lost what it held.
    pub stale_ms: u64,
    /// Time that a node waits while no other node leads.
    pub wait_ms: u64,
}

/// `POST /v1/builds/{id}/join`
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "worker": "node-3" }))]
pub struct JoinRequest {
    /// Name of the node.
    #[schema(value_type = WorkerName)]
    pub worker: String,
    /// Session of the node. Without it the build is created and shown, and the node does not stand
    /// for election.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Id>)]
    pub session: Option<SessionId>,
    /// The tests that the node knows. Those of all nodes must be the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "optional_object")]
    pub tests: Option<TestListInfo>,
    /// Rules of the build, if this node creates it.
    #[serde(default, deserialize_with = "object")]
    pub rules: BuildRulesRequest,
    /// Refuse a build that does not exist instead of creating it: for a node that is retried.
    #[serde(default, skip_serializing_if = "is_false")]
    pub existing: bool,
    /// Start again if the setup of the build has failed: for a node that is retried.
    #[serde(default, skip_serializing_if = "is_false")]
    pub restart: bool,
    /// Maximum time to wait for the role or for the tests in milliseconds, at most one minute.
    #[serde(default)]
    #[schema(value_type = schema::Uint64)]
    pub wait_ms: u64,
}

/// Deserializes a field from a JSON object only.
fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Object::deserialize(from).map(|Object(value)| value)
}

/// Deserializes an optional field from a JSON object only.
fn optional_object<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let value: Option<Object<T>> = Option::deserialize(from)?;
    Ok(value.map(|Object(value)| value))
}

/// Deserializes a list of JSON objects.
fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let values: Vec<Object<T>> = Vec::deserialize(from)?;
    Ok(values.into_iter().map(|Object(value)| value).collect())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_false(flag: &bool) -> bool {
    !flag
}

fn yes() -> bool {
    true
}

/// Role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeRole {
    /// It publishes the tests.
    Leader,
    /// It waits until they are published, and runs them.
    Follower,
}

/// The right of the leader to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LeadershipInfo {
    /// The job `setup`.
    #[schema(value_type = schema::Id)]
    pub job: JobId,
    /// Term: the fencing token of the leader.
    #[schema(value_type = schema::FencingToken)]
    pub term: Token,
}

/// Result of joining a build.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct JoinResponse {
    /// Role of the node.
    pub role: NodeRole,
    /// The right to publish, of the leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leadership: Option<LeadershipInfo>,
    /// The build.
    pub build: BuildInfo,
}

/// A node that works on a build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NodeInfo {
    /// Name of the node.
    pub worker: String,
    /// Its session.
    #[schema(value_type = schema::Id)]
    pub session: SessionId,
    /// Time at which it joined.
    #[schema(value_type = schema::Instant)]
    pub since: String,
    /// Time since its last heartbeat.
    pub heartbeat_age_ms: u64,
    /// Time until it has lost what it holds without a heartbeat.
    pub expires_in_ms: u64,
}

/// Why no more tests of a build are run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct StopInfo {
    /// `too_many_failures`
    pub code: String,
    /// Description.
    pub message: String,
}

/// A build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BuildInfo {
    /// Tenant.
    pub tenant: String,
    /// Id.
    pub build: String,
    /// Status.
    pub master_status: MasterStatus,
    /// Name of the leader.
    pub master_worker_id: Option<String>,
    /// Time of the last heartbeat of the leader during the setup.
    #[schema(value_type = Option<schema::Instant>)]
    pub master_setup_heartbeat: Option<String>,
    /// Time since that heartbeat.
    pub master_setup_heartbeat_age_ms: Option<u64>,
    /// Term of the published tests, or of the leader.
    #[schema(value_type = Option<schema::FencingToken>)]
    pub term: Option<Token>,
    /// Number of leaders so far.
    pub elections: u32,
    /// Number of tests, once they are published.
    pub total: Option<usize>,
    /// Number of tests without a final result.
    pub remaining: usize,
    /// Number of tests that are running.
    pub running: usize,
    /// Number of requeues so far, and the maximum.
    pub requeues: usize,
    /// Maximum number of requeues, once the tests are published.
    pub requeues_max: Option<usize>,
    /// Rules of the build.
    pub rules: BuildRules,
    /// Digest of the tests.
    pub digest: Option<String>,
    /// Why no more tests are run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<StopInfo>,
    /// Why the setup failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<FailureInfo>,
    /// Nodes that work on the build.
    pub nodes: Vec<NodeInfo>,
    /// Time of the creation.
    #[schema(value_type = schema::Instant)]
    pub created_at: String,
    /// Time at which the tests were published.
    #[schema(value_type = Option<schema::Instant>)]
    pub published_at: Option<String>,
    /// Time at which the build is deleted.
    #[schema(value_type = schema::Instant)]
    pub expires_at: String,
}

/// `POST /v1/builds/{id}/publish`
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "job": "0123456789abcdef0123456789abcdef", "term": 1, "first": 0,
    "tests": ["tests/test_login.py::test_logout"], "total": 1
}))]
pub struct PublishRequest {
    /// The job of the leader.
    #[schema(value_type = schema::Id)]
    pub job: JobId,
    /// Term of the leader.
    #[schema(value_type = schema::FencingToken)]
    pub term: Token,
    /// Number of tests before these.
    #[schema(value_type = TestCount)]
    pub first: usize,
    /// The tests, in their order.
    #[schema(value_type = Vec<TestId>, max_items = 4_096)]
    pub tests: Vec<String>,
    /// Set in the last request: number of all tests. All nodes see them from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TestCount>)]
    pub total: Option<usize>,
    /// Digest of all tests, in the last request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Digest>)]
    pub digest: Option<String>,
}

/// Result of publishing tests.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PublishResponse {
    /// Number of tests of the request.
    pub published: usize,
    /// Whether all tests are published.
    pub ready: bool,
}

/// `POST /v1/builds/{id}/release`
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "worker": "node-3" }))]
pub struct ReleaseNodeRequest {
    /// Name of the node, which is known to be dead.
    #[schema(value_type = WorkerName)]
    pub worker: String,
}

/// Result of releasing a node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ReleaseNodeResponse {
    /// Number of sessions that were ended; what they held is available again.
    pub released: usize,
}

/// `POST /v1/builds/{id}/retry`
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "worker": "node-3" }))]
pub struct RetryRequest {
    /// Only failures of this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<WorkerName>)]
    pub worker: Option<String>,
}

/// Result of a retry.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RetryResponse {
    /// Number of failed tests that are run again.
    pub tests: usize,
}
