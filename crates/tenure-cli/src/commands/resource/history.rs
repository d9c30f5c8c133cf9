//! `tenure resource history`: what happened to a resource, in words.
//!
//! `-o json` prints the lines as they were hashed, so that the chain can be checked by hand.

use std::process::ExitCode;

use anyhow::Context as _;
use tenure::http::HttpTransport;
use tenure_core::Text;
use tenure_core::history::{Entry, Event};
use tenure_core::job::{CompletedAttempt, Failure, RequestedBy};
use tenure_core::record::TenureEnd;
use tenure_wire::HistoryLine;

use super::ResourcePath;
use tenure_cli_kit::listing::fetch;
use tenure_cli_kit::text::{human, out, plain, table};
use tenure_cli_kit::{Done, Output, print_json};

pub(super) async fn run(
    link: &HttpTransport,
    resource: &ResourcePath,
    limit: u32,
    output: Output,
) -> Done {
    let limit = limit.try_into().unwrap_or(usize::MAX);
    let mut list = fetch::<HistoryLine>(link, &resource.route("/history"), &[], limit).await?;
    if output == Output::Json {
        print_json(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    if list.items.is_empty() {
        anstream::eprintln!("nothing has happened to {resource}");
    } else {
        list.items.reverse();
        let rows: Result<Vec<_>, _> = list.items.iter().map(row).collect();
        out(&table(["WHEN", "EVENT", "WHAT"], rows?))?;
        if list.next.is_some() {
            anstream::eprintln!("this is not the beginning; see more with --limit");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn row(line: &HistoryLine) -> anyhow::Result<[String; 3]> {
    let (position, resource) = (line.position, &line.resource);
    let unknown = || format!("read entry {position} of {resource}, made by another version");
    let entry = Entry::parse(&line.line).with_context(unknown)?;
    let event = entry.event.as_str().to_owned();
    Ok([line.at.clone(), event, plain(&what(&entry.event))])
}

/// What happened, beside the word for it.
fn what(event: &Event) -> String {
    match event {
        Event::Granted { token, holder, purpose, job: None, waited_ms, .. } => {
            let purpose = purpose.as_ref().map(|purpose| format!(" for {purpose}"));
            let waited = (*waited_ms > 0).then(|| format!(" after {}", human(*waited_ms)));
            let (purpose, waited) = (purpose.unwrap_or_default(), waited.unwrap_or_default());
            format!("token {token} to {holder}{purpose}{waited}")
        }
        Event::Granted { token, holder, job: Some(begun), .. } => {
            let (id, attempt, state) =
                (begun.id, begun.attempt, becomes(begun.resource_state.as_ref()));
            format!("job {id}, attempt {attempt} on {holder}, token {token}{state}")
        }
        Event::Ended { token, how, job: None, .. } => format!("token {token}{}", broken(how)),
        Event::Ended { token, how, job: Some(ran), .. } => ended(ran, *token, how),
        Event::Fenced { token, verb } => format!("{verb} with token {token}, which was over"),
        Event::Created { state } => format!("in state {state}"),
        Event::Specified { generation, by, .. } => format!("generation {generation} by {by}"),
        Event::Deleted { by } => format!("by {by}"),
        Event::Paused { requested: asked } | Event::Resumed { requested: asked } => because(asked),
        Event::Submitted { job, verdict, .. } => {
            let (id, operation, by) = (job.id, &job.operation, &job.by);
            format!("job {id}, {operation} by {by}, {}", verdict.as_str())
        }
        Event::Attached { id, by, .. } => format!("job {id} by {by}"),
        Event::Superseded { id, followed_by } => format!("job {id} by job {followed_by}"),
        Event::Cancelled { id, requested: asked } | Event::Discarded { id, requested: asked } => {
            format!("job {id} {}", because(asked))
        }
        Event::Redriven { id, followed_by, requested: asked } => {
            format!("job {id} as job {followed_by} {}", because(asked))
        }
        Event::Incident { id, error, state } => {
            format!("job {id}{}{}", failure(Some(error)), becomes(state.as_ref()))
        }
    }
}

fn ended(ran: &CompletedAttempt, token: tenure_core::Token, how: &TenureEnd) -> String {
    let (id, outcome, error) = (ran.id, ran.outcome.as_str(), failure(ran.error.as_ref()));
    let (state, broken) = (becomes(ran.resource_state.as_ref()), broken(how));
    format!("job {id}, token {token}, attempt {outcome}{error}{broken}{state}")
}

fn broken(how: &TenureEnd) -> String {
    match how {
        TenureEnd::Broken { by, reason } => format!(" by {by}: {reason}"),
        TenureEnd::Released | TenureEnd::Finished | TenureEnd::Expired | TenureEnd::Closed => {
            String::new()
        }
    }
}

fn becomes(state: Option<&Text>) -> String {
    state.map_or_else(String::new, |state| format!(", now {state}"))
}

fn failure(error: Option<&Failure>) -> String {
    error.map_or_else(String::new, |error| format!(": {} {}", error.code, error.message))
}

fn because(asked: &RequestedBy) -> String {
    match &*asked.reason {
        "" => format!("by {}", asked.by),
        reason => format!("by {}: {reason}", asked.by),
    }
}
