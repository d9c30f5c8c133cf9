//! JSON types of resources.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_core::resource::Resource;
use tenure_core::status::Status;
use tenure_core::{Job, JobId, ResourceKey, Token};

use super::jobs::{JobInfo, RequestedByInfo};
use super::observed::{TimerInfo, TimerRequests, status_instant};
#[cfg(feature = "openapi")]
use super::schema;
use super::{
    instant, parse_document, parse_optional_document, parse_server_instant, to_document,
    to_optional_document,
};

/// A resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[non_exhaustive]
pub struct ResourceInfo {
    /// Tenant.
    pub tenant: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// State, one of those declared by the kind.
    pub state: String,
    /// Time of the last state change.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub since: String,
    /// Desired state.
    pub spec: Option<Value>,
    /// Number of changes of the desired state.
    pub generation: u64,
    /// Generation that was last reconciled.
    pub observed_generation: u64,
    /// Status: what the holders of its jobs know about the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Value>,
    /// Token of the tenure that wrote the status last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::FencingToken>))]
    pub status_token: Option<Token>,
    /// Time of the last change of the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Instant>))]
    pub status_at: Option<String>,
    /// Timers, in the order in which they were set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timers: Vec<TimerInfo>,
    /// Who paused the resource. While it is paused, no job starts.
    pub paused: Option<RequestedByInfo>,
    /// Running job.
    pub current_job: Option<JobInfo>,
    /// First unfinished jobs after the running one, in the order of the lane.
    pub queue: Vec<JobInfo>,
    /// Total number of unfinished jobs besides the running one.
    pub queue_length: usize,
}

impl ResourceInfo {
    /// Maximum number of waiting jobs shown with a single resource.
    pub const QUEUE_SHOWN: usize = 100;

    /// Converts a resource with up to `queue_max` of its waiting jobs.
    #[must_use]
    pub fn new(key: &ResourceKey, resource: &Resource, queue_max: usize) -> Self {
        let current = resource.lane.iter().find(|job| job.state.is_running());
        let current = current.map(|job| job.id);
        let others = || resource.lane.iter().filter(|job| Some(job.id) != current);
        let to_info = |job: &Job| JobInfo::new(key, job);
        Self {
            tenant: key.tenant().to_owned(),
            kind: key.kind().to_owned(),
            name: key.name().to_owned(),
            state: resource.state.to_string(),
            since: instant(resource.since),
            spec: parse_optional_document(resource.spec.as_ref()),
            generation: resource.generation,
            observed_generation: resource.observed,
            status: resource.status.as_ref().map(|status| parse_document(&status.document)),
            status_token: resource.status.as_ref().map(|status| status.token),
            status_at: resource.status.as_ref().map(|status| instant(status.at)),
            timers: resource.timers.iter().map(TimerInfo::new).collect(),
            paused: resource.paused.as_ref().map(RequestedByInfo::new),
            current_job: current.and_then(|id| resource.job(id)).map(to_info),
            queue: others().take(queue_max).map(|job| to_info(job)).collect(),
            queue_length: others().count(),
        }
    }

    /// Converts back. Fields that are not part of the JSON have default values.
    #[must_use]
    pub fn to_resource(&self) -> Resource {
        let jobs = self.current_job.iter().chain(&self.queue);
        let lane: VecDeque<_> = jobs.map(|job| Box::new(job.to_job())).collect();
        let status = self.status.as_ref().map(|status| {
            let (document, token) = (to_document(status), self.status_token.unwrap_or_default());
            Box::new(Status { document, token, at: status_instant(self.status_at.as_ref()) })
        });
        Resource {
            status,
            timers: self.timers.iter().map(TimerInfo::to_timer).collect(),
            spec: to_optional_document(self.spec.as_ref()),
            generation: self.generation,
            observed: self.observed_generation,
            paused: self.paused.as_ref().map(RequestedByInfo::to_requested_by),
            lane,
            ..Resource::new(self.state.as_str().into(), parse_server_instant(&self.since))
        }
    }
}

/// `PUT /v1/resources/{kind}/{name}`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "spec": { "nodes": 3 } })))]
pub struct PutResourceRequest {
    /// Desired state.
    pub spec: Value,
    /// Timers to set in the same step, by operation; `null` removes a timer.
    #[serde(default, skip_serializing_if = "TimerRequests::is_empty")]
    pub timers: TimerRequests,
}

/// Result of putting a resource.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PutResourceResponse {
    /// The resource.
    #[serde(flatten)]
    pub resource: ResourceInfo,
    /// Job that reconciles the resource, if one was submitted.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Id>))]
    pub job: Option<JobId>,
}

/// Result of deleting a resource.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeleteResourceResponse {
    /// Always true.
    pub deleted: bool,
}

/// Result of pausing or resuming a resource.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PauseResponse {
    /// Whether the resource is paused.
    pub paused: bool,
}
