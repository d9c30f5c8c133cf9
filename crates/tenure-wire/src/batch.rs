//! JSON types of batches: many requests in one.

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[cfg(feature = "openapi")]
use super::schema;

/// Maximum number of requests in a batch.
pub const BATCH_REQUESTS_MAX: usize = 4_096;
/// Maximum size of the body of a batch.
pub const BATCH_BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// `POST /v1/batch`
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({
    "requests": [
        { "method": "PUT", "path": "/v1/resources/report/june",
          "body": { "spec": { "pages": 3 } } },
        { "method": "POST", "path": "/v1/resources/report/june/jobs",
          "body": { "operation": "build" } }
    ]
})))]
pub struct BatchRequest {
    /// The requests. Those on one resource are applied in this order.
    #[cfg_attr(feature = "openapi", schema(max_items = 4_096))]
    pub requests: Vec<BatchedRequest>,
}

/// A request of a batch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BatchedRequest {
    /// Method.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::BatchedMethod))]
    pub method: String,
    /// Path and query, below `/v1/`. Without `tenant` in the query it is that of the batch.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::BatchedPath))]
    pub path: String,
    /// Body; null for a request without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// `Idempotency-Key` of the request. By default it is derived from that of the batch and the
    /// index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::IdempotencyKey>))]
    pub idempotency_key: Option<String>,
    /// `If-Match` of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Generation>))]
    pub if_match: Option<String>,
    /// `If-None-Match` of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Any>))]
    pub if_none_match: Option<String>,
}

/// Answers to a batch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchResponse {
    /// One answer per request, in the order of the requests.
    pub answers: Vec<BatchedAnswer>,
}

/// Answer to a request of a batch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchedAnswer {
    /// Status that the request would have got on its own.
    pub status: u16,
    /// Body that the request would have got on its own. Null if all bodies together are too large;
    /// the request was applied nevertheless.
    pub body: Value,
}
