//! Actions of steps: a command, an HTTP request, or SQL statements on a PostgreSQL database.
//!
//! When the run is lost, cancelled or exceeds its time limit, the step stops before its handler
//! returns, and so before another run can start.

mod address;
mod command;
mod http;
mod http_check;
mod sql;
mod statement;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tenure::Context;
use tenure::trace::TraceParent;
use tenure::worker::command::STOPPED;
use tenure::worker::{Failure, Phase};
use tenure_config::report::Report;
use tenure_config::section::Section;

use super::declare::DeclaredNames;
use super::template::Values;

pub use address::{AddressPolicy, Network, PolicySource};
pub(super) use command::{Command, read as read_command, redact_text};
pub use http::client as http_client;
pub(super) use http::percent_encode;
pub(super) use http_check::{HttpCheck, read as read_http_check};
pub(super) use sql::{Query, read_query};

/// Keys of a step that declare its action.
pub(super) const KEYS: [&str; 6] = ["command", "http", "sql", "env", "secrets", "dir"];

/// Failure code: a step exceeded its time limit.
pub const STEP_TIME_LIMIT: &str = "STEP_TIME_LIMIT";

/// Action of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Runs a command.
    Command(command::Command),
    /// Sends an HTTP request.
    Http(Box<http::Request>),
    /// Executes SQL statements in one transaction.
    Sql(sql::Transaction),
}

/// Context of one try of a step.
pub(super) struct StepContext<'a> {
    pub(super) job: &'a Context,
    pub(super) values: &'a Values,
    pub(super) phase: Phase,
    pub(super) limit: Option<Duration>,
    pub(super) http: &'a reqwest::Client,
    pub(super) addresses: AddressPolicy,
    /// Whether the store is a PostgreSQL database, so that a transaction there can assert the
    /// tenure.
    pub(super) guarded: bool,
    pub(super) parent: Option<TraceParent>,
    /// Variables of this process that commands get besides the minimum.
    pub(super) pass_env: &'a [String],
}

impl Action {
    /// Performs the action once and returns its result, if any.
    pub(super) async fn perform(&self, cx: &StepContext<'_>) -> Result<Option<Value>, Failure> {
        match self {
            Self::Command(command) => command.perform(cx).await,
            Self::Http(request) => cx.run_while_active(request.perform(cx)).await,
            Self::Sql(transaction) => transaction.perform(cx).await,
        }
    }

    /// Returns the names of the secrets that it uses.
    pub fn secrets(&self) -> Vec<&str> {
        match self {
            Self::Command(command) => command.secrets(),
            Self::Http(request) => request.secrets(),
            Self::Sql(transaction) => transaction.secrets(),
        }
    }
}

impl StepContext<'_> {
    /// Runs `work` until the run is lost or cancelled or the time limit is exceeded, then drops it.
    async fn run_while_active<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let timeout = async {
            match self.limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            lost = self.job.lost() => Err(Failure::transient(STOPPED, lost)),
            halt = self.job.cancelled() => Err(Failure::transient(STOPPED, halt)),
            () = timeout => Err(Failure::new(STEP_TIME_LIMIT, "the step exceeded its time limit")),
            done = work => done,
        }
    }

    /// Writes to the log, prefixed with the name of the step.
    fn log(&self, text: &str) {
        for line in text.lines() {
            self.job.log(&format!("{} | {line}", self.phase.name));
        }
    }
}

/// Reads the action of a step.
pub(super) fn read(
    section: &Section<'_>,
    dir: &Path,
    names: &DeclaredNames<'_>,
    report: &mut Report<'_>,
) -> Option<Action> {
    match read_action_key(section, "a step", report)? {
        "command" => command::read(section, dir, names, report).map(Action::Command),
        "http" => http::read(section, names, report).map(Box::new).map(Action::Http),
        _ => sql::read(section, names, report).map(Action::Sql),
    }
}

/// Returns the key that declares the action, of which `what` has exactly one.
pub(super) fn read_action_key(
    section: &Section<'_>,
    what: &str,
    report: &mut Report<'_>,
) -> Option<&'static str> {
    let set = ["command", "http", "sql"].into_iter().filter(|key| section.has(key));
    let set: Vec<&'static str> = set.collect();
    let [action] = set[..] else {
        let why = format!("{what} needs exactly one of `command`, `http` and `sql`");
        report.add(&section.place, why);
        return None;
    };
    for (key, what) in
        [("env", "an environment"), ("secrets", "an environment"), ("dir", "a directory")]
    {
        if action != "command" && section.has(key) {
            section.reject::<()>(key, format!("only a `command` has {what}"), report);
        }
    }
    Some(action)
}
