//! `cargo xtask openapi`: writes `openapi.json`, the contract that is committed.
//!
//! The document is made by the server's crate from its routes. A test of that crate compares it
//! with the file, so nobody can forget this.

use std::path::Path;

use anyhow::{Context, Result};

use crate::shell;

const FILE: &str = "openapi.json";

/// Writes the document as the routes make it now.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut cargo = shell::cargo(root);
    cargo.args(["run", "--quiet", "--package", "tenure-cli", "--example", "openapi"]);
    let document = shell::output(&mut cargo)?;
    std::fs::write(root.join(FILE), document).with_context(|| format!("write {FILE}"))?;
    eprintln!("    {FILE} is written");
    Ok(())
}
