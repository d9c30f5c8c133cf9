//! What a step does: a command, a request over HTTP, or statements on a PostgreSQL database.
//!
//! All obey the same rule: when the run is lost, cancelled or over its time, the step has stopped
//! before its handler ends, and so before another run can begin.

mod command;
mod http;
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

use super::declare::Declared;
use super::template::Values;

pub use http::client as http_client;
pub(super) use http::encoded;

/// The keys of a step that say what it does.
pub(super) const KEYS: [&str; 5] = ["command", "http", "sql", "env", "secrets"];

/// A step took longer than it may.
pub const STEP_TIME_LIMIT: &str = "STEP_TIME_LIMIT";

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Runs a command.
    Command(command::Command),
    /// Sends a request.
    Http(Box<http::Request>),
    /// Sends statements, in one transaction.
    Sql(sql::Transaction),
}

/// One try of a step.
pub(super) struct Try<'a> {
    pub(super) job: &'a Context,
    pub(super) values: &'a Values,
    pub(super) part: Phase,
    pub(super) limit: Option<Duration>,
    pub(super) http: &'a reqwest::Client,
    /// Whether the store is a PostgreSQL database, so that a transaction there can rely on it.
    pub(super) guarded: bool,
    pub(super) parent: Option<TraceParent>,
}

impl Action {
    /// Does it once. Gives what it has to show, if anything.
    pub(super) async fn perform(&self, with: &Try<'_>) -> Result<Option<Value>, Failure> {
        match self {
            Self::Command(command) => command.perform(with).await,
            Self::Http(request) => with.held(request.perform(with)).await,
            Self::Sql(transaction) => transaction.perform(with).await,
        }
    }

    /// The secrets that it names.
    pub fn secrets(&self) -> Vec<&str> {
        match self {
            Self::Command(command) => command.secrets(),
            Self::Http(request) => request.secrets(),
            Self::Sql(transaction) => transaction.secrets(),
        }
    }
}

impl Try<'_> {
    /// Works on for as long as the run may, and no longer: what is not done then is dropped.
    async fn held<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let late = async {
            match self.limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            lost = self.job.lost() => Err(Failure::transient(STOPPED, lost)),
            halt = self.job.cancelled() => Err(Failure::transient(STOPPED, halt)),
            () = late => Err(Failure::new(STEP_TIME_LIMIT, "the step took longer than it may")),
            done = work => done,
        }
    }

    /// Writes to the log in the name of the step.
    fn log(&self, text: &str) {
        for line in text.lines() {
            self.job.log(&format!("{} | {line}", self.part.name));
        }
    }
}

/// Reads the one thing that a step does.
pub(super) fn read(
    section: &Section<'_>,
    dir: &Path,
    declared: &Declared<'_>,
    report: &mut Report<'_>,
) -> Option<Action> {
    let given = ["command", "http", "sql"].into_iter().filter(|key| section.has(key));
    let given: Vec<&str> = given.collect();
    let [what] = given[..] else {
        let why = "a step has exactly one of `command`, `http` and `sql`";
        report.add(&section.place, why);
        return None;
    };
    for key in ["env", "secrets"].into_iter().filter(|key| what != "command" && section.has(key)) {
        section.refuse::<()>(key, "only a `command` has an environment".to_owned(), report);
    }
    match what {
        "command" => command::read(section, dir, declared, report).map(Action::Command),
        "http" => http::read(section, declared, report).map(Box::new).map(Action::Http),
        _ => sql::read(section, declared, report).map(Action::Sql),
    }
}
