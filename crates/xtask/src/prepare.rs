//! Makes sure the machine has what the tests need, before anything is built.
//!
//! It installs only on Debian, only as root, and only what is missing. It must never end in a
//! compiler's or linker's message: whoever is not root gets one sentence that names the packages.
//!
//! Next: `machine` is the list of needs; a further need (a database, say) is one more line there.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Checks everything that `cargo xtask test` needs, and installs what it may.
pub(crate) fn machine(root: &Path) -> Result<()> {
    // SQLite is compiled from its C source.
    needs("cc", &["gcc", "libc6-dev"])?;
    // Alerts and the dashboard are checked by the tool of Prometheus.
    needs("promtool", &["prometheus"])?;
    // The example worker is run by a test.
    needs("python3", &["python3"])?;
    // So is schemathesis, which is installed into an environment of its own.
    needs_module("ensurepip", &["python3-venv"])?;
    // What is in deploy/ is read by those who will read it.
    needs("systemd-analyze", &["systemd"])?;
    needs_module("yaml", &["python3-yaml"])?;
    // Tests start servers of their own. Debian keeps these programs off the PATH.
    needs_at("postgres", &postgres_folders(), &["postgresql-15"])?;
    needs_at("pgbouncer", &[PathBuf::from("/usr/sbin")], &["pgbouncer"])?;
    component(root, "fmt", "rustfmt")?;
    component(root, "clippy", "clippy")?;
    // A test looks at the crates of every feature, also of those that are never built here.
    shell::run(shell::cargo(root).args(["fetch", "--locked", "--quiet"]))
}

/// Makes sure `program` is on the PATH, from these Debian packages if need be.
pub(crate) fn needs(program: &str, packages: &[&str]) -> Result<()> {
    needs_at(program, &[], packages)
}

/// The same, for a program that may also be in one of these folders.
fn needs_at(program: &str, folders: &[PathBuf], packages: &[&str]) -> Result<()> {
    match decide(is_there(program, folders), is_debian(), is_root()) {
        Action::Nothing => return Ok(()),
        Action::Install => install(program, packages)?,
        Action::Ask => bail!("{}", sentence(program, packages)),
    }
    // What was just installed may have made a folder that was not there before.
    let folders = [folders, &postgres_folders()].concat();
    if !is_there(program, &folders) {
        bail!("`{program}` is still missing after installing {}", packages.join(" "));
    }
    Ok(())
}

/// Makes sure that Python has a module which Debian packs apart.
fn needs_module(module: &str, packages: &[&str]) -> Result<()> {
    match decide(has_module(module), is_debian(), is_root()) {
        Action::Nothing => return Ok(()),
        Action::Install => install(module, packages)?,
        Action::Ask => bail!("{}", sentence(module, packages)),
    }
    if !has_module(module) {
        bail!("python3 has no `{module}` after installing {}", packages.join(" "));
    }
    Ok(())
}

fn has_module(module: &str) -> bool {
    let import = format!("import {module}");
    shell::output(Command::new("python3").args(["-c", &import])).is_ok()
}

/// A Python environment in `folder` with exactly what `requirements` names; made when it is not
/// there or they have changed.
pub(crate) fn environment(requirements: &Path, folder: &Path) -> Result<PathBuf> {
    let (python, done) = (folder.join("python"), folder.join("installed.txt"));
    let wanted = fs::read_to_string(requirements)
        .with_context(|| format!("read {}", requirements.display()))?;
    if fs::read_to_string(&done).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    shell::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&python))?;
    let mut pip = Command::new(python.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--requirement"]);
    shell::run(pip.arg(requirements))?;
    // Last, so that half an installation is never taken for a whole one.
    fs::write(&done, wanted).with_context(|| format!("write {}", done.display()))?;
    Ok(python)
}

/// Where Debian puts the programs of each version of PostgreSQL.
fn postgres_folders() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions.map(|version| version.path().join("bin")).collect()
}

#[derive(Debug, PartialEq, Eq)]
enum Action {
    Nothing,
    Install,
    Ask,
}

fn decide(present: bool, debian: bool, root: bool) -> Action {
    match (present, debian && root) {
        (true, _) => Action::Nothing,
        (false, true) => Action::Install,
        (false, false) => Action::Ask,
    }
}

fn sentence(program: &str, packages: &[&str]) -> String {
    let packages = packages.join(" ");
    format!("`{program}` is missing; on Debian: sudo apt-get install {packages}")
}

fn install(program: &str, packages: &[&str]) -> Result<()> {
    eprintln!("    `{program}` is missing, installing {}", packages.join(" "));
    shell::run(apt_get().arg("update"))?;
    shell::run(apt_get().args(["install", "--yes", "--no-install-recommends"]).args(packages))
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").arg("--quiet");
    command
}

fn is_there(program: &str, folders: &[PathBuf]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path);
    on_path.chain(folders.iter().cloned()).any(|folder| is_executable(&folder.join(program)))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
}

fn is_debian() -> bool {
    Path::new("/etc/debian_version").exists()
}

/// The owner of our own entry in /proc is the effective user; this needs neither libc nor unsafe.
fn is_root() -> bool {
    Path::new("/proc/self").metadata().is_ok_and(|process| process.uid() == 0)
}

/// Makes sure `cargo <verb>` works, which rustup provides as `component`.
fn component(root: &Path, verb: &str, component: &str) -> Result<()> {
    shell::output(shell::cargo(root).args([verb, "--version"]))
        .map(drop)
        .with_context(|| format!("{component} is missing: run `rustup component add {component}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_is_present_needs_nothing() {
        assert_eq!(decide(true, true, true), Action::Nothing);
        assert_eq!(decide(true, false, false), Action::Nothing);
    }

    #[test]
    fn missing_program_is_installed_only_by_root_on_debian() {
        assert_eq!(decide(false, true, true), Action::Install);
        assert_eq!(decide(false, true, false), Action::Ask);
        assert_eq!(decide(false, false, true), Action::Ask);
    }

    #[test]
    fn sentence_names_program_and_packages() {
        let expected = "`cc` is missing; on Debian: sudo apt-get install gcc libc6-dev";
        assert_eq!(sentence("cc", &["gcc", "libc6-dev"]), expected);
    }

    #[test]
    fn modules_of_python_are_found() {
        assert!(has_module("json"));
        assert!(!has_module("no_such_module"));
    }

    #[test]
    fn an_environment_that_fits_is_not_made_again() {
        let folder = std::env::temp_dir().join(format!("environment-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let requirements = folder.join("requirements.txt");
        fs::write(&requirements, "one==1\n").unwrap();
        fs::write(folder.join("installed.txt"), "one==1\n").unwrap();
        assert_eq!(environment(&requirements, &folder).unwrap(), folder.join("python"));
        assert!(!folder.join("python").exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(is_there("sh", &[]));
        assert!(!is_there("no-such-program", &[]));
    }

    #[test]
    fn programs_are_found_off_the_path() {
        let folder = std::env::temp_dir().join(format!("prepare-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/bin/sh", folder.join("only-here")).unwrap();
        assert!(!is_there("only-here", &[]));
        assert!(is_there("only-here", std::slice::from_ref(&folder)));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn missing_component_names_the_rustup_command() {
        let error = component(Path::new("."), "no-such-verb", "rustfmt").unwrap_err();
        assert_eq!(error.to_string(), "rustfmt is missing: run `rustup component add rustfmt`");
    }
}
