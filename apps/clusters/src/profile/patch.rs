//! Reads the table `install_config` of a profile, which is merged over the install-config.
//!
//! It must not change what identifies a cluster, what a request decides, and what a destroy relies
//! on: these fields are refused when the profile is loaded.

use serde_json::{Map, Value};
use tenure_config::{Report, Section};

use super::Platform;

const KEY: &str = "install_config";
/// Fields that are set for each cluster, with what sets them.
const FIXED: [(&str, &str); 5] = [
    ("apiVersion", "the installer has one version"),
    ("metadata", "the name comes from the request"),
    ("baseDomain", "it comes from the request"),
    ("pullSecret", "use `pull_secret_file`"),
    ("sshKey", "use `ssh_key_file`"),
];

/// Reads the table.
pub(super) fn read(
    root: &Section<'_>,
    platform: Option<Platform>,
    report: &mut Report<'_>,
) -> Map<String, Value> {
    let Some(section) = root.section(KEY, report) else { return Map::new() };
    // For the lines of problems.
    section.check_keys(&section.keys().collect::<Vec<_>>(), report);
    let Some(Value::Object(patch)) = root.json(KEY, report) else { return Map::new() };
    for (field, why) in FIXED {
        if patch.contains_key(field) {
            report.add(&format!("{KEY}.{field}"), format!("remove it: {why}"));
        }
    }
    if let Some(platform) = platform {
        check_platform(&patch, platform, report);
    }
    check_compute(&patch, report);
    patch
}

fn check_platform(patch: &Map<String, Value>, platform: Platform, report: &mut Report<'_>) {
    let place = format!("{KEY}.platform");
    let tables = match patch.get("platform") {
        None => return,
        Some(Value::Object(tables)) => tables,
        Some(_) => return report.add(&place, "it must be a table"),
    };
    let name = platform.name;
    for (other, table) in tables {
        if other != name {
            report.add(&place, format!("the platform is {name}: remove the table {other}"));
        } else if !table.is_object() {
            report.add(&place, format!("{name} must be a table"));
        }
    }
    let has = |key: &str| tables.get(name).is_some_and(|table| table.get(key).is_some());
    if platform.has_regions && has("region") {
        report.add(&place, format!("{name}.region comes from the request: use `regions`"));
    }
    if has("userTags") {
        report.add(&place, format!("{name}.userTags come from the request: use `tags`"));
    }
}

fn check_compute(patch: &Map<String, Value>, report: &mut Report<'_>) {
    let place = format!("{KEY}.compute");
    let Some(compute) = patch.get("compute") else { return };
    let pools = compute.as_array().map(Vec::as_slice).unwrap_or_default();
    let named = |pool: &Value| pool.get("name").is_some_and(Value::is_string);
    if pools.is_empty() || !pools.iter().all(named) {
        return report.add(&place, "it must be a list of tables, each with a `name`");
    }
    let is_worker = |pool: &&Value| pool.get("name").is_some_and(|name| name == "worker");
    match pools.iter().filter(is_worker).count() {
        1 => {}
        n => report.add(&place, format!("{n} entries have the name worker; it must be one")),
    }
    if pools.iter().filter(is_worker).any(|pool| pool.get("replicas").is_some()) {
        let why = "the replicas of worker come from the request: use `workers`";
        report.add(&place, why);
    }
}
