//! Removal of secrets from what goes into the part of a snapshot that is not secret.
//!
//! Whole lines are dropped: a line that is lost costs less than a secret that is kept. What cannot
//! be judged is left out altogether.
//!
//! See `contents.rs` for the files that this is applied to.

use std::sync::LazyLock;

use regex::bytes::Regex;
use serde_json::Value;

/// Maximum length of a private key in lines: what follows a begin without an end is kept again
/// after them.
const KEY_LINES_MAX: usize = 1_000;

/// A line with one of these may have a secret.
static SECRET: LazyLock<Regex> = LazyLock::new(|| {
    let patterns = [
        "(?i)password|passwd|pullsecret|pull-secret",
        // Credentials of AWS.
        r"(?:AKIA|ASIA)[A-Z0-9]{12,}",
        r"(?i)secret[_-]?access[_-]?key|session[_-]?token|security[_-]?token",
        // Bearer tokens: in headers, of OpenShift, and JSON web tokens.
        r"(?i)bearer\s+\S|authorization\s*[:=]",
        r"sha256~[A-Za-z0-9_-]{10,}|eyJ[A-Za-z0-9_-]{10,}\.eyJ",
        // Logins of registries.
        r#"\\?"auths?\\?"\s*:"#,
        "(?i)private key",
    ];
    Regex::new(&patterns.join("|")).expect("a valid pattern")
});

static KEY_BEGIN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("-----BEGIN [A-Z0-9 ]*PRIVATE KEY").expect("a valid pattern"));
static KEY_END: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("-----END [A-Z0-9 ]*PRIVATE KEY").expect("a valid pattern"));

/// Drops the lines of a text that may have secrets.
#[derive(Debug, Default)]
pub struct Redactor {
    /// Number of further lines that belong to a private key.
    key_lines: usize,
}

impl Redactor {
    /// Returns whether the next line may be kept.
    pub fn keeps(&mut self, line: &[u8]) -> bool {
        if self.key_lines > 0 {
            self.key_lines = if KEY_END.is_match(line) { 0 } else { self.key_lines - 1 };
            return false;
        }
        // A log has keys on one line, with `\n` for the ends of theirs.
        if KEY_BEGIN.is_match(line) && !KEY_END.is_match(line) {
            self.key_lines = KEY_LINES_MAX;
        }
        !SECRET.is_match(line)
    }

    /// Returns the lines of a text that may be kept.
    #[must_use]
    pub fn text(text: &[u8]) -> Vec<u8> {
        let mut redactor = Self::default();
        text.split_inclusive(|byte| *byte == b'\n')
            .filter(|line| redactor.keeps(line))
            .collect::<Vec<_>>()
            .concat()
    }
}

/// Returns whether a text may have a secret.
pub(crate) fn is_suspicious(text: &str) -> bool {
    SECRET.is_match(text.as_bytes())
}

/// Returns an install config without the pull secret, passwords and keys; none if it cannot be
/// judged, as YAML in one line.
pub(super) fn install_config(text: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(mut json) = serde_json::from_str::<Value>(text) {
        remove_credentials(&mut json);
        let text = serde_json::to_vec_pretty(&json).ok()?;
        return (!SECRET.is_match(&text)).then_some(text);
    }
    if text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    let text = Redactor::text(without_pull_secret(text).as_bytes());
    (!SECRET.is_match(&text)).then_some(text)
}

/// Drops the entry `pullSecret` of a YAML text, with its further lines.
fn without_pull_secret(text: &str) -> String {
    static ENTRY: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"^( *)["']?([A-Za-z][A-Za-z0-9_.-]*)["']?\s*:(?:\s|$)"#)
            .expect("a valid pattern")
    });
    let mut kept = String::with_capacity(text.len());
    // The indentation of the entry that is dropped.
    let mut dropped: Option<usize> = None;
    for line in text.split_inclusive('\n') {
        if let Some(entry) = ENTRY.captures(line.as_bytes()) {
            let (indent, is_pull_secret) = (entry[1].len(), &entry[2] == b"pullSecret");
            if is_pull_secret {
                dropped = Some(indent);
            } else if dropped.is_some_and(|dropped| indent <= dropped) {
                dropped = None;
            }
        }
        if dropped.is_none() {
            kept.push_str(line);
        }
    }
    kept
}

/// Returns `metadata.json` without user names and passwords, which some platforms put there; the
/// same bytes if it has none. None if it is not JSON.
pub(crate) fn metadata(text: &[u8]) -> Option<Vec<u8>> {
    let mut json: Value = serde_json::from_slice(text).ok()?;
    if !remove_credentials(&mut json) {
        return Some(text.to_vec());
    }
    serde_json::to_vec(&json).ok()
}

/// Removes entries whose names look like those of credentials. Returns whether there were any.
fn remove_credentials(json: &mut Value) -> bool {
    match json {
        Value::Object(fields) => {
            let before = fields.len();
            fields.retain(|name, _| !names_credential(name));
            let removed = fields.len() < before;
            fields.values_mut().fold(removed, |removed, value| remove_credentials(value) | removed)
        }
        Value::Array(items) => {
            items.iter_mut().fold(false, |removed, item| remove_credentials(item) | removed)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn names_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["password", "username", "pullsecret", "secretkey", "accesskey", "clientsecret"]
        .iter()
        .any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_redacted(text: &str, expected: &str) {
        assert_eq!(String::from_utf8(Redactor::text(text.as_bytes())).unwrap(), expected);
    }

    #[test]
    fn lines_with_secrets_are_dropped() {
        for line in [
            "level=debug msg=\"kubeadmin PassWord: x\"",
            "pullSecret: '{}'",
            "{\"auths\":{\"quay.io\":{\"auth\":\"eA==\"}}}",
            "msg=\"{\\\"auth\\\":\\\"eA==\\\"}\"",
            "key AKIAIOSFODNN7EXAMPLE used",
            "temporary ASIAIOSFODNN7EXAMPLE",
            "aws_secret_access_key = x",
            "X-Amz-Security-Token=abc",
            "Authorization: Basic eA==",
            "curl -H 'bearer abc'",
            "token sha256~0123456789abcdef",
            "jwt eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrIn0.sig",
            "-----BEGIN RSA PRIVATE KEY-----\\nabc\\n-----END RSA PRIVATE KEY-----\\n",
        ] {
            assert_redacted(&format!("before\n{line}\nafter\n"), "before\nafter\n");
        }
    }

    #[test]
    fn other_lines_are_kept_as_they_are() {
        let text = "level=info msg=\"Creating infrastructure resources...\"\r\n\
                    image quay.io/x@sha256:0123456789abcdef0123\nTAKIAS\n\nlast without an end";
        assert_redacted(text, text);
        assert_eq!(Redactor::text(b"\xff\xfe\n"), b"\xff\xfe\n");
    }

    #[test]
    fn private_keys_are_dropped_with_all_their_lines() {
        let key = "-----BEGIN EC PRIVATE KEY-----\nabc\ndef\n-----END EC PRIVATE KEY-----\n";
        assert_redacted(&format!("a\n{key}b\n{key}c\n"), "a\nb\nc\n");
        assert_redacted("a\n-----BEGIN PRIVATE KEY-----\nabc\nthe log ends\n", "a\n");
        let unending = format!("-----BEGIN PRIVATE KEY-----\n{}", "x\n".repeat(KEY_LINES_MAX + 1));
        assert_redacted(&unending, "x\n");
    }

    #[test]
    fn install_config_loses_its_pull_secret_in_every_notation() {
        let rest = "apiVersion: v1\nbaseDomain: dev.example.com\n";
        for secret in [
            "pullSecret: '{\"auths\":{\"a\":{\"auth\":\"eA==\"}}}'\n",
            "pullSecret: |\n  {\"auths\":\n\n   {\"a\":{\"auth\":\"eA==\"}}}\n",
            "pullSecret: >-\n  c2VjcmV0\n  c2VjcmV0\n",
            "\"pullSecret\": '{\n\"auths\":{}}'\n",
            "pullSecret: >-\n  a: c2VjcmV0\n",
        ] {
            for text in [format!("{rest}{secret}sshKey: ssh-rsa x\n"), format!("{rest}{secret}")] {
                let kept = String::from_utf8(install_config(text.as_bytes()).unwrap()).unwrap();
                let ssh = if text.contains("sshKey") { "sshKey: ssh-rsa x\n" } else { "" };
                assert_eq!(kept, format!("{rest}{ssh}"), "{secret}");
            }
        }
    }

    #[test]
    fn install_config_in_json_is_redacted_and_flow_yaml_is_left_out() {
        let json =
            br#"{"baseDomain":"a.b","pullSecret":"{}","platform":{"vsphere":{"password":1}}}"#;
        let kept: Value = serde_json::from_slice(&install_config(json).unwrap()).unwrap();
        let expected = serde_json::json!({"baseDomain": "a.b", "platform": {"vsphere": {}}});
        assert_eq!(kept, expected);
        assert_eq!(install_config(b"{baseDomain: a.b, pullSecret: x}"), None);
        assert_eq!(install_config(b"\xff"), None);
        let inner = br#"{"note":"AKIAIOSFODNN7EXAMPLE"}"#;
        assert_eq!(install_config(inner), None);
    }

    #[test]
    fn install_config_loses_passwords() {
        let text = b"platform:\n  vsphere:\n    password: x\n    user: y\n";
        assert_eq!(install_config(text).unwrap(), b"platform:\n  vsphere:\n    user: y\n");
    }

    #[test]
    fn metadata_keeps_its_bytes_unless_it_has_credentials() {
        let plain = br#"{ "infraID":"demo-x7k2p",  "aws":{"region":"us-east-1"} }"#;
        assert_eq!(metadata(plain).unwrap(), plain);
        let with = br#"{"infraID":"a","vsphere":{"VCenters":[{"username":"u","password":"p"}]}}"#;
        assert_eq!(metadata(with).unwrap(), br#"{"infraID":"a","vsphere":{"VCenters":[{}]}}"#);
        assert_eq!(metadata(b"{\"infraID\""), None);
    }
}
