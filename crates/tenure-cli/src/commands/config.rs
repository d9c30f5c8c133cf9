//! `tenure config`, and where `tenure.toml` is found.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use serde::Serialize;
use tenure::config::{BadConfig, Config, Error, FILE_NAME, Problem};
use tenure_apps::pipelines::{BadCatalog, Catalog};
use tenure_core::kind::BadKinds;

use super::{Done, Output, print_json};
use crate::exit;
use crate::text::{count, out};

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
    pipelines: usize,
    problems: Vec<Found<'a>>,
}

/// A problem and the file that it is in.
#[derive(Serialize)]
struct Found<'a> {
    file: &'a Path,
    #[serde(flatten)]
    problem: &'a Problem,
}

impl ConfigVerb {
    pub(super) fn run(&self, output: Output) -> Done {
        let Self::Check(Check { file }) = self;
        let file = file.clone().unwrap_or_else(|| FILE_NAME.into());
        tell_check(&file, read(&file), size, output)
    }
}

/// Says what a check of a file or a directory found; `size` says how much there is when it is good.
pub(super) fn tell_check(
    file: &Path,
    read: Result<Loaded, Unread>,
    size: impl Fn(&Loaded) -> String,
    output: Output,
) -> Done {
    let (loaded, problems) = match read {
        Ok(loaded) => (loaded, Vec::new()),
        Err(Unread::Bad(problems)) => (Loaded::default(), problems),
        Err(Unread::Unreadable(error)) => {
            anstream::eprintln!("tenure: {error}; name one that is there");
            return Ok(ExitCode::from(exit::USAGE));
        }
    };
    let ok = problems.is_empty();
    match output {
        Output::Json => {
            let found = |(file, problem)| Found { file, problem };
            print_json(&Checked {
                ok,
                file,
                kinds: loaded.config.kinds.iter().count(),
                operations: loaded.config.operations(),
                pipelines: loaded.pipelines(),
                problems: problems.iter().map(|(file, problem)| found((file, problem))).collect(),
            })?;
        }
        Output::Table if ok => out(&format!("ok: {}", size(&loaded)))?,
        Output::Table => out(&BadCatalog(problems).to_string())?,
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
}

/// A file with all that it names.
#[derive(Default)]
pub(super) struct Loaded {
    /// What is in the file; the kind of pipelines is among its kinds.
    pub(super) config: Config,
    /// The pipelines that it names the directory of.
    pub(super) catalog: Option<Arc<Catalog>>,
}

impl Loaded {
    /// How many pipelines there are.
    pub(super) fn pipelines(&self) -> usize {
        self.catalog.as_ref().map_or(0, |catalog| catalog.len())
    }
}

/// Why there is nothing to put in force.
pub(super) enum Unread {
    /// These are wrong, each in its file.
    Bad(Vec<(PathBuf, Problem)>),
    /// There is no such file, or it is not for us.
    Unreadable(Error),
}

/// Reads a file and the pipelines that it names.
pub(super) fn read(file: &Path) -> Result<Loaded, Unread> {
    match Config::load(file) {
        Ok(config) => with_pipelines(file, config),
        Err(Error::Bad(BadConfig(problems))) => {
            let here = |problem| (file.to_owned(), problem);
            Err(Unread::Bad(problems.into_iter().map(here).collect()))
        }
        Err(error) => Err(Unread::Unreadable(error)),
    }
}

/// Reads the pipelines that a file names.
pub(super) fn with_pipelines(file: &Path, mut config: Config) -> Result<Loaded, Unread> {
    let Some(settings) = &config.pipelines else { return Ok(Loaded { config, catalog: None }) };
    let catalog = Catalog::load(settings).map_err(|BadCatalog(problems)| Unread::Bad(problems))?;
    config.kinds = match catalog.declare(&config.kinds) {
        Ok(kinds) => Arc::new(kinds),
        Err(BadKinds(problems)) => {
            let problem = |message| Problem { line: 1, place: "pipelines".to_owned(), message };
            let here = |message| (file.to_owned(), problem(message));
            return Err(Unread::Bad(problems.into_iter().map(here).collect()));
        }
    };
    Ok(Loaded { config, catalog: Some(Arc::new(catalog)) })
}

/// How much a file declares, for people.
pub(super) fn size(loaded: &Loaded) -> String {
    let (kinds, operations) = (loaded.config.kinds.iter().count(), loaded.config.operations());
    let mut size = format!("{}, {}", count(kinds, "kind"), count(operations, "operation"));
    if loaded.catalog.is_some() {
        size += &format!(", {}", count(loaded.pipelines(), "pipeline"));
    }
    size
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

    /// The file that was named, or the default, whether it is there or not.
    pub(super) fn named(&self) -> PathBuf {
        self.file.clone().unwrap_or_else(|| FILE_NAME.into())
    }
}

/// Reads a file; one that is wrong becomes an error with all its problems.
pub(super) fn load(file: &Path) -> anyhow::Result<Loaded> {
    match read(file) {
        Ok(loaded) => Ok(loaded),
        Err(Unread::Bad(problems)) => {
            let (n, name) = (problems.len(), file.display());
            let problems = BadCatalog(problems);
            anyhow::bail!("{name} is refused, it has {n} problem(s):\n{problems}")
        }
        Err(Unread::Unreadable(error)) => Err(error.into()),
    }
}
