//! `tenure cluster history`

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use serde_json::Value;
use tenure_cli_kit::listing::fetch;
use tenure_cli_kit::text::{cell, print_line, sanitize, table};
use tenure_cli_kit::{CliContext, Done, Output, hint, print_json};
use tenure_core::history::{Entry, Event};
use tenure_core::job::{Failure, RequestedBy};
use tenure_core::record::TenureEnd;
use tenure_core::{JobId, Text};
use tenure_wire::{HistoryEntry, instant};

use super::id::ClusterArg;
use super::route;

/// Show what happened to a cluster, oldest first
///
/// Each line is an event of its history, which `tenure verify` proves. `-o json` has the entries as
/// they were hashed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure cluster history aws:demo.dev.example.com
  tenure cluster history demo --limit 20")]
pub(super) struct History {
    /// Cluster
    #[arg(value_name = "CLUSTER")]
    cluster: ClusterArg,
    /// Maximum number of events, the latest ones
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

impl History {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        cx.server.one_tenant()?;
        let transport = cx.server.transport()?;
        let id = self.cluster.resolve(&transport).await?;
        let limit = self.limit.try_into().unwrap_or(usize::MAX);
        let path = route(&id, "/history");
        let mut list = fetch::<HistoryEntry>(&transport, &path, &[], limit).await?;
        if cx.output == Output::Json {
            print_json(&list)?;
            return Ok(ExitCode::SUCCESS);
        }
        if list.items.is_empty() {
            hint::print(&format!("{} has no history; see: tenure cluster ls", sanitize(&id)));
            return Ok(ExitCode::SUCCESS);
        }
        list.items.reverse();
        let mut names = Names::default();
        let rows: Result<Vec<_>, _> = list.items.iter().map(|item| row(item, &mut names)).collect();
        print_line(&table(["WHEN", "EVENT", "WHAT"], rows?))?;
        if list.next.is_some() {
            anstream::eprintln!("older events exist; raise --limit");
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn row(item: &HistoryEntry, names: &mut Names) -> anyhow::Result<[String; 3]> {
    let position = item.position;
    let entry = Entry::parse(&item.line).with_context(|| {
        format!("cannot parse entry {position}; it may have been written by another version")
    })?;
    let event = entry.event.as_str().to_owned();
    Ok([item.at.clone(), event, cell(&names.describe(&entry.event))])
}

/// Operations of the jobs whose submission was seen.
#[derive(Default)]
struct Names(BTreeMap<JobId, Text>);

impl Names {
    /// Returns the operation of a job, or its id.
    fn of(&self, id: JobId) -> String {
        self.0.get(&id).map_or_else(|| format!("job {id}"), ToString::to_string)
    }

    /// Describes the details of an event.
    fn describe(&mut self, event: &Event) -> String {
        match event {
            Event::Submitted { job, verdict, .. } => {
                self.0.insert(job.id, job.operation.clone());
                format!("{} by {}, {}; job {}", job.operation, job.by, verdict.as_str(), job.id)
            }
            Event::TimerFired { operation, id } => {
                self.0.insert(*id, operation.clone());
                format!("{operation}; job {id}")
            }
            Event::Attached { id, by, .. } => format!("{} by {by}", self.of(*id)),
            Event::Granted { token, holder, job: None, .. } => format!("token {token} to {holder}"),
            Event::Granted { token, holder, job: Some(started), .. } => {
                let (name, attempt) = (self.of(started.id), started.attempt);
                let state = new_state(started.resource_state.as_ref());
                format!("{name}, attempt {attempt} on {holder}, token {token}{state}")
            }
            Event::Ended { token, how, job: None, .. } => format!("token {token}{}", broken(how)),
            Event::Ended { token, how, job: Some(attempt), .. } => {
                let (name, outcome) = (self.of(attempt.id), attempt.outcome.as_str());
                let (error, broken) = (failure(attempt.error.as_ref()), broken(how));
                let state = new_state(attempt.resource_state.as_ref());
                format!("{name} {outcome}, token {token}{error}{broken}{state}")
            }
            Event::Fenced { token, verb } => format!("{verb} with token {token}, which had ended"),
            Event::Created { state } => format!("in state {state}"),
            Event::Specified { by, .. } => format!("time to live by {by}"),
            Event::Observed { token, merge } => {
                format!("{}, token {token}", changed_fields(merge))
            }
            Event::TimerSet { operation, due: Some(due), by } => {
                format!("{operation} at {} by {by}", instant(*due))
            }
            Event::TimerSet { operation, due: None, by } => format!("no {operation}, by {by}"),
            Event::TimerRefused { operation, error } => {
                format!("{operation}{}", failure(Some(error)))
            }
            Event::NotStarted { id, error } => format!("{}{}", self.of(*id), failure(Some(error))),
            Event::Deleted { by } => format!("by {by}"),
            Event::Paused { requested } | Event::Resumed { requested } => requester(requested),
            Event::Superseded { id, followed_by } => {
                format!("{} by job {followed_by}", self.of(*id))
            }
            Event::Cancelled { id, requested } | Event::Discarded { id, requested } => {
                format!("{} {}", self.of(*id), requester(requested))
            }
            Event::Redriven { id, followed_by, requested } => {
                self.0.extend(self.0.get(id).cloned().map(|name| (*followed_by, name)));
                format!("{} as job {followed_by} {}", self.of(*id), requester(requested))
            }
            Event::Incident { id, error, state } => {
                let (error, state) = (failure(Some(error)), new_state(state.as_ref()));
                format!("{}{error}{state}", self.of(*id))
            }
        }
    }
}

/// Returns which parts of the status a merge patch changes: `infra web-x7k2p, snapshot`.
fn changed_fields(merge: &str) -> String {
    let Ok(Value::Object(patch)) = serde_json::from_str(merge) else { return String::new() };
    let named = |(name, value): (&String, &Value)| match value {
        Value::Null => format!("no {name}"),
        value => match value.get("infra_id").and_then(Value::as_str) {
            Some(infra_id) => format!("{name} {infra_id}"),
            None => name.clone(),
        },
    };
    patch.iter().map(named).collect::<Vec<_>>().join(", ")
}

fn broken(how: &TenureEnd) -> String {
    match how {
        TenureEnd::Broken { by, reason } => format!(", broken by {by}: {reason}"),
        TenureEnd::Expired => ", its worker has expired".to_owned(),
        TenureEnd::Released | TenureEnd::Finished | TenureEnd::Closed => String::new(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_of_the_status_is_shortened_to_its_fields() {
        let merge = r#"{"infra":{"infra_id":"web-x7k2p"},"outputs":null,"snapshot":{"path":"p"}}"#;
        assert_eq!(changed_fields(merge), "infra web-x7k2p, no outputs, snapshot");
        assert_eq!(changed_fields("x"), "");
    }
}
