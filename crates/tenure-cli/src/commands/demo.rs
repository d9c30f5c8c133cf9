//! `tenure demo`: an app at work, on a server of its own in a private directory.
//!
//! The scenario is the app's (`App::demo`); this file has what all demos share: the directory, the
//! server, the verification of the history, and the end.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use serde_json::json;
use tempfile::TempDir;
use tenure_app::{Apps, Demo, DemoServer};
use tenure_cli_kit::document::usage_error;
use tenure_cli_kit::text::{count, print_line};
use tenure_cli_kit::{Done, Output, exit, print_json};
use tenure_config::FILE_NAME;
use tenure_core::session::ALL_TENANTS;
use tenure_wire::VerifyResponse;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::serve::{ServerOptions, ServerProcess, StopHandle, store_url};

/// Any free port: a demo must not disturb a server on the default one.
const LISTEN: &str = "127.0.0.1:0";

/// Show an app at work in a private directory; nothing to configure
///
/// Starts a server on a free loopback port with an embedded store in a temporary directory, runs a
/// scripted scenario through its API, and verifies the history. Then the server stops and the
/// directory is removed. Without an argument, lists the demos. Exits with 0 only if everything
/// happened as the scenario promises.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure demo                                    list the demos
  tenure demo APP                                run one; takes less than a minute
  tenure demo APP --keep                         keep its server, to look around

Ctrl-C stops the server and removes the directory; before the end of the scenario it exits with
130.")]
pub(super) struct DemoVerb {
    /// The app
    #[arg(value_name = "APP")]
    app: Option<String>,
    /// Keep the server running after the scenario, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

/// How the scenario ended.
enum Ending {
    /// As promised.
    Complete,
    /// Stopped by a signal.
    Interrupted,
}

impl DemoVerb {
    pub(super) async fn run(&self, apps: &Apps, output: Output) -> Done {
        let demos = apps.iter().filter_map(|app| Some((app.name(), app.demo()?)));
        let demos: Vec<(&str, Box<dyn Demo>)> = demos.collect();
        if demos.is_empty() {
            bail!("no app of this binary has a demo; build it with the features of its apps");
        }
        let Some(name) = self.app.as_deref() else { return list(&demos, output) };
        let Some((name, demo)) = demos.iter().find(|(known, _)| *known == name) else {
            let names: Vec<&str> = demos.iter().map(|(name, _)| *name).collect();
            let known = names.join(", ");
            return Err(usage_error(format!(
                "there is no demo {name:?}; expected one of: {known}"
            )));
        };
        let dir = tempfile::Builder::new().prefix("tenure-demo-").tempdir();
        let dir = dir.context("cannot create a temporary directory; name another with TMPDIR")?;
        let ended = self.run_in(&dir, apps, (name, &**demo)).await;
        let path = dir.path().display().to_string();
        let removed = dir.close();
        let ended = ended?;
        removed.with_context(|| format!("cannot remove {path}; remove it yourself"))?;
        match ended {
            Ending::Complete => Ok(ExitCode::SUCCESS),
            Ending::Interrupted => Ok(ExitCode::from(exit::INTERRUPTED)),
        }
    }

    /// Starts the server, runs the demo and stops the server.
    async fn run_in(
        &self,
        dir: &TempDir,
        apps: &Apps,
        (name, demo): (&str, &dyn Demo),
    ) -> anyhow::Result<Ending> {
        let data = dir.path();
        write_files(data, demo.files())?;
        let options = ServerOptions {
            apps,
            listen: LISTEN,
            plain_http: false,
            store: store_url(None, data),
            data: data.to_owned(),
            address_file: data.join("server.url"),
            config: Some(data.join(FILE_NAME)),
            admin_key_file: None,
            linger: Duration::ZERO,
        };
        let process = ServerProcess::start(options).await?;
        let (stop, mut hangup) = (process.stop_handle(), signal(SignalKind::hangup())?);
        let key = fs::read_to_string(process.key_path()).context("cannot read the admin key")?;
        let url = process.url().to_owned();
        let server = DemoServer::new(&url, key.trim(), data);
        let data = data.display().to_string();
        let scenario = async {
            print_line(&format!("{name}: {}", demo.summary()))?;
            print_line(&format!("server {url}, TENURE_DATA={data}"))?;
            demo.run(&server).await?;
            verify(&server).await?;
            self.print_next((name, demo), &url, &data)
        };
        let completed = async {
            let ending = tokio::select! {
                ran = scenario => ran.map(|()| Ending::Complete),
                () = stopped(&stop, &mut hangup) => Ok(Ending::Interrupted),
            };
            if self.keep && matches!(ending, Ok(Ending::Complete)) {
                stopped(&stop, &mut hangup).await;
            }
            stop.stop();
            ending
        };
        let served = process.run();
        tokio::pin!(served);
        tokio::select! {
            // Ends before the scenario only on a failure.
            served = &mut served => served.map(|()| Ending::Interrupted),
            ending = completed => {
                served.await?;
                ending
            }
        }
    }

    /// Prints the commands to try.
    fn print_next(
        &self,
        (name, demo): (&str, &dyn Demo),
        url: &str,
        data: &str,
    ) -> anyhow::Result<()> {
        let line = |command: &str, meaning: &str| format!("next: {command:<55} {meaning}");
        print_line("")?;
        if self.keep {
            let export = format!("export TENURE_DATA={data}");
            print_line(&line(&export, "in another terminal, for these commands:"))?;
        } else {
            let again = format!("tenure demo {name} --keep");
            print_line(&line(&again, "keeps such a server and prints its TENURE_DATA, to try:"))?;
        }
        demo.next()
            .iter()
            .try_for_each(|(command, meaning)| print_line(&line(command, meaning)))?;
        print_line(&if self.keep {
            format!("{url} serves until Ctrl-C, then {data} is removed")
        } else {
            format!("{url} stops now, and {data} is removed")
        })
    }
}

/// Waits until the server stops on a signal, or the terminal is closed.
async fn stopped(stop: &StopHandle, hangup: &mut Signal) {
    tokio::select! {
        () = stop.stopping() => {}
        _ = hangup.recv() => {}
    }
}

/// Prints one line per demo.
fn list(demos: &[(&str, Box<dyn Demo>)], output: Output) -> Done {
    if output == Output::Json {
        let listed = demos.iter().map(|(name, demo)| (name, demo.summary()));
        let listed = listed.map(|(name, summary)| json!({ "name": name, "summary": summary }));
        print_json(&listed.collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    for (name, demo) in demos {
        print_line(&format!("tenure demo {name:<12} {}", demo.summary()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the files of a demo below `dir`.
fn write_files(dir: &Path, files: &[(&str, &str)]) -> anyhow::Result<()> {
    for (name, text) in files {
        let path = dir.join(name);
        write_file(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Writes a file, executable if it is a script, and the directories above it.
fn write_file(path: &Path, text: &str) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let mode = if text.starts_with("#!") { 0o700 } else { 0o600 };
    let file = fs::File::options().write(true).create_new(true).mode(mode).open(path);
    file?.write_all(text.as_bytes())
}

/// Proves from the history that no lock had two holders, as `tenure verify` does.
async fn verify(server: &DemoServer) -> anyhow::Result<()> {
    let answer: VerifyResponse = server.transport(ALL_TENANTS)?.get("/v1/verify").await?;
    let VerifyResponse { ok, resources, entries, grants, problems } = answer;
    let found = count(problems.len(), "violation");
    print_line(&format!(
        "verify: {entries} history entries of {resources} resources, {grants} tenures: {found}"
    ))?;
    ensure!(ok, "the history contradicts itself: {}", problems.join("; "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps;

    #[test]
    fn every_demo_has_a_valid_configuration() {
        for app in apps::installed().iter() {
            let Some(demo) = app.demo() else { continue };
            let dir = tempfile::tempdir().unwrap();
            write_files(dir.path(), demo.files()).unwrap();
            let loaded = apps::installed().load(&dir.path().join(FILE_NAME)).unwrap();
            assert!(loaded.apps.named(app.name()).is_some(), "{} is not configured", app.name());
        }
    }
}
