//! `tenure status`: the deployment on one screen.

use std::process::ExitCode;

use clap::Args;
use tenure_wire::{AttentionInfo, StatusResponse};

use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::color::Tone;
use tenure_cli_kit::text::{count, field_list, format_duration, print_line, sanitize};
use tenure_cli_kit::{Done, Output, hint, print_json};

/// Show the deployment on one screen: server, store, locks, jobs, workers, what needs attention
///
/// The counts are those of all tenants, or of the tenant of the key or of --tenant, and up to a few
/// seconds old. Exits with 69 if the server or its store cannot be reached.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure status
  tenure status --tenant acme
  tenure status -o json | jq '.attention[].code'")]
pub(super) struct StatusVerb {}

impl StatusVerb {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        match output {
            Output::Json => print_json(&fetch(server).await?)?,
            Output::Table => print_line(&fetch_text(server).await?)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn fetch(server: &ServerArgs) -> anyhow::Result<StatusResponse> {
    Ok(server.transport_to_all()?.get("/v1/status").await?)
}

/// Returns the status as a text for people.
pub(super) async fn fetch_text(server: &ServerArgs) -> anyhow::Result<String> {
    let status = fetch(server).await?;
    let counts = format_counts(&server.url()?, &status);
    Ok(format!("{counts}\n{}", format_attention(&status.attention)))
}

fn format_counts(url: &str, status: &StatusResponse) -> String {
    let StatusResponse { version, store, safety, incarnation, .. } = status;
    let StatusResponse { locks, jobs, workers, .. } = status;
    let uptime = status.uptime_ms.map(|ms| format!(", up {}", format_duration(ms)));
    let uptime = uptime.unwrap_or_default();
    let oldest = (jobs.queue_oldest_ms > 0)
        .then(|| format!(", the oldest due for {}", format_duration(jobs.queue_oldest_ms)));
    let server = format!("{url}, version {version}{uptime}");
    let store = format!("{store}, safety class {safety}, incarnation {incarnation}");
    let locks = [
        toned(Tone::Active, locks.held, "held"),
        toned(Tone::Attention, locks.stale, "stale"),
        toned(Tone::Attention, locks.waiters, "waiting"),
    ];
    let jobs = [
        toned(Tone::Active, jobs.running, "running"),
        format!("{} queued", jobs.queued),
        toned(Tone::Attention, jobs.backoff, "in backoff"),
        toned(Tone::Bad, jobs.dead, "dead"),
    ];
    let busy = toned(Tone::Active, workers.busy, "busy");
    field_list(&[
        ("server", Some(sanitize(&server))),
        ("store", Some(sanitize(&store))),
        ("tenant", Some(sanitize(&status.tenant))),
        ("locks", Some(locks.join(", "))),
        ("jobs", Some(jobs.join(", ") + &oldest.unwrap_or_default())),
        ("workers", Some(format!("{}, {busy}", count(workers.sessions, "session")))),
    ])
}

/// Formats a count, in the colour of its meaning unless it is zero.
fn toned(tone: Tone, n: usize, what: &str) -> String {
    let text = format!("{n} {what}");
    if n == 0 { text } else { tone.paint(&text) }
}

/// Formats each condition with the command that shows more, unless its text names the command.
fn format_attention(conditions: &[AttentionInfo]) -> String {
    if conditions.is_empty() {
        return format!("\n{}", Tone::Good.paint("nothing needs attention"));
    }
    let line = |condition: &AttentionInfo| {
        let (text, command) = (sanitize(&condition.text), sanitize(&condition.command));
        let hint = (!text.contains(&command)).then(|| format!("; see: {command}"));
        let hint = hint.map(|hint| hint::complete(&hint)).unwrap_or_default();
        format!("  {}{hint}", Tone::Attention.paint(&hint::complete(&text)))
    };
    let lines: Vec<_> = conditions.iter().map(line).collect();
    format!("\nneeds attention:\n{}", lines.join("\n"))
}
