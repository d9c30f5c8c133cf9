//! Inventory of an installation by a program that prints one resource per line.
//!
//! Only a program that ends with 0 in time has answered: anything else means that nothing is known,
//! and never that nothing exists. It runs in a process group of its own, which is killed with it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

use super::{Inventory, InventoryError};
use crate::artifacts::redact::Redactor;
use crate::settings::Settings;
use crate::status::Infra;

/// Time limit of the program.
pub const TIME_LIMIT: Duration = Duration::from_secs(120);
/// Maximum size of its output.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// Maximum length of what is quoted of its messages.
const MESSAGE_CHARS_MAX: usize = 300;
/// Variables that it gets of this process in any case.
const PASSED: [&str; 4] = ["HOME", "LANG", "PATH", "TZ"];

/// Finds the resources of installations with a program.
#[derive(Clone, Debug)]
pub struct CommandInventory {
    argv: Vec<String>,
    pass_env: Vec<String>,
    limit: Duration,
}

impl CommandInventory {
    /// Creates the inventory of a program and its arguments. It gets the variables of this process
    /// that the settings name for the installer.
    #[must_use]
    pub fn new(argv: &[String], settings: &Settings) -> Self {
        let pass_env = settings.pass_env.clone();
        Self { argv: argv.to_vec(), pass_env, limit: TIME_LIMIT }
    }

    /// Replaces [`TIME_LIMIT`].
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    fn command(&self, infra: &Infra) -> Result<Command, InventoryError> {
        let Some((program, args)) = self.argv.split_first() else {
            return Err(InventoryError("no program is configured".to_owned()));
        };
        let mut command = Command::new(program);
        command.args(args).env_clear().envs(self.passed(std::env::vars_os()));
        command.env("INFRA_ID", &infra.infra_id).env("CLUSTER_ID", &infra.cluster_id);
        command.env("REGION", &infra.region).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    /// Returns the variables that the program gets.
    fn passed(&self, all: impl Iterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
        all.filter(|(name, _)| self.passes(name)).collect()
    }

    fn passes(&self, name: &OsStr) -> bool {
        let Some(name) = name.to_str() else { return false };
        let matches = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == pattern,
        };
        PASSED.contains(&name) || self.pass_env.iter().any(matches)
    }

    async fn run(&self, infra: &Infra) -> Result<String, String> {
        let mut command = self.command(infra).map_err(|error| error.0)?;
        let program = &self.argv[0];
        let child = command.spawn().map_err(|error| format!("cannot start {program}: {error}"))?;
        let mut group = Group { child, is_reaped: false };
        let broken = |error: io::Error| format!("cannot read the output of {program}: {error}");
        let stdout = receiver(group.child.stdout.take().map(OwnedFd::from)).map_err(broken)?;
        let stderr = receiver(group.child.stderr.take().map(OwnedFd::from)).map_err(broken)?;
        let pid = Pid::from_child(&group.child);
        let ended = async {
            let (stdout, stderr) = tokio::join!(read(stdout), read(stderr));
            let (stdout, stderr) = (stdout.map_err(broken)?, stderr.map_err(broken)?);
            wait_for_end(pid).await.map_err(broken)?;
            Ok::<_, String>((stdout, stderr))
        };
        let limit = self.limit;
        let (stdout, stderr) = tokio::time::timeout(limit, ended)
            .await
            .map_err(|_| format!("{program} has not ended within {limit:?}, and was killed"))??;
        let status = group.kill().map_err(broken)?;
        if !status.success() {
            return Err(format!("{program} failed ({status}): {}", message(&stderr)));
        }
        if stdout.len() > OUTPUT_BYTES_MAX {
            return Err(format!("{program} printed more than {OUTPUT_BYTES_MAX} bytes"));
        }
        String::from_utf8(stdout).map_err(|_| format!("{program} printed what is not UTF-8"))
    }
}

#[async_trait]
impl Inventory for CommandInventory {
    async fn list(&self, infra: &Infra) -> Result<Vec<String>, InventoryError> {
        let output = self.run(infra).await.map_err(InventoryError)?;
        let lines = output.lines().map(str::trim).filter(|line| !line.is_empty());
        Ok(lines.map(str::to_owned).collect())
    }
}

/// A process and its group, which do not outlive this value.
struct Group {
    child: Child,
    is_reaped: bool,
}

impl Group {
    /// Kills what is left of the group, and reaps its first process.
    fn kill(&mut self) -> io::Result<ExitStatus> {
        // Its id is not used again as long as it is not reaped.
        kill_process_group(Pid::from_child(&self.child), Signal::KILL).ok();
        self.is_reaped = true;
        self.child.wait()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_reaped {
            self.kill().ok();
        }
    }
}

fn receiver(stream: Option<OwnedFd>) -> io::Result<Receiver> {
    Receiver::from_owned_fd(stream.ok_or(io::ErrorKind::BrokenPipe)?)
}

/// Reads a stream to its end, or until it is too long.
async fn read(stream: Receiver) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(OUTPUT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).await?;
    Ok(bytes)
}

/// Waits until a child has ended, without reaping it.
async fn wait_for_end(pid: Pid) -> io::Result<()> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let wait = move || waitid(WaitId::Pid(pid), options).map(drop).map_err(io::Error::from);
    tokio::task::spawn_blocking(wait).await.map_err(io::Error::other)?
}

/// Returns the last line of the messages of a program that has no secrets.
fn message(stderr: &[u8]) -> String {
    let text = Redactor::text(stderr);
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    line.unwrap_or("it printed no message").chars().take(MESSAGE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests;
