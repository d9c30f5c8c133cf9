//! What is told of a run, and when something is news.

use tenure_wire::{AskedAnswer, FailureAnswer, ProgressAnswer};

use super::*;

const STEPS: [(&str, StepStatus, u32); 2] =
    [("extract", StepStatus::Complete, 1), ("load", StepStatus::Running, 2)];

/// A minute after it began, in its second step since half a minute.
fn running(percent: u8, message: &str) -> RunDetail {
    let mut detail = example(RunStatus::Running, &STEPS);
    let (message, at) = (message.to_owned(), String::new());
    detail.run.progress = Some(ProgressAnswer { percent, message, at });
    detail.run.started_at = Some("2030-01-31T00:00:00Z".to_owned());
    detail.run.duration_ms = Some(60_000);
    let time = |second: &str| Some(format!("2030-01-31T00:00:{second}Z"));
    (detail.steps[0].started_at, detail.steps[0].ended_at) = (time("00"), time("03"));
    detail.steps[1].started_at = time("30");
    detail
}

fn failure() -> Option<FailureAnswer> {
    Some(FailureAnswer { code: "EXIT_75".to_owned(), message: "busy\n".to_owned() })
}

#[test]
fn steps_are_in_a_column_with_what_they_have_taken() {
    let detail = running(70, "load: copying");
    assert_eq!(
        lines(&detail),
        ["extract  COMPLETE after 3s", "load     RUNNING, try 2, 40 % for 30s"]
    );
}

#[test]
fn a_step_is_told_with_its_failure() {
    let mut detail = running(70, "");
    let step = &mut detail.steps[1];
    (step.status, step.tries, step.error) = (StepStatus::Retrying, 1, failure());
    assert_eq!(told(step, None, None), "RETRYING, try 1: EXIT_75: busy");
    (step.status, step.ended_at) = (StepStatus::Failed, step.started_at.clone());
    assert_eq!(told(step, Some(9_000), None), "FAILED after 9s: EXIT_75: busy");
    let pending = &example(RunStatus::Pending, &[("a", StepStatus::Pending, 0)]).steps[0];
    assert_eq!(told(pending, None, None), "PENDING");
}

#[test]
fn a_run_is_told_with_what_it_does_or_waits_for() {
    let mut detail = running(70, "load: copying\nrows");
    let why = |text: &str| WhyAnswer { text: text.to_owned(), ..WhyAnswer::default() };
    let moment = Moment { detail: &detail, why: None };
    assert_eq!(moment.line(), "RUNNING");
    assert_eq!(moment.live(), "RUNNING, 70 % for 1m00s: load: copying rows");
    let (by, reason, at) = ("ann".to_owned(), String::new(), String::new());
    detail.run.cancel = Some(AskedAnswer { by, reason, at });
    (detail.run.status, detail.run.attempt) = (RunStatus::Cancelling, 2);
    let moment = Moment { detail: &detail, why: None };
    assert_eq!(moment.line(), "CANCELLING, attempt 2: asked to stop by ann");
    assert_eq!(moment.live(), "CANCELLING, attempt 2 for 1m00s: asked to stop by ann");
    let (detail, why) = (example(RunStatus::Pending, &STEPS), why("no worker claims. Start one"));
    let moment = Moment { detail: &detail, why: Some(&why) };
    assert_eq!(moment.line(), "PENDING: no worker claims. Start one");
    assert_eq!(moment.live(), moment.line());
}

#[test]
fn each_step_has_its_share_of_the_progress_of_the_run() {
    let of = |percent_of_run: u8| percent(&running(percent_of_run, ""), 1);
    assert_eq!([49, 50, 51, 75, 100].map(of), [None, None, Some(2), Some(50), Some(100)]);
    // Only what runs comes along.
    assert_eq!(percent(&running(20, ""), 0), None);
    let many = [("a", StepStatus::Running, 1); 64];
    let mut detail = example(RunStatus::Running, &many);
    let (message, at) = (String::new(), String::new());
    detail.run.progress = Some(ProgressAnswer { percent: 100, message, at });
    assert_eq!(percent(&detail, 63), Some(100), "a share of a percent or two");
}

#[test]
fn a_step_is_news_when_it_has_come_to_something() {
    let mut seen = Seen::default();
    let mut names = |steps: &[(&str, StepStatus, u32)], begun: bool| {
        if begun {
            seen.forget();
        }
        let detail = example(RunStatus::Running, steps);
        let news = seen.news(&detail.steps);
        news.into_iter().map(|step| step.name.clone()).collect::<Vec<_>>()
    };
    let pending = [("extract", StepStatus::Pending, 0), ("load", StepStatus::Pending, 0)];
    assert!(names(&pending, false).is_empty(), "a turn that has not come is no news");
    assert_eq!(names(&STEPS, false), ["extract", "load"]);
    assert!(names(&STEPS, false).is_empty());
    let again = [STEPS[0], ("load", StepStatus::Running, 3)];
    assert_eq!(names(&again, false), ["load"], "another try");
    assert_eq!(names(&STEPS, true), ["extract", "load"], "another attempt tells all");
}
