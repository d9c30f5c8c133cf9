//! Profiles: what the clusters of a deployment may look like, one file `DIR/NAME.toml` each.
//!
//! Operators write profiles; users choose one and what it leaves open.
//!
//! | file in `profile/` | job |
//! |---|---|
//! | `read.rs`, `patch.rs` | reads a file, and its table for the installer |
//! | `catalog.rs` | loads the directory |
//! | `resolve.rs`, `tags.rs` | checks a request against a profile |
//! | `secrets.rs` | reads pull secret and SSH key |

mod catalog;
mod patch;
mod read;
mod resolve;
mod secrets;
mod tags;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use regex::Regex;
use serde_json::{Map, Value};

use crate::settings::Settings;

pub use catalog::{NoProfile, PROFILES_MAX, Profiles};
pub use secrets::{Secret, SecretError, Secrets};
pub use tags::{ReservedTag, TAG_CLUSTER, TAG_OWNER, TAGS_MAX};

/// Maximum length of the name of a profile.
pub const PROFILE_BYTES_MAX: usize = 63;
/// Maximum length of a version.
pub const VERSION_BYTES_MAX: usize = 64;
/// Maximum length of a region.
pub const REGION_BYTES_MAX: usize = 64;
/// Maximum length of an owner, which is the value of a tag.
pub const OWNER_BYTES_MAX: usize = tags::VALUE_CHARS_MAX;
/// Maximum length of the description of a profile.
pub const DESCRIPTION_BYTES_MAX: usize = 1_024;
/// Maximum number of entries of each list of a profile.
pub const ENTRIES_MAX: usize = 200;
/// Maximum number of worker nodes.
pub const WORKERS_MAX: u32 = 2_000;
/// Minimum time to live of a cluster.
pub const TTL_MS_MIN: u64 = 1_000;
/// Maximum time to live of a cluster: 366 days.
pub const TTL_MS_MAX: u64 = 366 * 24 * 60 * 60 * 1_000;

/// A platform of the installer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Platform {
    /// Name, the key of its table in the install-config.
    pub name: &'static str,
    /// Whether a cluster is in a region.
    pub has_regions: bool,
}

/// All platforms.
pub const PLATFORMS: [Platform; 11] = [
    Platform { name: "aws", has_regions: true },
    Platform { name: "azure", has_regions: true },
    Platform { name: "gcp", has_regions: true },
    Platform { name: "ibmcloud", has_regions: true },
    Platform { name: "powervs", has_regions: true },
    Platform { name: "vsphere", has_regions: false },
    Platform { name: "openstack", has_regions: false },
    Platform { name: "baremetal", has_regions: false },
    Platform { name: "nutanix", has_regions: false },
    Platform { name: "external", has_regions: false },
    Platform { name: "none", has_regions: false },
];

/// A profile.
#[derive(Clone)]
pub struct Profile {
    /// Name.
    pub name: String,
    /// Description for people.
    pub description: Option<String>,
    /// Platform.
    pub platform: Platform,
    /// OpenShift versions.
    pub versions: Choice,
    /// Path of the installer of a version, where it is not that of the settings.
    pub installers: BTreeMap<String, String>,
    /// Regions; empty if the platform has none.
    pub regions: Choice,
    /// Base domains.
    pub base_domains: Choice,
    /// Bounds of the time to live.
    pub ttl: TtlRule,
    /// Bounds of the number of workers.
    pub workers: WorkersRule,
    /// Tags that each request has to set.
    pub required_tags: Vec<String>,
    /// Tags that no request may set.
    pub reserved_tags: Vec<ReservedTag>,
    /// Tags that each cluster gets.
    pub tags: BTreeMap<String, String>,
    /// Pattern that the whole owner has to match.
    pub owner_pattern: Option<Regex>,
    /// Whether a request may keep what a failed create has left.
    pub allow_preserve: bool,
    /// File with the pull secret.
    pub pull_secret_file: Option<PathBuf>,
    /// File with the public SSH key of the nodes.
    pub ssh_key_file: Option<PathBuf>,
    /// JSON merge patch (RFC 7396) for the install-config.
    pub install_config: Map<String, Value>,
    /// Program that checks quotas and permissions before an install; empty if there is none.
    pub preflight: Vec<String>,
}

/// Its table for the installer may have credentials, so only the name is shown.
impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Allowed values of a field, with the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Allowed values.
    pub allowed: Vec<String>,
    /// The default; none if there are no values.
    pub default: Option<String>,
}

impl Choice {
    /// Returns the allowed values, the default first.
    pub fn default_first(&self) -> impl Iterator<Item = &String> {
        let is_default = |value: &&String| Some(*value) == self.default.as_ref();
        self.default.iter().chain(self.allowed.iter().filter(move |value| !is_default(value)))
    }
}

/// Bounds of the time to live of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TtlRule {
    /// Minimum.
    pub min_ms: u64,
    /// Maximum.
    pub max_ms: u64,
    /// The default; none if a cluster is kept until it is destroyed.
    pub default_ms: Option<u64>,
    /// Whether each cluster has a time to live.
    pub required: bool,
}

/// Bounds of the number of worker nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkersRule {
    /// Minimum.
    pub min: u32,
    /// Maximum.
    pub max: u32,
    /// The default.
    pub default: u32,
}

impl Profile {
    /// Returns the path of the installer of a version.
    #[must_use]
    pub fn installer(&self, version: &str, settings: &Settings) -> String {
        let path = self.installers.get(version).unwrap_or(&settings.installer);
        path.replace("{version}", version)
    }
}
