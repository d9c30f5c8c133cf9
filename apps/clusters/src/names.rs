//! Names of clusters.
//!
//! A cluster is the resource `cluster/PLATFORM:NAME.BASE_DOMAIN`. The three parts are its identity,
//! so two clusters that would collide in the cloud are one resource, and its lock, its lane and its
//! state exclude what must not happen twice.

use tenure_core::ResourceKey;
use tenure_core::key::InvalidName;

/// Kind of clusters.
pub const CLUSTER: &str = "cluster";
/// Operation that creates a cluster.
pub const CREATE: &str = "CREATE";
/// Operation that destroys a cluster.
pub const DESTROY: &str = "DESTROY";
/// Operation that changes the number of workers of a cluster.
pub const SCALE_WORKERS: &str = "SCALE_WORKERS";
/// Operation that destroys a cluster when its time to live has elapsed.
pub const JANITOR_DESTROY: &str = "JANITOR_DESTROY";
/// Operation that deletes the snapshots of a cluster that was destroyed long ago.
pub const PURGE: &str = "PURGE";
/// Operations of users and of the time to live.
pub const OPERATIONS: [&str; 4] = [CREATE, DESTROY, SCALE_WORKERS, JANITOR_DESTROY];

/// Maximum length of the name of a cluster: the installer derives names of resources from it.
pub const NAME_BYTES_MAX: usize = 54;
/// Maximum length of a base domain.
pub const DOMAIN_BYTES_MAX: usize = 120;

/// Checks the name of a cluster, which is a DNS label.
///
/// # Errors
///
/// Fails with a sentence that names the problem.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.len() > NAME_BYTES_MAX {
        return Err(format!(
            "the name has {} characters; the maximum is {NAME_BYTES_MAX}",
            name.len()
        ));
    }
    check_label(name).map_err(|why| format!("the name {why}"))
}

/// Checks a base domain.
///
/// # Errors
///
/// Fails with a sentence that names the problem.
pub fn check_domain(domain: &str) -> Result<(), String> {
    if domain.len() > DOMAIN_BYTES_MAX {
        let length = domain.len();
        return Err(format!(
            "the base domain has {length} characters; the maximum is {DOMAIN_BYTES_MAX}"
        ));
    }
    if !domain.contains('.') {
        return Err(format!("the base domain {domain:?} has no dot"));
    }
    domain
        .split('.')
        .try_for_each(|label| check_label(label).map_err(|why| format!("the base domain {why}")))
}

fn check_label(label: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if label.is_empty() {
        return Err("has an empty label".to_owned());
    }
    if label.len() > 63 {
        return Err(format!("has a label of {} characters; the maximum is 63", label.len()));
    }
    if let Some(c) = label.chars().find(|c| !allowed(*c)) {
        return Err(format!("has the character {c:?}; allowed are a-z, 0-9 and -"));
    }
    if label.starts_with('-') || label.ends_with('-') {
        return Err("starts or ends with a hyphen".to_owned());
    }
    Ok(())
}

/// Returns the id of a cluster, which is the name of its resource.
#[must_use]
pub fn cluster_id(platform: &str, name: &str, base_domain: &str) -> String {
    format!("{platform}:{name}.{base_domain}")
}

/// Returns the key of a cluster.
///
/// # Errors
///
/// Fails if the id is not a valid name.
pub fn cluster_key(tenant: &str, id: &str) -> Result<ResourceKey, InvalidName> {
    ResourceKey::new(tenant, CLUSTER, id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_labels() {
        check_name("demo-1").unwrap();
        check_name(&"a".repeat(NAME_BYTES_MAX)).unwrap();
        for (name, part) in [
            ("", "empty"),
            ("Demo", "'D'"),
            ("a_b", "'_'"),
            ("-a", "hyphen"),
            ("a-", "hyphen"),
            ("a.b", "'.'"),
        ] {
            assert!(check_name(name).unwrap_err().contains(part), "{name}");
        }
        assert!(check_name(&"a".repeat(NAME_BYTES_MAX + 1)).unwrap_err().contains("55"));
    }

    #[test]
    fn base_domains_have_several_labels() {
        check_domain("dev.example.com").unwrap();
        for domain in ["example", "a..b", ".a.b", "a.B", "a.b:c"] {
            check_domain(domain).unwrap_err();
        }
    }

    #[test]
    fn the_longest_id_is_a_valid_name() {
        let domain = format!("{}.{}", "b".repeat(60), "c".repeat(59));
        check_domain(&domain).unwrap();
        let id = cluster_id("openstack", &"a".repeat(NAME_BYTES_MAX), &domain);
        cluster_key("default", &id).unwrap();
    }
}
