//! The environment of a command: what it inherits from this process, and what describes its job.
//!
//! A worker has credentials in its environment that its commands must not see: of the store, of
//! other systems, and its own API key. So a command gets a short list of variables, and more only
//! by name.

use std::ffi::{OsStr, OsString};

use tenure_core::key::lock_path;
use tenure_core::limits::CREDENTIAL_VARIABLES;

use super::clock::wall_time_after;
use super::context::Context;
use crate::trace::{TRACEPARENT_VARIABLES, TRACESTATE_VARIABLE};

/// Variables that every command gets if this process has them. A name that ends in `*` stands for
/// all names with that prefix.
pub const INHERITED_VARIABLES: [&str; 9] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TMPDIR"];

/// Returns the variables of this process that a command gets: those of [`INHERITED_VARIABLES`] and
/// those that a pattern in `passed` selects. Credentials of this process are never among them.
#[must_use]
pub fn inherited_variables(passed: &[String]) -> Vec<(OsString, OsString)> {
    select(std::env::vars_os(), passed)
}

/// Returns the variables that a command gets: those of [`INHERITED_VARIABLES`] and those that a
/// pattern in `passed` selects.
fn select(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    passed: &[String],
) -> Vec<(OsString, OsString)> {
    let is_selected = |name: &OsStr| {
        let mut patterns =
            INHERITED_VARIABLES.iter().copied().chain(passed.iter().map(String::as_str));
        !is_withheld(name) && patterns.any(|pattern| matches(pattern, name))
    };
    variables.into_iter().filter(|(name, _)| is_selected(name)).collect()
}

/// Returns the environment variables that describe the job.
pub(super) fn of_job(job: &Context, args: &str) -> Vec<(OsString, OsString)> {
    let key = job.key();
    let locks: Vec<_> = job.locks().iter().map(|lock| lock_path(key, lock)).collect();
    let end = job.deadline().unwrap_or_else(|| job.session().deadline());
    let variables = [
        ("TENURE_ARGS", args.to_owned()),
        ("TENURE_TOKEN", job.token().to_string()),
        ("TENURE_JOB", job.id().to_string()),
        ("TENURE_RESOURCE", format!("{}/{}", key.kind(), key.name())),
        ("TENURE_ATTEMPT", job.attempt().to_string()),
        ("TENURE_TENANT", key.tenant().to_owned()),
        ("TENURE_LOCK", locks.join(" ")),
        ("TENURE_SESSION", job.session().id().to_string()),
        ("TENURE_DEADLINE", wall_time_after(end.remaining())),
    ];
    variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
}

/// Returns whether a variable belongs to this process only: a credential, or the trace in which it
/// was started.
fn is_withheld(name: &OsStr) -> bool {
    let mut withheld = CREDENTIAL_VARIABLES
        .iter()
        .chain(&TRACEPARENT_VARIABLES)
        .chain(std::iter::once(&TRACESTATE_VARIABLE));
    withheld.any(|withheld| name == *withheld)
}

fn matches(pattern: &str, name: &OsStr) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.as_encoded_bytes().starts_with(prefix.as_bytes()),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(names: &[&str], passed: &[&str]) -> Vec<String> {
        let variables = names.iter().map(|name| (OsString::from(name), OsString::from("value")));
        let passed: Vec<String> = passed.iter().map(|&name| name.to_owned()).collect();
        let selected = select(variables, &passed).into_iter();
        selected.map(|(name, _)| name.into_string().unwrap()).collect()
    }

    #[test]
    fn only_the_minimum_is_inherited() {
        let names =
            ["PATH", "HOME", "LC_ALL", "LC_TIME", "TZ", "PGPASSWORD", "TENURE_DATA", "PATHX"];
        assert_eq!(selected(&names, &[]), ["PATH", "HOME", "LC_ALL", "LC_TIME", "TZ"]);
    }

    #[test]
    fn variables_are_passed_by_name_or_prefix() {
        let names = ["AWS_REGION", "AWS", "PGHOST", "PGPASSWORD", "OTHER"];
        assert_eq!(selected(&names, &["PGHOST", "AWS_*"]), ["AWS_REGION", "PGHOST"]);
    }

    #[test]
    fn credentials_of_the_worker_are_never_passed() {
        let names = ["TENURE_KEY", "TENURE_STORE", "TENURE_ADMIN_KEY_FILE", "TENURE_SERVER"];
        assert_eq!(selected(&names, &["TENURE_*", "TENURE_KEY"]), ["TENURE_SERVER"]);
        assert_eq!(selected(&["TRACESTATE", "TRACEPARENT"], &["TRACE*"]), [""; 0]);
    }
}
