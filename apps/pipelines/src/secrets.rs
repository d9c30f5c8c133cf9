//! Named secrets: local files `DIR/TENANT/NAME`.
//!
//! A pipeline can use the secrets of its own tenant only. They are read when a run starts and
//! redacted in its log.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Maximum size of a secret.
const BYTES_MAX: u64 = 64 * 1024;

/// Returns whether `name` is a valid name of a secret. No valid name leads out of its directory.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(is_allowed)
}

/// Reads a secret. The error message names the remedy and never contains the secret.
pub fn read(dir: &Path, tenant: &str, name: &str) -> Result<String, String> {
    let path = dir.join(tenant).join(name);
    let file = path.display();
    let metadata = path.metadata().map_err(|error| {
        format!("the secret {name} cannot be read: {error}; store it in the file {file}")
    })?;
    if !metadata.is_file() || metadata.len() > BYTES_MAX {
        return Err(format!("{file} is not a regular file of at most {BYTES_MAX} bytes"));
    }
    let unreadable = |error| format!("the secret {name} in {file} cannot be read: {error}");
    let text = fs::read_to_string(&path).map_err(unreadable)?;
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

/// Reads secrets of a tenant. `dir` is the configured directory, if there is one.
pub(crate) fn load(
    dir: Option<&Path>,
    tenant: &str,
    names: Vec<&str>,
) -> Result<BTreeMap<String, String>, String> {
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let dir = dir.ok_or("no directory of secrets is configured")?;
    let load = |name: &str| Ok((name.to_owned(), read(dir, tenant, name)?));
    names.into_iter().map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_does_not_leave_its_directory() {
        assert!(is_name("bq_key.json"));
        for name in ["", ".", "..", "../x", "a/b", ".hidden"] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn secret_is_read_from_the_directory_of_its_tenant() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("acme")).unwrap();
        fs::write(dir.path().join("acme/key"), "s3cret\n").unwrap();
        assert_eq!(read(dir.path(), "acme", "key").unwrap(), "s3cret");
        let why = read(dir.path(), "other", "key").unwrap_err();
        assert!(why.contains("store it in the file"), "{why}");
    }
}
