//! `tenure pipeline check`: checks the files of pipelines without a server.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde_json::{Map, Value, json};
use tenure_app::{App, Apps};
use tenure_cli_kit::check::print_check;
use tenure_cli_kit::text::count;
use tenure_cli_kit::{ConfigFile, Done, Output};
use tenure_config::{BadConfig, Error, Problem};

use crate::{Catalog, PipelineSettings, Pipelines};

/// Check the files of pipelines and list all problems
///
/// Needs no server. Exits with 0 if all files are valid, with 1 if there are problems, and with 2
/// if the directory or tenure.toml cannot be read.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure pipeline check                          the pipelines of ./tenure.toml
  tenure pipeline check pipelines/               the files pipelines/TENANT/PIPELINE.toml
  tenure pipeline check --config deploy/tenure.toml -o json")]
pub(crate) struct Check {
    /// Directory with TENANT/PIPELINE.toml [default: `dir` in [pipelines] of tenure.toml]
    #[arg(value_name = "DIR")]
    pipelines: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigFile,
}

impl Check {
    pub(super) fn run(&self, output: Output) -> Done {
        let (subject, checked) = match &self.pipelines {
            Some(dir) => (dir.clone(), load_dir(dir)),
            None => {
                let file = self.config.path();
                let checked = load_file(&file);
                (file, checked)
            }
        };
        if let Ok(catalog) = &checked
            && catalog.is_empty()
        {
            let dir = catalog.settings.dir.display();
            anstream::eprintln!("no file TENANT/PIPELINE.toml in {dir}");
        }
        let summary = |catalog: &Arc<Catalog>| count(catalog.len(), "pipeline");
        print_check(&subject, checked, summary, counts, output)
    }
}

fn counts(catalog: Option<&Arc<Catalog>>) -> Map<String, Value> {
    Map::from_iter([("pipelines".to_owned(), json!(catalog.map_or(0, |catalog| catalog.len())))])
}

/// Loads the pipelines in a directory. They may use secrets, which are not read.
fn load_dir(dir: &Path) -> Result<Arc<Catalog>, Error> {
    fs::read_dir(dir)
        .map_err(|error| Error::Unreadable { path: dir.to_owned(), reason: error.to_string() })?;
    let secrets = Some(dir.to_owned());
    let settings = PipelineSettings { secrets, ..PipelineSettings::new(dir.to_owned()) };
    let catalog = Catalog::load(&settings)?;
    let problems: Vec<Problem> = catalog.problems().cloned().collect();
    if problems.is_empty() { Ok(Arc::new(catalog)) } else { Err(BadConfig(problems).into()) }
}

/// Loads the pipelines of a `tenure.toml`, and no other apps.
fn load_file(file: &Path) -> Result<Arc<Catalog>, Error> {
    let loaded = apps().load_known_sections(file)?.require_valid()?;
    loaded.apps.get().ok_or_else(|| {
        let message = "it is missing, so no pipelines are declared; set `dir` to their directory, \
                       or check one with `tenure pipeline check DIR`";
        let (place, message) = (Pipelines.name().to_owned(), message.to_owned());
        let problem = Problem { file: Some(file.to_owned()), line: 1, place, message };
        BadConfig(vec![problem]).into()
    })
}

fn apps() -> Apps {
    Apps::new(vec![Arc::new(Pipelines)])
}
