//! Runs, formats and times commands.
//!
//! Every helper turns a non-zero exit status into an error that contains the command line.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Builds a command for the cargo that runs this program, in the repository root.
pub(crate) fn cargo(root: &Path) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root);
    command
}

/// Runs the command with inherited stdin, stdout and stderr.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("start `{}`", command_line(command)))?;
    if !status.success() {
        bail!("`{}` failed with {status}", command_line(command));
    }
    Ok(())
}

/// Runs the command and returns its stdout.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("start `{}`", command_line(command)))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed with {}: {}", command_line(command), output.status, stderr.trim());
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("read output of `{}`", command_line(command)))
}

/// Formats the command as typed in a shell: the program by its name, without its path.
pub(crate) fn command_line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Measures the duration of a step.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "only displayed, affects no decision")]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn failure_names_the_command_and_its_exit_code() {
        let error = run(&mut sh("exit 3")).unwrap_err();
        assert_eq!(error.to_string(), "`sh -c exit 3` failed with exit status: 3");
    }

    #[test]
    fn failure_of_a_captured_command_includes_its_stderr() {
        let error = output(&mut sh("echo broken >&2; exit 1")).unwrap_err();
        assert!(error.to_string().ends_with("exit status: 1: broken"), "{error}");
    }

    #[test]
    fn captured_output_is_returned_unchanged() {
        assert_eq!(output(&mut sh("echo one; echo two")).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn missing_program_is_named() {
        let error = run(&mut Command::new("no-such-program")).unwrap_err();
        assert_eq!(error.to_string(), "start `no-such-program`");
    }
}
