//! Named secrets: files that only this machine has, `DIR/TENANT/NAME`.
//!
//! A pipeline can name the secrets of its own tenant and no others. They are read when a run begins
//! and kept out of its log.

use std::fs;
use std::path::Path;

/// Longest secret.
const BYTES_MAX: u64 = 64 * 1024;

/// Whether a text can be the name of a secret. No name leads out of its directory.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(letter)
}

/// Reads a secret. The message says what to do, and nothing of the secret.
pub fn read(dir: &Path, tenant: &str, name: &str) -> Result<String, String> {
    let path = dir.join(tenant).join(name);
    let shown = path.display();
    let found = path.metadata().map_err(|error| {
        format!("the secret {name} cannot be read: {error}; put it into the file {shown}")
    })?;
    if !found.is_file() || found.len() > BYTES_MAX {
        return Err(format!("{shown} is no file of at most {BYTES_MAX} bytes"));
    }
    let unreadable = |error| format!("the secret {name} in {shown} cannot be read: {error}");
    let text = fs::read_to_string(&path).map_err(unreadable)?;
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_nowhere_else() {
        assert!(is_name("bq_key.json"));
        for name in ["", ".", "..", "../x", "a/b", ".hidden"] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn a_secret_is_a_file_of_its_tenant() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("acme")).unwrap();
        fs::write(dir.path().join("acme/key"), "s3cret\n").unwrap();
        assert_eq!(read(dir.path(), "acme", "key").unwrap(), "s3cret");
        let why = read(dir.path(), "other", "key").unwrap_err();
        assert!(why.contains("put it into the file"), "{why}");
    }
}
