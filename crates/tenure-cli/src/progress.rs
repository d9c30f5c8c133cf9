//! What happens to a job, shown while it happens: a bar on a terminal, lines elsewhere.
//!
//! All of it is talk, so it goes to stderr. Nothing here asks the server or decides anything; who
//! does is `commands::job::follow`. Runs of pipelines have a display of their own.

use indicatif::{ProgressBar, ProgressStyle};
use tenure_core::{JobId, JobState};
use tenure_wire::{JobAnswer, WhyAnswer};

use tenure_cli_kit::follow::TICK;
use tenure_cli_kit::text::{harmless, plain};

/// A job at one moment.
pub(crate) struct Moment<'a> {
    /// The job.
    pub(crate) job: &'a JobAnswer,
    /// Why it does not run, when it does not.
    pub(crate) why: Option<&'a WhyAnswer>,
}

impl Moment<'_> {
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

    /// What its worker says, or what it waits for.
    fn message(&self) -> String {
        if let Some(why) = self.why {
            return plain(&why.text);
        }
        match (&self.job.cancel, &self.job.progress) {
            (Some(asked), _) => format!("asked to stop by {}", plain(&asked.by)),
            (None, Some(progress)) => plain(&progress.message),
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

    /// `running 1/3: copying rows`, for a line that is not long.
    fn short(&self) -> String {
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

    fn mark(&self) -> Mark {
        let progress = self.job.progress.as_ref();
        let why = self.why.map(|why| (why.why.clone(), why.behind.as_ref().map(|b| b.job)));
        Mark {
            state: self.job.state,
            attempt: self.job.attempt,
            percent: self.percent(),
            message: progress.map(|progress| progress.message.clone()),
            why,
        }
    }
}

/// What must differ for a new line: times, which always do, are no news.
#[derive(PartialEq)]
struct Mark {
    state: JobState,
    attempt: u32,
    percent: Option<u8>,
    message: Option<String>,
    why: Option<(String, Option<JobId>)>,
}

/// Where it is shown.
pub(crate) struct Display(Face);

enum Face {
    Bar { bar: ProgressBar, measured: bool },
    Lines { title: String, last: Option<Mark> },
}

impl Display {
    /// A bar when stderr is a terminal, lines when it is a file or a pipe.
    pub(crate) fn new(title: &str) -> Self {
        let bar = ProgressBar::new(100);
        if bar.is_hidden() {
            return Self(Face::Lines { title: title.to_owned(), last: None });
        }
        let bar = bar.with_style(style(false)).with_prefix(title.to_owned());
        bar.enable_steady_tick(TICK);
        Self(Face::Bar { bar, measured: false })
    }

    /// Shows how the job is now.
    pub(crate) fn update(&mut self, moment: &Moment<'_>) {
        match &mut self.0 {
            Face::Bar { bar, measured } => {
                if *measured != moment.percent().is_some() {
                    *measured = !*measured;
                    bar.set_style(style(*measured));
                }
                bar.set_position(moment.percent().unwrap_or(0).into());
                bar.set_message(moment.short());
            }
            Face::Lines { title, last } => {
                let mark = Some(moment.mark());
                if *last != mark {
                    anstream::eprintln!("{title}: {}", moment.line());
                    *last = mark;
                }
            }
        }
    }

    /// Shows what a worker wrote, above the bar.
    pub(crate) fn log(&self, text: &str) {
        for line in text.lines() {
            self.say(&harmless(line));
        }
    }

    /// Says something, above the bar.
    pub(crate) fn say(&self, line: &str) {
        match &self.0 {
            Face::Bar { bar, .. } => bar.println(line),
            Face::Lines { .. } => anstream::eprintln!("{line}"),
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Face::Bar { bar, .. } = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// One line, whatever the width of the terminal; without a measure there is only a sign of life.
fn style(measured: bool) -> ProgressStyle {
    let template = if measured {
        "{spinner} {prefix} [{bar:16}] {pos:>3} % {elapsed} {wide_msg}"
    } else {
        "{spinner} {prefix} {elapsed} {wide_msg}"
    };
    let style = ProgressStyle::with_template(template).expect("the template is well formed");
    style.progress_chars("=> ")
}

/// A job for tests.
#[cfg(test)]
pub(crate) fn example(change: impl FnOnce(&mut JobAnswer)) -> JobAnswer {
    let none = serde_json::Value::Null;
    let mut job: JobAnswer = serde_json::from_value(serde_json::json!({
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
    use tenure_wire::{BehindAnswer, ProgressAnswer};

    use super::*;

    fn running(percent: u8, message: &str) -> JobAnswer {
        example(|job| {
            (job.state, job.attempt) = (JobState::Running, 1);
            let (message, at) = (message.to_owned(), String::new());
            job.progress = Some(ProgressAnswer { percent, message, at });
        })
    }

    fn moment<'a>(job: &'a JobAnswer, why: Option<&'a WhyAnswer>) -> Moment<'a> {
        Moment { job, why }
    }

    #[test]
    fn a_line_says_state_attempt_measure_and_message() {
        let job = running(40, "copying\nrows");
        assert_eq!(moment(&job, None).line(), "running, attempt 1/3, 40 %: copying rows");
        assert_eq!(moment(&job, None).short(), "running 1/3: copying rows");
        let text = "no worker claims for jobs of this kind. Start one".to_owned();
        let why = WhyAnswer { why: "no_worker".to_owned(), text, ..WhyAnswer::default() };
        let line = "queued: no worker claims for jobs of this kind. Start one";
        assert_eq!(moment(&example(|_| {}), Some(&why)).line(), line);
        assert_eq!(moment(&example(|_| {}), Some(&why)).short(), line);
    }

    #[test]
    fn time_that_passes_is_no_news_but_another_job_in_the_way_is() {
        let behind = |job: u128, for_ms| WhyAnswer {
            why: "behind".to_owned(),
            text: format!("waits for {for_ms} ms"),
            behind: Some(BehindAnswer {
                job: JobId(job),
                operation: "create".to_owned(),
                state: JobState::Running,
                worker: None,
                for_ms,
            }),
            ..WhyAnswer::default()
        };
        let job = example(|_| {});
        let mark = |why: &WhyAnswer| moment(&job, Some(why)).mark();
        assert!(mark(&behind(1, 10)) == mark(&behind(1, 20)));
        assert!(mark(&behind(1, 10)) != mark(&behind(2, 10)));
        let progress = |job: &JobAnswer| moment(job, None).mark();
        assert!(progress(&running(1, "a")) != progress(&running(2, "a")));
        assert!(progress(&running(1, "a")) != progress(&running(1, "b")));
    }
}
