//! Reads what the table `[clusters]` refers to: programs, files, environment variables, stores and
//! addresses.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use tenure_config::{Report, Section, read_command};
use tenure_core::limits::CREDENTIAL_VARIABLES;

use super::{Settings, Verification};

/// Placeholder of the version in the path of the installer.
const VERSION: &str = "{version}";
/// Maximum number of entries of `pass_env`.
pub(super) const PASS_ENV_MAX: usize = 100;
/// Maximum length of a path or an address, in bytes.
const PATH_BYTES_MAX: usize = 4_096;
/// Schemes of stores for snapshots.
const SCHEMES: [&str; 6] = ["file", "s3", "gs", "az", "abfs", "abfss"];

/// Reads these keys; relative paths are below `dir`.
pub(super) fn read(
    settings: &mut Settings,
    section: &Section<'_>,
    dir: &Path,
    report: &mut Report<'_>,
) {
    if let Some(installer) = installer(section, "installer", dir, report) {
        settings.installer = installer;
    }
    for (key, path) in [("work_dir", &mut settings.work_dir), ("profiles", &mut settings.profiles)]
    {
        if let Some(text) = path_text(section, key, report) {
            *path = dir.join(text);
        }
    }
    settings.failure_rules = path_text(section, "failure_rules", report).map(|path| dir.join(path));
    if let Some(verification) = verification(section, dir, report) {
        settings.verification = verification;
    }
    settings.pass_env = pass_env(section, report);
    if let Some(url) = artifacts(section, dir, report) {
        settings.artifacts = url;
    }
    if let Some(options) = section.section("artifact_options", report) {
        let pairs = options.pairs(report).into_iter();
        let owned = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        settings.artifact_options = owned.collect::<BTreeMap<_, _>>();
    }
    settings.aws_endpoint = endpoint(section, report);
    settings.advisory_locks = variable(section, "advisory_locks", report);
}

/// Reads the path of an installer. A relative path with a slash is below `dir`; a name without one
/// is looked up in `PATH`.
pub(crate) fn installer(
    section: &Section<'_>,
    key: &str,
    dir: &Path,
    report: &mut Report<'_>,
) -> Option<String> {
    let path = path_text(section, key, report)?;
    if path.replace(VERSION, "").contains(['{', '}']) {
        let why = format!("{path:?} has a placeholder other than {VERSION}: it is the only one");
        return section.reject(key, why, report);
    }
    if !path.contains('/') {
        return Some(path.to_owned());
    }
    let below = dir.join(path.strip_prefix("./").unwrap_or(path));
    Some(below.to_string_lossy().into_owned())
}

/// Reads a path that is neither empty nor too long.
fn path_text<'t>(section: &Section<'t>, key: &str, report: &mut Report<'_>) -> Option<&'t str> {
    let path = section.text(key, report)?;
    if (1..=PATH_BYTES_MAX).contains(&path.len()) && !path.contains('\0') {
        return Some(path);
    }
    section.reject(key, format!("a path has between 1 and {PATH_BYTES_MAX} bytes"), report)
}

fn verification(
    section: &Section<'_>,
    dir: &Path,
    report: &mut Report<'_>,
) -> Option<Verification> {
    match section.json("verify", report)? {
        Value::String(text) if text == "aws" => Some(Verification::Aws),
        Value::String(text) if text == "none" => Some(Verification::None),
        Value::Array(_) => {
            let command = read_command(section, "verify", dir, report);
            (!command.is_empty()).then_some(Verification::Command(command))
        }
        other => {
            let why = format!(
                "{other} is neither \"aws\" nor \"none\" nor a command such as \
                 [\"./verify\", \"arg\"]"
            );
            section.reject("verify", why, report)
        }
    }
}

fn pass_env(section: &Section<'_>, report: &mut Report<'_>) -> Vec<String> {
    let names = section.texts("pass_env", report).unwrap_or_default();
    if names.len() > PASS_ENV_MAX {
        let why = format!("{} names; at most {PASS_ENV_MAX} are allowed", names.len());
        section.reject::<()>("pass_env", why, report);
    }
    for &pattern in &names {
        let name = pattern.strip_suffix('*').unwrap_or(pattern);
        let is_prefix = name != pattern;
        let is_credential =
            |variable: &&&str| **variable == name || is_prefix && variable.starts_with(name);
        let why = if pattern == "*" {
            "`*` would pass every credential: name the variables, or use a prefix such as `AWS_*`"
                .to_owned()
        } else if !is_variable(name) {
            format!("{pattern:?} is not the name of a variable, or the beginning of one and `*`")
        } else if let Some(credential) = CREDENTIAL_VARIABLES.iter().find(is_credential) {
            format!("{pattern} includes {credential}, a credential of Tenure; no command gets it")
        } else {
            continue;
        };
        section.reject::<()>("pass_env", why, report);
    }
    names.into_iter().map(str::to_owned).collect()
}

/// Reads the name of an environment variable.
fn variable(section: &Section<'_>, key: &str, report: &mut Report<'_>) -> Option<String> {
    let name = section.text(key, report)?;
    if is_variable(name) {
        return Some(name.to_owned());
    }
    // The value is not repeated: it may be the URL itself, with a password.
    let why = "it must be the name of an environment variable with the URL of the database, such \
               as DATABASE_URL, not the URL itself";
    section.reject(key, why.to_owned(), report)
}

fn is_variable(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(is_allowed)
}

/// Reads the URL of the store of snapshots. A plain path is a directory.
fn artifacts(section: &Section<'_>, dir: &Path, report: &mut Report<'_>) -> Option<String> {
    let text = path_text(section, "artifacts", report)?;
    let Some((scheme, rest)) = text.split_once("://") else {
        return Some(format!("file://{}", dir.join(text).display()));
    };
    let authority = rest.split('/').next().unwrap_or("");
    let why = if !SCHEMES.contains(&scheme) {
        let known = SCHEMES.join("://, ");
        format!("the scheme {scheme}:// is unknown: use a path, or one of {known}://")
    } else if authority.contains('@') && !scheme.starts_with("abfs") {
        "credentials do not belong into the URL: use the environment".to_owned()
    } else if scheme == "file" && !rest.starts_with('/') {
        "the path of a file:// URL is absolute: write file:///DIR, or a plain path".to_owned()
    } else if scheme != "file" && authority.is_empty() {
        format!("the bucket is missing: write {scheme}://BUCKET/PREFIX")
    } else {
        return Some(text.trim_end_matches('/').to_owned());
    };
    section.reject("artifacts", why, report)
}

fn endpoint(section: &Section<'_>, report: &mut Report<'_>) -> Option<String> {
    let url = path_text(section, "aws_endpoint", report)?;
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let host = rest.map(|rest| rest.trim_end_matches('/'));
    let is_host = |host: &str| {
        !host.is_empty() && !host.contains(['/', '@', '?', '#']) && !host.contains(' ')
    };
    if host.is_some_and(is_host) {
        return Some(url.trim_end_matches('/').to_owned());
    }
    let why = "it must be http://HOST:PORT or https://HOST:PORT, without a path or credentials";
    section.reject("aws_endpoint", why.to_owned(), report)
}
