//! The table of rules: the built-in ones, and those of operators before and after them.

use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;
use sha2::{Digest, Sha256};
use tenure_config::{BadConfig, Problem};

use super::class::Class;
use super::classify::Source;
use super::read;

/// Maximum number of rules of one file.
pub const RULES_MAX: usize = 500;
/// The built-in rules.
const BUILT_IN: &str = include_str!("rules.toml");
/// Number of hexadecimal digits of a version.
const VERSION_DIGITS: usize = 12;

/// A rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Id: `builtin/REASON` or `operator/REASON`.
    pub id: String,
    /// Reason, for programs.
    pub reason: String,
    /// Class.
    pub class: Class,
    /// Message for people, with the remedy.
    pub message: String,
    /// Whether it only applies if no other rule matches.
    pub fallback: bool,
    /// Whether it describes a symptom: a failure that often follows from an earlier one.
    pub symptom: bool,
    /// Whose output it applies to.
    pub source: Source,
    /// Number of retries, instead of that of the class.
    pub retries: Option<u32>,
    /// Delay before a retry, instead of that of the class.
    pub retry_delay_ms: Option<u64>,
    /// Outputs that it matches.
    pub samples: Vec<String>,
    /// Patterns that all have to match.
    pub(super) all: Vec<Regex>,
    /// Patterns of which one has to match, if there are any.
    pub(super) any: Vec<Regex>,
}

impl Rule {
    /// Returns whether the rule matches a text.
    pub(super) fn is_match(&self, text: &str) -> bool {
        self.all.iter().all(|pattern| pattern.is_match(text))
            && (self.any.is_empty() || self.any.iter().any(|pattern| pattern.is_match(text)))
    }
}

/// Rules in order: the first that matches decides.
#[derive(Clone, Debug)]
pub struct Rules {
    pub(super) rules: Vec<Rule>,
    version: String,
}

/// Which table is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    BuiltIn,
    Operator,
}

impl Rules {
    /// Returns the reasons of all rules.
    pub fn reasons(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| rule.reason.as_str())
    }

    /// Loads the built-in rules and those of a file. If the file has problems, it is left out as a
    /// whole, and all its problems are returned.
    #[must_use]
    pub fn load(file: Option<&Path>) -> (Self, Vec<Problem>) {
        let Some(path) = file else { return Self::built_in() };
        let text = tenure_config::read_text(path).map_err(|error| {
            let why = match error {
                tenure_config::Error::Unreadable { reason, .. } => reason,
                tenure_config::Error::Bad(bad) => bad.to_string(),
            };
            let why = format!("cannot be read: {why}; check `failure_rules` in [clusters]");
            BadConfig(vec![Problem::of_file(path, why)])
        });
        match text.and_then(|text| Self::parse(&text)) {
            Ok(rules) => (rules, Vec::new()),
            Err(bad) => {
                let (rules, mut problems) = Self::built_in();
                problems.extend(bad.in_file(path).0);
                (rules, problems)
            }
        }
    }

    /// Parses the file of an operator, and adds the built-in rules.
    ///
    /// # Errors
    ///
    /// Fails with all problems.
    pub fn parse(text: &str) -> Result<Self, BadConfig> {
        let (built_in, _) = Self::built_in();
        let file = read::read(text, Origin::Operator, &built_in.rules)?;
        let is_kept = |rule: &Rule| !file.disabled.contains(&rule.reason);
        let kept = built_in.rules.into_iter().filter(is_kept);
        let rules = file.before.into_iter().chain(kept).chain(file.after).collect();
        let rules = Self { rules, version: version(&[BUILT_IN, text]) };
        rules.check_samples(text)?;
        Ok(rules)
    }

    /// Iterates over the rules in order.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// Returns the version, a digest of the tables. It is stored with what was classified.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the built-in rules, which are compiled once. They have no problems: tests check it.
    fn built_in() -> (Self, Vec<Problem>) {
        static RULES: LazyLock<(Rules, Vec<Problem>)> = LazyLock::new(|| {
            let version = version(&[BUILT_IN]);
            match read::read(BUILT_IN, Origin::BuiltIn, &[]) {
                Ok(file) => (Rules { rules: file.before, version }, Vec::new()),
                Err(BadConfig(problems)) => (Rules { rules: Vec::new(), version }, problems),
            }
        });
        RULES.clone()
    }

    /// Reports samples of an operator's rules that another rule classifies.
    fn check_samples(&self, text: &str) -> Result<(), BadConfig> {
        let mut problems = Vec::new();
        for rule in self.rules.iter().filter(|rule| rule.id.starts_with(read::OPERATOR)) {
            for sample in &rule.samples {
                let found = self.of_sample(sample, rule.source);
                if found.as_deref() != Some(&rule.id) {
                    let found = found.unwrap_or_else(|| "no rule".to_owned());
                    let message = format!(
                        "the sample {sample:?} of {} is classified by {found}: make the patterns \
                         match, or move the rule with `position`",
                        rule.reason
                    );
                    problems.push(Problem {
                        file: None,
                        line: line_of(text, &rule.reason),
                        place: String::new(),
                        message,
                    });
                }
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(BadConfig(problems)) }
    }

    /// Returns the id of the rule that classifies a sample, an error of the installer.
    pub(super) fn of_sample(&self, sample: &str, source: Source) -> Option<String> {
        self.best(sample, source).map(|rule| rule.id.clone())
    }
}

/// Returns the line of the rule of a reason.
fn line_of(text: &str, reason: &str) -> usize {
    let is_reason = |line: &str| {
        line.trim_start().starts_with("reason") && line.contains(&format!("\"{reason}\""))
    };
    text.lines().position(is_reason).map_or(1, |at| at + 1)
}

fn version(texts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for text in texts {
        digest.update(text.as_bytes());
    }
    let digits = digest.finalize();
    let hex: String = digits.iter().map(|byte| format!("{byte:02x}")).collect();
    hex.chars().take(VERSION_DIGITS).collect()
}
