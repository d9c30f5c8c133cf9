//! Progress display of a followed job on stderr: a bar on a terminal, lines elsewhere.
//!
//! Display only; `commands::job::follow` polls the server.

use indicatif::{ProgressBar, ProgressStyle};
use tenure_core::{JobId, JobState};
use tenure_wire::{JobInfo, WhyResponse};

use tenure_cli_kit::bars;
use tenure_cli_kit::follow::TICK;
use tenure_cli_kit::text::{sanitize, sanitize_line};

/// A snapshot of a job.
pub(crate) struct JobSnapshot<'a> {
    /// The job.
    pub(crate) job: &'a JobInfo,
    /// Why it does not run, if it does not.
    pub(crate) why: Option<&'a WhyResponse>,
}

impl JobSnapshot<'_> {
    fn percent(&self) -> Option<u8> {
        let progress = self.job.progress.as_ref().filter(|_| self.job.state.is_running())?;
        Some(progress.percent.min(100))
    }

    /// `running, attempt 1/3`
    fn state(&self) -> String {
        let state = self.job.state.as_str();
        match (self.job.attempt, self.job.attempts_max) {
            (0, _) => state.to_owned(),
            (n, Some(max)) => format!("{state}, attempt {n}/{max}"),
            (n, None) => format!("{state}, attempt {n}"),
        }
    }

    /// Returns the progress message of its worker, or what it waits for.
    fn message(&self) -> String {
        if let Some(why) = self.why {
            return sanitize(&why.text);
        }
        match (&self.job.cancel, &self.job.progress) {
            (Some(cancel), _) => format!("asked to stop by {}", sanitize(&cancel.by)),
            (None, Some(progress)) => sanitize(&progress.message),
            (None, None) => String::new(),
        }
    }

    /// `running, attempt 1/3, 40 %: copying rows`
    fn line(&self) -> String {
        let percent = self.percent().map(|percent| format!(", {percent} %"));
        let message = Some(self.message()).filter(|message| !message.is_empty());
        let message = message.map(|message| format!(": {message}"));
        [self.state(), percent.unwrap_or_default(), message.unwrap_or_default()].concat()
    }

    /// `running 1/3: copying rows`, next to a bar.
    fn short_line(&self) -> String {
        let (n, state, message) = (self.job.attempt, self.job.state.as_str(), self.message());
        let attempt = match self.job.attempts_max {
            _ if n == 0 => String::new(),
            Some(max) => format!(" {n}/{max}"),
            None => format!(" {n}"),
        };
        if message.is_empty() {
            format!("{state}{attempt}")
        } else {
            format!("{state}{attempt}: {message}")
        }
    }

    fn change_key(&self) -> ChangeKey {
        let progress = self.job.progress.as_ref();
        let why = self.why.map(|why| (why.why.clone(), why.behind.as_ref().map(|b| b.job)));
        ChangeKey {
            state: self.job.state,
            attempt: self.job.attempt,
            percent: self.percent(),
            message: progress.map(|progress| progress.message.clone()),
            why,
        }
    }
}

/// The parts of a snapshot whose change causes a new line. Durations are left out: they always
/// change.
#[derive(PartialEq)]
struct ChangeKey {
    state: JobState,
    attempt: u32,
    percent: Option<u8>,
    message: Option<String>,
    why: Option<(String, Option<JobId>)>,
}

/// The progress display of one job.
pub(crate) struct Display(Mode);

enum Mode {
    Bar { bar: ProgressBar, title: String, measured: bool },
    Lines { title: String, last: Option<ChangeKey> },
}

impl Display {
    /// Creates a bar if stderr is a terminal, lines if it is a file or a pipe.
    pub(crate) fn new(title: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(100), bars::draw_target());
        if bar.is_hidden() {
            return Self(Mode::Lines { title: title.to_owned(), last: None });
        }
        let bar = bar.with_style(style(false));
        bar.enable_steady_tick(TICK);
        Self(Mode::Bar { bar, title: title.to_owned(), measured: false })
    }

    /// Displays the current state of the job.
    pub(crate) fn update(&mut self, job: &JobSnapshot<'_>) {
        match &mut self.0 {
            Mode::Bar { bar, title, measured } => {
                if *measured != job.percent().is_some() {
                    *measured = !*measured;
                    bar.set_style(style(*measured));
                }
                bar.set_position(job.percent().unwrap_or(0).into());
                bar.set_message(format!("{title}: {}", job.short_line()));
            }
            Mode::Lines { title, last } => {
                let key = Some(job.change_key());
                if *last != key {
                    anstream::eprintln!("{title}: {}", job.line());
                    *last = key;
                }
            }
        }
    }

    /// Prints log output of a worker, above the bar.
    pub(crate) fn log(&self, text: &str) {
        for line in text.lines() {
            self.say(&sanitize_line(line));
        }
    }

    /// Prints a message, above the bar.
    pub(crate) fn say(&self, line: &str) {
        match &self.0 {
            Mode::Bar { bar, .. } => bar.println(line),
            Mode::Lines { .. } => anstream::eprintln!("{line}"),
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Mode::Bar { bar, .. } = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// One line: everything of variable length is in the message, which is shortened to the width of
/// the terminal. Without a percentage there is only a spinner.
fn style(measured: bool) -> ProgressStyle {
    let template = if measured {
        "{spinner} [{bar:16}] {pos:>3} % {elapsed} {wide_msg}"
    } else {
        "{spinner} {elapsed} {wide_msg}"
    };
    let style = ProgressStyle::with_template(template).expect("a valid template");
    style.progress_chars("=> ")
}

/// Returns a job for tests.
#[cfg(test)]
pub(crate) fn example_job(change: impl FnOnce(&mut JobInfo)) -> JobInfo {
    let none = serde_json::Value::Null;
    let mut job: JobInfo = serde_json::from_value(serde_json::json!({
        "id": "0".repeat(32), "tenant": "default", "kind": "database", "name": "orders",
        "operation": "create", "args": none, "priority": 0, "by": "ann", "state": "queued",
        "attempt": 0, "attempts_max": 3, "attempts": [], "submitted_at": "", "due_at": "",
        "ended_at": none,
        "error": none, "progress": none, "result": none, "joined": 0, "cancel": none,
        "retry_of": none, "followed_by": none, "generation": 0,
    }))
    .expect("the JSON of a job");
    change(&mut job);
    job
}

#[cfg(test)]
mod tests {
    use tenure_wire::{BlockingJobInfo, ProgressInfo};

    use super::*;

    fn running(percent: u8, message: &str) -> JobInfo {
        example_job(|job| {
            (job.state, job.attempt) = (JobState::Running, 1);
            let (message, at) = (message.to_owned(), String::new());
            job.progress = Some(ProgressInfo { percent, message, at });
        })
    }

    fn snapshot<'a>(job: &'a JobInfo, why: Option<&'a WhyResponse>) -> JobSnapshot<'a> {
        JobSnapshot { job, why }
    }

    #[test]
    fn a_line_has_state_attempt_percentage_and_message() {
        let job = running(40, "copying\nrows");
        assert_eq!(snapshot(&job, None).line(), "running, attempt 1/3, 40 %: copying rows");
        assert_eq!(snapshot(&job, None).short_line(), "running 1/3: copying rows");
        let text = "no worker claims jobs of this kind. Start one".to_owned();
        let why = WhyResponse { why: "no_worker".to_owned(), text, ..WhyResponse::default() };
        let line = "queued: no worker claims jobs of this kind. Start one";
        assert_eq!(snapshot(&example_job(|_| {}), Some(&why)).line(), line);
        assert_eq!(snapshot(&example_job(|_| {}), Some(&why)).short_line(), line);
    }

    #[test]
    fn only_durations_may_change_without_a_new_line() {
        let behind = |job: u128, for_ms| WhyResponse {
            why: "behind".to_owned(),
            text: format!("waits for {for_ms} ms"),
            behind: Some(BlockingJobInfo {
                job: JobId(job),
                operation: "create".to_owned(),
                state: JobState::Running,
                worker: None,
                for_ms,
            }),
            ..WhyResponse::default()
        };
        let job = example_job(|_| {});
        let key = |why: &WhyResponse| snapshot(&job, Some(why)).change_key();
        assert!(key(&behind(1, 10)) == key(&behind(1, 20)));
        assert!(key(&behind(1, 10)) != key(&behind(2, 10)));
        let progress = |job: &JobInfo| snapshot(job, None).change_key();
        assert!(progress(&running(1, "a")) != progress(&running(2, "a")));
        assert!(progress(&running(1, "a")) != progress(&running(1, "b")));
    }
}
