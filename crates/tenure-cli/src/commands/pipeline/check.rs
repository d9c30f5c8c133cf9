//! `tenure pipeline check`: what is wrong with the files of pipelines, without a server.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use tenure::config::{BadConfig, Config, Error, Problem};

use crate::commands::config::{ConfigFile, Loaded, Unread, read, tell_check, with_pipelines};
use crate::commands::{Done, Output};
use crate::text::count;

/// Settings for files whose tenure.toml is elsewhere: there is a place for secrets.
const SETTINGS: &str = "[pipelines]\ndir = \".\"\nsecrets = \".\"\n";

/// Name everything that is wrong with the files of pipelines, at once
///
/// Asks no server. Exits with 0 when nothing is wrong, with 1 when something is, and with 2 when
/// the directory or tenure.toml cannot be read.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure pipeline check                          those that ./tenure.toml names
  tenure pipeline check pipelines/               the files pipelines/TENANT/PIPELINE.toml
  tenure pipeline check --config deploy/tenure.toml -o json")]
pub(in crate::commands) struct Check {
    /// The directory with TENANT/PIPELINE.toml [default: that which tenure.toml names]
    #[arg(value_name = "DIR")]
    pipelines: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigFile,
}

impl Check {
    pub(super) fn run(&self, output: Output) -> Done {
        let (subject, read) = match &self.pipelines {
            Some(dir) => (dir.clone(), read_dir(dir)),
            None => {
                let file = self.config.named();
                let read = read(&file).and_then(|loaded| declared(&file, loaded));
                (file, read)
            }
        };
        if let Ok(Loaded { catalog: Some(catalog), .. }) = &read
            && catalog.is_empty()
        {
            let dir = catalog.settings.dir.display();
            anstream::eprintln!("there is no file TENANT/PIPELINE.toml below {dir}");
        }
        tell_check(&subject, read, |loaded| count(loaded.pipelines(), "pipeline"), output)
    }
}

/// Reads the pipelines below a directory. They may name secrets, wherever those will be.
fn read_dir(dir: &Path) -> Result<Loaded, Unread> {
    let unreadable = |error: std::io::Error| {
        Unread::Unreadable(Error::Unreadable { path: dir.to_owned(), why: error.to_string() })
    };
    fs::read_dir(dir).map_err(unreadable)?;
    let here = |problem: Problem| (dir.to_owned(), problem);
    let mut config = Config::parse(SETTINGS, Path::new("."))
        .map_err(|BadConfig(problems)| Unread::Bad(problems.into_iter().map(here).collect()))?;
    if let Some(settings) = &mut config.pipelines {
        settings.dir = dir.to_owned();
    }
    with_pipelines(dir, config)
}

/// A file that names no pipelines is not what was meant.
fn declared(file: &Path, loaded: Loaded) -> Result<Loaded, Unread> {
    if loaded.catalog.is_some() {
        return Ok(loaded);
    }
    let message = "it is missing, so no pipelines are declared: name their directory by `dir`, or \
                   check one with `tenure pipeline check DIR`";
    let (place, message) = ("pipelines".to_owned(), message.to_owned());
    Err(Unread::Bad(vec![(file.to_owned(), Problem { line: 1, place, message })]))
}
