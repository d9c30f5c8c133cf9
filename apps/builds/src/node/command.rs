//! Runs the command of a node for a test, or for a file with several.
//!
//! The command runs under the lock of the node: it and everything that it started are dead before
//! other nodes get its tests.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use tenure::Tenure;
use tenure::clock::BootInstant;
use tenure::exec::{self, CommandEnd, EndReason, ExitKind, RunUnder, Spec, StopReason, run_under};
use tenure_core::limits::CREDENTIAL_VARIABLES;
use tokio::sync::mpsc;

use super::end::{Interruption, Stopped, failed};
use crate::results::readable;

/// Placeholder for a test.
const TEST: &str = "{}";
/// Placeholder for a file with tests, one per line.
const FILE: &str = "{file}";
/// Separates a test from the number of its repetition.
pub(crate) const REPETITION: &str = " #";
/// Code of a test that exceeded its time limit.
pub(crate) const TIMED_OUT: &str = "TIMED_OUT";
/// Maximum size of the output that is shown for a failed test.
const SHOWN_BYTES_MAX: u64 = 256 * 1024;
/// Signals that stop a node.
pub(crate) const STOP_SIGNALS: [i32; 2] = [Signal::INT.as_raw(), Signal::TERM.as_raw()];

/// The command of a node.
#[derive(Clone, Debug)]
pub(crate) struct TestCommand {
    words: Vec<String>,
    /// Variables for every run.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// Whether ids of tests end in the number of their repetition, which the command does not get.
    has_repetitions: bool,
    /// Set if it is unknown whether a run is dead.
    may_be_alive: bool,
}

/// How a run of the command ended.
#[derive(Debug)]
pub(crate) struct Run {
    /// Failure code and message; `None` if it passed.
    pub(crate) failure: Option<(String, String)>,
    pub(crate) duration: Duration,
    /// What it printed, possibly without the beginning.
    pub(crate) output: String,
}

impl TestCommand {
    /// Checks a command.
    ///
    /// # Errors
    ///
    /// Fails if it has no placeholder, or if its program does not exist.
    pub(crate) fn new(words: &[String]) -> Result<Self, String> {
        let has = |placeholder: &str| words.iter().any(|word| word.contains(placeholder));
        if !has(TEST) && !has(FILE) {
            return Err(
                "the command has neither {} for a test nor {file} for a file with tests".to_owned()
            );
        }
        if has(TEST) && has(FILE) {
            return Err("the command has both {} and {file}; use one of them".to_owned());
        }
        let program = words.first().map_or("", String::as_str);
        if !program.contains(TEST) && !exists(program) {
            return Err(format!("there is no program {program:?} in PATH"));
        }
        Ok(Self {
            words: words.to_vec(),
            env: Vec::new(),
            has_repetitions: false,
            may_be_alive: false,
        })
    }

    /// Returns whether a run may be alive although its end was awaited: what its node holds must
    /// then expire.
    pub(crate) fn may_be_alive(&self) -> bool {
        self.may_be_alive
    }

    /// Removes the number of its repetition from the id of each test.
    pub(crate) fn strip_repetitions(&mut self) {
        self.has_repetitions = true;
    }

    /// Returns whether one run takes several tests.
    pub(crate) fn takes_files(&self) -> bool {
        self.words.iter().any(|word| word.contains(FILE))
    }

    /// Runs the command for one test, or for several if it takes files.
    pub(crate) async fn run(
        &mut self,
        node: &Tenure,
        tests: &[&str],
        limit: Duration,
        signals: &mut mpsc::Receiver<i32>,
    ) -> Result<Run, Interruption> {
        let tests: Vec<&str> = tests.iter().map(|test| self.name(test)).collect();
        let tests = &tests[..];
        let list = self.takes_files().then(|| test_file(tests)).transpose();
        let list = list.map_err(|error| failed("write the file with the tests", &error))?;
        let mut output = tempfile::tempfile().map_err(|error| failed("create a file", &error))?;
        let mut spec =
            Spec::new(self.words(tests, list.as_ref().map(tempfile::NamedTempFile::path)));
        let clone = || output.try_clone().map(Stdio::from);
        let streams = (clone(), clone());
        let (Ok(stdout), Ok(stderr)) = streams else {
            return Err(Stopped::Application("too many open files".to_owned()).into());
        };
        (spec.stdin, spec.stdout, spec.stderr) = (Some(Stdio::null()), Some(stdout), Some(stderr));
        spec.env.clone_from(&self.env);
        if let [test] = tests {
            spec.env.push(("TENURE_TEST".into(), test.into()));
        }
        spec.env_remove = CREDENTIAL_VARIABLES.map(Into::into).into();
        spec.sole_child = true;
        let started = BootInstant::now();
        let mut received = None;
        let mut notify = |_| {};
        let ended = {
            let (forward, mut forwarded) = mpsc::channel(1);
            let options = RunUnder {
                limit: Some(limit),
                signals: &mut forwarded,
                stop_signals: &STOP_SIGNALS,
                notify: &mut notify,
            };
            let run = run_under(node, spec, options);
            tokio::pin!(run);
            loop {
                tokio::select! {
                    ended = &mut run => break ended,
                    Some(signal) = signals.recv() => {
                        received = Some(signal);
                        // A full channel has a signal already.
                        forward.try_send(signal).ok();
                    }
                }
            }
        };
        self.may_be_alive |= matches!(ended, Err(exec::Error::Scan(_)));
        if let Some(signal) = received {
            return Err(Stopped::Interrupted(signal).into());
        }
        let duration = BootInstant::now().saturating_duration_since(started);
        let text = read_end(&mut output).map_err(|error| failed("read the output", &error))?;
        result(ended, limit, duration, text)
    }

    /// Returns the test of an id.
    fn name<'t>(&self, id: &'t str) -> &'t str {
        let test = id.rsplit_once(REPETITION).filter(|_| self.has_repetitions);
        test.map_or(id, |(test, _)| test)
    }

    fn words(&self, tests: &[&str], list: Option<&Path>) -> Vec<OsString> {
        let list = list.map(|list| list.to_string_lossy().into_owned()).unwrap_or_default();
        let test = tests.first().copied().unwrap_or_default();
        let fill = |word: &String| match word.contains(FILE) {
            true => word.replace(FILE, &list).into(),
            false => word.replace(TEST, test).into(),
        };
        self.words.iter().map(fill).collect()
    }
}

/// Returns what the end of the command says about its tests.
fn result(
    ended: Result<CommandEnd, exec::Error>,
    limit: Duration,
    duration: Duration,
    output: String,
) -> Result<Run, Interruption> {
    let ended = match ended {
        Ok(ended) => ended,
        Err(exec::Error::Late) => {
            return Err(Interruption::Lost("no heartbeat in time".to_owned()));
        }
        Err(error) => return Err(failed("run the command", &error).into()),
    };
    let failure = match (ended.reason, ended.status) {
        (EndReason::Exited, ExitKind::Code(0)) => None,
        (EndReason::Exited, ExitKind::Code(code)) => Some(format!("EXIT_{code}")),
        (EndReason::Exited, ExitKind::Signal(signal)) => Some(format!("SIGNAL_{signal}")),
        (EndReason::Stopped(StopReason::TimeLimit), _) => Some(TIMED_OUT.to_owned()),
        (EndReason::Lost | EndReason::Stopped(StopReason::Lost), _) => {
            return Err(Interruption::Lost("no heartbeat was answered in time".to_owned()));
        }
        (EndReason::Stopped(StopReason::Requested) | EndReason::WatchdogDied, _) => {
            return Err(Interruption::Lost("the watchdog of the command was killed".to_owned()));
        }
    };
    let failure = failure.map(|code| {
        let text = if code == TIMED_OUT {
            format!("exceeded the time limit of {limit:?}\n{output}")
        } else {
            output.clone()
        };
        (code, readable(&text))
    });
    Ok(Run { failure, duration, output })
}

/// Writes tests to a temporary file.
fn test_file(tests: &[&str]) -> std::io::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::NamedTempFile::new()?;
    for test in tests {
        writeln!(file, "{test}")?;
    }
    file.flush()?;
    Ok(file)
}

fn read_end(file: &mut File) -> std::io::Result<String> {
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(SHOWN_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns whether a program can be found as a shell would.
fn exists(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> Result<TestCommand, String> {
        TestCommand::new(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_command_needs_one_placeholder_and_an_existing_program() {
        assert!(command(&["true"]).unwrap_err().contains("neither"));
        assert!(command(&["true", "{}", "{file}"]).unwrap_err().contains("both"));
        assert!(command(&["no-such-program", "{}"]).unwrap_err().contains("no-such-program"));
        assert!(!command(&["true", "{}"]).unwrap().takes_files());
        assert!(command(&["sh", "-c", "cat {file}"]).unwrap().takes_files());
    }

    #[test]
    fn placeholders_are_replaced_within_words() {
        let words = command(&["echo", "--id={}", "x"]).unwrap().words(&["a b"], None);
        assert_eq!(words, ["echo", "--id=a b", "x"]);
    }
}
