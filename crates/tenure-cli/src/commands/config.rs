//! `tenure config`: validation of `tenure.toml`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use tenure_app::{Apps, BrokenFile, Loaded};
use tenure_cli_kit::check::print_check;
use tenure_cli_kit::{Done, Output, message};
use tenure_config::{BadConfig, Error, FILE_NAME};

/// Check tenure.toml
#[derive(Subcommand)]
pub(super) enum ConfigVerb {
    /// Report all problems of a configuration file
    ///
    /// Exits with 0 if the file is valid, with 1 if it has problems, and with 2 if it cannot be
    /// read.
    #[command(after_help = "\
Examples:
  tenure config check                            ./tenure.toml
  tenure config check deploy/tenure.toml -o json")]
    Check(Check),
}

/// Report all problems of a configuration file
#[derive(Args)]
pub(super) struct Check {
    /// The file [default: $TENURE_CONFIG, else ./tenure.toml]
    #[arg(env = "TENURE_CONFIG", value_name = "FILE", hide_env = true)]
    file: Option<PathBuf>,
}

impl ConfigVerb {
    pub(super) fn run(&self, apps: &Apps, output: Output) -> Done {
        let Self::Check(Check { file }) = self;
        let file = file.clone().unwrap_or_else(|| FILE_NAME.into());
        let counts = |loaded: Option<&Loaded>| counts(apps, loaded);
        let checked = apps.load(&file).and_then(|loaded| Ok(loaded.require_valid()?));
        print_check(&file, checked, Loaded::summary, counts, output)
    }
}

/// Returns the numbers of kinds, operations, and of what each app declares.
fn counts(apps: &Apps, loaded: Option<&Loaded>) -> Map<String, Value> {
    let config = loaded.map(|loaded| &loaded.config);
    let kinds = config.map_or(0, |config| config.kinds.iter().count());
    let operations = config.map_or(0, |config| config.operations());
    let mut counts = Map::from_iter([
        ("kinds".to_owned(), json!(kinds)),
        ("operations".to_owned(), json!(operations)),
    ]);
    for app in apps.iter() {
        let size = loaded.and_then(|loaded| loaded.apps.named(app.name())).map(|app| app.size());
        counts.insert(app.name().to_owned(), json!(size.unwrap_or(0)));
    }
    counts
}

/// Loads a file; the error lists all its problems. Warns about each problem of a file of an app,
/// which only disables what that file declares.
pub(super) fn load(apps: &Apps, file: &Path) -> anyhow::Result<Loaded> {
    match apps.load(file) {
        Err(Error::Bad(BadConfig(problems))) => {
            let (n, name) = (problems.len(), file.display());
            let problems = BadConfig(problems);
            anyhow::bail!("{name} is invalid, it has {n} problem(s):\n{problems}")
        }
        Err(error) => Err(error.into()),
        Ok(loaded) => {
            for BrokenFile { app, file, problems } in &loaded.broken {
                for problem in problems {
                    message::warn(&problem.to_string());
                }
                let file = file.display();
                message::warn(&format!(
                    "[{app}]: what {file} declares is disabled until it is fixed"
                ));
            }
            Ok(loaded)
        }
    }
}
