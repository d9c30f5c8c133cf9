//! `tenure dead`: dead letters, jobs that have used up their attempts.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tenure::http::HttpTransport;
use tenure_core::{Code, JobId};
use tenure_wire::{
    DeadLetterFilter, DeadLetterGroup, DeadLetterRequest, DeadLettersResponse, DiscardResponse,
    JobInfo, ListResponse, RedriveResponse, RefusedJob,
};

use super::job::jobs_table;
use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::document::usage_error;
use tenure_cli_kit::exit;
use tenure_cli_kit::listing::{Empty, fetch, print_more_hint};
use tenure_cli_kit::text::{age, cell, print_line, query, sanitize, table};
use tenure_cli_kit::{Done, JobArg, Output, print_json};

/// Timeout of a request, which may handle very many jobs.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Manage dead letters: jobs that have used up their attempts
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  tenure dead ls
  tenure dead ls --kind database --all
  tenure dead redrive --kind database --code DISK_FULL --dry-run
  tenure dead redrive --kind database --code DISK_FULL --reason \"disks were replaced\"
  tenure dead discard 019a2b3c4d5e6f708192a3b4c5d6e7f8 --reason \"no longer needed\"

A job whose worker reports a permanent failure is not retried, so it is not a dead letter: it ends
as `failed`. `tenure job ls --state failed` lists such jobs, `tenure job retry` retries one.")]
pub(super) enum Dead {
    /// List dead letters, grouped by error, most frequent first
    ///
    /// Jobs that failed permanently are not dead letters: `tenure job ls --state failed` lists
    /// them.
    Ls(Ls),
    /// Retry dead letters, each as a new job
    ///
    /// The policies of their kinds apply to the new jobs. Exits with 5 if some could not be
    /// redriven.
    Redrive(Selection),
    /// Discard dead letters
    Discard(Selection),
}

/// Which dead letters to list
#[derive(Args)]
pub(super) struct Ls {
    /// Only this kind
    #[arg(long)]
    kind: Option<String>,
    /// List each job
    #[arg(long)]
    all: bool,
    /// Maximum number of jobs with --all
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

/// Which dead letters to handle
#[derive(Args)]
pub(super) struct Selection {
    /// Ids of the jobs, or at least 8 digits from the start or the end of each
    ids: Vec<JobArg>,
    /// Only this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only this operation
    #[arg(long)]
    operation: Option<String>,
    /// Only this error code
    #[arg(long)]
    code: Option<String>,
    /// All dead letters of the tenant
    #[arg(long, conflicts_with_all = ["ids", "kind", "operation", "code"])]
    all: bool,
    /// Reason, recorded in the history
    #[arg(long, required_unless_present = "dry_run")]
    reason: Option<String>,
    /// Only print how many jobs match
    #[arg(long)]
    dry_run: bool,
}

impl Dead {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        match self {
            Self::Ls(ls) => ls.run(server, output).await,
            Self::Redrive(selection) => {
                let answer: RedriveResponse =
                    selection.send(&server.transport()?, "redrive").await?;
                let moved = answer.redriven.iter().map(|r| format!("{} {}", r.from, r.job));
                let moved: Vec<_> = moved.collect();
                let (matched, more, refused) = (answer.matched, answer.more, &answer.refused[..]);
                let report = BulkReport { verb: "redriven", matched, more, moved, refused };
                selection.print_result(&answer, &report, output)
            }
            Self::Discard(selection) => {
                let answer: DiscardResponse =
                    selection.send(&server.transport()?, "discard").await?;
                let moved = answer.discarded.iter().map(JobId::to_string).collect();
                let (matched, more, refused) = (answer.matched, answer.more, &answer.refused[..]);
                let report = BulkReport { verb: "discarded", matched, more, moved, refused };
                selection.print_result(&answer, &report, output)
            }
        }
    }
}

impl Ls {
    async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let transport = server.transport()?;
        if self.all {
            return self.list_jobs(server, &transport, output).await;
        }
        let parts = [("kind", self.kind.clone()), ("limit", Some("1".to_owned()))];
        let answer: DeadLettersResponse =
            transport.get_with_wait(&query("/v1/dead", &parts), REQUEST_TIMEOUT).await?;
        match output {
            Output::Json => {
                print_json(&Groups { groups: &answer.groups, complete: answer.complete })?;
            }
            Output::Table if answer.groups.is_empty() => self.print_none(server),
            Output::Table => {
                print_line(&groups_table(&answer.groups))?;
                if !answer.complete {
                    anstream::eprintln!("too many dead jobs; only the newest were counted");
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Jobs that failed permanently are what a user without dead letters may look for.
    fn print_none(&self, server: &ServerArgs) {
        let empty = Empty {
            none: "no dead letters",
            item: "dead letter",
            hint: "jobs that failed permanently are not dead letters; see: tenure job ls --state \
                   failed",
            hint_in_one_tenant: false,
            list: "tenure dead ls",
        };
        empty.print(server.tenant(), &[("kind", self.kind.clone())]);
    }

    async fn list_jobs(
        &self,
        server: &ServerArgs,
        transport: &HttpTransport,
        output: Output,
    ) -> Done {
        let limit = self.limit.try_into().unwrap_or(usize::MAX);
        let filters = [("kind", self.kind.clone()), ("state", Some("dead".to_owned()))];
        let list: ListResponse<JobInfo> = fetch(transport, "/v1/jobs", &filters, limit).await?;
        match output {
            Output::Json => print_json(&list)?,
            Output::Table if list.items.is_empty() => self.print_none(server),
            Output::Table => {
                print_line(&jobs_table(&list.items, server.tenant()))?;
                print_more_hint(&list);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// JSON output without `--all`.
#[derive(Serialize)]
struct Groups<'a> {
    groups: &'a [DeadLetterGroup],
    complete: bool,
}

fn groups_table(groups: &[DeadLetterGroup]) -> String {
    let row = |group: &DeadLetterGroup| {
        [
            group.count.to_string(),
            group.kind.clone(),
            group.operation.clone(),
            sanitize(&group.code),
            age(&group.oldest),
            age(&group.newest),
            cell(&group.message),
        ]
    };
    let header = ["COUNT", "KIND", "OPERATION", "CODE", "OLDEST", "NEWEST", "MESSAGE"];
    table(header, groups.iter().map(row))
}

/// Result of a redrive or discard.
struct BulkReport<'a> {
    verb: &'static str,
    matched: usize,
    more: bool,
    moved: Vec<String>,
    refused: &'a [RefusedJob],
}

impl Selection {
    /// Returns the filter. Selecting everything requires `--all`: a forgotten filter must not.
    async fn filter(&self, transport: &HttpTransport) -> anyhow::Result<DeadLetterFilter> {
        let mut ids = Vec::with_capacity(self.ids.len());
        for id in &self.ids {
            ids.push(id.resolve(transport, None).await?);
        }
        let filter = DeadLetterFilter {
            kind: self.kind.clone(),
            operation: self.operation.clone(),
            code: self.code.clone(),
            ids: (!ids.is_empty()).then_some(ids),
        };
        let DeadLetterFilter { kind, operation, code, ids } = &filter;
        if self.all || kind.is_some() || operation.is_some() || code.is_some() || ids.is_some() {
            return Ok(filter);
        }
        let why = "no jobs selected; give job ids, --kind, --operation, --code, or --all";
        Err(usage_error(why.to_owned()))
    }

    async fn send<T: serde::de::DeserializeOwned>(
        &self,
        transport: &HttpTransport,
        verb: &str,
    ) -> anyhow::Result<T> {
        let filter = self.filter(transport).await?;
        let (dry_run, reason) = (self.dry_run, self.reason.clone());
        let body = DeadLetterRequest { filter, dry_run, reason };
        let key = tenure_store::random::request_id().to_string();
        Ok(transport.post(&format!("/v1/dead/{verb}"), Some(key), &body, REQUEST_TIMEOUT).await?)
    }

    fn print_result(
        &self,
        answer: &impl Serialize,
        report: &BulkReport<'_>,
        output: Output,
    ) -> Done {
        match output {
            Output::Json => print_json(answer)?,
            Output::Table => self.print(report)?,
        }
        let unknown = |job: &RefusedJob| job.code == Code::NotFound.as_str();
        Ok(match report.refused {
            [] => ExitCode::SUCCESS,
            refused if report.matched == 0 && refused.iter().all(unknown) => {
                ExitCode::from(exit::NOT_FOUND)
            }
            _ => ExitCode::from(exit::REFUSED),
        })
    }

    /// Prints the jobs to stdout, one per line, and messages to stderr.
    fn print(&self, report: &BulkReport<'_>) -> anyhow::Result<()> {
        let BulkReport { verb, matched, moved, refused, .. } = report;
        for job in moved {
            print_line(job)?;
        }
        for RefusedJob { job, detail, .. } in *refused {
            anstream::eprintln!("{job}: {}", sanitize(detail));
        }
        if self.dry_run {
            anstream::eprintln!("{matched} would be {verb}; nothing was done");
        } else {
            let (moved, refused) = (moved.len(), refused.len());
            anstream::eprintln!("{moved} {verb}, {refused} refused");
        }
        if report.more {
            anstream::eprintln!("more jobs match than one request handles; run the command again");
        }
        Ok(())
    }
}
