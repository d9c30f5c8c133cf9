//! `tenure doctor`
//!
//! What is looked at in a database is in `tenure_store::postgres`; here are the file, the server,
//! and the table for people.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use tenure::http::HttpTransport;
use tenure_store::postgres::{self, Finding, Verdict};

use super::serve::store_url;
use tenure_cli_kit::store::STORES;
use tenure_cli_kit::store::explain;
use tenure_cli_kit::{DEFAULT_LISTEN, ServerArgs};
use tenure_cli_kit::{Done, Output, print_json};
use tenure_cli_kit::{exit, text};

/// File systems that are not a local disk, by the numbers the kernel gives them.
const NETWORK: [(i64, &str); 7] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x5346_414F, "AFS"),
    (0x00C3_6400, "Ceph"),
    (0x0102_1997, "9P"),
];
const TMPFS: i64 = 0x0102_1994;
/// Less room than this on the disk is soon none.
const ROOM_MIN: u64 = 256 * 1024 * 1024;

/// Probe the deployment and say what it voids
///
/// Looks at a store and at a server, and says for each finding which promise does not hold with it
/// and what to do. Exits with 1 if something is bad, and with 0 if there are warnings at most.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure doctor                                  the server of this machine and its data directory
  tenure doctor --store postgres://tenure@db/ops the database, as servers with this address see it
  tenure doctor --server http://10.0.0.5:7117    only that server
  tenure doctor -o json                          for programs")]
pub(super) struct Doctor {
    /// Store to probe: embedded:PATH or postgres://…
    #[arg(long, env = "TENURE_STORE", hide_env_values = true, value_name = "URL")]
    store: Option<String>,
    /// Server to probe; it needs no key
    // The same as for every verb. It is said again here, because those want a key as well.
    #[arg(long, env = "TENURE_SERVER", value_name = "URL")]
    server: Option<String>,
}

/// What was found, and where.
#[derive(Serialize)]
struct Report {
    ok: bool,
    findings: Vec<Placed>,
}

#[derive(Serialize)]
struct Placed {
    about: &'static str,
    #[serde(flatten)]
    finding: Finding,
}

impl Doctor {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let mut findings = Vec::new();
        let mut add = |about, found: Vec<Finding>| {
            findings.extend(found.into_iter().map(|finding| Placed { about, finding }));
        };
        if self.store.is_some() || self.server.is_none() {
            add("store", self.store(server).await?);
        }
        if self.server.is_some() || self.store.is_none() {
            add("server", self.server(server).await);
        }
        let ok = findings.iter().all(|placed| placed.finding.verdict != Verdict::Bad);
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
            Some(("embedded", path)) if !path.is_empty() => Ok(embedded(Path::new(path))),
            Some(("memory", "")) => Ok(vec![Finding::bad(
                "safety class",
                "best effort",
                "everything is forgotten when the server ends, tokens included",
                "use embedded:PATH or postgres://… for anything that matters",
            )]),
            // What it is may be an address with a password.
            Some((scheme, _)) => bail!("{scheme}: is not a store; {STORES}"),
            None => bail!("this is not a store; {STORES}"),
        }
    }

    async fn server(&self, server: &ServerArgs) -> Vec<Finding> {
        let answer: Result<Value, _> =
            match HttpTransport::new(&self.address(server), "-", "default") {
                // Nobody has to show a key to be told how a server is.
                Ok(link) => link.get("/readyz").await,
                Err(error) => Err(error),
            };
        match answer {
            Ok(ready) => judge_ready(&ready),
            Err(error) if self.server.is_some() => vec![Finding::bad(
                "ready",
                error.to_string(),
                "nothing is granted there, and jobs do not start",
                "see that it runs and that its store answers: its log says why it does not",
            )],
            Err(error) => vec![Finding::warn(
                "ready",
                error.to_string(),
                "nothing, if no server should run here",
                "start one with: tenure serve; or name one with --server URL",
            )],
        }
    }
}

impl Doctor {
    /// The server that was named, or the one that runs on this machine.
    fn address(&self, server: &ServerArgs) -> String {
        let noted = || std::fs::read_to_string(server.data().address_file().ok()?).ok();
        let noted = || noted().map(|url| url.trim().to_owned()).filter(|url| !url.is_empty());
        let found = self.server.clone().or_else(noted);
        found.unwrap_or_else(|| format!("http://{DEFAULT_LISTEN}"))
    }
}

/// What a server says of itself.
fn judge_ready(ready: &Value) -> Vec<Finding> {
    let said = |name: &str| ready[name].as_str().unwrap_or("unknown").to_owned();
    let incarnation = ready["incarnation"].as_u64().unwrap_or(0);
    let found = format!("store {}, incarnation {incarnation}", said("store"));
    let mut findings = vec![Finding::ok("ready", found)];
    findings.push(match &*said("safety") {
        "best effort" => Finding::bad(
            "safety class",
            "best effort",
            "a grant can be forgotten, and the same lock given to another",
            "probe its store, with: tenure doctor --store URL",
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
                    "nothing of what locks promise; waiting requests are served up to a second \
                     later",
                    "probe its store, with: tenure doctor --store URL",
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

/// The file of an embedded store, without opening it: a server may have it.
fn embedded(file: &Path) -> Vec<Finding> {
    let mut dir = file.parent().unwrap_or(Path::new(".")).to_owned();
    if dir.as_os_str().is_empty() {
        dir = PathBuf::from(".");
    }
    let shown = dir.display();
    let (Ok(system), Ok(room)) = (rustix::fs::statfs(&dir), rustix::fs::statvfs(&dir)) else {
        return vec![Finding::warn(
            "directory",
            format!("{shown} cannot be read"),
            "nothing is kept there yet",
            "start a server with: tenure serve; or name the store with --store",
        )];
    };
    let what = if file.exists() { "has a store" } else { "has no store yet" };
    let mut findings = vec![Finding::ok("directory", format!("{shown} {what}"))];
    // The width of the number is not the same on all machines.
    #[expect(clippy::useless_conversion, reason = "it is one elsewhere")]
    let number = i64::from(system.f_type);
    findings.push(file_system(number));
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    let found = format!("{} MB free", free / 1024 / 1024);
    findings.push(if free >= ROOM_MIN {
        Finding::ok("disk", found)
    } else {
        Finding::warn("disk", found, "without room nothing is granted", "make room on the disk")
    });
    findings
}

fn file_system(number: i64) -> Finding {
    let name = "file system";
    let network = NETWORK.iter().find(|(magic, _)| *magic == number);
    match network {
        Some((_, kind)) => Finding::bad(
            name,
            *kind,
            "its locks and flushes cannot be trusted, so a server refuses to start on it",
            "put the store on a local disk, or use postgres://…",
        ),
        None if number == TMPFS => Finding::bad(
            name,
            "in memory",
            "a restart of the machine forgets everything, tokens included",
            "put the store on a local disk",
        ),
        None => Finding::ok(name, "local"),
    }
}

fn print(report: &Report) -> anyhow::Result<()> {
    let row = |placed: &Placed| {
        let Placed { about, finding } = placed;
        let verdict = match finding.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "WARN",
            Verdict::Bad => "BAD",
        };
        let about = format!("{about}: {}", finding.name);
        [verdict.to_owned(), about, text::cell(&finding.found)]
    };
    text::out(&text::table(["", "WHAT", "FOUND"], report.findings.iter().map(row)))?;
    for Placed { finding, .. } in &report.findings {
        if let (Some(voids), Some(remedy)) = (finding.voids, finding.remedy) {
            let found = text::plain(&finding.found);
            text::out(&format!(
                "\n{}: {found}\n  voids: {voids}\n  do:    {remedy}",
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
    fn a_file_on_another_machine_or_in_memory_is_no_store() {
        assert_eq!(file_system(0xEF53).verdict, Verdict::Ok);
        assert_eq!(file_system(0x6969).verdict, Verdict::Bad);
        assert_eq!(file_system(TMPFS).verdict, Verdict::Bad);
    }

    #[test]
    fn what_a_server_says_of_itself_is_judged() {
        let ready = serde_json::json!({
            "store": "postgres", "safety": "exclusive", "incarnation": 3,
            "dependencies": [{ "name": "wake-ups", "ok": false, "detail": "none heard" }],
        });
        let findings = judge_ready(&ready);
        let verdicts: Vec<_> = findings.iter().map(|finding| finding.verdict).collect();
        assert_eq!(verdicts, [Verdict::Ok, Verdict::Ok, Verdict::Warn]);
        assert_eq!(findings[0].found, "store postgres, incarnation 3");
        let findings = judge_ready(&serde_json::json!({ "safety": "best effort" }));
        assert_eq!(findings[1].verdict, Verdict::Bad);
    }
}
