//! A run, shown while it happens: a line for each step on a terminal, elsewhere a line for each
//! change.
//!
//! That is talk and goes to stderr. What the steps write is data and goes to stdout, unless a
//! document for programs goes there. Nothing here asks the server or decides anything; who does is
//! `follow.rs`.

use std::collections::BTreeMap;

use crate::wire::{RunAnswer, RunDetail, RunStatus, StepAnswer, StepStatus};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tenure_core::{JobId, Millis};
use tenure_wire::{WhyAnswer, parse_instant};

use tenure_cli_kit::Output;
use tenure_cli_kit::follow::TICK;
use tenure_cli_kit::text::{format_duration, print_line, sanitize, sanitize_line};

/// A run at one moment.
pub(super) struct Moment<'a> {
    /// The run and its steps.
    pub(super) detail: &'a RunDetail,
    /// Why it does not run, when it does not.
    pub(super) why: Option<&'a WhyAnswer>,
}

impl Moment<'_> {
    /// `RUNNING, attempt 2`
    fn state(&self) -> String {
        let RunAnswer { status, attempt, .. } = &self.detail.run;
        match attempt {
            0 | 1 => status.as_str().to_owned(),
            n => format!("{}, attempt {n}", status.as_str()),
        }
    }

    /// What it waits for, or who wants it to stop.
    fn trouble(&self) -> Option<String> {
        if let Some(why) = self.why {
            return Some(sanitize(&why.text));
        }
        let asked = self.detail.run.cancel.as_ref()?;
        Some(format!("asked to stop by {}", sanitize(&asked.by)))
    }

    /// `RUNNING, attempt 2: asked to stop by ann`
    fn line(&self) -> String {
        let trouble = self.trouble().map(|trouble| format!(": {trouble}"));
        self.state() + &trouble.unwrap_or_default()
    }

    /// The same with what changes all the time: `RUNNING, 40 % for 12s: load: copying rows`.
    fn live(&self) -> String {
        let run = &self.detail.run;
        let progress = run.progress.as_ref().filter(|_| run.status == RunStatus::Running);
        let percent = progress.map(|progress| format!(", {} %", progress.percent));
        let took = run.duration_ms.map(|ms| format!(" for {}", format_duration(ms)));
        let message = || Some(sanitize(&progress?.message)).filter(|message| !message.is_empty());
        let said = self.trouble().or_else(message).map(|said| format!(": {said}"));
        self.state() + &[percent, took, said].map(Option::unwrap_or_default).concat()
    }

    fn mark(&self) -> Mark {
        let RunAnswer { status, attempt, .. } = self.detail.run;
        let why = self.why.map(|why| (why.why.clone(), why.behind.as_ref().map(|b| b.job)));
        Mark { status, attempt, why }
    }
}

/// What must differ for a new line: times, which always do, are no news.
#[derive(PartialEq)]
struct Mark {
    status: RunStatus,
    attempt: u32,
    why: Option<(String, Option<JobId>)>,
}

/// Where it is shown.
pub(super) struct Display {
    title: String,
    output: Output,
    face: Face,
}

enum Face {
    Bars { all: MultiProgress, run: ProgressBar, steps: Vec<ProgressBar> },
    Lines { last: Option<Mark>, seen: Seen },
}

impl Display {
    /// Bars when stderr is a terminal, lines when it is a file or a pipe.
    pub(super) fn new(pipeline: &str, output: Output) -> Self {
        let (title, all) = (pipeline.to_owned(), MultiProgress::new());
        if all.is_hidden() {
            let face = Face::Lines { last: None, seen: Seen::default() };
            return Self { title, output, face };
        }
        let run = all.add(bar("{spinner} {wide_msg}"));
        run.set_message(title.clone());
        run.enable_steady_tick(TICK);
        Self { title, output, face: Face::Bars { all, run, steps: Vec::new() } }
    }

    /// Shows how the run is now.
    pub(super) fn update(&mut self, moment: &Moment<'_>) {
        let title = &self.title;
        match &mut self.face {
            Face::Bars { all, run, steps } => {
                run.set_message(format!("{title} {}", moment.live()));
                let lines = lines(moment.detail);
                while steps.len() < lines.len() {
                    steps.push(all.add(bar("  {wide_msg}")));
                }
                for gone in steps.drain(lines.len()..) {
                    all.remove(&gone);
                }
                for (step, line) in steps.iter().zip(lines) {
                    step.set_message(line);
                }
            }
            Face::Lines { last, seen } => {
                let mark = moment.mark();
                if last.as_ref().is_none_or(|last| last.attempt != mark.attempt) {
                    seen.forget();
                }
                if last.as_ref() != Some(&mark) {
                    anstream::eprintln!("{title}: {}", moment.line());
                    *last = Some(mark);
                }
                tell(title, seen.news(&moment.detail.steps));
            }
        }
    }

    /// Shows how the steps were when the run was over.
    pub(super) fn over(&mut self, detail: &RunDetail) {
        match &mut self.face {
            Face::Bars { .. } => lines(detail).iter().for_each(|line| self.say(line)),
            Face::Lines { last, seen } => {
                if last.as_ref().is_some_and(|last| last.attempt != detail.run.attempt) {
                    seen.forget();
                }
                tell(&self.title, seen.news(&detail.steps));
            }
        }
    }

    /// Prints what the steps wrote.
    pub(super) fn log(&self, text: &str) -> anyhow::Result<()> {
        let print = || text.lines().try_for_each(|line| print_line(&sanitize_line(line)));
        match (&self.face, self.output) {
            (_, Output::Json) => text.lines().for_each(|line| self.say(&sanitize_line(line))),
            (Face::Bars { all, .. }, Output::Table) => all.suspend(print)?,
            (Face::Lines { .. }, Output::Table) => print()?,
        }
        Ok(())
    }

    /// Says something, above the bars.
    pub(super) fn say(&self, line: &str) {
        match &self.face {
            Face::Bars { run, .. } => run.println(line),
            Face::Lines { .. } => anstream::eprintln!("{line}"),
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Face::Bars { run, steps, .. } = &self.face {
            steps.iter().for_each(ProgressBar::finish_and_clear);
            run.finish_and_clear();
        }
    }
}

fn bar(template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the template is well formed");
    ProgressBar::no_length().with_style(style)
}

fn tell(title: &str, news: Vec<&StepAnswer>) {
    for step in news {
        let ended = step.started_at.as_ref().zip(step.ended_at.as_ref());
        let took_ms = ended.map(|(start, end)| between(start, end));
        anstream::eprintln!("{title}: {} {}", sanitize(&step.name), told(step, took_ms, None));
    }
}

/// The steps as they were told last.
#[derive(Default)]
struct Seen(BTreeMap<String, (StepStatus, u32)>);

impl Seen {
    /// Another attempt begins with all steps.
    fn forget(&mut self) {
        self.0.clear();
    }

    /// The steps that have come to something since.
    fn news<'a>(&mut self, steps: &'a [StepAnswer]) -> Vec<&'a StepAnswer> {
        let is_news = |step: &&StepAnswer| {
            let now = (step.status, step.tries);
            let before = self.0.insert(step.name.clone(), now);
            before.unwrap_or((StepStatus::Pending, 0)) != now
        };
        steps.iter().filter(is_news).collect()
    }
}

/// The steps in a column, with the time that they have taken so far.
fn lines(detail: &RunDetail) -> Vec<String> {
    let RunDetail { run, steps, .. } = detail;
    let names: Vec<String> = steps.iter().map(|step| sanitize(&step.name)).collect();
    let width = names.iter().map(String::len).max().unwrap_or(0);
    let line = |(at, (step, name)): (usize, (&StepAnswer, &String))| {
        format!("{name:width$}  {}", told(step, took(step, run), percent(detail, at)))
    };
    steps.iter().zip(&names).enumerate().map(line).collect()
}

/// `RUNNING, try 2, 40 % for 12s`, `FAILED after 3s: EXIT_1: no such file`
fn told(step: &StepAnswer, took_ms: Option<u64>, percent: Option<u8>) -> String {
    let mut said = step.status.as_str().to_owned();
    if step.tries > 1 || step.status == StepStatus::Retrying {
        said += &format!(", try {}", step.tries);
    }
    if let Some(percent) = percent {
        said += &format!(", {percent} %");
    }
    if let Some(took_ms) = took_ms {
        let how = if step.ended_at.is_some() { "after" } else { "for" };
        said += &format!(" {how} {}", format_duration(took_ms));
    }
    if let Some(error) = &step.error {
        said += &format!(": {}: {}", error.code, error.message);
    }
    sanitize(&said)
}

/// How long a step took, or takes until now. The server says what time it is: this machine's clock
/// may be another.
pub(super) fn took(step: &StepAnswer, run: &RunAnswer) -> Option<u64> {
    let start = parse_instant(step.started_at.as_ref()?).ok()?;
    let end = match &step.ended_at {
        Some(end) => parse_instant(end).ok()?,
        None => {
            let began = parse_instant(run.started_at.as_ref()?).ok()?;
            Millis(began.0.saturating_add(run.duration_ms?))
        }
    };
    Some(end.since(start))
}

fn between(start: &str, end: &str) -> u64 {
    let at = |at| parse_instant(at).unwrap_or_default();
    at(end).since(at(start))
}

/// How far a step has come that runs and says so: of the progress of the run each step has an equal
/// share.
fn percent(detail: &RunDetail, at: usize) -> Option<u8> {
    let (steps, progress) = (&detail.steps, detail.run.progress.as_ref()?);
    let share = |at: usize| 100 * at / steps.len();
    let (from, to) = (share(at), share(at + 1));
    // What is left of an earlier step says nothing of this one.
    let past = usize::from(progress.percent).checked_sub(from)?;
    let percent = (100 * past).checked_div(to - from)?.min(100);
    let said = steps[at].status == StepStatus::Running && percent > 0;
    u8::try_from(percent).ok().filter(|_| said)
}

/// A run for tests, with the names, states and tries of its steps.
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
    .expect("the JSON of a run")
}

#[cfg(test)]
mod tests;
