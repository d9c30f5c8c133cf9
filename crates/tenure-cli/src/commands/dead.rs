//! `tenure dead`: jobs that used up their attempts and wait for a person.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tenure::http::HttpTransport;
use tenure_core::{Code, JobId};
use tenure_wire::{
    DeadAnswer, DeadBody, DeadFilter, DeadGroup, DiscardAnswer, JobAnswer, ListAnswer,
    RedriveAnswer, Unmoved,
};

use super::job::jobs_table;
use tenure_cli_kit::ServerArgs;
use tenure_cli_kit::document::usage;
use tenure_cli_kit::exit;
use tenure_cli_kit::listing::{fetch, tell_more};
use tenure_cli_kit::text::{age, cell, out, plain, query, table};
use tenure_cli_kit::{Done, Output, print_json};

/// How long very many of them may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Jobs that used up their attempts: look at them, try again or throw away
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  tenure dead ls
  tenure dead ls --kind database --all
  tenure dead redrive --kind database --code DISK_FULL --dry-run
  tenure dead redrive --kind database --code DISK_FULL --reason \"disks were replaced\"
  tenure dead discard 019a2b3c4d5e6f708192a3b4c5d6e7f8 --reason \"not wanted any more\"")]
pub(super) enum Dead {
    /// Show what they died of, the most frequent first
    Ls(Ls),
    /// Try them again, each as a new job
    ///
    /// The policies of their kinds hold for the new jobs as for any other. Exits with 5 when some
    /// could not be tried again.
    Redrive(Which),
    /// Throw them away
    Discard(Which),
}

/// What to show
#[derive(Args)]
pub(super) struct Ls {
    /// Only of this kind
    #[arg(long)]
    kind: Option<String>,
    /// Show each job
    #[arg(long)]
    all: bool,
    /// With --all, at most so many
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

/// Which of them
#[derive(Args)]
pub(super) struct Which {
    /// These jobs
    ids: Vec<JobId>,
    /// Only of this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only of this operation
    #[arg(long)]
    operation: Option<String>,
    /// Only those that failed with this code
    #[arg(long)]
    code: Option<String>,
    /// All of the tenant
    #[arg(long, conflicts_with_all = ["ids", "kind", "operation", "code"])]
    all: bool,
    /// Why; kept in the history
    #[arg(long, required_unless_present = "dry_run")]
    reason: Option<String>,
    /// Only say how many it would be
    #[arg(long)]
    dry_run: bool,
}

impl Dead {
    pub(super) async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        match self {
            Self::Ls(ls) => ls.run(server, output).await,
            Self::Redrive(which) => {
                let answer: RedriveAnswer = which.ask(&server.link()?, "redrive").await?;
                let moved = answer.redriven.iter().map(|r| format!("{} {}", r.from, r.job));
                let moved: Vec<_> = moved.collect();
                let (matched, more, refused) = (answer.matched, answer.more, &answer.refused[..]);
                let done = DoneTo { word: "redriven", matched, more, moved, refused };
                which.tell(&answer, &done, output)
            }
            Self::Discard(which) => {
                let answer: DiscardAnswer = which.ask(&server.link()?, "discard").await?;
                let moved = answer.discarded.iter().map(JobId::to_string).collect();
                let (matched, more, refused) = (answer.matched, answer.more, &answer.refused[..]);
                let done = DoneTo { word: "discarded", matched, more, moved, refused };
                which.tell(&answer, &done, output)
            }
        }
    }
}

impl Ls {
    async fn run(&self, server: &ServerArgs, output: Output) -> Done {
        let link = server.link()?;
        if self.all {
            return self.each(server, &link, output).await;
        }
        let parts = [("kind", self.kind.clone()), ("limit", Some("1".to_owned()))];
        let answer: DeadAnswer = link.get_with_wait(&query("/v1/dead", &parts), PATIENCE).await?;
        match output {
            Output::Json => {
                print_json(&Groups { groups: &answer.groups, complete: answer.complete })?;
            }
            Output::Table if answer.groups.is_empty() => none(),
            Output::Table => {
                out(&groups_table(&answer.groups))?;
                if !answer.complete {
                    anstream::eprintln!("there are so many that only the newest were counted");
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn each(&self, server: &ServerArgs, link: &HttpTransport, output: Output) -> Done {
        let limit = self.limit.try_into().unwrap_or(usize::MAX);
        let filters = [("kind", self.kind.clone()), ("state", Some("dead".to_owned()))];
        let list: ListAnswer<JobAnswer> = fetch(link, "/v1/jobs", &filters, limit).await?;
        match output {
            Output::Json => print_json(&list)?,
            Output::Table if list.items.is_empty() => none(),
            Output::Table => {
                out(&jobs_table(&list.items, server.tenant()))?;
                tell_more(&list);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What is printed for programs without `--all`.
#[derive(Serialize)]
struct Groups<'a> {
    groups: &'a [DeadGroup],
    complete: bool,
}

fn none() {
    anstream::eprintln!("no job is dead");
}

fn groups_table(groups: &[DeadGroup]) -> String {
    let row = |group: &DeadGroup| {
        [
            group.count.to_string(),
            group.kind.clone(),
            group.operation.clone(),
            plain(&group.code),
            age(&group.oldest),
            age(&group.newest),
            cell(&group.message),
        ]
    };
    let header = ["COUNT", "KIND", "OPERATION", "CODE", "OLDEST", "NEWEST", "MESSAGE"];
    table(header, groups.iter().map(row))
}

/// What was done to the jobs that a filter found.
struct DoneTo<'a> {
    word: &'static str,
    matched: usize,
    more: bool,
    moved: Vec<String>,
    refused: &'a [Unmoved],
}

impl Which {
    /// Everything at once is asked for by its name: a filter that was forgotten is not one.
    fn filter(&self) -> anyhow::Result<DeadFilter> {
        let filter = DeadFilter {
            kind: self.kind.clone(),
            operation: self.operation.clone(),
            code: self.code.clone(),
            ids: (!self.ids.is_empty()).then(|| self.ids.clone()),
        };
        let DeadFilter { kind, operation, code, ids } = &filter;
        if self.all || kind.is_some() || operation.is_some() || code.is_some() || ids.is_some() {
            return Ok(filter);
        }
        let why = "which dead jobs? Name them, or give --kind, --operation or --code, or --all";
        Err(usage(why.to_owned()))
    }

    async fn ask<T: serde::de::DeserializeOwned>(
        &self,
        link: &HttpTransport,
        verb: &str,
    ) -> anyhow::Result<T> {
        let (filter, dry_run, reason) = (self.filter()?, self.dry_run, self.reason.clone());
        let body = DeadBody { filter, dry_run, reason };
        let key = tenure_store::random::request_id().to_string();
        Ok(link.post(&format!("/v1/dead/{verb}"), Some(key), &body, PATIENCE).await?)
    }

    fn tell(&self, answer: &impl Serialize, done: &DoneTo<'_>, output: Output) -> Done {
        match output {
            Output::Json => print_json(answer)?,
            Output::Table => self.print(done)?,
        }
        let unknown = |job: &Unmoved| job.code == Code::NotFound.as_str();
        Ok(match done.refused {
            [] => ExitCode::SUCCESS,
            refused if done.matched == 0 && refused.iter().all(unknown) => {
                ExitCode::from(exit::NOT_FOUND)
            }
            _ => ExitCode::from(exit::REFUSED),
        })
    }

    /// The jobs as data, one on a line; the rest as talk.
    fn print(&self, done: &DoneTo<'_>) -> anyhow::Result<()> {
        let DoneTo { word, matched, moved, refused, .. } = done;
        for job in moved {
            out(job)?;
        }
        for Unmoved { job, detail, .. } in *refused {
            anstream::eprintln!("{job}: {}", plain(detail));
        }
        if self.dry_run {
            anstream::eprintln!("{matched} would be {word}; nothing was done");
        } else {
            let (moved, refused) = (moved.len(), refused.len());
            anstream::eprintln!("{moved} {word}, {refused} refused");
        }
        if done.more {
            anstream::eprintln!("there are more than one request deals with; run it again");
        }
        Ok(())
    }
}
