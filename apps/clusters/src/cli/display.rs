//! Live display of an operation on a cluster: a bar on a terminal, otherwise a line per change.
//!
//! `follow.rs` polls the server. The installer prints hundreds of lines; those that matter to a
//! user are shown above the bar, the phase is its text. `tenure cluster logs` has all of them.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tenure_cli_kit::bars;
use tenure_cli_kit::follow::TICK;
use tenure_cli_kit::text::{format_duration, print_line, sanitize, sanitize_line};
use tenure_core::{JobId, JobState};
use tenure_wire::{JobInfo, WhyResponse};

use crate::wire::{ClusterInfo, ClusterOperationInfo};

/// Snapshot of an operation.
pub(crate) struct OperationSnapshot<'a> {
    /// Its job.
    pub(crate) job: &'a JobInfo,
    /// The cluster.
    pub(crate) cluster: &'a ClusterInfo,
    /// Why the job is waiting, if it is.
    pub(crate) why: Option<&'a WhyResponse>,
}

impl OperationSnapshot<'_> {
    /// Returns the operation of the cluster, if it is the one of the job.
    fn operation(&self) -> Option<&ClusterOperationInfo> {
        self.cluster.operation.as_ref().filter(|operation| operation.job == self.job.id)
    }

    fn percent(&self) -> Option<u8> {
        let progress = self.job.progress.as_ref().filter(|_| self.job.state.is_running())?;
        Some(progress.percent.min(100))
    }

    /// `CREATE`, `CREATE, attempt 2 of 3`
    fn state(&self) -> String {
        let operation = &self.job.operation;
        match (self.job.attempt, self.job.attempts_max) {
            (0 | 1, _) => operation.clone(),
            (n, Some(max)) => format!("{operation}, attempt {n} of {max}"),
            (n, None) => format!("{operation}, attempt {n}"),
        }
    }

    /// Returns the phase, or what it waits for.
    fn message(&self) -> String {
        if let Some(why) = self.why {
            return sanitize(&why.text);
        }
        match (&self.job.cancel, &self.job.progress) {
            (Some(cancel), _) => format!("asked to stop by {}", sanitize(&cancel.by)),
            (None, Some(progress)) => sanitize(&progress.message),
            (None, None) => "starts".to_owned(),
        }
    }

    /// `, about 12m30s left`
    fn remaining(&self) -> String {
        let remaining_ms = self.operation().and_then(|operation| operation.remaining_ms);
        let remaining_ms = remaining_ms.filter(|_| self.job.state.is_running());
        remaining_ms.map(|ms| format!(", about {} left", format_duration(ms))).unwrap_or_default()
    }

    /// `CREATE, attempt 2 of 3, 45 %: API v1.32.5 up`
    fn line(&self) -> String {
        let percent = self.percent().map(|percent| format!(", {percent} %")).unwrap_or_default();
        format!("{}{percent}: {}", self.state(), self.message())
    }

    /// `CREATE, about 12m30s left: API v1.32.5 up`, next to a bar.
    fn short_line(&self) -> String {
        format!("{}{}: {}", self.state(), self.remaining(), self.message())
    }

    fn change_key(&self) -> ChangeKey {
        let why = self.why.map(|why| (why.why.clone(), why.behind.as_ref().map(|b| b.job)));
        let message = self.why.is_none().then(|| self.message());
        let (state, attempt) = (self.job.state, self.job.attempt);
        ChangeKey { state, attempt, percent: self.percent(), message, why }
    }
}

/// Identifies a change that is worth a new line; times, which always change, are not part of it.
#[derive(PartialEq)]
struct ChangeKey {
    state: JobState,
    attempt: u32,
    percent: Option<u8>,
    message: Option<String>,
    why: Option<(String, Option<JobId>)>,
}

/// Display of an operation.
pub(crate) struct Display {
    title: String,
    mode: Mode,
}

enum Mode {
    Bar { bar: ProgressBar, measured: bool },
    Lines { last: Option<ChangeKey>, print: fn(&str) },
}

impl Display {
    /// Creates a display with a bar if stderr is a terminal, otherwise with lines.
    pub(super) fn new(title: &str) -> Self {
        let all = MultiProgress::with_draw_target(bars::draw_target());
        Self::build(title, &all, |line| anstream::eprintln!("{line}"))
    }

    /// Creates a display of one of several concurrent operations: a bar in a shared group if stderr
    /// is a terminal, otherwise lines on stdout.
    pub(crate) fn in_group(all: &MultiProgress, title: &str) -> Self {
        // A closed pipe is found by the next line of the caller.
        Self::build(title, all, |line| drop(print_line(line)))
    }

    fn build(title: &str, all: &MultiProgress, print: fn(&str)) -> Self {
        let title = sanitize(title);
        if all.is_hidden() {
            return Self { title, mode: Mode::Lines { last: None, print } };
        }
        let bar = all.add(ProgressBar::new(100).with_style(style(false)));
        bar.set_message(title.clone());
        bar.enable_steady_tick(TICK);
        Self { title, mode: Mode::Bar { bar, measured: false } }
    }

    /// Shows the current state of the operation.
    pub(crate) fn update(&mut self, snapshot: &OperationSnapshot<'_>) {
        let title = &self.title;
        match &mut self.mode {
            Mode::Bar { bar, measured } => {
                let percent = snapshot.percent();
                if *measured != percent.is_some() {
                    *measured = percent.is_some();
                    bar.set_style(style(*measured));
                }
                bar.set_position(percent.unwrap_or(0).into());
                bar.set_message(format!("{title}: {}", snapshot.short_line()));
            }
            Mode::Lines { last, print } => {
                let key = Some(snapshot.change_key());
                if *last != key {
                    print(&format!("{title}: {}", snapshot.line()));
                    *last = key;
                }
            }
        }
    }

    /// Prints the lines of a log that matter to a user, above the bar.
    pub(crate) fn log(&self, text: &str) {
        for line in text.lines().filter_map(interesting) {
            self.say(&format!("{}: {line}", self.title));
        }
    }

    /// Prints a message, above the bar.
    pub(crate) fn say(&self, line: &str) {
        match &self.mode {
            Mode::Bar { bar, .. } => bar.println(line),
            Mode::Lines { print, .. } => print(line),
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Mode::Bar { bar, .. } = &self.mode {
            bar.finish_and_clear();
        }
    }
}

/// Returns a line of a log as it is shown; `None` if only the log has it. Of the installer those
/// are errors and warnings, since the progress says the rest; of the worker all but command lines.
fn interesting(line: &str) -> Option<String> {
    let Some(rest) = line.strip_prefix("level=") else {
        let is_shown = !line.trim().is_empty() && !line.starts_with("$ ");
        return is_shown.then(|| sanitize_line(line));
    };
    let (level, message) = rest.split_once(' ')?;
    let message = message.strip_prefix("msg=").unwrap_or(message).trim_matches('"');
    let is_shown = matches!(level, "warning" | "error" | "fatal");
    is_shown.then(|| sanitize_line(&format!("{level}: {message}")))
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

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};
    use tenure_wire::{FailureInfo, ProgressInfo};

    use super::*;

    /// Returns a job for tests.
    pub(in crate::cli) fn example_job(change: impl FnOnce(&mut JobInfo)) -> JobInfo {
        let none = Value::Null;
        let mut job: JobInfo = serde_json::from_value(json!({
            "id": "0".repeat(32), "tenant": "default", "kind": "cluster", "name": "aws:a.b.c",
            "operation": "CREATE", "args": none, "priority": 0, "by": "ann", "state": "queued",
            "attempt": 0, "attempts_max": 3, "attempts": [], "submitted_at": "", "due_at": "",
            "ended_at": none, "error": none, "progress": none, "result": none, "joined": 0,
            "cancel": none, "retry_of": none, "followed_by": none, "generation": 0,
        }))
        .expect("the JSON of a job");
        change(&mut job);
        job
    }

    /// Returns a cluster for tests.
    pub(in crate::cli) fn example_cluster() -> ClusterInfo {
        let none = Value::Null;
        serde_json::from_value(json!({
            "tenant": "default", "id": "aws:a.b.c", "name": "a", "platform": "aws",
            "base_domain": "b.c", "state": "CREATING", "since": "", "profile": "p",
            "version": "4.19.1", "region": "us-east-1", "workers": 3, "owner": "ann", "tags": {},
            "preserve_on_failure": false, "preserved": false, "created_at": none,
            "expires_at": none, "infra_id": none, "cluster_id": none, "outputs": none,
            "operation": none, "last_error": none, "paused": false,
        }))
        .expect("the JSON of a cluster")
    }

    fn running(attempt: u32) -> JobInfo {
        example_job(|job| {
            (job.state, job.attempt) = (JobState::Running, attempt);
            let (message, at) = ("API v1.32.5 up".to_owned(), String::new());
            job.progress = Some(ProgressInfo { percent: 45, message, at });
        })
    }

    #[test]
    fn a_running_operation_has_phase_percentage_and_remaining_time() {
        let (job, mut cluster) = (running(2), example_cluster());
        cluster.operation = Some(ClusterOperationInfo {
            job: job.id,
            operation: "CREATE".to_owned(),
            state: "running".to_owned(),
            attempt: 2,
            progress: job.progress.clone(),
            worker: None,
            started_at: None,
            remaining_ms: Some(750_000),
            next_attempt_at: None,
            error: None,
            waiting: 0,
        });
        let snapshot = OperationSnapshot { job: &job, cluster: &cluster, why: None };
        assert_eq!(snapshot.line(), "CREATE, attempt 2 of 3, 45 %: API v1.32.5 up");
        let expected = "CREATE, attempt 2 of 3, about 12m30s left: API v1.32.5 up";
        assert_eq!(snapshot.short_line(), expected);
        // The estimate of another job says nothing about this one.
        if let Some(operation) = &mut cluster.operation {
            operation.job = JobId(7);
        }
        let snapshot = OperationSnapshot { job: &job, cluster: &cluster, why: None };
        assert_eq!(snapshot.short_line(), "CREATE, attempt 2 of 3: API v1.32.5 up");
    }

    #[test]
    fn a_waiting_operation_says_what_it_waits_for() {
        let job = example_job(|job| {
            let (code, message) = ("THROTTLED".to_owned(), "Rate exceeded".to_owned());
            (job.state, job.attempt) = (JobState::Backoff, 1);
            job.error = Some(FailureInfo { code, message });
        });
        let why: WhyResponse = serde_json::from_value(json!({
            "resource": "cluster/aws:a.b.c", "job": job.id, "why": "backoff",
            "text": "waits 5m for attempt 2", "behind": null,
        }))
        .expect("the JSON of an explanation");
        let cluster = example_cluster();
        let snapshot = OperationSnapshot { job: &job, cluster: &cluster, why: Some(&why) };
        assert_eq!(snapshot.line(), "CREATE: waits 5m for attempt 2");
    }

    #[test]
    fn of_the_log_problems_and_words_of_the_worker_are_shown() {
        for (line, shown) in [
            ("removing what an earlier attempt has created", Some("removing what")),
            ("level=error msg=\"no \u{1b}[2Jzone\"", Some("error: no zone")),
            ("level=warning msg=\"quota\"", Some("warning: quota")),
            ("level=info msg=\"API v1.32.5 up\"", None),
            ("$ openshift-install create cluster", None),
            ("", None),
        ] {
            let found = interesting(line);
            match shown {
                Some(start) => assert!(found.is_some_and(|f| f.starts_with(start)), "{line}"),
                None => assert_eq!(found, None, "{line}"),
            }
        }
    }
}
