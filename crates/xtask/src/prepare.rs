//! Makes sure the machine has what the tests need, before anything is built.
//!
//! It installs only on Debian, only as root, and only what is missing. It must never end in a
//! compiler's or linker's message: whoever is not root gets one sentence that names the packages.
//!
//! Next: `machine` is the list of needs; a further need (a database, say) is one more line there.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Checks everything that `cargo xtask test` needs, and installs what it may.
pub(crate) fn machine(root: &Path) -> Result<()> {
    // SQLite is compiled from its C source.
    needs("cc", &["gcc", "libc6-dev"])?;
    // The example worker is run by a test.
    needs("python3", &["python3"])?;
    component(root, "fmt", "rustfmt")?;
    component(root, "clippy", "clippy")
}

/// Makes sure `program` is on the PATH, from these Debian packages if need be.
pub(crate) fn needs(program: &str, packages: &[&str]) -> Result<()> {
    match decide(on_path(program), is_debian(), is_root()) {
        Action::Nothing => Ok(()),
        Action::Install => install(program, packages),
        Action::Ask => bail!("{}", sentence(program, packages)),
    }
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
    shell::run(apt_get().args(["install", "--yes", "--no-install-recommends"]).args(packages))?;
    if !on_path(program) {
        bail!("`{program}` is still missing after installing {}", packages.join(" "));
    }
    Ok(())
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").arg("--quiet");
    command
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| is_executable(&folder.join(program)))
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
    fn programs_are_found_on_the_path() {
        assert!(on_path("sh"));
        assert!(!on_path("no-such-program"));
    }

    #[test]
    fn missing_component_names_the_rustup_command() {
        let error = component(Path::new("."), "no-such-verb", "rustfmt").unwrap_err();
        assert_eq!(error.to_string(), "rustfmt is missing: run `rustup component add rustfmt`");
    }
}
