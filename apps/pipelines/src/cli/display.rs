//! Live display of a run: a progress line for each step on a terminal, otherwise a line for each
//! change.
//!
//! The display goes to stderr. The output of the steps goes to stdout, unless the JSON document
//! goes there. `follow.rs` polls the server.

use std::collections::BTreeMap;

use crate::wire::{RunDetail, RunInfo, RunStatus, StepInfo, StepStatus};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tenure_core::{JobId, Millis};
use tenure_wire::{WhyResponse, parse_instant};

use tenure_cli_kit::follow::TICK;
use tenure_cli_kit::text::{format_duration, print_line, sanitize, sanitize_line};
use tenure_cli_kit::{Output, bars};

/// Snapshot of a run.
pub(crate) struct RunSnapshot<'a> {
    /// The run and its steps.
    pub(crate) detail: &'a RunDetail,
    /// Why it is waiting, if it is.
    pub(crate) why: Option<&'a WhyResponse>,
}

impl RunSnapshot<'_> {
    /// `RUNNING, attempt 2`
    fn state(&self) -> String {
        let RunInfo { status, attempt, .. } = &self.detail.run;
        match attempt {
            0 | 1 => status.as_str().to_owned(),
            n => format!("{}, attempt {n}", status.as_str()),
        }
    }

    /// Returns what it waits for, or who requested it to stop.
    fn condition(&self) -> Option<String> {
        if let Some(why) = self.why {
            return Some(sanitize(&why.text));
        }
        let requested = self.detail.run.cancel.as_ref()?;
        Some(format!("asked to stop by {}", sanitize(&requested.by)))
    }

    /// `RUNNING, attempt 2: asked to stop by ann`
    fn line(&self) -> String {
        let condition = self.condition().map(|condition| format!(": {condition}"));
        self.state() + &condition.unwrap_or_default()
    }

    /// Like `line`, with progress and duration: `RUNNING, 40 % for 12s: load: copying rows`.
    fn live_line(&self) -> String {
        let run = &self.detail.run;
        let progress = run.progress.as_ref().filter(|_| run.status == RunStatus::Running);
        let percent = progress.map(|progress| format!(", {} %", progress.percent));
        let took = run.duration_ms.map(|ms| format!(" for {}", format_duration(ms)));
        let message = || Some(sanitize(&progress?.message)).filter(|message| !message.is_empty());
        let note = self.condition().or_else(message).map(|note| format!(": {note}"));
        self.state() + &[percent, took, note].map(Option::unwrap_or_default).concat()
    }

    fn change_key(&self) -> ChangeKey {
        let RunInfo { status, attempt, .. } = self.detail.run;
        let why = self.why.map(|why| (why.why.clone(), why.behind.as_ref().map(|b| b.job)));
        ChangeKey { status, attempt, why }
    }
}

/// Identifies a change that is worth a new line; times, which always change, are not part of it.
#[derive(PartialEq)]
struct ChangeKey {
    status: RunStatus,
    attempt: u32,
    why: Option<(String, Option<JobId>)>,
}

/// Display of a run.
pub(crate) struct Display {
    title: String,
    output: Output,
    mode: Mode,
}

enum Mode {
    Bars { all: MultiProgress, run: ProgressBar, steps: Vec<ProgressBar>, prefix: String },
    Lines { last: Option<ChangeKey>, reported: ReportedSteps, print: fn(&str) },
}

impl Display {
    /// Creates a display with bars if stderr is a terminal, otherwise with lines.
    pub(super) fn new(pipeline: &str, output: Output) -> Self {
        let all = MultiProgress::with_draw_target(bars::draw_target());
        Self::build(pipeline, output, all, String::new(), print_to_stderr)
    }

    /// Creates a display of one of several concurrent runs: bars in a shared group if stderr is a
    /// terminal, otherwise lines on stdout.
    pub(crate) fn in_group(all: &MultiProgress, title: &str) -> Self {
        Self::build(title, Output::Table, all.clone(), format!("{title}: "), print_to_stdout)
    }

    fn build(
        title: &str,
        output: Output,
        all: MultiProgress,
        prefix: String,
        print: fn(&str),
    ) -> Self {
        let title = title.to_owned();
        if all.is_hidden() {
            let mode = Mode::Lines { last: None, reported: ReportedSteps::default(), print };
            return Self { title, output, mode };
        }
        let run = all.add(bar("{spinner} {wide_msg}"));
        run.set_message(title.clone());
        run.enable_steady_tick(TICK);
        Self { title, output, mode: Mode::Bars { all, run, steps: Vec::new(), prefix } }
    }

    /// Shows the current state of the run.
    pub(crate) fn update(&mut self, snapshot: &RunSnapshot<'_>) {
        let title = &self.title;
        match &mut self.mode {
            Mode::Bars { all, run, steps, .. } => {
                run.set_message(format!("{title} {}", snapshot.live_line()));
                let lines = step_lines(snapshot.detail);
                while steps.len() < lines.len() {
                    let above = steps.last().unwrap_or(run);
                    steps.push(all.insert_after(above, bar("  {wide_msg}")));
                }
                for removed in steps.drain(lines.len()..) {
                    all.remove(&removed);
                }
                for (step, line) in steps.iter().zip(lines) {
                    step.set_message(line);
                }
            }
            Mode::Lines { last, reported, print } => {
                let key = snapshot.change_key();
                if last.as_ref().is_none_or(|last| last.attempt != key.attempt) {
                    reported.clear();
                }
                if last.as_ref() != Some(&key) {
                    print(&format!("{title}: {}", snapshot.line()));
                    *last = Some(key);
                }
                print_steps(title, &reported.changed(&snapshot.detail.steps), *print);
            }
        }
    }

    /// Shows the final state of the steps.
    pub(crate) fn finish(&mut self, detail: &RunDetail) {
        match &mut self.mode {
            Mode::Bars { prefix, .. } => {
                let prefix = prefix.clone();
                let lines = step_lines(detail).into_iter().map(|line| prefix.clone() + &line);
                lines.for_each(|line| self.print_message(&line));
            }
            Mode::Lines { last, reported, print } => {
                if last.as_ref().is_some_and(|last| last.attempt != detail.run.attempt) {
                    reported.clear();
                }
                print_steps(&self.title, &reported.changed(&detail.steps), *print);
            }
        }
    }

    /// Prints the output of the steps.
    pub(super) fn log(&self, text: &str) -> anyhow::Result<()> {
        let print = || text.lines().try_for_each(|line| print_line(&sanitize_line(line)));
        match (&self.mode, self.output) {
            (_, Output::Json) => {
                text.lines().for_each(|line| self.print_message(&sanitize_line(line)));
            }
            (Mode::Bars { all, .. }, Output::Table) => all.suspend(print)?,
            (Mode::Lines { .. }, Output::Table) => print()?,
        }
        Ok(())
    }

    /// Prints a message to stderr, above the bars.
    pub(super) fn print_message(&self, line: &str) {
        match &self.mode {
            Mode::Bars { run, .. } => run.println(line),
            Mode::Lines { print, .. } => print(line),
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Mode::Bars { run, steps, .. } = &self.mode {
            steps.iter().for_each(ProgressBar::finish_and_clear);
            run.finish_and_clear();
        }
    }
}

fn bar(template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("valid template");
    ProgressBar::no_length().with_style(style)
}

fn print_to_stderr(line: &str) {
    anstream::eprintln!("{line}");
}

/// A closed pipe is found by the next line of the caller.
fn print_to_stdout(line: &str) {
    print_line(line).ok();
}

fn print_steps(title: &str, changed: &[&StepInfo], print: fn(&str)) {
    for step in changed {
        let ended = step.started_at.as_ref().zip(step.ended_at.as_ref());
        let took_ms = ended.map(|(start, end)| between(start, end));
        let name = sanitize(&step.name);
        print(&format!("{title}: {name} {}", describe_step(step, took_ms, None)));
    }
}

/// Status and tries of the steps as last reported.
#[derive(Default)]
struct ReportedSteps(BTreeMap<String, (StepStatus, u32)>);

impl ReportedSteps {
    /// Forgets all steps, for a new attempt.
    fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the steps that have changed since the last call.
    fn changed<'a>(&mut self, steps: &'a [StepInfo]) -> Vec<&'a StepInfo> {
        let has_changed = |step: &&StepInfo| {
            let now = (step.status, step.tries);
            let before = self.0.insert(step.name.clone(), now);
            before.unwrap_or((StepStatus::Pending, 0)) != now
        };
        steps.iter().filter(has_changed).collect()
    }
}

/// Formats the steps as aligned lines with their durations.
fn step_lines(detail: &RunDetail) -> Vec<String> {
    let RunDetail { run, steps, .. } = detail;
    let names: Vec<String> = steps.iter().map(|step| sanitize(&step.name)).collect();
    let width = names.iter().map(String::len).max().unwrap_or(0);
    let line = |(index, (step, name)): (usize, (&StepInfo, &String))| {
        format!("{name:width$}  {}", describe_step(step, took(step, run), percent(detail, index)))
    };
    steps.iter().zip(&names).enumerate().map(line).collect()
}

/// `RUNNING, try 2, 40 % for 12s`, `FAILED after 3s: EXIT_1: no such file`
fn describe_step(step: &StepInfo, took_ms: Option<u64>, percent: Option<u8>) -> String {
    let mut text = step.status.as_str().to_owned();
    if step.tries > 1 || step.status == StepStatus::Retrying {
        text += &format!(", try {}", step.tries);
    }
    if let Some(percent) = percent {
        text += &format!(", {percent} %");
    }
    if let Some(took_ms) = took_ms {
        let how = if step.ended_at.is_some() { "after" } else { "for" };
        text += &format!(" {how} {}", format_duration(took_ms));
    }
    if let Some(error) = &step.error {
        text += &format!(": {}: {}", error.code, error.message);
    }
    sanitize(&text)
}

/// Returns the duration of a step so far. It is based on times of the server, since the local clock
/// may differ.
pub(super) fn took(step: &StepInfo, run: &RunInfo) -> Option<u64> {
    let start = parse_instant(step.started_at.as_ref()?).ok()?;
    let end = match &step.ended_at {
        Some(end) => parse_instant(end).ok()?,
        None => {
            let started = parse_instant(run.started_at.as_ref()?).ok()?;
            Millis(started.0.saturating_add(run.duration_ms?))
        }
    };
    Some(end.since(start))
}

fn between(start: &str, end: &str) -> u64 {
    let at = |at| parse_instant(at).unwrap_or_default();
    at(end).since(at(start))
}

/// Returns the progress of a running step that reports it. Each step has an equal share of the
/// progress of the run.
fn percent(detail: &RunDetail, index: usize) -> Option<u8> {
    let (steps, progress) = (&detail.steps, detail.run.progress.as_ref()?);
    let share = |index: usize| 100 * index / steps.len();
    let (from, to) = (share(index), share(index + 1));
    // Progress of an earlier step does not count for this one.
    let done = usize::from(progress.percent).checked_sub(from)?;
    let percent = (100 * done).checked_div(to - from)?.min(100);
    let has_progress = steps[index].status == StepStatus::Running && percent > 0;
    u8::try_from(percent).ok().filter(|_| has_progress)
}

/// Returns a run for tests with the given names, statuses and tries of its steps.
#[cfg(test)]
pub(super) fn example(status: RunStatus, steps: &[(&str, StepStatus, u32)]) -> RunDetail {
    use serde_json::{Value, json};
    let none = Value::Null;
    let step = |(name, status, tries): &(&str, StepStatus, u32)| {
        json!({
            "name": name, "status": status, "tries": tries, "started_at": none, "ended_at": none,
            "error": none,
        })
    };
    let steps: Vec<Value> = steps.iter().map(step).collect();
    serde_json::from_value(json!({
        "pipeline_logging_id": "0".repeat(32), "pipeline_id": "billing", "tenant_id": "default",
        "status": status, "trigger_by": "ann", "parameters": {}, "triggered_at": "",
        "started_at": none, "ended_at": none, "duration_ms": none, "attempt": 1, "error": none,
        "progress": none, "cancel": none, "result": none, "duplicates": 0, "steps": steps,
        "attached": [],
    }))
    .expect("valid JSON of a run")
}

#[cfg(test)]
mod tests;
