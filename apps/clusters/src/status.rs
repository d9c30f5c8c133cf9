//! The durable status of a cluster, written by the holders of its jobs with their tokens.
//!
//! It is what a worker needs to continue after another one died: above all the infra id, which is
//! written before the first resource exists in the cloud, and with which everything can be found
//! and destroyed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_core::{JobId, Millis, Token};

use crate::artifacts::Snapshot;
use crate::config::ClusterConfig;

/// Status of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Configuration of the CREATE job that wrote the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ClusterConfig>,
    /// That job. A cluster that is created again begins another life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_job: Option<JobId>,
    /// Time of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Millis>,
    /// Time of the automatic destroy, unless it was extended; see [`Extension`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Millis>,
    /// What may exist in the cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infra: Option<Infra>,
    /// What existed in the cloud before the last destroy, to verify that it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroyed: Option<Infra>,
    /// Newest snapshot of the install directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Snapshot>,
    /// Addresses of the cluster, once it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Outputs>,
    /// Number of workers, as of the last successful job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// Failures of the last job that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<Failures>,
    /// Last failure; removed by the next success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    /// Whether what a failed create has left is kept.
    #[serde(default)]
    pub preserved: bool,
    /// Whether a destroy has begun: parts of the cluster may be gone.
    #[serde(default)]
    pub destroying: bool,
    /// Whether the last SCALE_WORKERS did not succeed: a request of its worker may still be on its
    /// way.
    #[serde(default)]
    pub scaling: bool,
    /// Duration of the successful install, for estimates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_ms: Option<u64>,
}

/// An installation that may exist in the cloud, in whole or in part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Infra {
    /// Name that the installer gave it: every resource in the cloud is tagged with it.
    pub infra_id: String,
    /// UUID of the cluster.
    pub cluster_id: String,
    /// Region.
    pub region: String,
    /// Token of the attempt that created it.
    pub token: Token,
    /// The installer's `metadata.json` without credentials: all that a destroy needs.
    pub metadata: Value,
}

/// Addresses of a running cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outputs {
    /// Address of the API.
    pub api_url: String,
    /// Address of the web console.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub console_url: Option<String>,
}

/// Failures of one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// The job.
    pub job: JobId,
    /// Their number by class.
    pub by_class: BTreeMap<String, u32>,
}

/// A failure of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// Operation.
    pub operation: String,
    /// Job.
    pub job: JobId,
    /// Attempt.
    pub attempt: u32,
    /// Code, the reason of the rule that matched.
    pub code: String,
    /// Class of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Message.
    pub message: String,
    /// What failures of the same kind have in common, if no rule knows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

/// Spec of a cluster: what users change while it exists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterSpec {
    /// Extension of the time to live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extension: Option<Extension>,
    /// Entry of the history at which the cluster was stopped because the history contradicts
    /// itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incident: Option<u64>,
}

/// A later end of one life of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension {
    /// CREATE job of this life.
    pub create_job: JobId,
    /// Time of the automatic destroy; none if it is kept until it is destroyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Millis>,
}

/// What a JANITOR_DESTROY does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtExpiry {
    /// It destroys the cluster.
    Destroy,
    /// Nothing: the time to live was extended to this instant, or has no end. The timer has to be
    /// set again, because it may have fired meanwhile and joined this job.
    Extended(Option<Millis>),
    /// Nothing: what a failed create has left is kept.
    Kept,
}

impl ClusterStatus {
    /// Parses a status; a resource without one has an empty one.
    ///
    /// # Errors
    ///
    /// Fails if it was written by another program.
    pub fn parse(document: Option<&str>) -> Result<Self, serde_json::Error> {
        document.map_or_else(|| Ok(Self::default()), serde_json::from_str)
    }

    /// Decides what a JANITOR_DESTROY does that was submitted at an instant and begins now.
    #[must_use]
    pub fn at_expiry(&self, spec: &ClusterSpec, submitted_at: Millis) -> AtExpiry {
        if self.destroying {
            // What was begun is finished: parts of the cluster are gone.
            return AtExpiry::Destroy;
        }
        match self.effective_expiry(spec) {
            Some(expiry) if expiry > submitted_at => AtExpiry::Extended(Some(expiry)),
            None => AtExpiry::Extended(None),
            Some(_) if self.preserved => AtExpiry::Kept,
            Some(_) => AtExpiry::Destroy,
        }
    }

    /// Returns the number of failures of a job by class.
    #[must_use]
    pub fn failures_of(&self, job: JobId) -> BTreeMap<String, u32> {
        let of_job = self.failures.as_ref().filter(|failures| failures.job == job);
        of_job.map(|failures| failures.by_class.clone()).unwrap_or_default()
    }

    /// Returns the time of the automatic destroy, with the extension of the spec if it belongs to
    /// this life.
    #[must_use]
    pub fn effective_expiry(&self, spec: &ClusterSpec) -> Option<Millis> {
        match spec.extension {
            Some(extension) if Some(extension.create_job) == self.create_job => {
                extension.expires_at
            }
            _ => self.expires_at,
        }
    }
}

impl ClusterSpec {
    /// Parses a spec; a resource without one has an empty one.
    ///
    /// # Errors
    ///
    /// Fails if it was written by another program.
    pub fn parse(document: Option<&str>) -> Result<Self, serde_json::Error> {
        document.map_or_else(|| Ok(Self::default()), serde_json::from_str)
    }
}
