//! `cargo xtask tidy`: project rules that neither rustfmt nor clippy can check.
//!
//! A rule is a pure function of a path and its text, so that every rule has a test with samples
//! that fail and pass. All findings are reported together.
//!
//! `lines.rs` checks single lines, `words.rs` the vocabulary, `shape.rs` files and functions,
//! `seams.rs` clock access and examples, `arrows.rs` dependencies; `rust.rs` scans Rust text.

mod arrows;
mod lines;
mod rust;
mod seams;
mod shape;
mod words;

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{metadata, shell};

/// Checks one file and returns its findings.
type Rule = fn(path: &str, text: &str) -> Vec<Finding>;

const RULES: [Rule; 12] = [
    lines::width,
    lines::trailing_space,
    lines::tabs,
    lines::banned_words,
    lines::private_paths,
    words::vocabulary,
    shape::file_length,
    shape::function_length,
    shape::module_doc,
    seams::clock,
    seams::library_examples,
    arrows::lock_file,
];

/// A violation of a rule, formatted as `file:line: message`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Checks all rules on all files and prints the findings to stdout.
pub(crate) fn run(root: &Path) -> Result<()> {
    let paths = paths(root)?;
    let mut findings = arrows::check(&metadata::packages(root)?);
    for path in &paths {
        findings.extend(check_file(root, path)?);
    }
    findings.sort();
    report(&findings, paths.len())
}

/// Returns the files that git tracks or would track after `git add`, without vendored ones.
fn paths(root: &Path) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let list = shell::output(&mut git)?;
    Ok(list
        .split_terminator('\0')
        .filter(|path| !is_under(path, "vendor"))
        .map(Into::into)
        .collect())
}

fn check_file(root: &Path, path: &str) -> Result<Vec<Finding>> {
    let file = root.join(path);
    // Git lists files whose deletion is not staged yet.
    if !file.is_file() {
        return Ok(Vec::new());
    }
    let bytes = std::fs::read(file).with_context(|| format!("read {path}"))?;
    // Files that are not UTF-8 are images or archives.
    Ok(std::str::from_utf8(&bytes).map_or_else(|_| Vec::new(), |text| check(path, text)))
}

fn check(path: &str, text: &str) -> Vec<Finding> {
    RULES.iter().flat_map(|rule| rule(path, text)).collect()
}

fn report(findings: &[Finding], files: usize) -> Result<()> {
    let mut out = io::stdout().lock();
    for finding in findings {
        writeln!(out, "{finding}").context("write findings")?;
    }
    if !findings.is_empty() {
        bail!("tidy has {} findings in {files} files", findings.len());
    }
    eprintln!("    tidy has no findings in {files} files");
    Ok(())
}

fn is_rust(path: &str) -> bool {
    path.ends_with(".rs")
}

fn is_under(path: &str, folder: &str) -> bool {
    path.rsplit('/').skip(1).any(|part| part == folder)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_is_formatted_as_file_line_message() {
        let finding = Finding::new("src/lib.rs", 7, "too long");
        assert_eq!(finding.to_string(), "src/lib.rs:7: too long");
    }

    #[test]
    fn all_rules_report_together() {
        let text = format!("let a = 1; \n\tlet b = {};\n", "1".repeat(100));
        let found: Vec<_> = check("src/lib.rs", &text).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 4, "{found:#?}");
    }

    #[test]
    fn clean_file_has_no_findings() {
        assert_eq!(check("src/lib.rs", "//! Says why.\n\nfn f() {}\n"), []);
    }

    #[test]
    fn folders_match_by_full_name() {
        assert!(is_under("a/tests/b.rs", "tests"));
        assert!(!is_under("a/contests/b.rs", "tests"));
        assert!(!is_under("a/tests", "tests"));
    }

    #[test]
    fn findings_fail_the_run_with_their_count() {
        let findings = [Finding::new("a", 1, "b"), Finding::new("a", 2, "b")];
        let error = report(&findings, 9).unwrap_err();
        assert_eq!(error.to_string(), "tidy has 2 findings in 9 files");
        assert!(report(&[], 9).is_ok());
    }
}
