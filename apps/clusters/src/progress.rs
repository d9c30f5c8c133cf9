//! Progress of the installer, read from its log.
//!
//! The log is fed line by line, the console form as well as that of `.openshift_install.log`. What
//! is kept are phases and addresses: a line with a credential is dropped before anything else.
//!
//! `progress/line.rs` parses lines, `progress/phase.rs` has the phases and their markers,
//! `progress/estimate.rs` estimates the remaining time.

mod estimate;
mod line;
mod phase;
#[cfg(test)]
mod tests;

use crate::status::Outputs;

pub use estimate::{EARLIER_MAX, remaining_ms};
pub(crate) use line::truncate;
pub use line::{Level, LogLine, is_secret};
pub use phase::Phase;

/// Number of deleted resources after which half of a destroy is done, as far as can be known: the
/// installer does not say how many there are.
const DELETED_HALF: u32 = 50;
/// Percentage of a destroy before its end that is never exceeded.
const DESTROY_PERCENT_MAX: u8 = 95;
/// Maximum length of an address, in bytes.
const URL_BYTES_MAX: usize = 512;

/// Progress of one run of the installer. It never goes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    phase: Phase,
    percent: u8,
    detail: Option<String>,
    infra_started: bool,
    deleted: u32,
    api_url: Option<String>,
    console_url: Option<String>,
}

impl Progress {
    /// Creates the progress of a create, or of a wait for its end.
    #[must_use]
    pub fn create() -> Self {
        Self::at(Phase::Starting)
    }

    /// Creates the progress of a destroy.
    #[must_use]
    pub fn destroy() -> Self {
        Self::at(Phase::Destroying)
    }

    fn at(phase: Phase) -> Self {
        Self {
            phase,
            percent: phase.percent(),
            detail: None,
            infra_started: false,
            deleted: 0,
            api_url: None,
            console_url: None,
        }
    }

    /// Reads one line. Returns whether the percentage, the phase or the message has changed.
    pub fn feed(&mut self, line: &str) -> bool {
        if is_secret(line) {
            return false;
        }
        let Some(line) = LogLine::parse(line) else { return false };
        let before = (self.phase, self.percent, self.detail.clone());
        if self.phase >= Phase::Destroying {
            self.feed_destroy(&line);
        } else {
            self.feed_create(&line);
        }
        before != (self.phase, self.percent, self.detail.clone())
    }

    /// Returns the percentage, from 0 to 100.
    #[must_use]
    pub fn percent(&self) -> u8 {
        self.percent
    }

    /// Returns the phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the message for people.
    #[must_use]
    pub fn message(&self) -> String {
        match &self.detail {
            Some(detail) => format!("{}: {detail}", self.phase.description()),
            None => self.phase.description().to_owned(),
        }
    }

    /// Returns whether resources may exist in the cloud.
    #[must_use]
    pub fn infra_started(&self) -> bool {
        self.infra_started
    }

    /// Returns whether the installer has reported its end.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(self.phase, Phase::Complete | Phase::Destroyed)
    }

    /// Returns the addresses of the cluster, as far as they were printed.
    #[must_use]
    pub fn outputs(&self) -> Option<Outputs> {
        let api_url = self.api_url.clone()?;
        Some(Outputs { api_url, console_url: self.console_url.clone() })
    }

    fn feed_create(&mut self, line: &LogLine) {
        if line.level == Level::Debug {
            if self.phase == Phase::Operators {
                self.feed_operators(&line.message);
            }
            return;
        }
        self.read_addresses(&line.message);
        let phase = Phase::of_message(&line.message).filter(|phase| *phase < Phase::Destroying);
        let Some(phase) = phase else { return };
        // All later phases need it, also in a run that waits for a cluster that exists.
        self.infra_started |= phase >= Phase::Infrastructure;
        if phase > self.phase {
            self.enter(phase);
        }
    }

    /// Reads `Working towards 4.19.1: 763 of 770 done (99% complete)`.
    fn feed_operators(&mut self, message: &str) {
        let Some(rest) = message.strip_prefix("Still waiting for the cluster to initialize: ")
        else {
            return;
        };
        let counts = rest.rsplit_once(": ").map_or(rest, |(_, counts)| counts);
        let Some((done, percent)) = counts.split_once(" (") else { return };
        let percent = percent.strip_suffix("% complete)").and_then(|n| n.parse::<u8>().ok());
        let Some(percent) = percent.filter(|percent| *percent <= 100) else { return };
        let (from, to) = (Phase::Operators.percent(), Phase::Stability.percent());
        let within = u16::from(to - from) * u16::from(percent) / 100;
        let percent = from + u8::try_from(within).unwrap_or(0).min(to - from - 1);
        if percent >= self.percent {
            self.percent = percent;
            self.detail = Some(done.chars().take(100).collect());
        }
    }

    fn feed_destroy(&mut self, line: &LogLine) {
        if line.level == Level::Debug {
            return;
        }
        if Phase::of_message(&line.message) == Some(Phase::Destroyed) {
            return self.enter(Phase::Destroyed);
        }
        let verb = line.message.split([' ', ':']).next().unwrap_or("");
        if !matches!(verb, "Deleted" | "Destroyed" | "Released" | "Removed" | "Terminated") {
            return;
        }
        if self.phase == Phase::Destroyed {
            return;
        }
        self.deleted = self.deleted.saturating_add(1);
        let (from, to) = (u32::from(Phase::Destroying.percent()), u32::from(DESTROY_PERCENT_MAX));
        let gone =
            (to - from).saturating_mul(self.deleted) / self.deleted.saturating_add(DELETED_HALF);
        let percent = u8::try_from(from + gone).unwrap_or(DESTROY_PERCENT_MAX);
        self.percent = self.percent.max(percent);
        self.detail = Some(format!("{} resources deleted", self.deleted));
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.percent = self.percent.max(phase.percent());
        self.detail = None;
    }

    fn read_addresses(&mut self, message: &str) {
        let is_wait = message.starts_with("Waiting up to ");
        if is_wait && (message.contains("for the Kubernetes API") || message.contains("initialize"))
        {
            self.api_url = url(message, "https://api").or_else(|| self.api_url.take());
        }
        if message.starts_with("Access the OpenShift web-console here:") {
            self.console_url = url(message, "https://").or_else(|| self.console_url.take());
        }
    }
}

/// Returns the address in a message that begins so.
fn url(message: &str, begin: &str) -> Option<String> {
    let rest = &message[message.find(begin)?..];
    let word = rest.split(char::is_whitespace).next()?.trim_end_matches(['.', ',']);
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._:/".contains(c);
    let is_url = word.len() <= URL_BYTES_MAX && word.chars().all(is_allowed);
    is_url.then(|| word.to_owned())
}
