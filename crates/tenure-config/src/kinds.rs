//! The tables `[kinds.NAME]` and `[kinds.NAME.operations.NAME]`.

use std::collections::BTreeMap;
use std::path::Path;

use tenure_core::kind::{Backoff, Kind, Kinds, Operation, Policy};
use tenure_core::retry::Retry;
use tenure_core::{LockName, LockSet, RunOptions, Text, limits};

use super::report::Report;
use super::section::{Section, unknown_name};
use super::settings::check_variable;

const KIND_KEYS: [&str; 11] = [
    "states",
    "initial",
    "backoff",
    "running_max",
    "tenant_running_max",
    "lock_max_age",
    "grouped",
    "ephemeral",
    "stale_margin",
    "reconcile",
    "operations",
];
const OPERATION_KEYS: [&str; 17] = [
    "from",
    "during",
    "ok",
    "failed",
    "cancelled",
    "ends",
    "run",
    "env",
    "dir",
    "cancel_grace",
    "output_file",
    "output_bytes_max",
    "limit",
    "start_deadline",
    "retry",
    "meets",
    "locks",
];
const RETRY_KEYS: [&str; 6] = ["attempts", "initial", "factor", "max", "transient", "permanent"];
/// Maximum number of arguments of a command, including the program.
const COMMAND_ARGS_MAX: usize = 256;

/// Reads all kinds. Returns `None` if the core rejects them.
pub(super) fn read(root: &Section<'_>, dir: &Path, report: &mut Report<'_>) -> Option<Kinds> {
    let mut kinds = Vec::new();
    if let Some(section) = root.section("kinds", report) {
        for (name, section) in section.sections(report) {
            kinds.extend(kind(name, &section, dir, report));
        }
    }
    match Kinds::new(kinds) {
        Ok(kinds) => Some(kinds),
        Err(bad) => {
            for problem in &bad.0 {
                report.add_core_problem(problem);
            }
            None
        }
    }
}

/// Reads a kind. Returns `None` if its states are invalid, since all further problems would follow
/// from that.
fn kind(name: &str, section: &Section<'_>, dir: &Path, report: &mut Report<'_>) -> Option<Kind> {
    section.check_keys(&KIND_KEYS, report);
    let before = report.len();
    let mut kind = Kind::new(name);
    if let Some(states) = section.texts("states", report) {
        if states.is_empty() {
            let why =
                "it must not be empty; leave the key out for a kind without states".to_owned();
            section.reject::<()>("states", why, report);
        }
        kind = kind.states(&states);
    }
    if let Some(initial) = section.text("initial", report) {
        kind.initial = initial.into();
    }
    let valid = report.len() == before;
    kind.backoff = backoff(section, report);
    kind.running_max = cap("running_max", section, report);
    kind.tenant_running_max = cap("tenant_running_max", section, report);
    kind.lock_max_age_ms = section.duration_ms("lock_max_age", report);
    kind.grouped = section.flag("grouped", report).unwrap_or(false);
    kind.ephemeral_ms = section.duration_ms("ephemeral", report);
    kind.stale_margin_ms = section.duration_ms("stale_margin", report).unwrap_or(0);
    kind.reconcile = section.text("reconcile", report).map(Into::into);
    if let Some(operations) = section.section("operations", report) {
        for (name, section) in operations.sections(report) {
            kind = kind.operation(operation(name, &section, dir, report));
        }
    }
    valid.then_some(kind)
}

fn backoff(section: &Section<'_>, report: &mut Report<'_>) -> Backoff {
    match section.text("backoff", report) {
        None | Some("hold") => Backoff::Hold,
        Some("reserve") => Backoff::Reserve,
        Some("pass") => Backoff::Pass,
        Some(other) => {
            let why = unknown_name("value", other, ["hold", "reserve", "pass"].into_iter());
            section.reject("backoff", why, report).unwrap_or_default()
        }
    }
}

/// Reads a cap. The core rejects 0.
fn cap(key: &str, section: &Section<'_>, report: &mut Report<'_>) -> Option<usize> {
    let count = section.count(key, 0..=u64::from(u32::MAX), report)?;
    usize::try_from(count).ok()
}

fn operation(name: &str, section: &Section<'_>, dir: &Path, report: &mut Report<'_>) -> Operation {
    section.check_keys(&OPERATION_KEYS, report);
    let mut operation = Operation::new(name);
    operation.from = to_texts(section.one_or_more("from", report));
    operation.during = section.text("during", report).map(Into::into);
    operation.ok = section.text("ok", report).map(Into::into);
    operation.failed = section.text("failed", report).map(Into::into);
    operation.cancelled = section.text("cancelled", report).map(Into::into);
    operation.ends = to_texts(section.one_or_more("ends", report));
    operation.limit_ms = section.duration_ms("limit", report);
    operation.start_deadline_ms = section.duration_ms("start_deadline", report);
    operation.run = command(section, "run", dir, report);
    operation.env = env(section, report);
    operation.run_options = run_options(section, dir, report);
    operation.retry = retry(section, report);
    operation.meets = meets(section, report);
    if let Some(locks) = locks(section, report) {
        operation.locks = locks;
    }
    operation
}

fn to_texts(texts: Option<Vec<&str>>) -> Vec<Text> {
    texts.unwrap_or_default().into_iter().map(Into::into).collect()
}

/// Reads a command. A relative path of the program is resolved against the directory of the file; a
/// name without a slash is looked up in `PATH`.
pub fn command(
    section: &Section<'_>,
    key: &str,
    dir: &Path,
    report: &mut Report<'_>,
) -> Vec<String> {
    let Some(args) = section.texts(key, report) else { return Vec::new() };
    if args.is_empty() || args.len() > COMMAND_ARGS_MAX {
        let mut why = format!("a command has between 1 and {COMMAND_ARGS_MAX} arguments");
        if key == "run" {
            why += "; leave `run` out if your own worker claims the jobs";
        }
        return section.reject(key, why, report).unwrap_or_default();
    }
    let mut run: Vec<String> = args.into_iter().map(str::to_owned).collect();
    if run[0].contains('/') {
        run[0] = below(dir, &run[0]);
    }
    run
}

/// Returns a path that is resolved against the directory of the file.
fn below(dir: &Path, path: &str) -> String {
    dir.join(path.strip_prefix("./").unwrap_or(path)).to_string_lossy().into_owned()
}

/// Reads a path, which is resolved against the directory of the file unless it is empty.
pub fn path(
    section: &Section<'_>,
    key: &str,
    dir: &Path,
    report: &mut Report<'_>,
) -> Option<String> {
    let path = section.text(key, report)?;
    Some(if path.is_empty() { String::new() } else { below(dir, path) })
}

fn run_options(section: &Section<'_>, dir: &Path, report: &mut Report<'_>) -> RunOptions {
    RunOptions {
        dir: path(section, "dir", dir, report),
        cancel_grace_ms: section.duration_ms("cancel_grace", report),
        output_file: path(section, "output_file", dir, report),
        output_bytes_max: section.count("output_bytes_max", 0..=i64::MAX.unsigned_abs(), report),
    }
}

/// Reads the environment variables of a command.
fn env(section: &Section<'_>, report: &mut Report<'_>) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    if section.has("env") && !section.has("run") {
        section.reject::<()>("env", "only a `run` has an environment".to_owned(), report);
    }
    let Some(section) = section.section("env", report) else { return env };
    for (name, value) in section.pairs(report) {
        check_variable(&section, name, report);
        if name.starts_with("TENURE_") {
            let why = "Tenure sets the variables TENURE_…; choose another name".to_owned();
            section.reject::<()>(name, why, report);
        }
        env.insert(name.to_owned(), value.to_owned());
    }
    env
}

/// Reads the retry rule `retry` of a table.
pub fn retry(section: &Section<'_>, report: &mut Report<'_>) -> Retry {
    let mut retry = Retry::default();
    let Some(section) = section.section("retry", report) else { return retry };
    section.check_keys(&RETRY_KEYS, report);
    if let Some(attempts) = section.count("attempts", 1..=limits::ATTEMPTS_MAX.into(), report) {
        retry.attempts = u32::try_from(attempts).unwrap_or(limits::ATTEMPTS_MAX);
    }
    if let Some(ms) = section.duration_ms("initial", report) {
        retry.initial_ms = ms;
    }
    if let Some(factor) = section.number("factor", report) {
        retry.factor = factor;
    }
    if let Some(ms) = section.duration_ms("max", report) {
        retry.max_ms = ms;
    } else if !section.has("max") {
        // A long initial backoff raises the default maximum, since the file sets none.
        retry.max_ms = retry.max_ms.max(retry.initial_ms);
    }
    retry.transient = to_texts(section.one_or_more("transient", report));
    retry.permanent = to_texts(section.one_or_more("permanent", report));
    retry
}

fn meets(section: &Section<'_>, report: &mut Report<'_>) -> BTreeMap<Text, Policy> {
    let mut meets = BTreeMap::new();
    let Some(section) = section.section("meets", report) else { return meets };
    for (present, policy) in section.pairs(report) {
        match policy.parse::<Policy>() {
            Ok(policy) => {
                meets.insert(present.into(), policy);
            }
            Err(why) => {
                section.reject::<()>(present, why, report);
            }
        }
    }
    meets
}

fn locks(section: &Section<'_>, report: &mut Report<'_>) -> Option<LockSet> {
    let names = section.one_or_more("locks", report)?;
    let names = names.into_iter().map(str::parse).collect::<Result<Vec<LockName>, _>>();
    match names.and_then(LockSet::new) {
        Ok(locks) => Some(locks),
        Err(why) => section.reject("locks", why.to_string(), report),
    }
}
