//! `tenure job show`

use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tenure_core::{JobId, JobState};
use tenure_wire::{AttemptInfo, JobInfo, RequestedByInfo};
use tokio::signal::unix::{SignalKind, signal};

use super::follow::{exit_code, follow};
use super::{due_in, get_job, resource_name};
use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::text::{age, cell, field_list, print_line, sanitize, span, table};
use tenure_cli_kit::{Done, JobArg, Output, print_json};
use tenure_cli_kit::{color, exit};

pub(super) async fn run(
    server: &ServerArgs,
    id: &JobArg,
    follow_first: bool,
    output: Output,
) -> Done {
    let transport = server.transport()?;
    let id = id.resolve(&transport, None).await?;
    let mut job = get_job(&transport, id, Duration::ZERO).await?;
    let mut code = ExitCode::SUCCESS;
    if follow_first {
        match follow(&transport, &job, signal(SignalKind::interrupt())?).await? {
            Some(finished) => (code, job) = (exit_code(finished.state), finished),
            None => code = ExitCode::from(exit::INTERRUPTED),
        }
    }
    match output {
        Output::Json => print_json(&job)?,
        Output::Table => print(&job, server.tenant())?,
    }
    Ok(code)
}

fn print(job: &JobInfo, tenant: &str) -> anyhow::Result<()> {
    print_line(&format_job(job, tenant))?;
    if !job.attempts.is_empty() {
        print_line("")?;
        print_line(&attempts_table(&job.attempts))?;
    }
    Ok(())
}

fn format_job(job: &JobInfo, tenant: &str) -> String {
    let at = |at: &String| format!("{at} ({} ago)", age(at));
    let request = |request: &RequestedByInfo| {
        sanitize(&format!("{} at {}: {}", request.by, request.at, request.reason))
    };
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
    field_list(&[
        ("job", Some(id(&job.id))),
        ("resource", Some(resource_name(job, tenant))),
        ("operation", Some(job.operation.clone())),
        ("state", Some(color::state(job.state.as_str()))),
        ("attempt", attempt),
        ("progress", progress.map(|p| sanitize(&format!("{} % {}", p.percent, p.message)))),
        ("error", error.map(|e| sanitize(&format!("{}: {}", e.code, e.message)))),
        ("asked to stop by", job.cancel.as_ref().map(request)),
        ("submitted", Some(format!("{} by {}", at(&job.submitted_at), sanitize(&job.by)))),
        ("due", due_in(job).map(|left| format!("{} ({left})", job.due_at))),
        ("ended", job.ended_at.as_ref().map(at)),
        ("priority", priority),
        ("joined by", number(job.joined).map(|n| format!("{n} other submits"))),
        ("retry of", job.retry_of.as_ref().map(id)),
        ("followed by", job.followed_by.as_ref().map(id)),
        ("args", job.args.as_ref().map(json)),
        ("result", job.result.as_ref().map(json)),
    ])
}

fn attempts_table(attempts: &[AttemptInfo]) -> String {
    let row = |attempt: &AttemptInfo| {
        let took = attempt.ended_at.as_ref().map(|end| span(&attempt.started_at, end));
        let outcome = attempt.outcome.map_or("in progress", |outcome| outcome.as_str());
        let message = attempt.message.as_deref().unwrap_or_default();
        let error = attempt.code.as_ref().map(|code| cell(&format!("{code}: {message}")));
        [
            attempt.n.to_string(),
            sanitize(&attempt.worker),
            attempt.token.to_string(),
            attempt.started_at.clone(),
            took.unwrap_or_default(),
            color::state(outcome),
            error.unwrap_or_default(),
        ]
    };
    let header = ["ATTEMPT", "WORKER", "TOKEN", "STARTED", "TOOK", "OUTCOME", "ERROR"];
    table(header, attempts.iter().map(row))
}
