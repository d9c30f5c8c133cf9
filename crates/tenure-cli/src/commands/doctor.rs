//! `tenure doctor`: checks of a deployment.
//!
//! The checks of a database are in `tenure_store::postgres`. This module checks the file of an
//! embedded store and the server, and prints the findings.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use tenure::http::HttpTransport;
use tenure_store::postgres::{self, Finding, Verdict};

use super::serve::store_url;
use tenure_cli_kit::store::STORE_FORMS;
use tenure_cli_kit::store::explain;
use tenure_cli_kit::{DEFAULT_LISTEN, ServerArgs};
use tenure_cli_kit::{Done, Output, print_json};
use tenure_cli_kit::{color, exit, text};

/// Network file systems, by their `statfs` magic number.
const NETWORK_FILE_SYSTEMS: [(i64, &str); 7] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x5346_414F, "AFS"),
    (0x00C3_6400, "Ceph"),
    (0x0102_1997, "9P"),
];
const TMPFS: i64 = 0x0102_1994;
/// Free disk space below which a warning is reported.
const FREE_BYTES_MIN: u64 = 256 * 1024 * 1024;

/// Check the deployment and list the guarantees it weakens
///
/// Checks a store and a server. Each problem is listed with the guarantee that it voids and a
/// remedy. Exits with 1 if a guarantee is void, and with 0 if there are only warnings.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure doctor                                  check the local server and its data directory
  tenure doctor --store postgres://tenure@db/ops check a database
  tenure doctor --server https://10.0.0.5:7117    check one server
  tenure doctor -o json                          print the findings as JSON")]
pub(super) struct Doctor {
    /// Store to check: embedded:PATH or postgres://…
    #[arg(long, env = "TENURE_STORE", hide_env_values = true, value_name = "URL")]
    store: Option<String>,
    /// Server to check; needs no key
    // Repeats the global option: `ServerArgs::transport` would also require a key.
    #[arg(long, env = "TENURE_SERVER", value_name = "URL")]
    server: Option<String>,
}

/// The JSON output.
#[derive(Serialize)]
struct Report {
    ok: bool,
    findings: Vec<LocatedFinding>,
}

#[derive(Serialize)]
struct LocatedFinding {
    about: &'static str,
    #[serde(flatten)]
    finding: Finding,
}

impl Doctor {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let mut findings = Vec::new();
        let mut add = |about, found: Vec<Finding>| {
            findings.extend(found.into_iter().map(|finding| LocatedFinding { about, finding }));
        };
        if self.store.is_some() || self.server.is_none() {
            add("store", self.store(server).await?);
        }
        if self.server.is_some() || self.store.is_none() {
            add("server", self.server(server).await);
        }
        let ok = findings.iter().all(|located| located.finding.verdict != Verdict::Bad);
        let report = Report { ok, findings };
        match output {
            Output::Json => print_json(&report)?,
            Output::Table => print(&report)?,
        }
        Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
    }

    async fn store(&self, server: &ServerArgs) -> anyhow::Result<Vec<Finding>> {
        let url = match &self.store {
            Some(url) => url.clone(),
            None => store_url(None, &server.data().dir()?),
        };
        match url.split_once(':') {
            Some(("postgres" | "postgresql", _)) => {
                postgres::examine(&url).await.map_err(|error| explain(&error))
            }
            Some(("embedded", path)) if !path.is_empty() => Ok(check_embedded(Path::new(path))),
            Some(("memory", "")) => Ok(vec![Finding::bad(
                "safety class",
                "best effort",
                "all state is lost when the server ends, tokens included",
                "use embedded:PATH or postgres://… for anything that matters",
            )]),
            // The rest of the URL may contain a password.
            Some((scheme, _)) => bail!("{scheme}: is not a store; {STORE_FORMS}"),
            None => bail!("this is not a store; {STORE_FORMS}"),
        }
    }

    async fn server(&self, server: &ServerArgs) -> Vec<Finding> {
        let answer: Result<Value, _> =
            match HttpTransport::new(&self.address(server), "-", "default") {
                // Needs no key.
                Ok(transport) => transport.get("/readyz").await,
                Err(error) => Err(error),
            };
        match answer {
            Ok(ready) => evaluate_ready(&ready),
            Err(error) if self.server.is_some() => vec![Finding::bad(
                "ready",
                error.to_string(),
                "the server grants no locks and starts no jobs",
                "see that it runs and that its store is reachable; its log has the reason",
            )],
            Err(error) => vec![Finding::warn(
                "ready",
                error.to_string(),
                "nothing, if no server is supposed to run here",
                "start one with `tenure serve`, or name one with --server URL",
            )],
        }
    }
}

impl Doctor {
    /// Returns the address of the named server, or of the one that runs on this machine.
    fn address(&self, server: &ServerArgs) -> String {
        let published = || std::fs::read_to_string(server.data().address_file().ok()?).ok();
        let published = || published().map(|url| url.trim().to_owned());
        let published = || published().filter(|url| !url.is_empty());
        self.server.clone().or_else(published).unwrap_or_else(|| format!("http://{DEFAULT_LISTEN}"))
    }
}

/// Evaluates the readiness report of a server.
fn evaluate_ready(ready: &Value) -> Vec<Finding> {
    let field = |name: &str| ready[name].as_str().unwrap_or("unknown").to_owned();
    let incarnation = ready["incarnation"].as_u64().unwrap_or(0);
    let found = format!("store {}, incarnation {incarnation}", field("store"));
    let mut findings = vec![Finding::ok("ready", found)];
    findings.push(match &*field("safety") {
        "best effort" => Finding::bad(
            "safety class",
            "best effort",
            "a grant can be lost, and the same lock granted to another holder",
            "check its store with `tenure doctor --store URL`",
        ),
        safety => Finding::ok("safety class", safety),
    });
    for dependency in ready["dependencies"].as_array().into_iter().flatten() {
        if dependency["name"] == "wake-ups" {
            let detail = dependency["detail"].as_str().unwrap_or_default();
            findings.push(if dependency["ok"] == true {
                Finding::ok("wake-ups", detail)
            } else {
                Finding::warn(
                    "wake-ups",
                    detail,
                    "no lock guarantee; but waiting requests are served up to a second later",
                    "check its store with `tenure doctor --store URL`",
                )
            });
        }
    }
    for reason in ready["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        findings.push(Finding::warn(
            "reasons",
            reason,
            "see the reason itself",
            "see docs/guide/operating-jobs.md, the janitor",
        ));
    }
    findings
}

/// Checks the file of an embedded store without opening it: a server may have it locked.
fn check_embedded(file: &Path) -> Vec<Finding> {
    let mut dir = file.parent().unwrap_or(Path::new(".")).to_owned();
    if dir.as_os_str().is_empty() {
        dir = PathBuf::from(".");
    }
    let shown = dir.display();
    let (Ok(system), Ok(space)) = (rustix::fs::statfs(&dir), rustix::fs::statvfs(&dir)) else {
        return vec![Finding::warn(
            "directory",
            format!("{shown} cannot be read"),
            "nothing, if no store is supposed to be there",
            "start a server with `tenure serve`, or name the store with --store",
        )];
    };
    let what = if file.exists() { "has a store" } else { "has no store yet" };
    let mut findings = vec![Finding::ok("directory", format!("{shown} {what}"))];
    // The width of the field depends on the platform.
    #[expect(clippy::useless_conversion, reason = "needed on other platforms")]
    let magic = i64::from(system.f_type);
    findings.push(check_file_system(magic));
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let found = format!("{} MB free", free / 1024 / 1024);
    findings.push(if free >= FREE_BYTES_MIN {
        Finding::ok("disk", found)
    } else {
        Finding::warn("disk", found, "nothing is granted once the disk is full", "free disk space")
    });
    findings
}

fn check_file_system(magic: i64) -> Finding {
    let name = "file system";
    let network = NETWORK_FILE_SYSTEMS.iter().find(|(network, _)| *network == magic);
    match network {
        Some((_, kind)) => Finding::bad(
            name,
            *kind,
            "its file locks and fsync are unreliable, so a server refuses to start on it",
            "put the store on a local disk, or use postgres://…",
        ),
        None if magic == TMPFS => Finding::bad(
            name,
            "in memory",
            "a reboot loses all state, tokens included",
            "put the store on a local disk",
        ),
        None => Finding::ok(name, "local"),
    }
}

fn print(report: &Report) -> anyhow::Result<()> {
    let row = |located: &LocatedFinding| {
        let LocatedFinding { about, finding } = located;
        let verdict = match finding.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "WARN",
            Verdict::Bad => "BAD",
        };
        let about = format!("{about}: {}", finding.name);
        [color::state(verdict), about, text::cell(&finding.found)]
    };
    text::print_line(&text::table(["", "WHAT", "FOUND"], report.findings.iter().map(row)))?;
    for LocatedFinding { finding, .. } in &report.findings {
        if let (Some(voids), Some(remedy)) = (finding.voids, finding.remedy) {
            let found = text::sanitize(&finding.found);
            text::print_line(&format!(
                "\n{}: {found}\n  voids:  {voids}\n  remedy: {remedy}",
                finding.name
            ))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_and_in_memory_file_systems_are_bad() {
        assert_eq!(check_file_system(0xEF53).verdict, Verdict::Ok);
        assert_eq!(check_file_system(0x6969).verdict, Verdict::Bad);
        assert_eq!(check_file_system(TMPFS).verdict, Verdict::Bad);
    }

    #[test]
    fn readiness_reports_become_findings() {
        let ready = serde_json::json!({
            "store": "postgres", "safety": "exclusive", "incarnation": 3,
            "dependencies": [{ "name": "wake-ups", "ok": false, "detail": "none received" }],
        });
        let findings = evaluate_ready(&ready);
        let verdicts: Vec<_> = findings.iter().map(|finding| finding.verdict).collect();
        assert_eq!(verdicts, [Verdict::Ok, Verdict::Ok, Verdict::Warn]);
        assert_eq!(findings[0].found, "store postgres, incarnation 3");
        let findings = evaluate_ready(&serde_json::json!({ "safety": "best effort" }));
        assert_eq!(findings[1].verdict, Verdict::Bad);
    }
}
