//! Descriptions of runs and steps, and which changes are reported.

use tenure_wire::{FailureInfo, ProgressInfo, RequestedByInfo};

use super::*;

const STEPS: [(&str, StepStatus, u32); 2] =
    [("extract", StepStatus::Complete, 1), ("load", StepStatus::Running, 2)];

/// Returns a run that started a minute ago and has been in its second step for half a minute.
fn running(percent: u8, message: &str) -> RunDetail {
    let mut detail = example(RunStatus::Running, &STEPS);
    let (message, at) = (message.to_owned(), String::new());
    detail.run.progress = Some(ProgressInfo { percent, message, at });
    detail.run.started_at = Some("2030-01-31T00:00:00Z".to_owned());
    detail.run.duration_ms = Some(60_000);
    let time = |second: &str| Some(format!("2030-01-31T00:00:{second}Z"));
    (detail.steps[0].started_at, detail.steps[0].ended_at) = (time("00"), time("03"));
    detail.steps[1].started_at = time("30");
    detail
}

fn failure() -> Option<FailureInfo> {
    Some(FailureInfo { code: "EXIT_75".to_owned(), message: "busy\n".to_owned() })
}

#[test]
fn steps_are_aligned_with_their_durations() {
    let detail = running(70, "load: copying");
    assert_eq!(
        step_lines(&detail),
        ["extract  COMPLETE after 3s", "load     RUNNING, try 2, 40 % for 30s"]
    );
}

#[test]
fn step_is_described_with_its_failure() {
    let mut detail = running(70, "");
    let step = &mut detail.steps[1];
    (step.status, step.tries, step.error) = (StepStatus::Retrying, 1, failure());
    assert_eq!(describe_step(step, None, None), "RETRYING, try 1: EXIT_75: busy");
    (step.status, step.ended_at) = (StepStatus::Failed, step.started_at.clone());
    assert_eq!(describe_step(step, Some(9_000), None), "FAILED after 9s: EXIT_75: busy");
    let pending = &example(RunStatus::Pending, &[("a", StepStatus::Pending, 0)]).steps[0];
    assert_eq!(describe_step(pending, None, None), "PENDING");
}

#[test]
fn run_is_described_with_its_activity_or_blocker() {
    let mut detail = running(70, "load: copying\nrows");
    let why = |text: &str| WhyResponse { text: text.to_owned(), ..WhyResponse::default() };
    let snapshot = RunSnapshot { detail: &detail, why: None };
    assert_eq!(snapshot.line(), "RUNNING");
    assert_eq!(snapshot.live_line(), "RUNNING, 70 % for 1m00s: load: copying rows");
    let (by, reason, at) = ("ann".to_owned(), String::new(), String::new());
    detail.run.cancel = Some(RequestedByInfo { by, reason, at });
    (detail.run.status, detail.run.attempt) = (RunStatus::Cancelling, 2);
    let snapshot = RunSnapshot { detail: &detail, why: None };
    assert_eq!(snapshot.line(), "CANCELLING, attempt 2: asked to stop by ann");
    assert_eq!(snapshot.live_line(), "CANCELLING, attempt 2 for 1m00s: asked to stop by ann");
    let (detail, why) = (example(RunStatus::Pending, &STEPS), why("no worker claims. Start one"));
    let snapshot = RunSnapshot { detail: &detail, why: Some(&why) };
    assert_eq!(snapshot.line(), "PENDING: no worker claims. Start one");
    assert_eq!(snapshot.live_line(), snapshot.line());
}

#[test]
fn each_step_has_an_equal_share_of_the_progress() {
    let step_percent = |percent_of_run: u8| percent(&running(percent_of_run, ""), 1);
    assert_eq!([49, 50, 51, 75, 100].map(step_percent), [None, None, Some(2), Some(50), Some(100)]);
    // Only a running step has progress.
    assert_eq!(percent(&running(20, ""), 0), None);
    let many = [("a", StepStatus::Running, 1); 64];
    let mut detail = example(RunStatus::Running, &many);
    let (message, at) = (String::new(), String::new());
    detail.run.progress = Some(ProgressInfo { percent: 100, message, at });
    assert_eq!(percent(&detail, 63), Some(100), "a share of a percent or two");
}

#[test]
fn step_is_reported_when_it_changes() {
    let mut reported = ReportedSteps::default();
    let mut names = |steps: &[(&str, StepStatus, u32)], new_attempt: bool| {
        if new_attempt {
            reported.clear();
        }
        let detail = example(RunStatus::Running, steps);
        let changed = reported.changed(&detail.steps);
        changed.into_iter().map(|step| step.name.clone()).collect::<Vec<_>>()
    };
    let pending = [("extract", StepStatus::Pending, 0), ("load", StepStatus::Pending, 0)];
    assert!(names(&pending, false).is_empty(), "a pending step is not reported");
    assert_eq!(names(&STEPS, false), ["extract", "load"]);
    assert!(names(&STEPS, false).is_empty());
    let again = [STEPS[0], ("load", StepStatus::Running, 3)];
    assert_eq!(names(&again, false), ["load"], "another try");
    assert_eq!(names(&STEPS, true), ["extract", "load"], "a new attempt reports all steps");
}
