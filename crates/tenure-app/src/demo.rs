//! Demos: scripted scenarios that show an app at work, run by `tenure demo NAME`.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use tenure::http::HttpTransport;

/// A scripted scenario of an app.
///
/// The command line starts a server on an embedded store in a private directory, runs the scenario
/// and verifies the history. So a scenario needs nothing but what it finds there, and a shell.
#[async_trait(?Send)]
pub trait Demo {
    /// Returns what the demo shows, in one line.
    fn summary(&self) -> &'static str;

    /// Returns the files of the private directory: relative path and text. One of them is
    /// `tenure.toml`; a text that starts with `#!` is made executable.
    fn files(&self) -> &'static [(&'static str, &'static str)];

    /// Runs the scenario through the API of the server and prints it to stdout as it happens.
    /// Fails if the server does something else than the scenario promises.
    async fn run(&self, server: &DemoServer) -> anyhow::Result<()>;

    /// Returns commands to try against the server, each with what it does.
    fn next(&self) -> &'static [(&'static str, &'static str)];
}

/// The server of a demo.
#[derive(Clone)]
pub struct DemoServer {
    url: String,
    key: String,
    dir: PathBuf,
}

impl DemoServer {
    /// Names a server, its admin key, and the private directory with the files of the demo.
    #[must_use]
    pub fn new(url: &str, key: &str, dir: &Path) -> Self {
        Self { url: url.to_owned(), key: key.to_owned(), dir: dir.to_owned() }
    }

    /// Returns the address, for processes that the demo starts.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the admin key, for processes that the demo starts. Pass it in their environment.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the private directory, which is removed at the end.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns a transport that acts for `tenant`; `*` for all tenants.
    pub fn transport(&self, tenant: &str) -> Result<HttpTransport, tenure::Error> {
        HttpTransport::new(&self.url, &self.key, tenant)
    }
}
