//! Timeline of the steps of a run, stored in its log: each change is one line.
//!
//! The log is durable and available also for runs that failed or were lost. The output of commands
//! is prefixed with the name of the step, so that it cannot be mistaken for these lines. Times are
//! relative to the start of the attempt, because only the clock of the store counts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::{StepInfo, StepStatus};
use serde::{Deserialize, Serialize};
use tenure::Context;
use tenure::clock::BootInstant;
use tenure::worker::Failure;
use tenure_core::{Millis, Token};
use tenure_wire::{FailureInfo, instant};

/// Prefix of the lines of a timeline.
pub const PREFIX: &str = tenure_wire::LOG_DATA_PREFIX;
/// Part of a log that is reserved for them.
const BYTES_MAX: u64 = 128 * 1024;
/// Part of that for records of active steps.
const ACTIVE_BYTES_MAX: u64 = BYTES_MAX * 3 / 4;
/// Maximum length of a failure message in them.
const MESSAGE_BYTES_MAX: usize = 256;

/// One line of a timeline.
#[derive(Debug, Serialize, Deserialize)]
struct TimelineRecord {
    /// Step; `None` in the first record, which has all names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    step: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    steps: Vec<String>,
    /// Token of the tenure, in the first record: the next attempt after a hand-back has the same
    /// number.
    #[serde(default, rename = "tenure", skip_serializing_if = "Option::is_none")]
    token: Option<Token>,
    status: StepStatus,
    #[serde(rename = "try")]
    tries: u32,
    /// Time since the start of the attempt.
    ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// Writes the timeline of an attempt.
pub(super) struct Timeline<'a> {
    job: &'a Context,
    started: BootInstant,
    written: AtomicU64,
}

impl<'a> Timeline<'a> {
    /// Starts a timeline with the names of all steps.
    pub(super) fn begin<'s>(job: &'a Context, steps: impl Iterator<Item = &'s str>) -> Self {
        job.reserve_log(BYTES_MAX);
        let timeline = Self { job, started: BootInstant::now(), written: AtomicU64::new(0) };
        timeline.write(&TimelineRecord {
            step: None,
            steps: steps.map(str::to_owned).collect(),
            token: Some(job.token()),
            status: StepStatus::Pending,
            tries: 0,
            ms: 0,
            code: None,
            message: None,
        });
        timeline
    }

    /// Records a change of a step.
    pub(super) fn record(&self, step: &str, tries: u32, status: StepStatus, why: Option<&Failure>) {
        // Many retries must not use up the space reserved for the final records.
        if is_active(status) && self.written.load(Ordering::Relaxed) > ACTIVE_BYTES_MAX {
            return;
        }
        let elapsed = BootInstant::now().saturating_duration_since(self.started);
        // Redacted before truncation, which could cut a secret in half.
        let redact = |text: &String| {
            let text = self.job.redact(text);
            text[..text.floor_char_boundary(MESSAGE_BYTES_MAX)].to_owned()
        };
        self.write(&TimelineRecord {
            step: Some(step.to_owned()),
            steps: Vec::new(),
            token: None,
            status,
            tries,
            ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            code: why.map(|why| redact(&why.code)),
            message: why.map(|why| redact(&why.message)),
        });
    }

    fn write(&self, record: &TimelineRecord) {
        let json = serde_json::to_string(record).expect("serializable");
        let line = format!("{PREFIX}{json}");
        self.written.fetch_add(line.len() as u64 + 1, Ordering::Relaxed);
        self.job.log_reserved(&line);
    }
}

/// Returns pending steps with the given names.
#[must_use]
pub fn pending_steps<'s>(names: impl Iterator<Item = &'s str>) -> Vec<StepInfo> {
    names.map(|name| pending_step(name.to_owned())).collect()
}

fn pending_step(name: String) -> StepInfo {
    let (started_at, ended_at, error) = (None, None, None);
    StepInfo { name, status: StepStatus::Pending, tries: 0, started_at, ended_at, error }
}

/// Parses the steps from the log of an attempt. A step that was active at the end of the attempt is
/// reported as stopped.
#[must_use]
pub fn parse_steps<'l>(
    log: impl Iterator<Item = &'l str>,
    started_at: Millis,
    ended_at: Option<Millis>,
) -> Vec<StepInfo> {
    let mut steps: Vec<StepInfo> = Vec::new();
    let mut current = None;
    let records = log.filter_map(|line| serde_json::from_str(line.strip_prefix(PREFIX)?).ok());
    for record in records {
        let TimelineRecord { step, steps: names, token, status, tries, ms, code, message } = record;
        let Some(name) = step else {
            // A record may be in the log twice; another tenure starts over.
            if current.replace(token) != Some(token) {
                steps = names.into_iter().map(pending_step).collect();
            }
            continue;
        };
        let Some(step) = steps.iter_mut().find(|step| step.name == name) else { continue };
        let at = instant(Millis(started_at.0.saturating_add(ms)));
        step.started_at.get_or_insert_with(|| at.clone());
        (step.status, step.tries) = (status, tries);
        step.ended_at = (!is_active(status)).then_some(at);
        step.error = code.map(|code| FailureInfo { code, message: message.unwrap_or_default() });
    }
    if let Some(ended_at) = ended_at {
        for step in steps.iter_mut().filter(|step| is_active(step.status)) {
            step.status = StepStatus::Stopped;
            step.ended_at = Some(instant(ended_at));
        }
    }
    steps
}

fn is_active(status: StepStatus) -> bool {
    matches!(status, StepStatus::Running | StepStatus::Retrying)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"::step {"steps":["extract","load"],"status":"PENDING","try":0,"ms":0}
::step {"step":"extract","status":"RUNNING","try":1,"ms":5}
extract | ::step {"step":"load","status":"COMPLETE","try":1,"ms":6}
::step {"step":"extract","status":"RETRYING","try":1,"ms":10,"code":"EXIT_75","message":"busy"}
::step {"step":"extract","status":"RUNNING","try":2,"ms":1010}
"#;

    #[test]
    fn steps_are_parsed_from_the_log() {
        let steps = parse_steps(LOG.lines(), Millis(60_000), None);
        assert_eq!(steps.len(), 2);
        assert_eq!((steps[0].status, steps[0].tries), (StepStatus::Running, 2));
        assert_eq!(steps[0].started_at.as_deref(), Some("1970-01-01T00:01:00.005Z"));
        assert_eq!(steps[0].ended_at, None);
        // The output of a command is not a record.
        assert_eq!(steps[1].status, StepStatus::Pending);
    }

    #[test]
    fn active_step_at_the_end_is_stopped() {
        let steps = parse_steps(LOG.lines(), Millis(60_000), Some(Millis(63_000)));
        assert_eq!(steps[0].status, StepStatus::Stopped);
        assert_eq!(steps[0].ended_at.as_deref(), Some("1970-01-01T00:01:03Z"));
        assert_eq!(steps[1].status, StepStatus::Pending);
    }

    #[test]
    fn records_of_a_handed_back_attempt_are_dropped() {
        let log = r#"
::step {"steps":["extract","load"],"tenure":1,"status":"PENDING","try":0,"ms":0}
::step {"step":"extract","status":"COMPLETE","try":1,"ms":5}
::step {"step":"load","status":"RUNNING","try":1,"ms":900}
::step {"steps":["extract","load"],"tenure":2,"status":"PENDING","try":0,"ms":0}
::step {"step":"extract","status":"RUNNING","try":1,"ms":5}
::step {"steps":["extract","load"],"tenure":2,"status":"PENDING","try":0,"ms":0}
"#;
        let steps = parse_steps(log.lines(), Millis(0), None);
        assert_eq!(steps[0].status, StepStatus::Running, "a repeated record changes nothing");
        assert_eq!((steps[1].status, steps[1].tries), (StepStatus::Pending, 0));
    }

    #[test]
    fn log_without_a_timeline_has_no_steps() {
        assert!(parse_steps("::step {}\n::step nonsense\n".lines(), Millis(0), None).is_empty());
    }
}
