//! What a cluster shall be: the validated form of a request, and the arguments of its CREATE job.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::names;

/// Configuration of one cluster, complete and checked against its profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// Name, the first label of its domain.
    pub name: String,
    /// Platform of the profile: `aws`.
    pub platform: String,
    /// Domain below which the cluster's own is created.
    pub base_domain: String,
    /// Profile.
    pub profile: String,
    /// OpenShift version.
    pub version: String,
    /// Region.
    pub region: String,
    /// Number of worker nodes.
    pub workers: u32,
    /// Time from the request to the automatic destroy; none if it is kept until it is destroyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Person or team that it belongs to.
    pub owner: String,
    /// Tags of its resources in the cloud.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Whether what a failed create has left is kept for an investigation.
    #[serde(default)]
    pub preserve_on_failure: bool,
}

impl ClusterConfig {
    /// Returns the id of the cluster.
    #[must_use]
    pub fn id(&self) -> String {
        names::cluster_id(&self.platform, &self.name, &self.base_domain)
    }
}

/// Arguments of SCALE_WORKERS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaleArgs {
    /// Wanted number of worker nodes.
    pub workers: u32,
}
