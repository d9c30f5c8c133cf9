//! `cargo xtask contract`: tests a real server against `openapi.json`.
//!
//! Starts the binary with an in-memory store and runs schemathesis, which sends a few thousand
//! valid and invalid requests generated from the document with a fixed seed. Its configuration is
//! in `tools/contract`. No other host is contacted.
//!
//! `prepare.rs` installs schemathesis.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::{prepare, shell};

const FOLDER: &str = "tools/contract";
const LISTENING: &str = "listening on ";

/// Runs all checks of schemathesis; any finding is a failure.
pub(crate) fn run(root: &Path) -> Result<()> {
    let target = prepare::target_directory()?;
    let folder = root.join(FOLDER);
    let python =
        prepare::python_environment(&folder.join("requirements.txt"), &target.join("contract"))?;
    shell::run(shell::cargo(root).args(["build", "--package", "tenure-cli", "--bin", "tenure"]))?;
    let server = Server::start(&target, &folder)?;
    let mut schemathesis = Command::new(python.join("bin/schemathesis"));
    schemathesis
        .current_dir(&folder)
        .args(["run", "../../openapi.json", "--checks", "all"])
        .env("TENURE_SERVER", &server.url)
        .env("TENURE_KEY", server.key()?)
        // Keeps bytecode files out of the repository.
        .env("PYTHONDONTWRITEBYTECODE", "1");
    shell::run(&mut schemathesis)
}

/// A server process with its own data directory; dropping it removes both.
struct Server {
    child: Child,
    data: PathBuf,
    url: String,
}

impl Server {
    fn start(target: &Path, folder: &Path) -> Result<Self> {
        let data = target.join("contract").join(format!("data-{}", std::process::id()));
        fs::create_dir_all(&data).with_context(|| format!("create {}", data.display()))?;
        let mut command = Command::new(target.join("debug/tenure"));
        for name in ["SERVER", "KEY", "STORE", "TENANT", "LOG", "CONFIG", "DATA"] {
            command.env_remove(format!("TENURE_{name}"));
        }
        command
            .args(["serve", "--store", "memory:", "--listen", "127.0.0.1:0", "--data"])
            .arg(&data)
            .arg("--config")
            .arg(folder.join("tenure.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let child = command
            .spawn()
            .with_context(|| format!("start `{}`", shell::command_line(&command)))?;
        let mut server = Self { child, data, url: String::new() };
        server.url = server.read_url()?;
        Ok(server)
    }

    /// Reads stderr until the server logs its URL; a thread drains the rest.
    fn read_url(&mut self) -> Result<String> {
        let stderr = self.child.stderr.take().context("stderr is piped")?;
        let mut lines = BufReader::new(stderr).lines();
        let url_in = |line: std::io::Result<String>| {
            let line = line.ok()?;
            line.split_once(LISTENING).map(|(_, url)| url.trim().to_owned())
        };
        let url = lines.by_ref().find_map(url_in);
        thread::spawn(move || lines.for_each(drop));
        url.context("the server exited before it listened; start it by hand to see why")
    }

    fn key(&self) -> Result<String> {
        let key = fs::read_to_string(self.data.join("admin.key")).context("read admin.key")?;
        ensure!(!key.trim().is_empty(), "admin.key is empty");
        Ok(key.trim().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The store is in memory, so the server can be killed. Leftovers are in the target
        // directory.
        self.child.kill().ok();
        self.child.wait().ok();
        fs::remove_dir_all(&self.data).ok();
    }
}
