//! Crates of this workspace according to `cargo metadata`.
//!
//! Manifests are never parsed directly, which would miss renamed and optional dependencies.
//!
//! `tidy/arrows.rs` checks the dependencies, `sim.rs` looks up its binary.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::shell;

/// A crate of the workspace.
#[derive(Debug, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Path of its Cargo.toml, relative to the repository root.
    pub(crate) manifest: String,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) binaries: Vec<String>,
}

/// A declared dependency.
#[derive(Debug)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// Whether it is a dev-dependency.
    pub(crate) dev: bool,
}

/// Returns the crates of the workspace as declared; nothing is resolved or downloaded.
pub(crate) fn packages(root: &Path) -> Result<Vec<Package>> {
    let mut command = shell::cargo(root);
    let text = shell::output(command.args(["metadata", "--no-deps", "--format-version", "1"]))?;
    parse(root, &text).context("read cargo metadata")
}

fn parse(root: &Path, text: &str) -> Result<Vec<Package>> {
    let metadata: Value = serde_json::from_str(text)?;
    let packages = metadata["packages"].as_array().context("find packages")?;
    packages.iter().map(|package| read_package(root, package)).collect()
}

fn read_package(root: &Path, value: &Value) -> Result<Package> {
    let manifest = Path::new(text(value, "manifest_path")?);
    let manifest = manifest.strip_prefix(root).unwrap_or(manifest);
    Ok(Package {
        name: text(value, "name")?.to_owned(),
        manifest: manifest.to_string_lossy().into_owned(),
        dependencies: list(value, "dependencies").map(read_dependency).collect::<Result<_>>()?,
        binaries: list(value, "targets")
            .filter(|target| is_binary(target))
            .map(name)
            .collect::<Result<_>>()?,
    })
}

fn read_dependency(value: &Value) -> Result<Dependency> {
    Ok(Dependency { name: name(value)?, dev: value["kind"] == "dev" })
}

fn is_binary(target: &Value) -> bool {
    list(target, "kind").any(|kind| kind == "bin")
}

fn name(value: &Value) -> Result<String> {
    text(value, "name").map(str::to_owned)
}

fn text<'a>(value: &'a Value, field: &str) -> Result<&'a str> {
    value[field].as_str().with_context(|| format!("find {field}"))
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value[field].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"{"packages": [{
        "name": "tenure-sim",
        "manifest_path": "/src/crates/tenure-sim/Cargo.toml",
        "dependencies": [
            {"name": "tenure", "kind": null},
            {"name": "stateright", "kind": "dev"}
        ],
        "targets": [
            {"name": "tenure_sim", "kind": ["lib"]},
            {"name": "sim", "kind": ["bin"]}
        ]
    }]}"#;

    #[test]
    fn package_is_read_with_its_dependencies_and_binaries() {
        let packages = parse(Path::new("/src"), SAMPLE).unwrap();
        let [package] = packages.as_slice() else { panic!("expected one package") };
        assert_eq!(package.name, "tenure-sim");
        assert_eq!(package.manifest, "crates/tenure-sim/Cargo.toml");
        assert_eq!(package.binaries, ["sim"]);
        let dependencies: Vec<_> =
            package.dependencies.iter().map(|one| (one.name.as_str(), one.dev)).collect();
        assert_eq!(dependencies, [("tenure", false), ("stateright", true)]);
    }

    #[test]
    fn metadata_without_packages_is_an_error() {
        let error = parse(Path::new("/src"), "{}").unwrap_err();
        assert_eq!(error.to_string(), "find packages");
    }
}
