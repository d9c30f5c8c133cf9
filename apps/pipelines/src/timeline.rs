//! The steps of a run in time, kept in the log of the run: each change is a line of its own.
//!
//! The log is durable, and is there also for runs that failed or were lost. Lines of commands have
//! the name of their step before them, so none can be taken for one of these. Times are counted
//! from the beginning of the attempt, because only the store knows what time it is.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::{StepAnswer, StepStatus};
use serde::{Deserialize, Serialize};
use tenure::Context;
use tenure::clock::BootInstant;
use tenure::worker::Failure;
use tenure_core::{Millis, Token};
use tenure_wire::{FailureAnswer, instant};

/// What these lines begin with. They are data, and not for people.
pub const MARK: &str = "::step ";
/// How much of a log is kept for them.
const BYTES_MAX: u64 = 128 * 1024;
/// Of that, how much may be about steps that go on.
const OPEN_BYTES_MAX: u64 = BYTES_MAX * 3 / 4;
/// Longest message of a failure in them.
const MESSAGE_BYTES_MAX: usize = 256;

/// One line.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    /// The step; none for the first line, which has all names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    step: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    steps: Vec<String>,
    /// The tenure, with the names: an attempt that was handed back has the number of the next.
    #[serde(default, rename = "tenure", skip_serializing_if = "Option::is_none")]
    token: Option<Token>,
    status: StepStatus,
    #[serde(rename = "try")]
    tries: u32,
    /// Since the attempt began.
    ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// Writes the timeline of an attempt.
pub(super) struct Timeline<'a> {
    job: &'a Context,
    began: BootInstant,
    written: AtomicU64,
}

impl<'a> Timeline<'a> {
    /// Begins with the names of all steps.
    pub(super) fn begin<'s>(job: &'a Context, steps: impl Iterator<Item = &'s str>) -> Self {
        job.reserve_log(BYTES_MAX);
        let timeline = Self { job, began: BootInstant::now(), written: AtomicU64::new(0) };
        timeline.write(&Line {
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

    /// A step has come to something.
    pub(super) fn note(&self, step: &str, tries: u32, status: StepStatus, why: Option<&Failure>) {
        // What goes on and on must not take the room of how it ends.
        if is_open(status) && self.written.load(Ordering::Relaxed) > OPEN_BYTES_MAX {
            return;
        }
        let passed = BootInstant::now().saturating_duration_since(self.began);
        // Cleaned first: what is cut could be half a secret.
        let clean = |text: &String| {
            let text = self.job.redact(text);
            text[..text.floor_char_boundary(MESSAGE_BYTES_MAX)].to_owned()
        };
        self.write(&Line {
            step: Some(step.to_owned()),
            steps: Vec::new(),
            token: None,
            status,
            tries,
            ms: u64::try_from(passed.as_millis()).unwrap_or(u64::MAX),
            code: why.map(|why| clean(&why.code)),
            message: why.map(|why| clean(&why.message)),
        });
    }

    fn write(&self, line: &Line) {
        let json = serde_json::to_string(line).expect("it is made of texts and numbers");
        let line = format!("{MARK}{json}");
        self.written.fetch_add(line.len() as u64 + 1, Ordering::Relaxed);
        self.job.log_reserved(&line);
    }
}

/// Steps of which nothing is known but their names.
#[must_use]
pub fn pending<'s>(names: impl Iterator<Item = &'s str>) -> Vec<StepAnswer> {
    names.map(|name| blank(name.to_owned())).collect()
}

fn blank(name: String) -> StepAnswer {
    let (started_at, ended_at, error) = (None, None, None);
    StepAnswer { name, status: StepStatus::Pending, tries: 0, started_at, ended_at, error }
}

/// The steps as the log of an attempt tells them. What was under way when the attempt ended was
/// stopped then.
#[must_use]
pub fn read<'l>(
    log: impl Iterator<Item = &'l str>,
    began: Millis,
    ended: Option<Millis>,
) -> Vec<StepAnswer> {
    let mut steps: Vec<StepAnswer> = Vec::new();
    let mut of = None;
    let lines = log.filter_map(|line| serde_json::from_str(line.strip_prefix(MARK)?).ok());
    for line in lines {
        let Line { step, steps: names, token, status, tries, ms, code, message } = line;
        let Some(name) = step else {
            // A line may be in the log twice; another tenure begins anew.
            if of.replace(token) != Some(token) {
                steps = names.into_iter().map(blank).collect();
            }
            continue;
        };
        let Some(step) = steps.iter_mut().find(|step| step.name == name) else { continue };
        let at = instant(Millis(began.0.saturating_add(ms)));
        step.started_at.get_or_insert_with(|| at.clone());
        (step.status, step.tries) = (status, tries);
        step.ended_at = (!is_open(status)).then_some(at);
        step.error = code.map(|code| FailureAnswer { code, message: message.unwrap_or_default() });
    }
    if let Some(ended) = ended {
        for step in steps.iter_mut().filter(|step| is_open(step.status)) {
            step.status = StepStatus::Stopped;
            step.ended_at = Some(instant(ended));
        }
    }
    steps
}

fn is_open(status: StepStatus) -> bool {
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
    fn the_log_tells_how_far_each_step_came() {
        let steps = read(LOG.lines(), Millis(60_000), None);
        assert_eq!(steps.len(), 2);
        assert_eq!((steps[0].status, steps[0].tries), (StepStatus::Running, 2));
        assert_eq!(steps[0].started_at.as_deref(), Some("1970-01-01T00:01:00.005Z"));
        assert_eq!(steps[0].ended_at, None);
        // A command cannot speak for a step.
        assert_eq!(steps[1].status, StepStatus::Pending);
    }

    #[test]
    fn what_was_under_way_at_the_end_was_stopped() {
        let steps = read(LOG.lines(), Millis(60_000), Some(Millis(63_000)));
        assert_eq!(steps[0].status, StepStatus::Stopped);
        assert_eq!(steps[0].ended_at.as_deref(), Some("1970-01-01T00:01:03Z"));
        assert_eq!(steps[1].status, StepStatus::Pending);
    }

    #[test]
    fn what_was_handed_back_is_not_taken_for_what_came_after() {
        let log = r#"
::step {"steps":["extract","load"],"tenure":1,"status":"PENDING","try":0,"ms":0}
::step {"step":"extract","status":"COMPLETE","try":1,"ms":5}
::step {"step":"load","status":"RUNNING","try":1,"ms":900}
::step {"steps":["extract","load"],"tenure":2,"status":"PENDING","try":0,"ms":0}
::step {"step":"extract","status":"RUNNING","try":1,"ms":5}
::step {"steps":["extract","load"],"tenure":2,"status":"PENDING","try":0,"ms":0}
"#;
        let steps = read(log.lines(), Millis(0), None);
        assert_eq!(steps[0].status, StepStatus::Running, "a repeated line changes nothing");
        assert_eq!((steps[1].status, steps[1].tries), (StepStatus::Pending, 0));
    }

    #[test]
    fn a_log_that_is_no_timeline_tells_nothing() {
        assert!(read("::step {}\n::step nonsense\n".lines(), Millis(0), None).is_empty());
    }
}
