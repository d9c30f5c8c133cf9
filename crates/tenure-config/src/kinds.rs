//! The tables `[kinds.NAME]` and `[kinds.NAME.operations.NAME]`.

use std::collections::BTreeMap;
use std::path::Path;

use tenure_core::kind::{Backoff, Kind, Kinds, Operation, Policy};
use tenure_core::retry::Retry;
use tenure_core::{LockName, LockSet, Text, limits};

use super::report::Report;
use super::section::{Section, unknown};

const KIND_KEYS: [&str; 7] = [
    "states",
    "initial",
    "backoff",
    "running_max",
    "tenant_running_max",
    "reconcile",
    "operations",
];
const OPERATION_KEYS: [&str; 11] = [
    "from",
    "during",
    "ok",
    "failed",
    "cancelled",
    "ends",
    "run",
    "limit",
    "retry",
    "meets",
    "locks",
];
const RETRY_KEYS: [&str; 6] = ["attempts", "initial", "factor", "max", "transient", "permanent"];
/// Most words of a command.
const RUN_WORDS_MAX: usize = 256;

/// Reads all kinds; nothing when the core would not take them.
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
                report.semantic(problem);
            }
            None
        }
    }
}

/// A kind; nothing when its states cannot be read, because all that follows would be noise.
fn kind(name: &str, section: &Section<'_>, dir: &Path, report: &mut Report<'_>) -> Option<Kind> {
    section.known(&KIND_KEYS, report);
    let before = report.len();
    let mut kind = Kind::new(name);
    if let Some(states) = section.texts("states", report) {
        if states.is_empty() {
            let why = "there is none; leave the key out for a kind without states".to_owned();
            section.refuse::<()>("states", why, report);
        }
        kind = kind.states(&states);
    }
    if let Some(initial) = section.text("initial", report) {
        kind.initial = initial.into();
    }
    let sound = report.len() == before;
    kind.backoff = backoff(section, report);
    kind.running_max = cap("running_max", section, report);
    kind.tenant_running_max = cap("tenant_running_max", section, report);
    kind.reconcile = section.text("reconcile", report).map(Into::into);
    if let Some(operations) = section.section("operations", report) {
        for (name, section) in operations.sections(report) {
            kind = kind.operation(operation(name, &section, dir, report));
        }
    }
    sound.then_some(kind)
}

fn backoff(section: &Section<'_>, report: &mut Report<'_>) -> Backoff {
    match section.text("backoff", report) {
        None | Some("hold") => Backoff::Hold,
        Some("pass") => Backoff::Pass,
        Some(other) => {
            let why = unknown("word", other, ["hold", "pass"].into_iter());
            section.refuse("backoff", why, report).unwrap_or_default()
        }
    }
}

/// A cap; 0 is the core's to refuse.
fn cap(key: &str, section: &Section<'_>, report: &mut Report<'_>) -> Option<usize> {
    let count = section.count(key, 0..=u64::from(u32::MAX), report)?;
    usize::try_from(count).ok()
}

fn operation(name: &str, section: &Section<'_>, dir: &Path, report: &mut Report<'_>) -> Operation {
    section.known(&OPERATION_KEYS, report);
    let mut operation = Operation::new(name);
    operation.from = shared(section.one_or_more("from", report));
    operation.during = section.text("during", report).map(Into::into);
    operation.ok = section.text("ok", report).map(Into::into);
    operation.failed = section.text("failed", report).map(Into::into);
    operation.cancelled = section.text("cancelled", report).map(Into::into);
    operation.ends = shared(section.one_or_more("ends", report));
    operation.limit_ms = section.duration_ms("limit", report);
    operation.run = command(section, "run", dir, report);
    operation.retry = retry(section, report);
    operation.meets = meets(section, report);
    if let Some(locks) = locks(section, report) {
        operation.locks = locks;
    }
    operation
}

fn shared(texts: Option<Vec<&str>>) -> Vec<Text> {
    texts.unwrap_or_default().into_iter().map(Into::into).collect()
}

/// A command. A program that is named by a relative path is below the directory of the file,
/// wherever the process that runs it was started; one without a slash is found by `PATH`.
pub fn command(
    section: &Section<'_>,
    key: &str,
    dir: &Path,
    report: &mut Report<'_>,
) -> Vec<String> {
    let Some(words) = section.texts(key, report) else { return Vec::new() };
    if words.is_empty() || words.len() > RUN_WORDS_MAX {
        let mut why = format!("a command has between 1 and {RUN_WORDS_MAX} words");
        if key == "run" {
            why += "; leave `run` out when a worker of your own claims the jobs";
        }
        return section.refuse(key, why, report).unwrap_or_default();
    }
    let mut run: Vec<String> = words.into_iter().map(str::to_owned).collect();
    if run[0].contains('/') {
        let program = Path::new(run[0].strip_prefix("./").unwrap_or(&run[0]));
        run[0] = dir.join(program).to_string_lossy().into_owned();
    }
    run
}

/// Reads the rule `retry` of a table.
pub fn retry(section: &Section<'_>, report: &mut Report<'_>) -> Retry {
    let mut retry = Retry::default();
    let Some(section) = section.section("retry", report) else { return retry };
    section.known(&RETRY_KEYS, report);
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
        // Who only says that the first rest is long does not contradict a cap that nobody wrote.
        retry.max_ms = retry.max_ms.max(retry.initial_ms);
    }
    retry.transient = shared(section.one_or_more("transient", report));
    retry.permanent = shared(section.one_or_more("permanent", report));
    retry
}

fn meets(section: &Section<'_>, report: &mut Report<'_>) -> BTreeMap<Text, Policy> {
    let mut meets = BTreeMap::new();
    let Some(section) = section.section("meets", report) else { return meets };
    for (present, word) in section.pairs(report) {
        match word.parse::<Policy>() {
            Ok(policy) => {
                meets.insert(present.into(), policy);
            }
            Err(why) => {
                section.refuse::<()>(present, why, report);
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
        Err(why) => section.refuse("locks", why.to_string(), report),
    }
}
