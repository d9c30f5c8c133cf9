//! `tenure job show`

use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tenure_core::{JobId, JobState};
use tenure_wire::{AskedAnswer, AttemptAnswer, JobAnswer};
use tokio::signal::unix::{SignalKind, signal};

use super::follow::{exit_code, follow};
use super::{due, look, resource_of};
use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::exit;
use tenure_cli_kit::text::{age, cell, facts, out, plain, span, table};
use tenure_cli_kit::{Done, Output, print_json};

pub(super) async fn run(server: &ServerArgs, id: JobId, followed: bool, output: Output) -> Done {
    let link = server.link()?;
    let mut job = look(&link, id, Duration::ZERO).await?;
    let mut code = ExitCode::SUCCESS;
    if followed {
        match follow(&link, &job, signal(SignalKind::interrupt())?).await? {
            Some(over) => (code, job) = (exit_code(over.state), over),
            None => code = ExitCode::from(exit::INTERRUPTED),
        }
    }
    match output {
        Output::Json => print_json(&job)?,
        Output::Table => print(&job, server.tenant())?,
    }
    Ok(code)
}

fn print(job: &JobAnswer, tenant: &str) -> anyhow::Result<()> {
    out(&facts_of(job, tenant))?;
    if !job.attempts.is_empty() {
        out("")?;
        out(&attempts(&job.attempts))?;
    }
    Ok(())
}

fn facts_of(job: &JobAnswer, tenant: &str) -> String {
    let at = |at: &String| format!("{at} ({} ago)", age(at));
    let asked =
        |asked: &AskedAnswer| plain(&format!("{} at {}: {}", asked.by, asked.at, asked.reason));
    let id = |id: &JobId| id.to_string();
    let json = Value::to_string;
    let error = job.error.as_ref().filter(|_| job.state != JobState::Succeeded);
    let progress = job.progress.as_ref().filter(|_| job.state.is_running());
    let number = |n: u32| (n > 0).then(|| n.to_string());
    let attempt = number(job.attempt).map(|n| match job.attempts_max {
        Some(max) => format!("{n} of {max}"),
        None => n,
    });
    let priority = (job.priority != 0).then(|| job.priority.to_string());
    facts(&[
        ("job", Some(id(&job.id))),
        ("resource", Some(resource_of(job, tenant))),
        ("operation", Some(job.operation.clone())),
        ("state", Some(job.state.as_str().to_owned())),
        ("attempt", attempt),
        ("progress", progress.map(|p| plain(&format!("{} % {}", p.percent, p.message)))),
        ("error", error.map(|e| plain(&format!("{}: {}", e.code, e.message)))),
        ("asked to stop by", job.cancel.as_ref().map(asked)),
        ("submitted", Some(format!("{} by {}", at(&job.submitted_at), plain(&job.by)))),
        ("due", due(job).map(|left| format!("{} ({left})", job.due_at))),
        ("ended", job.ended_at.as_ref().map(at)),
        ("priority", priority),
        ("joined by", number(job.joined).map(|n| format!("{n} other submits"))),
        ("retry of", job.retry_of.as_ref().map(id)),
        ("followed by", job.followed_by.as_ref().map(id)),
        ("args", job.args.as_ref().map(json)),
        ("result", job.result.as_ref().map(json)),
    ])
}

fn attempts(attempts: &[AttemptAnswer]) -> String {
    let row = |attempt: &AttemptAnswer| {
        let took = attempt.ended_at.as_ref().map(|end| span(&attempt.started_at, end));
        let outcome = attempt.outcome.map_or("under way", |outcome| outcome.as_str());
        let message = attempt.message.as_deref().unwrap_or_default();
        let error = attempt.code.as_ref().map(|code| cell(&format!("{code}: {message}")));
        [
            attempt.n.to_string(),
            plain(&attempt.worker),
            attempt.token.to_string(),
            attempt.started_at.clone(),
            took.unwrap_or_default(),
            outcome.to_owned(),
            error.unwrap_or_default(),
        ]
    };
    let header = ["ATTEMPT", "WORKER", "TOKEN", "STARTED", "TOOK", "OUTCOME", "ERROR"];
    table(header, attempts.iter().map(row))
}
