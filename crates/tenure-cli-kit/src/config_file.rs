//! The option that names `tenure.toml`.

use std::path::PathBuf;

use clap::Args;
use tenure_config::FILE_NAME;

/// The option that names `tenure.toml`.
#[derive(Args, Clone, Debug)]
pub struct ConfigFile {
    /// Configuration file [default: ./tenure.toml if it exists]
    #[arg(long = "config", env = "TENURE_CONFIG", value_name = "FILE")]
    file: Option<PathBuf>,
}

impl ConfigFile {
    /// Returns the named file, or the default one if it exists.
    #[must_use]
    pub fn find(&self) -> Option<PathBuf> {
        let default = PathBuf::from(FILE_NAME);
        self.file.clone().or_else(|| default.exists().then_some(default))
    }

    /// Returns the named file, or the default one whether it exists or not.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.file.clone().unwrap_or_else(|| FILE_NAME.into())
    }
}
