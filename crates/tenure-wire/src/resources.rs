//! The JSON of resources.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_core::resource::Resource;
use tenure_core::{Job, JobId, ResourceKey};

use super::jobs::{AskedAnswer, JobAnswer};
#[cfg(feature = "openapi")]
use super::schema;
use super::{documents, instant, millis, values};

/// A resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourceAnswer {
    /// Whose it is.
    pub tenant: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its state, one of its kind's.
    pub state: String,
    /// Since when.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub since: String,
    /// What it should be like.
    pub spec: Option<Value>,
    /// Counts the changes of what it should be like.
    pub generation: u64,
    /// The generation that it has been brought to.
    pub observed_generation: u64,
    /// Who paused it: nothing starts until it is resumed.
    pub paused: Option<AskedAnswer>,
    /// The job that runs.
    pub current_job: Option<JobAnswer>,
    /// The first of the others that are not over, in the order in which they are looked at.
    pub queue: Vec<JobAnswer>,
    /// How many others there are in all.
    pub queue_length: usize,
}

impl ResourceAnswer {
    /// A resource with up to `queue_max` of its waiting jobs.
    #[must_use]
    pub fn of(key: &ResourceKey, resource: &Resource, queue_max: usize) -> Self {
        let current = resource.lane.iter().find(|job| job.state.is_running());
        let current = current.map(|job| job.id);
        let others = || resource.lane.iter().filter(|job| Some(job.id) != current);
        let answer = |job: &Job| JobAnswer::of(key, job);
        Self {
            tenant: key.tenant().to_owned(),
            kind: key.kind().to_owned(),
            name: key.name().to_owned(),
            state: resource.state.to_string(),
            since: instant(resource.since),
            spec: values(resource.spec.as_ref()),
            generation: resource.generation,
            observed_generation: resource.observed,
            paused: resource.paused.as_ref().map(AskedAnswer::of),
            current_job: current.and_then(|id| resource.job(id)).map(answer),
            queue: others().take(queue_max).map(|job| answer(job)).collect(),
            queue_length: others().count(),
        }
    }

    /// The resource that is meant, apart from what does not travel.
    #[must_use]
    pub fn to_resource(&self) -> Resource {
        let jobs = self.current_job.iter().chain(&self.queue);
        let lane: VecDeque<_> = jobs.map(|job| Box::new(job.to_job())).collect();
        Resource {
            spec: documents(self.spec.as_ref()),
            generation: self.generation,
            observed: self.observed_generation,
            paused: self.paused.as_ref().map(AskedAnswer::to_asked),
            lane,
            ..Resource::new(self.state.as_str().into(), millis(&self.since))
        }
    }
}

/// `PUT /v1/resources/{kind}/{name}`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "spec": { "nodes": 3 } })))]
pub struct PutBody {
    /// What it should be like.
    pub spec: Value,
}

/// The answer to putting a resource.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PutAnswer {
    /// The resource.
    #[serde(flatten)]
    pub resource: ResourceAnswer,
    /// The job that brings it there, when one was made for it.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Id>))]
    pub job: Option<JobId>,
}

/// The answer to deleting a resource.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeletedAnswer {
    /// Always true.
    pub deleted: bool,
}

/// The answer to pausing and resuming a resource.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PausedAnswer {
    /// Whether it is paused now.
    pub paused: bool,
}
