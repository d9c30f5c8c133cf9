//! Options of the command that executes an operation.
//!
//! They are declared with a kind, and only workers use them: no rule of the engine depends on them.

use crate::limits;

/// Stands for the id of the job in [`RunOptions::output_file`].
pub const JOB_PLACEHOLDER: &str = "{job}";
/// Stands for the number of the attempt in [`RunOptions::output_file`].
pub const ATTEMPT_PLACEHOLDER: &str = "{attempt}";

/// Options of the command of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// Working directory; that of the worker if `None`.
    pub dir: Option<String>,
    /// Time from TERM to KILL after a cancel or a time limit; that of the worker if `None`.
    pub cancel_grace_ms: Option<u64>,
    /// File for all output, with placeholders.
    pub output_file: Option<String>,
    /// Maximum size of that file.
    pub output_bytes_max: Option<u64>,
}

impl RunOptions {
    /// Returns the options that are set, by their keys in the configuration.
    fn keys(&self) -> impl Iterator<Item = &'static str> {
        let keys = [
            ("dir", self.dir.is_some()),
            ("cancel_grace", self.cancel_grace_ms.is_some()),
            ("output_file", self.output_file.is_some()),
            ("output_bytes_max", self.output_bytes_max.is_some()),
        ];
        keys.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key)
    }

    /// Returns all problems, each beginning with the key.
    pub(crate) fn problems(&self, has_run: bool) -> Vec<String> {
        if !has_run {
            let why = "is an option of a `run`, which is missing: add one, or leave it out";
            return self.keys().map(|key| format!("{key} {why}")).collect();
        }
        let mut problems = Vec::new();
        if self.dir.as_deref() == Some("") {
            problems.push("dir is empty: leave it out to run in that of the worker".to_owned());
        }
        if self.cancel_grace_ms.is_some_and(|ms| ms > limits::CANCEL_GRACE_MS_MAX) {
            problems.push("cancel_grace must be at most 1d".to_owned());
        }
        if self.output_file.as_ref().is_some_and(|path| !path.contains(JOB_PLACEHOLDER)) {
            problems.push(format!(
                "output_file must contain {JOB_PLACEHOLDER}, or concurrent jobs would write the \
                 same file"
            ));
        }
        if self.output_bytes_max.is_some() && self.output_file.is_none() {
            problems.push(
                "output_bytes_max has no effect without output_file: add one, or leave it out"
                    .to_owned(),
            );
        }
        if self.output_bytes_max == Some(0) {
            problems
                .push("output_bytes_max of 0 keeps no output: leave it out for none".to_owned());
        }
        problems
    }
}
