//! Loading `tenure.toml` with the sections of all installed apps.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_config::{AppSections, BadConfig, Config, Error, Problem, Report, Section};
use tenure_core::Kinds;
use tenure_core::kind::InvalidKinds;

use crate::live::{BrokenFile, LiveConfig, LoadedApps};
use crate::{App, LoadedApp};

/// The apps that are installed in this binary.
#[derive(Clone, Default)]
pub struct Apps(Vec<Arc<dyn App>>);

/// A `tenure.toml` with the apps that it configures.
#[derive(Clone, Default)]
pub struct Loaded {
    /// The parsed file. Its kinds include those of apps.
    pub config: Config,
    /// The configured apps.
    pub apps: LoadedApps,
    /// Files of apps that are invalid: what they declare is disabled.
    pub broken: Vec<BrokenFile>,
}

impl Loaded {
    /// Returns the part that may change while a process runs.
    #[must_use]
    pub fn live(&self) -> LiveConfig {
        LiveConfig {
            kinds: Arc::clone(&self.config.kinds),
            apps: self.apps.clone(),
            broken: self.broken.as_slice().into(),
            retention: self.config.retention,
            pass_env: self.config.runner.pass_env.as_slice().into(),
        }
    }

    /// Returns files and directories that apps have read beside `tenure.toml`.
    #[must_use]
    pub fn watched_paths(&self) -> Vec<PathBuf> {
        self.apps.iter().flat_map(|(_, app)| app.watched_paths()).collect()
    }

    /// Returns a summary of the declarations, for example `2 kinds, 3 operations, 1 pipeline`.
    #[must_use]
    pub fn summary(&self) -> String {
        let count = |n: usize, plural: &str| {
            let singular = plural.strip_suffix('s').unwrap_or(plural);
            format!("{n} {}", if n == 1 { singular } else { plural })
        };
        let of_file = [
            count(self.config.kinds.iter().count(), "kinds"),
            count(self.config.operations(), "operations"),
        ];
        let of_apps = self.apps.iter().map(|(name, app)| count(app.size(), name));
        let broken = (!self.broken.is_empty()).then(|| count(self.broken.len(), "broken files"));
        of_file.into_iter().chain(of_apps).chain(broken).collect::<Vec<_>>().join(", ")
    }

    /// Returns an error with all problems if a file of an app is invalid.
    pub fn require_valid(self) -> Result<Self, BadConfig> {
        let problems = all_problems(&self.broken);
        if problems.is_empty() { Ok(self) } else { Err(BadConfig(problems)) }
    }
}

impl Apps {
    /// Collects the installed apps.
    #[must_use]
    pub fn new(apps: Vec<Arc<dyn App>>) -> Self {
        Self(apps)
    }

    /// Iterates over the installed apps.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn App>> {
        self.0.iter()
    }

    /// Loads a `tenure.toml` and everything that its apps read. An invalid file of an app is in
    /// [`Loaded::broken`]; every other problem is an error, which then lists all.
    pub fn load(&self, file: &Path) -> Result<Loaded, tenure_config::Error> {
        self.load_sections(file, false)
    }

    /// Loads a `tenure.toml`, ignoring sections of apps that are not installed.
    pub fn load_known_sections(&self, file: &Path) -> Result<Loaded, tenure_config::Error> {
        self.load_sections(file, true)
    }

    fn load_sections(
        &self,
        file: &Path,
        ignores_unknown: bool,
    ) -> Result<Loaded, tenure_config::Error> {
        let mut sections = Sections::new(self, ignores_unknown);
        match Config::load(file, &mut sections) {
            Ok(config) => Ok(sections.finish(config).map_err(|bad| bad.in_file(file))?),
            Err(Error::Bad(bad)) => Err(bad.with(sections.problems()).into()),
            Err(error) => Err(error),
        }
    }

    /// Parses a text as `tenure.toml`; relative paths in it are below `dir`.
    pub fn parse(&self, text: &str, dir: &Path) -> Result<Loaded, BadConfig> {
        let mut sections = Sections::new(self, false);
        match Config::parse_with(text, dir, &mut sections) {
            Ok(config) => sections.finish(config),
            Err(bad) => Err(bad.with(sections.problems())),
        }
    }
}

/// Dispatches each section to its app.
struct Sections<'a> {
    apps: &'a Apps,
    ignores_unknown: bool,
    loaded: Vec<(&'static str, Arc<dyn LoadedApp>)>,
    broken: Vec<BrokenFile>,
}

impl<'a> Sections<'a> {
    fn new(apps: &'a Apps, ignores_unknown: bool) -> Self {
        Self { apps, ignores_unknown, loaded: Vec::new(), broken: Vec::new() }
    }

    /// Adds what was loaded to the file.
    fn finish(self, mut config: Config) -> Result<Loaded, BadConfig> {
        let declared = with_app_kinds(&config.kinds, &self.loaded);
        config.kinds = Arc::new(declared.map_err(|bad| bad.with(self.problems()))?);
        Ok(Loaded { config, apps: LoadedApps::new(self.loaded), broken: self.broken })
    }

    /// Returns the problems of the files of apps.
    fn problems(&self) -> Vec<Problem> {
        all_problems(&self.broken)
    }
}

fn all_problems(broken: &[BrokenFile]) -> Vec<Problem> {
    broken.iter().flat_map(|broken| broken.problems.iter().cloned()).collect()
}

impl AppSections for Sections<'_> {
    fn names(&self) -> Vec<&'static str> {
        self.apps.iter().map(|app| app.name()).collect()
    }

    fn ignores_unknown(&self) -> bool {
        self.ignores_unknown
    }

    fn parse(&mut self, section: &Section<'_>, dir: &Path, report: &mut Report<'_>) {
        if let Some(app) = self.apps.iter().find(|app| app.name() == section.place) {
            self.loaded.extend(app.load(section, dir, report).map(|loaded| (app.name(), loaded)));
            self.broken.extend(BrokenFile::group(app.name(), report.take_disabling()));
        }
    }
}

/// Adds the kinds of apps to those of the file.
fn with_app_kinds(
    kinds: &Kinds,
    apps: &[(&'static str, Arc<dyn LoadedApp>)],
) -> Result<Kinds, BadConfig> {
    let mut all = kinds.clone();
    for (app, loaded) in apps {
        for kind in loaded.kinds() {
            if all.get(&kind.name).is_some() {
                let name = &kind.name;
                let message = format!("this kind belongs to the app [{app}]; choose another name");
                let place = format!("kinds.{name}");
                return Err(bad(place, message));
            }
            all = all
                .with(kind)
                .map_err(|InvalidKinds(problems)| bad((*app).to_owned(), problems.join("; ")))?;
        }
    }
    Ok(all)
}

fn bad(place: String, message: String) -> BadConfig {
    BadConfig(vec![Problem { file: None, line: 1, place, message }])
}
