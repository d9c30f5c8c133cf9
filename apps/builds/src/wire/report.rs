//! JSON of reports.

use serde::{Deserialize, Serialize};
use tenure_core::Token;
use tenure_wire::schema;

use super::{MasterStatus, TestStateName};

/// A test in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TestReport {
    /// Position in the order of the build, from 0.
    pub index: usize,
    /// The test.
    pub test: String,
    /// State.
    #[schema(value_type = TestStateName)]
    pub state: String,
    /// Node that ran it last.
    pub worker: Option<String>,
    /// Duration of its last run.
    pub duration_ms: Option<u64>,
    /// Time of its result.
    #[schema(value_type = Option<schema::Instant>)]
    pub ended_at: Option<String>,
    /// Number of times that it failed.
    pub failures: u32,
    /// Number of times that its node was lost.
    pub losses: u32,
    /// Failure code of its last failure.
    pub code: Option<String>,
    /// Failure message of its last failure.
    pub message: Option<String>,
}

/// What a node did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WorkerReport {
    /// Name of the node.
    pub worker: String,
    /// Number of tests whose result is from this node.
    pub tests: usize,
    /// Number of those that failed.
    pub failed: usize,
    /// Time that it ran those tests.
    pub duration_ms: u64,
}

/// The results of a build: the same on every node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BuildReportResponse {
    /// Id of the build.
    pub build: String,
    /// Status.
    pub master_status: MasterStatus,
    /// Term of the tests.
    #[schema(value_type = Option<schema::FencingToken>)]
    pub term: Option<Token>,
    /// Number of tests.
    pub total: usize,
    /// Number of tests that passed.
    pub passed: usize,
    /// Number of tests that failed.
    pub failed: usize,
    /// Number of tests that failed and are known to be flaky.
    pub flaky: usize,
    /// Number of tests without a final result.
    pub unfinished: usize,
    /// Number of failed runs that were repeated.
    pub requeues: usize,
    /// Number of runs whose node was lost.
    pub losses: usize,
    /// Time from the publication of the tests to the last result.
    pub duration_ms: u64,
    /// Tests that failed.
    pub failures: Vec<TestReport>,
    /// Tests that failed and passed, or that failed and are known to be flaky.
    pub flaky_tests: Vec<TestReport>,
    /// Tests that lost their node.
    pub lost_tests: Vec<TestReport>,
    /// Nodes with results.
    pub workers: Vec<WorkerReport>,
    /// All tests, with `all=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests: Option<Vec<TestReport>>,
}
