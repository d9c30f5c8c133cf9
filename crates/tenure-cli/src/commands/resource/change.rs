//! `tenure resource put`, `timer` and `delete`: changes that may have a condition.

use std::time::Duration;

use clap::Args;
use serde::de::DeserializeOwned;
use tenure::http::{Method, RequestOptions};
use tenure_core::Precondition;
use tenure_wire::{
    DeleteResourceResponse, PutResourceRequest, PutResourceResponse, ResourceInfo, TimerRequest,
    TimerRequests,
};

use super::{ResourcePath, print_result};
use crate::commands::job::parse_at;
use tenure_cli_kit::document::read_json;
use tenure_cli_kit::text::parse_duration;
use tenure_cli_kit::{Done, Output, ServerArgs};

/// Condition of a change.
#[derive(Args)]
pub(in crate::commands) struct Condition {
    /// Only if the resource has this generation; otherwise fail
    #[arg(long, value_name = "N", conflicts_with = "if_absent")]
    if_generation: Option<u64>,
    /// Only if the resource does not exist; otherwise fail
    #[arg(long)]
    if_absent: bool,
}

impl Condition {
    /// Returns the options of a request with this condition.
    pub(in crate::commands) fn options(&self, id: Option<String>) -> RequestOptions {
        let absent = self.if_absent.then_some(Precondition::Absent);
        let precondition = self.if_generation.map(Precondition::Generation).or(absent);
        RequestOptions { id, precondition, tenant: None }
    }
}

/// Set the spec (desired state) of a resource; creates the resource if needed
#[derive(Args)]
pub(in crate::commands) struct Put {
    /// KIND/NAME
    resource: ResourcePath,
    /// Spec: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON")]
    spec: String,
    /// Timer to set in the same step: submit OPERATION after DUR, or never
    #[arg(long, value_name = "OPERATION=DUR", value_parser = parse_timer)]
    timer: Vec<(String, Option<TimerRequest>)>,
    #[command(flatten)]
    condition: Condition,
}

fn parse_timer(text: &str) -> Result<(String, Option<TimerRequest>), String> {
    let (operation, after) = text.split_once('=').ok_or("not of the form OPERATION=DUR")?;
    let request = match after {
        "never" => None,
        after => Some(after_request(parse_duration(after)?)),
    };
    Ok((operation.to_owned(), request))
}

fn after_request(after: Duration) -> TimerRequest {
    let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
    TimerRequest { at: None, after_ms: Some(after_ms) }
}

impl Put {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let timers: TimerRequests = self.timer.iter().cloned().collect();
        let body = PutResourceRequest { spec: read_json("--spec", &self.spec)?, timers };
        let options = self.condition.options(None);
        let path = self.resource.route("");
        let answer: PutResourceResponse =
            send(server, Method::PUT, &path, options, Some(&body)).await?;
        let generation = answer.resource.generation;
        let result = match answer.job {
            Some(job) => format!("generation {generation}, job {job} submitted"),
            None => format!("generation {generation}"),
        };
        print_result(&self.resource, &result, &answer, output)
    }
}

/// Set, move or remove a timer: an instant at which the server submits an operation
///
/// The submit follows the policies of the kind. If it is refused, `tenure resource show` says why,
/// and it is repeated every minute.
#[derive(Args)]
pub(in crate::commands) struct Timer {
    /// KIND/NAME
    resource: ResourcePath,
    /// Operation to submit
    operation: String,
    #[command(flatten)]
    setting: Setting,
    #[command(flatten)]
    condition: Condition,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Setting {
    /// Instant, for example 2030-01-31T03:00:00Z; at once if it has passed
    #[arg(long, value_name = "INSTANT", value_parser = parse_at)]
    at: Option<String>,
    /// Time from now
    #[arg(long = "in", id = "after", value_name = "DUR", value_parser = parse_duration)]
    after: Option<Duration>,
    /// Remove the timer
    #[arg(long)]
    remove: bool,
}

impl Timer {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let Self { resource, operation, setting, condition } = self;
        let at = setting.at.clone().map(|at| TimerRequest { at: Some(at), after_ms: None });
        let body = at.or_else(|| setting.after.map(after_request));
        let path = resource.route(&format!("/timers/{operation}"));
        let method = if body.is_some() { Method::PUT } else { Method::DELETE };
        let options = condition.options(None);
        let answer: ResourceInfo = send(server, method, &path, options, body.as_ref()).await?;
        let set = answer.timers.iter().find(|timer| timer.operation == *operation);
        let result = match (set, &body) {
            (Some(timer), _) => format!("{operation} will be submitted at {}", timer.at),
            (None, Some(_)) => format!("{operation} was submitted: the instant has passed"),
            (None, None) => format!("no timer for {operation}"),
        };
        print_result(resource, &result, &answer, output)
    }
}

/// Delete a resource; its token counter is kept, and its history for the time of retention
#[derive(Args)]
pub(in crate::commands) struct Delete {
    /// KIND/NAME
    resource: ResourcePath,
    /// Only if the resource has this generation; otherwise fail
    #[arg(long, value_name = "N")]
    if_generation: Option<u64>,
}

impl Delete {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let condition = Condition { if_generation: self.if_generation, if_absent: false };
        let (path, options) = (self.resource.route(""), condition.options(None));
        let answer: DeleteResourceResponse =
            send(server, Method::DELETE, &path, options, None::<&()>).await?;
        print_result(&self.resource, "deleted", &answer, output)
    }
}

async fn send<T: DeserializeOwned>(
    server: &ServerArgs,
    method: Method,
    path: &str,
    options: RequestOptions,
    body: Option<&impl serde::Serialize>,
) -> anyhow::Result<T> {
    Ok(server.transport()?.call(method, path, options, body, Duration::ZERO).await?)
}
