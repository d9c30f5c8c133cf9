//! JSON of results and reservations.

use serde::{Deserialize, Serialize};
use tenure_core::{JobId, SessionId, Token};
use tenure_wire::schema;

use super::{
    MaxLosses, MaxRequeues, ReserveSize, StopInfo, TestId, WorkerName, is_false, objects, yes,
};

/// Outcome of a test on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TestOutcome {
    /// It passed.
    Passed,
    /// It failed.
    Failed,
    /// It was not run to its end: another node is to run it.
    NotRun,
}

/// Result of a test.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TestResult {
    /// Job of the test.
    #[schema(value_type = schema::Id)]
    pub job: JobId,
    /// Token of the attempt.
    #[schema(value_type = schema::FencingToken)]
    pub token: Token,
    /// The test.
    #[schema(value_type = TestId)]
    pub test: String,
    /// Outcome.
    pub outcome: TestOutcome,
    /// Duration of the run.
    #[serde(default)]
    #[schema(value_type = schema::Uint64)]
    pub duration_ms: u64,
    /// Number of failures before, from the reservation.
    #[serde(default)]
    #[schema(value_type = MaxRequeues)]
    pub failures: u32,
    /// Number of lost attempts before, from the reservation.
    #[serde(default)]
    #[schema(value_type = MaxLosses)]
    pub losses: u32,
    /// Failure code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::FailureCode>)]
    pub code: Option<String>,
    /// Failure message. Its last 1,024 bytes are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether the test is known to be flaky: then its failure does not fail the build.
    #[serde(default, skip_serializing_if = "is_false")]
    pub known_flaky: bool,
}

/// `POST /v1/builds/{id}/ack`
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "worker": "node-3", "term": 1, "results": [{
        "job": "0123456789abcdef0123456789abcdef", "token": 1,
        "test": "tests/test_login.py::test_logout", "outcome": "passed"
    }]
}))]
pub struct AckRequest {
    /// Name of the node.
    #[schema(value_type = WorkerName)]
    pub worker: String,
    /// Term of the tests.
    #[schema(value_type = schema::FencingToken)]
    pub term: Token,
    /// The results.
    #[serde(deserialize_with = "objects")]
    #[schema(max_items = 256)]
    pub results: Vec<TestResult>,
}

/// What became of a test with a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AckVerdict {
    /// It passed.
    Passed,
    /// It failed.
    Failed,
    /// It failed, and is known to be flaky.
    Flaky,
    /// It failed, and is run again.
    Requeued,
    /// It was not run to its end, and is run by another node.
    Returned,
    /// The node had lost the test, so its result does not count.
    Lost,
}

/// Result of acknowledging tests.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AckResponse {
    /// One verdict per result, in the order of the request.
    pub verdicts: Vec<AckVerdict>,
}

/// `POST /v1/builds/{id}/reserve`
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "worker": "node-3", "session": "0123456789abcdef0123456789abcdef", "term": 1, "max": 1
}))]
pub struct ReserveRequest {
    /// Name of the node.
    #[schema(value_type = WorkerName)]
    pub worker: String,
    /// Session of the node.
    #[schema(value_type = schema::Id)]
    pub session: SessionId,
    /// Term of the tests.
    #[schema(value_type = schema::FencingToken)]
    pub term: Token,
    /// Maximum number of tests to reserve.
    #[schema(value_type = ReserveSize)]
    pub max: usize,
    /// Maximum time to wait for the first test in milliseconds, at most one minute.
    #[serde(default)]
    #[schema(value_type = schema::Uint64)]
    pub wait_ms: u64,
    /// Whether the tests without a final result are counted, which takes a little longer. They
    /// always are if no test was reserved.
    #[serde(default = "yes")]
    pub count: bool,
    /// Results of tests that were reserved before.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "objects")]
    #[schema(max_items = 256)]
    pub results: Vec<TestResult>,
}

/// A test that a node is to run.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ReservedTest {
    /// Job of the test.
    #[schema(value_type = schema::Id)]
    pub job: JobId,
    /// Token of the attempt.
    #[schema(value_type = schema::FencingToken)]
    pub token: Token,
    /// The test.
    pub test: String,
    /// Number of failures before.
    pub failures: u32,
    /// Number of lost attempts before.
    pub losses: u32,
}

/// Result of a reservation.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ReserveResponse {
    /// Tests to run; may be empty.
    pub tests: Vec<ReservedTest>,
    /// One verdict per result of the request.
    pub verdicts: Vec<AckVerdict>,
    /// Whether every test has its final result.
    pub finished: bool,
    /// Number of tests without a final result, if they were counted.
    pub remaining: Option<usize>,
    /// Why no more tests are run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<StopInfo>,
}
