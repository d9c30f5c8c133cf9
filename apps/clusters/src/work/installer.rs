//! Runs `openshift-install`, or a program that behaves like it.
//!
//! Its log is read line by line: for the progress of the job, and for the rules that classify a
//! failure, which see the lines of the console only. The debug log mentions errors that the
//! installer has overcome.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tenure::exec::{EndReason, ExitKind, StopReason};
use tenure::worker::{Command, Exit, Line};
use tenure::{Context, Failure};

use super::attempt::{Attempt, STOPPED};
use super::directory::InstallDirectory;
use crate::progress::Progress;
use crate::status::Outputs;

/// Maximum size of the lines that are kept from the beginning of the output.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Maximum size of the lines that are kept from its end.
const TAIL_BYTES_MAX: usize = 128 * 1024;

/// How a run of the installer ended by itself.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit code; `None` if a signal killed it.
    pub(crate) code: Option<i32>,
    /// What it printed, without the middle of a long output.
    pub(crate) console: String,
    /// Whether it may have created infrastructure.
    pub(crate) infra_started: bool,
    /// Whether it was stopped because it took too long.
    pub(crate) timed_out: bool,
    /// Addresses that it printed.
    pub(crate) outputs: Option<Outputs>,
}

/// Runs the installer with these arguments in a directory.
///
/// # Errors
///
/// Fails if it could not be started, or was stopped before it ended by itself.
pub(crate) async fn run(
    attempt: &Attempt<'_>,
    program: &str,
    directory: &InstallDirectory,
    args: &[&str],
    limit: Duration,
) -> Result<Ended, Failure> {
    attempt.check()?;
    let settings = &attempt.app.settings;
    let (dir, feed) = (directory.path(), Arc::new(Mutex::new(Feed::new(args))));
    let mut words = vec![program.to_owned()];
    words.extend(args.iter().map(|arg| (*arg).to_owned()));
    words.extend(["--dir".to_owned(), dir.display().to_string()]);
    words.extend(["--log-level".to_owned(), "info".to_owned()]);
    attempt.job.log(&format!("$ {} {}", program, args.join(" ")));
    let observe = observer(attempt.job.clone(), Arc::clone(&feed));
    let command = Command::new(words)
        .dir(dir)
        .pass_env(settings.pass_env.iter().cloned())
        .env(attempt.variables())
        .limit(Some(limit))
        .cancel_grace(Duration::from_millis(settings.stop_grace_ms))
        .stop_when(attempt.stop.subscribe())
        .traceparent(attempt.parent)
        .on_line(observe);
    let exit = command.execute(attempt.job).await?;
    let feed = lock(&feed);
    Ok(Ended {
        code: exit_code(attempt, &exit)?,
        console: feed.console.text(),
        infra_started: feed.progress.infra_started(),
        timed_out: exit.reason == EndReason::Stopped(StopReason::TimeLimit),
        outputs: feed.progress.outputs(),
    })
}

/// Returns the exit code of an installer that ended by itself, or because it took too long.
fn exit_code(attempt: &Attempt<'_>, exit: &Exit) -> Result<Option<i32>, Failure> {
    let code = match exit.status {
        ExitKind::Code(code) => Some(code),
        ExitKind::Signal(_) => None,
    };
    match exit.reason {
        EndReason::Exited | EndReason::Stopped(StopReason::TimeLimit) => {
            // It may have been interrupted by what stops this attempt, too.
            attempt.check()?;
            Ok(code)
        }
        EndReason::Lost => Err(Failure::transient(
            STOPPED,
            "the installer was stopped: heartbeats \
             failed for too long",
        )),
        EndReason::Stopped(_) => {
            attempt.check()?;
            Err(Failure::transient(STOPPED, "the installer was stopped"))
        }
        EndReason::WatchdogDied => Err(Failure::transient(
            STOPPED,
            "the watchdog of the installer was killed, and it with it",
        )),
    }
}

fn observer(job: Context, feed: Arc<Mutex<Feed>>) -> impl Fn(&Line) + Send + Sync + 'static {
    move |line| {
        let mut feed = lock(&feed);
        feed.console.push(&line.text);
        if feed.progress.feed(&line.text) {
            job.progress(feed.progress.percent(), &feed.progress.message());
        }
    }
}

fn lock(feed: &Mutex<Feed>) -> MutexGuard<'_, Feed> {
    feed.lock().expect("reading a line does not panic")
}

/// What is read from the output.
struct Feed {
    progress: Progress,
    console: Console,
}

impl Feed {
    fn new(args: &[&str]) -> Self {
        let progress =
            if args.first() == Some(&"destroy") { Progress::destroy() } else { Progress::create() };
        Self { progress, console: Console::default() }
    }
}

/// The beginning and the end of an output.
#[derive(Default)]
struct Console {
    head: String,
    tail: String,
}

impl Console {
    fn push(&mut self, line: &str) {
        let part = if self.tail.is_empty() && self.head.len() + line.len() < HEAD_BYTES_MAX {
            &mut self.head
        } else {
            &mut self.tail
        };
        part.push_str(line);
        part.push('\n');
        // Halved, so that lines are not moved each time.
        if self.tail.len() > 2 * TAIL_BYTES_MAX {
            let start = self.tail.len() - TAIL_BYTES_MAX;
            let line_end = self.tail.as_bytes()[start..].iter().position(|byte| *byte == b'\n');
            if let Some(end) = line_end {
                self.tail.drain(..=start + end);
            }
        }
    }

    fn text(&self) -> String {
        format!("{}{}", self.head, self.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_output_keeps_its_beginning_and_its_end() {
        let mut console = Console::default();
        for n in 0..100_000 {
            console.push(&format!("line {n}: é"));
        }
        let text = console.text();
        assert!(text.starts_with("line 0: é\n") && text.ends_with("line 99999: é\n"));
        assert!(text.len() <= HEAD_BYTES_MAX + 2 * TAIL_BYTES_MAX + 100, "{}", text.len());
        assert!(text.lines().all(|line| line.starts_with("line ")), "no line is cut");
    }
}
