//! The secrets of a profile: the pull secret, and the SSH key of the nodes.
//!
//! They are read when a cluster is installed, so that a rotated secret is used at once, and a
//! process that installs nothing need not have them. No error and no debug output contains them.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Profile;

/// Maximum length of an SSH key, in bytes.
const SSH_KEY_BYTES_MAX: usize = 16 * 1024;

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Creates a secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Secrets of a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secrets {
    /// Pull secret, a JSON object.
    pub pull_secret: Option<Secret>,
    /// Public SSH key of the nodes.
    pub ssh_key: Option<Secret>,
}

/// A secret that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {}: {why}", .path.display())]
pub struct SecretError {
    what: &'static str,
    path: PathBuf,
    why: String,
}

impl Profile {
    /// Reads the secrets.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read or has another format, without its contents.
    pub fn read_secrets(&self) -> Result<Secrets, SecretError> {
        let pull_secret = self.pull_secret_file.as_deref().map(pull_secret).transpose()?;
        let ssh_key = self.ssh_key_file.as_deref().map(ssh_key).transpose()?;
        Ok(Secrets { pull_secret, ssh_key })
    }
}

fn pull_secret(path: &Path) -> Result<Secret, SecretError> {
    let what = "the pull secret";
    let fail = |why: String| SecretError { what, path: path.to_owned(), why };
    let text = read(what, path)?;
    let value: Value = serde_json::from_str(&text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        fail(format!("is not JSON, see line {line}, column {column}"))
    })?;
    if value.get("auths").is_none_or(|auths| !auths.is_object()) {
        return Err(fail("has no object `auths`: download it again from the registry".to_owned()));
    }
    Ok(Secret(value.to_string()))
}

fn ssh_key(path: &Path) -> Result<Secret, SecretError> {
    let what = "the SSH key";
    let fail = |why: &str| SecretError { what, path: path.to_owned(), why: why.to_owned() };
    let text = read(what, path)?;
    let key = text.trim();
    if key.contains("PRIVATE KEY") {
        return Err(fail("is a private key: name the public one, which ends in .pub"));
    }
    if key.is_empty() || key.len() > SSH_KEY_BYTES_MAX || !key.contains(' ') {
        return Err(fail("is not a public key such as `ssh-ed25519 AAAA… comment`"));
    }
    Ok(Secret(key.to_owned()))
}

fn read(what: &'static str, path: &Path) -> Result<String, SecretError> {
    tenure_config::read_text(path).map_err(|error| {
        let why = match error {
            tenure_config::Error::Unreadable { reason, .. } => format!("cannot be read: {reason}"),
            tenure_config::Error::Bad(_) => "cannot be read".to_owned(),
        };
        SecretError { what, path: path.to_owned(), why }
    })
}
