//! The install-config: the document from which the installer creates a cluster.
//!
//! It is JSON, which is valid YAML. What the document leaves out, such as networks, is left to the
//! installer, unless the profile sets it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tenure_core::status::merge_patch;

use crate::config::ClusterConfig;
use crate::profile::{PLATFORMS, Profile, Secrets, TAG_CLUSTER, TAG_OWNER};

/// Number of control plane nodes, unless the profile sets another.
pub const CONTROL_PLANE_REPLICAS: u32 = 3;
/// Name of the pool of workers.
const WORKER: &str = "worker";
const PULL_SECRET: &str = "pullSecret";
/// What replaces the pull secret in the redacted document.
const REDACTED: &str = "(removed)";

/// An install-config. It contains the pull secret, so it has no debug output.
#[derive(Clone, PartialEq)]
pub struct InstallConfig(Value);

impl InstallConfig {
    /// Creates the document of a cluster.
    ///
    /// # Errors
    ///
    /// Fails if the document cannot be merged with that of the profile.
    pub fn new(
        config: &ClusterConfig,
        profile: &Profile,
        secrets: &Secrets,
    ) -> Result<Self, String> {
        let platforms = BTreeMap::from([(&config.platform, platform(config))]);
        let document = json!({
            "apiVersion": "v1",
            "baseDomain": config.base_domain,
            "metadata": { "name": config.name },
            "controlPlane": { "name": "master", "replicas": CONTROL_PLANE_REPLICAS },
            "compute": [{ "name": WORKER, "replicas": config.workers }],
            "platform": platforms,
        });
        let patch = Value::Object(profile.install_config.clone());
        let merged = merge_patch(&document.to_string(), &patch.to_string());
        let parsed =
            merged.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string()));
        let mut document: Map<String, Value> = parsed.map_err(|why| {
            format!("cannot merge install_config of the profile {}: {why}", profile.name)
        })?;
        set_workers(&mut document, config.workers);
        if let Some(secret) = &secrets.pull_secret {
            document.insert(PULL_SECRET.to_owned(), secret.expose().into());
        }
        if let Some(key) = &secrets.ssh_key {
            document.insert("sshKey".to_owned(), key.expose().into());
        }
        Ok(Self(Value::Object(document)))
    }

    /// Returns the document with the pull secret, for the installer only.
    #[must_use]
    pub fn expose(&self) -> &Value {
        &self.0
    }

    /// Returns a copy without the pull secret and without passwords, which the tables of some
    /// platforms have, to be kept and shown.
    #[must_use]
    pub fn redacted(&self) -> Value {
        let mut copy = self.0.clone();
        redact(&mut copy);
        copy
    }
}

/// Returns the tags of all resources of a cluster, with its owner and its id.
#[must_use]
pub fn resource_tags(config: &ClusterConfig) -> BTreeMap<String, String> {
    let mut tags = config.tags.clone();
    tags.insert(TAG_OWNER.to_owned(), config.owner.clone());
    tags.insert(TAG_CLUSTER.to_owned(), config.id());
    tags
}

fn redact(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                if key == PULL_SECRET || key.to_lowercase().contains("password") {
                    *value = REDACTED.into();
                } else {
                    redact(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        _ => {}
    }
}

fn platform(config: &ClusterConfig) -> Value {
    let mut table = Map::new();
    let has_regions = PLATFORMS.iter().any(|p| p.name == config.platform && p.has_regions);
    if has_regions {
        table.insert("region".to_owned(), config.region.clone().into());
    }
    if config.platform == "aws" {
        table.insert("userTags".to_owned(), json!(resource_tags(config)));
    }
    Value::Object(table)
}

/// Sets the number of workers. A merge patch replaces lists as a whole, so a profile that sets the
/// type of the machines has replaced it.
fn set_workers(document: &mut Map<String, Value>, workers: u32) {
    let pools = document.get_mut("compute").and_then(Value::as_array_mut);
    let is_worker = |pool: &&mut Value| pool.get("name").is_some_and(|name| name == WORKER);
    if let Some(Value::Object(pool)) = pools.and_then(|pools| pools.iter_mut().find(is_worker)) {
        pool.insert("replicas".to_owned(), workers.into());
    }
}

#[cfg(test)]
mod tests;
