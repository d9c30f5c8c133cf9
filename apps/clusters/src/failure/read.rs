//! Reads a file of rules. All its problems are reported at once, with their lines.
//!
//! A token is a part of the text: case does not matter, and a space stands for any white space.

use std::collections::BTreeSet;

use regex::{Regex, RegexBuilder};
use tenure_config::section::unknown_name;
use tenure_config::{BadConfig, Report, Section};
use tenure_core::limits::{ATTEMPTS_MAX, CODE_BYTES_MAX, DELAY_MS_MAX};

use super::class::Class;
use super::classify::Source;
use super::rules::{Origin, RULES_MAX, Rule};

/// Beginning of the ids of operators' rules.
pub(super) const OPERATOR: &str = "operator/";
/// Maximum number of patterns of a rule, for each key.
pub(super) const PATTERNS_MAX: usize = 32;
/// Maximum length of a pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 1_000;
/// Minimum length of a token, in characters. A shorter one would match almost anything.
const TOKEN_CHARS_MIN: usize = 3;
/// Maximum size of a compiled pattern, in bytes.
const COMPILED_BYTES_MAX: usize = 1024 * 1024;
/// Maximum length of a message with its remedy, in bytes.
const MESSAGE_BYTES_MAX: usize = 500;

const KEYS: [&str; 14] = [
    "reason",
    "class",
    "all",
    "any",
    "all_regex",
    "any_regex",
    "message",
    "remedy",
    "fallback",
    "symptom",
    "source",
    "retries",
    "retry_delay",
    "samples",
];

/// A file of rules.
pub(super) struct RuleFile {
    /// Rules before the built-in ones; of the built-in file, all.
    pub(super) before: Vec<Rule>,
    /// Rules after them.
    pub(super) after: Vec<Rule>,
    /// Reasons of built-in rules that are left out.
    pub(super) disabled: BTreeSet<String>,
}

/// Reads a file.
pub(super) fn read(text: &str, origin: Origin, built_in: &[Rule]) -> Result<RuleFile, BadConfig> {
    let mut report = Report::new(text);
    let table = report.table()?;
    let root = Section::root(table.get_ref());
    let report = &mut report;
    let is_operator = origin == Origin::Operator;
    root.check_keys(if is_operator { &["disable", "rules"][..] } else { &["rules"] }, report);
    let mut file = RuleFile {
        before: Vec::new(),
        after: Vec::new(),
        disabled: disabled(&root, built_in, report),
    };
    let sections = root.list("rules", report);
    if sections.len() > RULES_MAX {
        let why = format!("{} rules; at most {RULES_MAX} are allowed", sections.len());
        root.reject::<()>("rules", why, report);
    }
    let mut reasons = BTreeSet::new();
    for section in &sections {
        let position: &[&str] = if is_operator { &["position"] } else { &[] };
        section.check_keys(&[&KEYS[..], position].concat(), report);
        let is_after = is_operator && is_after(section, report);
        let Some(rule) = rule(section, origin, report) else { continue };
        if !reasons.insert(rule.reason.clone()) {
            let why = format!("there is already a rule {}", rule.reason);
            section.reject::<()>("reason", why, report);
        }
        if is_after { file.after.push(rule) } else { file.before.push(rule) }
    }
    if report.is_empty() { Ok(file) } else { Err(std::mem::take(report).into_error()) }
}

fn disabled(root: &Section<'_>, built_in: &[Rule], report: &mut Report<'_>) -> BTreeSet<String> {
    let reasons = root.texts("disable", report).unwrap_or_default();
    for reason in &reasons {
        if !built_in.iter().any(|rule| rule.reason == *reason) {
            let known = built_in.iter().map(|rule| rule.reason.as_str());
            root.reject::<()>("disable", unknown_name("rule", reason, known), report);
        }
    }
    reasons.into_iter().map(str::to_owned).collect()
}

fn is_after(section: &Section<'_>, report: &mut Report<'_>) -> bool {
    match section.text("position", report) {
        None | Some("before") => false,
        Some("after") => true,
        Some(other) => {
            let why = format!("{other:?} is neither \"before\" nor \"after\" the built-in rules");
            section.reject("position", why, report).unwrap_or(false)
        }
    }
}

fn rule(section: &Section<'_>, origin: Origin, report: &mut Report<'_>) -> Option<Rule> {
    let before = report.len();
    let all = [patterns(section, "all", report), patterns(section, "all_regex", report)].concat();
    let any = [patterns(section, "any", report), patterns(section, "any_regex", report)].concat();
    let has_pattern = ["all", "any", "all_regex", "any_regex"].iter().any(|key| section.has(key));
    if !has_pattern {
        report.add(&section.place, "it has no pattern: add `any` or `all`");
    }
    let reason = reason(section, report);
    let class = class(section, report);
    let message = message(section, report);
    let (retries, retry_delay_ms) = retry(section, report);
    let rule = Rule {
        id: String::new(),
        reason: reason?,
        class: class?,
        message: message?,
        fallback: section.flag("fallback", report).unwrap_or(false),
        symptom: section.flag("symptom", report).unwrap_or(false),
        source: source(section, report),
        retries,
        retry_delay_ms,
        samples: texts(section, "samples", report),
        all,
        any,
    };
    let prefix = if origin == Origin::BuiltIn { "builtin/" } else { OPERATOR };
    let rule = Rule { id: format!("{prefix}{}", rule.reason), ..rule };
    (report.len() == before).then_some(rule)
}

fn texts(section: &Section<'_>, key: &str, report: &mut Report<'_>) -> Vec<String> {
    let texts = section.one_or_more(key, report).unwrap_or_default();
    texts.into_iter().map(str::to_owned).collect()
}

/// Reads a required text.
fn required<'t>(section: &Section<'t>, key: &str, report: &mut Report<'_>) -> Option<&'t str> {
    if !section.has(key) {
        report.add(&section.place, format!("`{key}` is missing"));
    }
    section.text(key, report)
}

fn reason(section: &Section<'_>, report: &mut Report<'_>) -> Option<String> {
    let reason = required(section, "reason", report)?;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if (1..=CODE_BYTES_MAX).contains(&reason.len()) && reason.chars().all(is_allowed) {
        return Some(reason.to_owned());
    }
    let why = format!("{reason:?} is not a reason: up to {CODE_BYTES_MAX} letters, digits and `_`");
    section.reject("reason", why, report)
}

fn class(section: &Section<'_>, report: &mut Report<'_>) -> Option<Class> {
    let name = required(section, "class", report)?;
    let class = Class::parse(name);
    if class.is_none() {
        let known = Class::ALL.iter().map(|class| class.as_str());
        section.reject::<()>("class", unknown_name("class", name, known), report);
    }
    class
}

fn message(section: &Section<'_>, report: &mut Report<'_>) -> Option<String> {
    let message = required(section, "message", report)?;
    let remedy = section.text("remedy", report);
    let text = [message, remedy.unwrap_or("")].join(" ").trim().to_owned();
    if (1..=MESSAGE_BYTES_MAX).contains(&text.len()) {
        return Some(text);
    }
    let why =
        format!("with the remedy it has {} bytes; between 1 and {MESSAGE_BYTES_MAX}", text.len());
    section.reject("message", why, report)
}

fn retry(section: &Section<'_>, report: &mut Report<'_>) -> (Option<u32>, Option<u64>) {
    let retries = section.count("retries", 0..=u64::from(ATTEMPTS_MAX), report);
    let delay_ms = section.duration_ms("retry_delay", report);
    let delay_ms = delay_ms.filter(|ms| *ms <= DELAY_MS_MAX).or_else(|| {
        let why = "it must be at most 366d".to_owned();
        delay_ms.and_then(|_| section.reject("retry_delay", why, report))
    });
    (retries.and_then(|retries| u32::try_from(retries).ok()), delay_ms)
}

fn source(section: &Section<'_>, report: &mut Report<'_>) -> Source {
    match section.text("source", report) {
        None | Some("installer") => Source::Installer,
        Some("artifacts") => Source::ArtifactStore,
        Some(other) => {
            let why = format!("{other:?} is neither \"installer\" nor \"artifacts\"");
            section.reject("source", why, report).unwrap_or(Source::Installer)
        }
    }
}

/// Reads tokens, or regular expressions if the key says so.
fn patterns(section: &Section<'_>, key: &str, report: &mut Report<'_>) -> Vec<Regex> {
    let texts = section.one_or_more(key, report).unwrap_or_default();
    if texts.len() > PATTERNS_MAX {
        let why = format!("{} patterns; at most {PATTERNS_MAX} are allowed", texts.len());
        section.reject::<()>(key, why, report);
    }
    let is_regex = key.ends_with("_regex");
    let mut patterns = Vec::new();
    for text in texts {
        match if is_regex { compile(text) } else { token(text) } {
            Ok(pattern) => patterns.push(pattern),
            Err(why) => drop(section.reject::<()>(key, why, report)),
        }
    }
    patterns
}

fn token(text: &str) -> Result<Regex, String> {
    let words: Vec<String> = text.split_whitespace().map(regex::escape).collect();
    if text.trim().chars().count() < TOKEN_CHARS_MIN {
        return Err(format!("the token {text:?} has less than {TOKEN_CHARS_MIN} characters"));
    }
    compile(&words.join(r"\s+"))
}

fn compile(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > PATTERN_BYTES_MAX {
        let length = pattern.len();
        return Err(format!("the pattern has {length} bytes; the maximum is {PATTERN_BYTES_MAX}"));
    }
    let built =
        RegexBuilder::new(pattern).case_insensitive(true).size_limit(COMPILED_BYTES_MAX).build();
    let regex = built.map_err(|error| {
        let error = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        format!("{pattern:?} is not a regular expression: {error}")
    })?;
    if regex.is_match("") {
        return Err(format!("{pattern:?} matches an empty text, and so every text"));
    }
    Ok(regex)
}
