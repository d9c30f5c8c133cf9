//! `tenure resource history`: the history of a resource in readable form.
//!
//! `-o json` prints the lines as they were hashed, so that the chain can be verified externally.

use std::process::ExitCode;

use anyhow::Context as _;
use tenure::client::tenant_option;
use tenure_core::history::{Entry, Event};
use tenure_core::job::{CompletedAttempt, Failure, RequestedBy};
use tenure_core::record::TenureEnd;
use tenure_core::{JobState, Text};
use tenure_wire::HistoryEntry;

use super::ResourcePath;
use crate::commands::job::verdict_text;
use tenure_cli_kit::listing::fetch;
use tenure_cli_kit::text::{format_duration, print_line, sanitize, table};
use tenure_cli_kit::{Done, Output, ServerArgs, hint, print_json};

/// Number of characters of a patch of the status that a line shows.
const MERGE_CHARS_SHOWN: usize = 80;

pub(super) async fn run(
    server: &ServerArgs,
    resource: &ResourcePath,
    limit: u32,
    output: Output,
) -> Done {
    let limit = limit.try_into().unwrap_or(usize::MAX);
    let mut list =
        fetch::<HistoryEntry>(&server.transport()?, &resource.route("/history"), &[], limit)
            .await?;
    if output == Output::Json {
        print_json(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    if list.items.is_empty() {
        let tenant = sanitize(server.tenant());
        let option = tenant_option(&tenant);
        hint::print(&format!(
            "{resource} has no history in tenant {tenant}; see: tenure resource ls{option}, \
             tenure lock ls{option}"
        ));
    } else {
        list.items.reverse();
        let rows: Result<Vec<_>, _> = list.items.iter().map(row).collect();
        print_line(&table(["WHEN", "EVENT", "WHAT"], rows?))?;
        if list.next.is_some() {
            anstream::eprintln!("older entries exist; raise --limit");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn row(line: &HistoryEntry) -> anyhow::Result<[String; 3]> {
    let (position, resource) = (line.position, &line.resource);
    let context = || {
        format!(
            "cannot parse entry {position} of {resource}; it may have been written by another \
             version"
        )
    };
    let entry = Entry::parse(&line.line).with_context(context)?;
    let event = entry.event.as_str().to_owned();
    Ok([line.at.clone(), event, sanitize(&describe(&entry.event))])
}

/// Describes the details of an event.
fn describe(event: &Event) -> String {
    match event {
        Event::Granted { token, holder, purpose, job: None, waited_ms, .. } => {
            let purpose = purpose.as_ref().map(|purpose| format!(" for {purpose}"));
            let waited =
                (*waited_ms > 0).then(|| format!(" after {}", format_duration(*waited_ms)));
            let (purpose, waited) = (purpose.unwrap_or_default(), waited.unwrap_or_default());
            format!("token {token} to {holder}{purpose}{waited}")
        }
        Event::Granted { token, holder, job: Some(started), .. } => {
            let state = new_state(started.resource_state.as_ref());
            let (id, attempt) = (started.id, started.attempt);
            format!("job {id}, attempt {attempt} on {holder}, token {token}{state}")
        }
        Event::Ended { token, how, job: None, .. } => format!("token {token}{}", break_reason(how)),
        Event::Ended { token, how, job: Some(attempt), .. } => attempt_end(attempt, *token, how),
        Event::Fenced { token, verb } => format!("{verb} with token {token}, which had ended"),
        Event::Created { state } => format!("in state {state}"),
        Event::Specified { generation, by, .. } => format!("generation {generation} by {by}"),
        Event::Observed { token, merge } => {
            format!("with token {token}: {}", shortened(merge))
        }
        Event::TimerSet { operation, due: Some(due), by } => {
            format!("{operation} at {} by {by}", tenure_wire::instant(*due))
        }
        Event::TimerSet { operation, due: None, by } => format!("{operation} by {by}"),
        Event::TimerFired { operation, id } => format!("{operation} as job {id}"),
        Event::TimerRefused { operation, error } => format!("{operation}{}", failure(Some(error))),
        Event::NotStarted { id, error } => format!("job {id}{}", failure(Some(error))),
        Event::Deleted { by } => format!("by {by}"),
        Event::Paused { requested } | Event::Resumed { requested } => requester(requested),
        Event::Submitted { job, verdict, .. } => {
            let (id, operation, by) = (job.id, &job.operation, &job.by);
            let verdict = verdict_text(*verdict, JobState::Queued);
            format!("job {id}, {operation} by {by}, {verdict}")
        }
        Event::Attached { id, by, .. } => format!("job {id} by {by}"),
        Event::Superseded { id, followed_by } => format!("job {id} by job {followed_by}"),
        Event::Cancelled { id, requested } | Event::Discarded { id, requested } => {
            format!("job {id} {}", requester(requested))
        }
        Event::Redriven { id, followed_by, requested } => {
            format!("job {id} as job {followed_by} {}", requester(requested))
        }
        Event::Incident { id, error, state } => {
            format!("job {id}{}{}", failure(Some(error)), new_state(state.as_ref()))
        }
    }
}

/// Returns the start of a patch.
fn shortened(merge: &str) -> String {
    match merge.char_indices().nth(MERGE_CHARS_SHOWN) {
        Some((end, _)) => format!("{}…", &merge[..end]),
        None => merge.to_owned(),
    }
}

fn attempt_end(attempt: &CompletedAttempt, token: tenure_core::Token, how: &TenureEnd) -> String {
    let (id, outcome) = (attempt.id, attempt.outcome.as_str());
    let (error, broken) = (failure(attempt.error.as_ref()), break_reason(how));
    let state = new_state(attempt.resource_state.as_ref());
    format!("job {id}, token {token}, attempt {outcome}{error}{broken}{state}")
}

fn break_reason(how: &TenureEnd) -> String {
    match how {
        TenureEnd::Broken { by, reason } => format!(" by {by}: {reason}"),
        TenureEnd::Released | TenureEnd::Finished | TenureEnd::Expired | TenureEnd::Closed => {
            String::new()
        }
    }
}

fn new_state(state: Option<&Text>) -> String {
    state.map_or_else(String::new, |state| format!(", now {state}"))
}

fn failure(error: Option<&Failure>) -> String {
    error.map_or_else(String::new, |error| format!(": {} {}", error.code, error.message))
}

fn requester(requested: &RequestedBy) -> String {
    match &*requested.reason {
        "" => format!("by {}", requested.by),
        reason => format!("by {}: {reason}", requested.by),
    }
}
