//! `tenure cluster check`: checks the settings and profiles of clusters without a server.

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

use crate::profile::Profiles;
use crate::{Clusters, LoadedClusters};

/// Check [clusters] of tenure.toml, its profiles and rules, and list all problems
///
/// Needs no server. Exits with 0 if everything is valid, with 1 if there are problems, and with 2
/// if the directory or tenure.toml cannot be read.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure cluster check                           ./tenure.toml with its profiles
  tenure cluster check profiles/                 only the files profiles/PROFILE.toml
  tenure cluster check --config deploy/tenure.toml -o json")]
pub(super) struct Check {
    /// Directory with PROFILE.toml [default: tenure.toml, and `profiles` in its [clusters]]
    #[arg(value_name = "DIR")]
    profiles: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigFile,
}

impl Check {
    pub(super) fn run(&self, output: Output) -> Done {
        let (subject, checked) = match &self.profiles {
            Some(dir) => (dir.clone(), check_dir(dir)),
            None => {
                let file = self.config.path();
                let checked = check_file(&file);
                (file, checked)
            }
        };
        if matches!(checked, Ok(0)) {
            anstream::eprintln!("no profile PROFILE.toml");
        }
        print_check(&subject, checked, |found| count(*found, "profile"), counts, output)
    }
}

fn counts(found: Option<&usize>) -> Map<String, Value> {
    Map::from_iter([("profiles".to_owned(), json!(found.copied().unwrap_or(0)))])
}

/// Checks the profiles in a directory, and returns their number.
fn check_dir(dir: &Path) -> Result<usize, Error> {
    fs::read_dir(dir)
        .map_err(|error| Error::Unreadable { path: dir.to_owned(), reason: error.to_string() })?;
    let (profiles, problems) = Profiles::load(dir);
    if problems.is_empty() { Ok(profiles.iter().count()) } else { Err(BadConfig(problems).into()) }
}

/// Checks `[clusters]` of a `tenure.toml`, and no other apps. Returns the number of profiles.
fn check_file(file: &Path) -> Result<usize, Error> {
    let loaded = apps().load_known_sections(file)?.require_valid()?;
    let clusters: Option<Arc<LoadedClusters>> = loaded.apps.get();
    let clusters = clusters.ok_or_else(|| {
        let message = "it is missing, so clusters are not enabled; add the table [clusters], or \
                       check a directory of profiles with `tenure cluster check DIR`";
        let (place, message) = (Clusters.name().to_owned(), message.to_owned());
        let problem = Problem { file: Some(file.to_owned()), line: 1, place, message };
        BadConfig(vec![problem])
    })?;
    Ok(clusters.profiles.iter().count())
}

fn apps() -> Apps {
    Apps::new(vec![Arc::new(Clusters)])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "platform = \"aws\"\nversions = [\"4.19.1\"]\nregions = [\"us-east-1\"]\n\
                           base_domains = [\"dev.example.com\"]\n";

    #[test]
    fn every_problem_of_every_profile_is_reported_at_once() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| {
            fs::write(dir.path().join(name), text).expect("writable");
        };
        write("good.toml", PROFILE);
        assert_eq!(check_dir(dir.path()).ok(), Some(1));
        write("one.toml", &PROFILE.replace("aws", "awz"));
        write("two.toml", &format!("{PROFILE}worker = 3\nallow_preserve = 1\n"));
        let Err(Error::Bad(bad)) = check_dir(dir.path()) else { panic!("it has problems") };
        let problems = bad.to_string();
        for part in ["one.toml", "awz", "two.toml", "`worker`", "allow_preserve"] {
            assert!(problems.contains(part), "{part}: {problems}");
        }
        assert!(matches!(check_dir(&dir.path().join("no")), Err(Error::Unreadable { .. })));
    }

    #[test]
    fn settings_and_profiles_of_a_file_are_checked() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("tenure.toml");
        fs::create_dir(dir.path().join("profiles")).expect("writable");
        fs::write(dir.path().join("profiles/p.toml"), PROFILE).expect("writable");
        fs::write(&file, "[clusters]\n").expect("writable");
        assert_eq!(check_file(&file).ok(), Some(1));
        for (text, part) in
            [("", "not enabled"), ("[clusters]\nslot = 1\n", "did you mean `slots`")]
        {
            fs::write(&file, text).expect("writable");
            let problems = check_file(&file).expect_err(text).to_string();
            assert!(problems.contains(part), "{problems}");
        }
    }

    #[test]
    fn the_examples_are_valid() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(check_file(&folder.join("example.toml")).map_err(|e| e.to_string()), Ok(2));
        let demo = folder.join("demo/profiles");
        assert_eq!(check_dir(&demo).map_err(|error| error.to_string()), Ok(1));
    }
}
