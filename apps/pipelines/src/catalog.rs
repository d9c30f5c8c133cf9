//! The catalog of declared pipelines: the files `DIR/TENANT/PIPELINE.toml`.
//!
//! An invalid file disables its own pipeline only. All problems of all files are reported at once.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tenure_config::{self as config, BadConfig, Problem};
use tenure_core::kind::OperationOverride;
use tenure_core::{Kind, Operation, Policy};

use super::declare::Pipeline;
use super::settings::PipelineSettings;
use super::steps::{PolicySource, http_client};
use super::{KIND, RUN, slots};

/// Maximum number of pipelines of all tenants.
pub const PIPELINES_MAX: usize = 10_000;

/// All declared pipelines and their common settings.
#[derive(Debug)]
pub struct Catalog {
    /// Common settings.
    pub settings: PipelineSettings,
    tenants: BTreeMap<String, BTreeMap<String, Arc<Pipeline>>>,
    broken: Vec<Broken>,
    /// HTTP client of prechecks, created at its first use.
    http: OnceLock<reqwest::Client>,
}

/// A file that cannot be used, or the directory of a tenant.
#[derive(Debug)]
struct Broken {
    tenant: String,
    /// Name of the pipeline; `None` for the directory.
    name: Option<String>,
    problems: Vec<Problem>,
}

impl Catalog {
    /// Loads all files. An invalid one is left out, with its problems in [`Catalog::problems`].
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be read or has too many files.
    pub fn load(settings: &PipelineSettings) -> Result<Self, BadConfig> {
        let mut tenants: BTreeMap<String, BTreeMap<String, Arc<Pipeline>>> = BTreeMap::new();
        let (files, mut broken) = list_files(&settings.dir).map_err(|error| {
            let message = format!("cannot be read: {error}; check `dir` in [pipelines]");
            BadConfig(vec![Problem::of_file(&settings.dir, message)])
        })?;
        if files.len() > PIPELINES_MAX {
            let message = format!("{} pipelines; at most {PIPELINES_MAX} are allowed", files.len());
            return Err(BadConfig(vec![Problem::of_file(&settings.dir, message)]));
        }
        for File { path, tenant, name } in files {
            match read(&path, &tenant, &name, settings) {
                Ok(pipeline) => {
                    tenants.entry(tenant).or_default().insert(name, Arc::new(pipeline));
                }
                Err(bad) => {
                    let problems = bad.in_file(&path).0;
                    broken.push(Broken { tenant, name: Some(name), problems });
                }
            }
        }
        Ok(Self { settings: settings.clone(), tenants, broken, http: OnceLock::new() })
    }

    /// Returns the HTTP client of prechecks.
    pub(crate) fn http_client(&self) -> Result<reqwest::Client, String> {
        if let Some(http) = self.http.get() {
            return Ok(http.clone());
        }
        let policy = PolicySource::Fixed(self.settings.addresses.clone());
        let http = http_client(policy).map_err(|error| error.to_string())?;
        Ok(self.http.get_or_init(|| http).clone())
    }

    /// Returns the problems of all files that are left out.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.broken.iter().flat_map(|broken| &broken.problems)
    }

    /// Returns why a pipeline is disabled: `FILE:LINE: PROBLEM`, with the file below the directory
    /// of pipelines. `None` if no file of that name is broken.
    #[must_use]
    pub fn broken(&self, tenant: &str, name: &str) -> Option<String> {
        let of_tenant = || self.broken.iter().filter(|broken| broken.tenant == tenant);
        let broken = of_tenant().find(|broken| broken.name.as_deref() == Some(name));
        let broken = broken.or_else(|| of_tenant().find(|broken| broken.name.is_none()))?;
        let describe = |problem: &Problem| {
            let file = problem.file.as_deref().unwrap_or(&self.settings.dir);
            let file = file.strip_prefix(&self.settings.dir).unwrap_or(file);
            format!("{}:{}: {}", file.display(), problem.line, problem.description())
        };
        Some(broken.problems.iter().map(describe).collect::<Vec<_>>().join("; "))
    }

    /// Returns a pipeline.
    #[must_use]
    pub fn get(&self, tenant: &str, name: &str) -> Option<&Arc<Pipeline>> {
        self.tenants.get(tenant)?.get(name)
    }

    /// Iterates over the pipelines of one tenant or of all tenants, sorted by name.
    pub fn iter(&self, tenant: Option<&str>) -> impl Iterator<Item = &Arc<Pipeline>> {
        let is_selected = move |name: &str| tenant.is_none_or(|tenant| tenant == name);
        let tenants = self.tenants.iter().filter(move |(name, _)| is_selected(name));
        tenants.flat_map(|(_, pipelines)| pipelines.values())
    }

    /// Returns the number of pipelines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tenants.values().map(BTreeMap::len).sum()
    }

    /// Returns whether there are no pipelines.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// Returns the kind of pipelines, with the time limit and the retry rule of each.
    #[must_use]
    pub(crate) fn kind(&self) -> Kind {
        let PipelineSettings { limit_ms, max_runs, tenant_max_runs, .. } = self.settings;
        let run = Operation::new(RUN).meets(RUN, Policy::Attach).limit_ms(limit_ms);
        let mut kind = Kind::new(KIND).operation(run).running_max(max_runs, tenant_max_runs);
        for pipeline in self.iter(None) {
            for key in pipeline.keys() {
                let (limit_ms, retry) = (Some(pipeline.limit_ms), pipeline.retry.clone());
                kind = kind.with_override(key, RUN, OperationOverride { limit_ms, retry });
            }
        }
        kind
    }
}

struct File {
    path: PathBuf,
    tenant: String,
    name: String,
}

/// Lists the files below a directory in order, without hidden ones, and the directories of tenants
/// that cannot be read.
fn list_files(dir: &Path) -> io::Result<(Vec<File>, Vec<Broken>)> {
    let (mut files, mut broken) = (Vec::new(), Vec::new());
    for (tenant, dir) in entries(dir)?.into_iter().filter(|(_, path)| path.is_dir()) {
        match entries(&dir) {
            Ok(entries) => {
                for (file, path) in entries {
                    if let Some(name) = file.strip_suffix(".toml") {
                        files.push(File { path, tenant: tenant.clone(), name: name.to_owned() });
                    }
                }
            }
            Err(error) => {
                let problem = Problem::of_file(&dir, format!("cannot be read: {error}"));
                broken.push(Broken { tenant, name: None, problems: vec![problem] });
            }
        }
    }
    Ok((files, broken))
}

fn entries(dir: &Path) -> io::Result<BTreeMap<String, PathBuf>> {
    let mut entries = BTreeMap::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            entries.insert(name, entry.path());
        }
    }
    Ok(entries)
}

fn read(
    path: &Path,
    tenant: &str,
    name: &str,
    settings: &PipelineSettings,
) -> Result<Pipeline, BadConfig> {
    if !slots::is_name(name) || slots::key(tenant, name, 1).is_none() {
        let why = "the directory and the file must be named after the tenant and the \
                    pipeline: letters, digits, `_`, `-` and `.`";
        return Err(BadConfig(vec![Problem::of_file(path, why)]));
    }
    let text = config::read_text(path)
        .map_err(|error| BadConfig(vec![Problem::of_file(path, error.to_string())]))?;
    Pipeline::parse(&text, path, tenant, name, settings)
}

#[cfg(test)]
mod tests;
