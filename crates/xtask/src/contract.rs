//! `cargo xtask contract`: a real server must do what `openapi.json` says, and refuse the rest.
//!
//! It starts the binary on a store in memory and lets schemathesis send it a few thousand requests
//! that are made from the document, good ones and bad ones, always the same. What it asks for and
//! why is in `tools/contract`. It talks to nobody but that server.
//!
//! Next: `prepare.rs` installs schemathesis.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::{prepare, shell};

const FOLDER: &str = "tools/contract";
const LISTENING: &str = "listening on ";

/// Runs all checks of schemathesis; a single finding is a failure.
pub(crate) fn run(root: &Path) -> Result<()> {
    let target = target()?;
    let folder = root.join(FOLDER);
    let python = prepare::environment(&folder.join("requirements.txt"), &target.join("contract"))?;
    shell::run(shell::cargo(root).args(["build", "--package", "tenure-cli", "--bin", "tenure"]))?;
    let server = Server::start(&target, &folder)?;
    let mut schemathesis = Command::new(python.join("bin/schemathesis"));
    schemathesis
        .current_dir(&folder)
        .args(["run", "../../openapi.json", "--checks", "all"])
        .env("TENURE_SERVER", &server.url)
        .env("TENURE_KEY", server.key()?)
        // Nothing is left behind in the repository.
        .env("PYTHONDONTWRITEBYTECODE", "1");
    shell::run(&mut schemathesis)
}

/// Where cargo builds: this program is in `target/debug`.
fn target() -> Result<PathBuf> {
    let this = std::env::current_exe().context("find this program")?;
    let target = this.ancestors().nth(2).map(Path::to_path_buf);
    target.context("find the target directory")
}

/// A server process with a data directory of its own; both are gone when it is dropped.
struct Server {
    child: Child,
    data: PathBuf,
    url: String,
}

impl Server {
    fn start(target: &Path, folder: &Path) -> Result<Self> {
        let data = target.join("contract").join(format!("data-{}", std::process::id()));
        fs::create_dir_all(&data).with_context(|| format!("make {}", data.display()))?;
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
        let child =
            command.spawn().with_context(|| format!("start `{}`", shell::line(&command)))?;
        let mut server = Self { child, data, url: String::new() };
        server.url = server.greeting()?;
        Ok(server)
    }

    /// Reads what it says until it names its address; the rest is read and dropped.
    fn greeting(&mut self) -> Result<String> {
        let talk = self.child.stderr.take().context("its standard error is ours")?;
        let mut lines = BufReader::new(talk).lines();
        let said = |line: std::io::Result<String>| {
            let line = line.ok()?;
            line.split_once(LISTENING).map(|(_, url)| url.trim().to_owned())
        };
        let url = lines.by_ref().find_map(said);
        thread::spawn(move || lines.for_each(drop));
        url.context("the server ended before it listened: start it by hand to see why")
    }

    fn key(&self) -> Result<String> {
        let key = fs::read_to_string(self.data.join("admin.key")).context("read its admin.key")?;
        ensure!(!key.trim().is_empty(), "its admin.key is empty");
        Ok(key.trim().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has nothing to save. What cannot be removed is in the target directory.
        self.child.kill().ok();
        self.child.wait().ok();
        fs::remove_dir_all(&self.data).ok();
    }
}
