//! The catalog of declared pipelines: the files `DIR/TENANT/PIPELINE.toml`.
//!
//! They take effect together: if one file is invalid, the previous catalog stays in use. All
//! problems of all files are reported at once.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_config::{self as config, BadConfig, Problem};
use tenure_core::kind::OperationOverride;
use tenure_core::{Kind, Operation, Policy};

use super::declare::Pipeline;
use super::settings::PipelineSettings;
use super::{KIND, RUN, slots};

/// Maximum number of pipelines of all tenants.
pub const PIPELINES_MAX: usize = 10_000;

/// All declared pipelines and their common settings.
#[derive(Debug)]
pub struct Catalog {
    /// Common settings.
    pub settings: PipelineSettings,
    tenants: BTreeMap<String, BTreeMap<String, Arc<Pipeline>>>,
}

impl Catalog {
    /// Loads all files.
    pub fn load(settings: &PipelineSettings) -> Result<Self, BadConfig> {
        let mut tenants: BTreeMap<String, BTreeMap<String, Arc<Pipeline>>> = BTreeMap::new();
        let mut problems = Vec::new();
        let files = list_files(&settings.dir).map_err(|(path, error)| {
            let message = format!("cannot be read: {error}; check `dir` in [pipelines]");
            BadConfig(vec![Problem::of_file(&path, message)])
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
                Err(bad) => problems.extend(bad.in_file(&path).0),
            }
        }
        if !problems.is_empty() {
            return Err(BadConfig(problems));
        }
        Ok(Self { settings: settings.clone(), tenants })
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

/// Lists the files below a directory in order, without hidden ones.
fn list_files(dir: &Path) -> Result<Vec<File>, (PathBuf, io::Error)> {
    let mut files = Vec::new();
    for (tenant, path) in entries(dir).map_err(|error| (dir.to_owned(), error))? {
        if !path.is_dir() {
            continue;
        }
        for (file, path) in entries(&path).map_err(|error| (path.clone(), error))? {
            if let Some(name) = file.strip_suffix(".toml") {
                files.push(File { path, tenant: tenant.clone(), name: name.to_owned() });
            }
        }
    }
    Ok(files)
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
