//! Checks that the machine has the programs that the tests need, before anything is built.
//!
//! Installs missing packages on Debian as root; otherwise fails with a message that names the
//! packages, rather than with a compiler or linker error. Installs pytest and imitations of AWS
//! into the target directory.
//!
//! Requirements are listed in `machine`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Checks the requirements of `cargo xtask test`, and installs missing packages if possible.
pub(crate) fn machine(root: &Path) -> Result<()> {
    // SQLite is compiled from its C source.
    require_program("cc", &["gcc", "libc6-dev"])?;
    // promtool checks the alerts and the dashboard.
    require_program("promtool", &["prometheus"])?;
    // A test runs the example worker.
    require_program("python3", &["python3"])?;
    // The commands in the documents use these.
    for program in ["curl", "jq", "openssl", "sqlite3", "xxd"] {
        require_program(program, &[program])?;
    }
    require_program("pgrep", &["procps"])?;
    // Tests run workers whose clocks are wrong.
    require_program("faketime", &["faketime"])?;
    // schemathesis, pytest, moto and MiniStack are installed into virtual environments.
    require_python_module("ensurepip", &["python3-venv"])?;
    // Tests validate the files in deploy/.
    require_program("systemd-analyze", &["systemd"])?;
    require_python_module("yaml", &["python3-yaml"])?;
    // Tests start their own servers. Debian installs these programs outside the PATH.
    require_program_in("postgres", &postgres_folders(), &["postgresql-15"])?;
    require_program_in("pgbouncer", &[PathBuf::from("/usr/sbin")], &["pgbouncer"])?;
    require_component(root, "fmt", "rustfmt")?;
    require_component(root, "clippy", "clippy")?;
    // Tests run pytest with the plugin.
    let requirements = root.join("clients/pytest-tenure/requirements.txt");
    python_environment(&requirements, &target_directory()?.join("pytest"))?;
    // Tests start imitations of AWS.
    let requirements = root.join("apps/clusters/tests/cloud/requirements.txt");
    python_environment(&requirements, &target_directory()?.join("cloud"))?;
    // A test inspects the crates of every feature, including those that are not built here.
    shell::run(shell::cargo(root).args(["fetch", "--locked", "--quiet"]))
}

/// Returns cargo's target directory: this program is in its `debug` folder.
pub(crate) fn target_directory() -> Result<PathBuf> {
    let this = std::env::current_exe().context("find the path of this program")?;
    let target = this.ancestors().nth(2).map(Path::to_path_buf);
    target.context("find the target directory")
}

/// Requires `program` on the PATH; installs these Debian packages if it is missing.
pub(crate) fn require_program(program: &str, packages: &[&str]) -> Result<()> {
    require_program_in(program, &[], packages)
}

/// Requires `program` on the PATH or in one of these folders.
fn require_program_in(program: &str, folders: &[PathBuf], packages: &[&str]) -> Result<()> {
    match decide(is_installed(program, folders), is_debian(), is_root()) {
        Action::Nothing => return Ok(()),
        Action::Install => install(program, packages)?,
        Action::Fail => bail!("{}", install_hint(program, packages)),
    }
    // The installation may have created a PostgreSQL folder.
    let folders = [folders, &postgres_folders()].concat();
    if !is_installed(program, &folders) {
        bail!("`{program}` is still missing after installing {}", packages.join(" "));
    }
    Ok(())
}

/// Requires a Python module that Debian packages separately.
fn require_python_module(module: &str, packages: &[&str]) -> Result<()> {
    match decide(has_module(module), is_debian(), is_root()) {
        Action::Nothing => return Ok(()),
        Action::Install => install(module, packages)?,
        Action::Fail => bail!("{}", install_hint(module, packages)),
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

/// Returns a virtual environment in `folder` with exactly what `requirements` lists. Created if it
/// does not exist or the requirements have changed.
pub(crate) fn python_environment(requirements: &Path, folder: &Path) -> Result<PathBuf> {
    let (python, done) = (folder.join("python"), folder.join("installed.txt"));
    let required = fs::read_to_string(requirements)
        .with_context(|| format!("read {}", requirements.display()))?;
    if fs::read_to_string(&done).is_ok_and(|installed| installed == required) {
        return Ok(python);
    }
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    shell::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&python))?;
    let mut pip = Command::new(python.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--requirement"]);
    shell::run(pip.arg(requirements))?;
    // Written last, so that an incomplete installation is repeated.
    fs::write(&done, required).with_context(|| format!("write {}", done.display()))?;
    Ok(python)
}

/// Returns Debian's program folders of all installed PostgreSQL versions.
fn postgres_folders() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions.map(|version| version.path().join("bin")).collect()
}

#[derive(Debug, PartialEq, Eq)]
enum Action {
    Nothing,
    Install,
    Fail,
}

fn decide(present: bool, debian: bool, root: bool) -> Action {
    match (present, debian && root) {
        (true, _) => Action::Nothing,
        (false, true) => Action::Install,
        (false, false) => Action::Fail,
    }
}

fn install_hint(program: &str, packages: &[&str]) -> String {
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

fn is_installed(program: &str, folders: &[PathBuf]) -> bool {
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

/// Returns whether the effective user is root, from the owner of /proc/self: this needs neither
/// libc nor unsafe.
fn is_root() -> bool {
    Path::new("/proc/self").metadata().is_ok_and(|process| process.uid() == 0)
}

/// Requires `cargo <verb>`, which the rustup component provides.
fn require_component(root: &Path, verb: &str, component: &str) -> Result<()> {
    shell::output(shell::cargo(root).args([verb, "--version"]))
        .map(drop)
        .with_context(|| format!("{component} is missing: run `rustup component add {component}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_program_needs_no_action() {
        assert_eq!(decide(true, true, true), Action::Nothing);
        assert_eq!(decide(true, false, false), Action::Nothing);
    }

    #[test]
    fn missing_program_is_installed_only_by_root_on_debian() {
        assert_eq!(decide(false, true, true), Action::Install);
        assert_eq!(decide(false, true, false), Action::Fail);
        assert_eq!(decide(false, false, true), Action::Fail);
    }

    #[test]
    fn install_hint_names_program_and_packages() {
        let expected = "`cc` is missing; on Debian: sudo apt-get install gcc libc6-dev";
        assert_eq!(install_hint("cc", &["gcc", "libc6-dev"]), expected);
    }

    #[test]
    fn python_modules_are_found() {
        assert!(has_module("json"));
        assert!(!has_module("no_such_module"));
    }

    #[test]
    fn up_to_date_environment_is_not_recreated() {
        let folder = std::env::temp_dir().join(format!("environment-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let requirements = folder.join("requirements.txt");
        fs::write(&requirements, "one==1\n").unwrap();
        fs::write(folder.join("installed.txt"), "one==1\n").unwrap();
        assert_eq!(python_environment(&requirements, &folder).unwrap(), folder.join("python"));
        assert!(!folder.join("python").exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(is_installed("sh", &[]));
        assert!(!is_installed("no-such-program", &[]));
    }

    #[test]
    fn programs_are_found_outside_the_path() {
        let folder = std::env::temp_dir().join(format!("prepare-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink("/bin/sh", folder.join("only-here")).unwrap();
        assert!(!is_installed("only-here", &[]));
        assert!(is_installed("only-here", std::slice::from_ref(&folder)));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn missing_component_names_the_rustup_command() {
        let error = require_component(Path::new("."), "no-such-verb", "rustfmt").unwrap_err();
        assert_eq!(error.to_string(), "rustfmt is missing: run `rustup component add rustfmt`");
    }
}
