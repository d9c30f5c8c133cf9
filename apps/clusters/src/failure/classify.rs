//! Applies the rules to the output of a failed step.
//!
//! | rank | matches |
//! |---|---|
//! | 1 | of specific rules in blocks of errors: causes before symptoms, then the newest block |
//! | 2 | of specific rules in the whole text, for what was only a warning |
//! | 3 | of fallback rules, in the same order |
//!
//! Within a rank, the order of the rules decides. Symptoms are ranked below causes because the last
//! error often follows from an earlier one: an exhausted quota ends as a timeout.

use super::class::{Class, Cleanup, Policy};
use super::console::Console;
use super::exit::{Verdict, exit_code};
use super::rules::{Rule, Rules};

/// Maximum number of other matches that are kept.
const OTHERS_MAX: usize = 20;
/// Classes that the validation of an install-config may fail with: it calls the cloud.
const CALLS: [Class; 3] = [Class::Credentials, Class::Throttled, Class::Network];

/// Step of a job that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The check before an install.
    Preflight,
    /// The installer generates files; nothing exists in the cloud.
    Prepare,
    /// The installer creates the cluster.
    Create,
    /// The installer waits for a cluster that exists.
    Complete,
    /// The installer destroys the cluster.
    Destroy,
    /// The number of workers is changed.
    Scale,
    /// A snapshot is stored or restored.
    Snapshot,
}

/// What failed: a text says little without it. `AccessDenied` of the store of snapshots is no
/// missing permission of the cloud account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The installer, or a program that calls the cloud.
    #[default]
    Installer,
    /// The store of snapshots.
    ArtifactStore,
}

/// What is known about a failure.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// Exit code; none if it was killed.
    pub exit_code: Option<i32>,
    /// Console output at the level info, or the message of an error.
    pub console: &'a str,
    /// Step that failed.
    pub step: Step,
    /// Whether resources may exist in the cloud.
    pub infra_started: bool,
    /// What failed.
    pub source: Source,
    /// Whether it was stopped because of its time limit.
    pub timed_out: bool,
}

/// A rule that matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleMatch {
    /// Id of the rule.
    pub rule: String,
    /// Its reason.
    pub reason: String,
    /// Its class.
    pub class: Class,
}

/// A classified failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classified {
    /// Reason, for programs.
    pub reason: String,
    /// Class.
    pub class: Class,
    /// Message for people, with the remedy.
    pub message: String,
    /// Id of the rule; none if the exit code decided.
    pub rule: Option<String>,
    /// Version of the rules.
    pub rules_version: String,
    /// The error that ended the installer, in one line.
    pub excerpt: Option<String>,
    /// The same without what differs from run to run, if the class is unknown.
    pub fingerprint: Option<String>,
    /// Other rules that matched, best first.
    pub others: Vec<RuleMatch>,
    /// How it is handled.
    pub policy: Policy,
    /// Delay before a retry, instead of the backoff.
    pub retry_delay_ms: Option<u64>,
    /// Whether what exists in the cloud is removed before a retry.
    pub cleanup: bool,
}

/// Rank of a match: lower is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_fallback: bool,
    is_text: bool,
    is_symptom: bool,
    block: usize,
    index: usize,
}

impl Rules {
    /// Classifies a failure.
    #[must_use]
    pub fn classify(&self, evidence: &Evidence<'_>) -> Classified {
        let console = Console::new(evidence.console);
        let matches = self.matches(&console, evidence.source);
        let verdict = Verdict::of(evidence);
        let chosen = match evidence.source {
            Source::Installer => choose(&matches, evidence),
            Source::ArtifactStore => matches.first().copied(),
        };
        let others = matches.iter().filter(|rule| chosen.is_none_or(|best| best.id != rule.id));
        let others = others.take(OTHERS_MAX).map(|rule| RuleMatch {
            rule: rule.id.clone(),
            reason: rule.reason.clone(),
            class: rule.class,
        });
        let (reason, class, message) = match (chosen, evidence.source) {
            (Some(rule), _) => (rule.reason.as_str(), rule.class, rule.message.as_str()),
            (None, Source::Installer) => (verdict.reason, verdict.class, verdict.message),
            (None, Source::ArtifactStore) => (
                "ArtifactStoreFailed",
                Class::Network,
                "The store of snapshots did not answer as expected. Check `artifacts` in \
                 [clusters] and the store.",
            ),
        };
        let mut policy = class.policy();
        if let Some(retries) = chosen.and_then(|rule| rule.retries) {
            policy.retries = retries;
        }
        Classified {
            reason: reason.to_owned(),
            class,
            message: message.to_owned(),
            rule: chosen.map(|rule| rule.id.clone()),
            rules_version: self.version().to_owned(),
            excerpt: console.excerpt(),
            fingerprint: (class == Class::Unknown).then(|| console.fingerprint()).flatten(),
            others: others.collect(),
            policy,
            retry_delay_ms: chosen.and_then(|rule| rule.retry_delay_ms),
            cleanup: needs_cleanup(evidence, policy),
        }
    }

    /// Returns the best rule for a text whose only line is an error of the installer.
    pub(super) fn best(&self, error: &str, source: Source) -> Option<&Rule> {
        let console = Console::of_error(error);
        self.matches(&console, source).first().copied()
    }

    /// Returns all rules that match, best first.
    fn matches(&self, console: &Console, source: Source) -> Vec<&Rule> {
        let ranked = |(index, rule): (usize, &'_ Rule)| {
            let block = console.blocks.iter().position(|block| rule.is_match(block));
            if block.is_none() && !rule.is_match(&console.text) {
                return None;
            }
            Some(Rank {
                is_fallback: rule.fallback,
                is_text: block.is_none(),
                is_symptom: rule.symptom,
                block: block.unwrap_or(0),
                index,
            })
        };
        let of_source = self.rules.iter().enumerate().filter(|(_, rule)| rule.source == source);
        let mut ranks: Vec<Rank> = of_source.filter_map(ranked).collect();
        ranks.sort_unstable();
        ranks.into_iter().map(|rank| &self.rules[rank.index]).collect()
    }
}

/// Combines the matches with the exit code. Returns `None` if the exit code decides.
fn choose<'r>(matches: &[&'r Rule], evidence: &Evidence<'_>) -> Option<&'r Rule> {
    let best = matches.first().copied();
    if evidence.timed_out {
        // The installer was stopped, so that what it was waiting for is no cause.
        return best.filter(|rule| !rule.symptom && !rule.fallback);
    }
    match evidence.exit_code {
        Some(exit_code::INTERRUPTED) => None,
        Some(exit_code::INSTALL_CONFIG) => {
            let is_specific = |rule: &Rule| {
                CALLS.contains(&rule.class) || rule.class == Class::InvalidConfig && !rule.fallback
            };
            let specific = matches.iter().find(|rule| is_specific(rule));
            let any = || matches.iter().find(|rule| rule.class == Class::InvalidConfig);
            specific.or_else(any).copied()
        }
        Some(exit_code::BOOTSTRAP | exit_code::OPERATORS | exit_code::STABILITY) => {
            // What timed out is known better than that something did.
            best.filter(|rule| !(rule.fallback && rule.class == Class::Network))
        }
        _ => best,
    }
}

/// Returns whether resources may have to be removed before a retry. An install-config that was
/// rejected has created none.
fn needs_cleanup(evidence: &Evidence<'_>, policy: Policy) -> bool {
    let is_create = matches!(evidence.step, Step::Create | Step::Complete);
    let may_exist = policy.cleanup == Cleanup::Always && evidence.exit_code != Some(1);
    is_create
        && evidence.exit_code != Some(exit_code::INSTALL_CONFIG)
        && (evidence.infra_started || may_exist)
}
