//! `tenure config`, and where `tenure.toml` is found.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use tenure::config::{BadConfig, Config, Error, FILE_NAME, Problem};

use super::{Done, Output, print_json};
use crate::exit;

/// Kinds and settings in tenure.toml
#[derive(Subcommand)]
pub(super) enum ConfigVerb {
    /// Name everything that is wrong with a file, at once
    ///
    /// Exits with 0 when nothing is, with 1 when something is, and with 2 when the file cannot be
    /// read.
    #[command(after_help = "\
Examples:
  tenure config check                            ./tenure.toml
  tenure config check deploy/tenure.toml -o json")]
    Check(Check),
}

/// Name everything that is wrong with a file, at once
#[derive(Args)]
pub(super) struct Check {
    /// The file [default: $TENURE_CONFIG, else ./tenure.toml]
    #[arg(env = "TENURE_CONFIG", value_name = "FILE", hide_env = true)]
    file: Option<PathBuf>,
}

/// What a check found.
#[derive(Serialize)]
struct Checked<'a> {
    ok: bool,
    file: &'a Path,
    kinds: usize,
    operations: usize,
    problems: &'a [Problem],
}

impl ConfigVerb {
    pub(super) fn run(&self, output: Output) -> Done {
        let Self::Check(Check { file }) = self;
        let file = file.clone().unwrap_or_else(|| FILE_NAME.into());
        let (config, problems) = match Config::load(&file) {
            Ok(config) => (config, Vec::new()),
            Err(Error::Bad(BadConfig(problems))) => (Config::default(), problems),
            Err(error @ Error::Unreadable { .. }) => {
                anstream::eprintln!("tenure: {error}; name a file that is there");
                return Ok(ExitCode::from(exit::USAGE));
            }
        };
        let ok = problems.is_empty();
        let (kinds, operations) = (config.kinds.iter().count(), config.operations());
        match output {
            Output::Json => {
                let problems = &problems;
                print_json(&Checked { ok, file: &file, kinds, operations, problems })?;
            }
            Output::Table if ok => anstream::println!("ok: {}", size(&config)),
            Output::Table => {
                for line in lines(&file, &problems) {
                    anstream::println!("{line}");
                }
            }
        }
        Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
    }
}

/// How much a file declares, for people.
pub(super) fn size(config: &Config) -> String {
    let s = |n: usize| if n == 1 { "" } else { "s" };
    let (kinds, operations) = (config.kinds.iter().count(), config.operations());
    format!("{kinds} kind{}, {operations} operation{}", s(kinds), s(operations))
}

/// The problems as `file:line: problem`, which editors understand.
pub(super) fn lines(file: &Path, problems: &[Problem]) -> Vec<String> {
    let line = |problem: &Problem| format!("{}:{}: {problem}", file.display(), problem.line);
    problems.iter().map(line).collect()
}

/// Which file says what kinds there are.
#[derive(Args, Clone, Debug)]
pub(super) struct ConfigFile {
    /// Kinds and settings [default: ./tenure.toml if it exists]
    #[arg(long = "config", env = "TENURE_CONFIG", value_name = "FILE")]
    file: Option<PathBuf>,
}

impl ConfigFile {
    /// The file, if there is one: a file that was named must be there, the default need not.
    pub(super) fn find(&self) -> Option<PathBuf> {
        let default = PathBuf::from(FILE_NAME);
        self.file.clone().or_else(|| default.exists().then_some(default))
    }
}

/// Reads a file; one that is wrong becomes an error with all its problems.
pub(super) fn load(file: &Path) -> anyhow::Result<Config> {
    match Config::load(file) {
        Ok(config) => Ok(config),
        Err(Error::Bad(BadConfig(problems))) => {
            let (n, name) = (problems.len(), file.display());
            let problems = lines(file, &problems).join("\n");
            anyhow::bail!("{name} is refused, it has {n} problem(s):\n{problems}")
        }
        Err(error) => Err(error.into()),
    }
}
