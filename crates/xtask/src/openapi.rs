//! `cargo xtask openapi`: generates the committed `openapi.json`.
//!
//! The server crate generates the document from its routes. A test of that crate fails if the
//! committed file is out of date.

use std::path::Path;

use anyhow::{Context, Result};

use crate::shell;

const FILE: &str = "openapi.json";

/// Generates and writes the document.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut cargo = shell::cargo(root);
    cargo.args(["run", "--quiet", "--package", "tenure-cli", "--example", "openapi"]);
    let document = shell::output(&mut cargo)?;
    std::fs::write(root.join(FILE), document).with_context(|| format!("write {FILE}"))?;
    eprintln!("    wrote {FILE}");
    Ok(())
}
