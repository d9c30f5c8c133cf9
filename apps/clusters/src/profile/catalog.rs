//! The directory of profiles. A broken file disables only its own profile.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_config::section::unknown_name;
use tenure_config::{self as config, BadConfig, Problem};

use super::resolve::shown;
use super::{PROFILE_BYTES_MAX, Profile};

/// Maximum number of profiles.
pub const PROFILES_MAX: usize = 1_000;

/// All profiles of a deployment.
#[derive(Clone, Debug, Default)]
pub struct Profiles {
    profiles: BTreeMap<String, Arc<Profile>>,
    /// Problems of the files that cannot be used, by profile.
    broken: BTreeMap<String, String>,
}

/// Why there is no profile of a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoProfile {
    /// There is no file of that name.
    #[error("{0}")]
    Unknown(String),
    /// The file has problems.
    #[error("the profile {name} is disabled, because its file has problems: {why}")]
    Disabled {
        /// Name of the profile.
        name: String,
        /// `FILE:LINE: PROBLEM`, separated by semicolons.
        why: String,
    },
}

impl Profiles {
    /// Loads all files `DIR/NAME.toml`. Returns what can be used, and the problems of the rest.
    #[must_use]
    pub fn load(dir: &Path) -> (Self, Vec<Problem>) {
        let (mut profiles, mut problems) = (Self::default(), Vec::new());
        let files = match list(dir) {
            Ok(files) => files,
            Err(error) => {
                let why = format!("cannot be read: {error}; check `profiles` in [clusters]");
                return (profiles, vec![Problem::of_file(dir, why)]);
            }
        };
        if files.len() > PROFILES_MAX {
            let why = format!("{} profiles; at most {PROFILES_MAX} are allowed", files.len());
            return (profiles, vec![Problem::of_file(dir, why)]);
        }
        for (name, path) in files {
            match read(&name, &path) {
                Ok(profile) => drop(profiles.profiles.insert(name, Arc::new(profile))),
                Err(bad) => {
                    let found = bad.in_file(&path).0;
                    profiles.broken.insert(name, describe(&found, dir));
                    problems.extend(found);
                }
            }
        }
        (profiles, problems)
    }

    /// Returns a profile.
    ///
    /// # Errors
    ///
    /// Fails if there is none of that name, or if its file has problems.
    pub fn get(&self, name: &str) -> Result<&Arc<Profile>, NoProfile> {
        if let Some(profile) = self.profiles.get(name) {
            return Ok(profile);
        }
        let name = shown(name);
        match self.broken.get(name) {
            Some(why) => Err(NoProfile::Disabled { name: name.to_owned(), why: why.clone() }),
            None if self.profiles.is_empty() => {
                Err(NoProfile::Unknown(format!("unknown profile `{name}`; there are none")))
            }
            None => {
                let known = self.profiles.keys().map(String::as_str);
                Err(NoProfile::Unknown(unknown_name("profile", name, known)))
            }
        }
    }

    /// Iterates over the profiles that can be used, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Profile>> {
        self.profiles.values()
    }

    /// Iterates over the disabled profiles and why, sorted by name.
    pub fn disabled(&self) -> impl Iterator<Item = (&str, &str)> {
        self.broken.iter().map(|(name, why)| (name.as_str(), why.as_str()))
    }
}

/// Lists the files by the name of their profile, without hidden ones.
fn list(dir: &Path) -> io::Result<BTreeMap<String, PathBuf>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        if let Some(name) = file.strip_suffix(".toml").filter(|name| !name.starts_with('.')) {
            files.insert(name.to_owned(), entry.path());
        }
    }
    Ok(files)
}

fn read(name: &str, path: &Path) -> Result<Profile, BadConfig> {
    let of_file = |why: String| BadConfig(vec![Problem::of_file(path, why)]);
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if !(1..=PROFILE_BYTES_MAX).contains(&name.len()) || !name.chars().all(is_allowed) {
        let why = format!(
            "the file must be named after the profile: up to {PROFILE_BYTES_MAX} letters, digits, \
             `_`, `-` and `.`"
        );
        return Err(of_file(why));
    }
    // The message names no path: users see why a profile is disabled.
    let text = config::read_text(path).map_err(|error| match error {
        config::Error::Unreadable { reason, .. } => of_file(format!("cannot be read: {reason}")),
        config::Error::Bad(bad) => bad,
    })?;
    Profile::parse(&text, name, path.parent().unwrap_or(Path::new(".")))
}

/// Returns the problems in one line, with files below `dir`: users see it.
fn describe(problems: &[Problem], dir: &Path) -> String {
    let describe = |problem: &Problem| {
        let file = problem.file.as_deref().unwrap_or(dir);
        let file = file.strip_prefix(dir).unwrap_or(file);
        format!("{}:{}: {}", file.display(), problem.line, problem.description())
    };
    problems.iter().map(describe).collect::<Vec<_>>().join("; ")
}
