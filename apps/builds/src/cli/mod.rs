//! `tenure build`: runs the tests of a build on this node, and shows builds.

mod bisect;
mod grind;
mod ls;
mod release;
mod report;
mod retry;
mod run;
mod status;
mod summary;

use std::process::ExitCode;

use async_trait::async_trait;
use clap::Subcommand;
use tenure_cli_kit::{CliContext, Done, ParsedVerb, RunVerb, Verb, message};

use crate::names::check_build;
use crate::node::end::Stopped;

/// Run the tests of a build on many nodes, and show builds
#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  tenure build run \"$CI_BUILD\" --tests tests.txt -- pytest -q {}
  tenure build status 4711
  tenure build report 4711 --wait 30m --junit junit.xml

Exit codes of run, retry and report: 0 all tests passed, 1 a test failed, 40 no leader, 41 the
heartbeats of all leaders stopped, 42 store unavailable or application error, 43 timed out, 44 too
many failures, 45 no node is left, 128+N ended by signal N.")]
enum BuildVerb {
    Run(run::Run),
    Status(status::Status),
    Ls(ls::Ls),
    Report(report::Report),
    Retry(retry::Retry),
    Release(release::Release),
    Grind(grind::Grind),
    Bisect(bisect::Bisect),
}

#[async_trait(?Send)]
impl RunVerb for BuildVerb {
    async fn run(&self, cx: &CliContext) -> Done {
        match self {
            Self::Run(run) => run.run(cx).await,
            Self::Status(status) => status.run(cx).await,
            Self::Ls(ls) => ls.run(cx).await,
            Self::Report(report) => report.run(cx).await,
            Self::Retry(retry) => retry.run(cx).await,
            Self::Release(release) => release.run(cx).await,
            Self::Grind(grind) => grind.run(cx).await,
            Self::Bisect(bisect) => bisect.run(cx).await,
        }
    }
}

/// The verb `tenure build`.
pub(crate) fn verb() -> Box<dyn Verb> {
    let command = || {
        let command = BuildVerb::augment_subcommands(clap::Command::new("build"));
        command.subcommand_required(true).arg_required_else_help(true)
    };
    let verb = ParsedVerb::<BuildVerb>::new(command);
    Box::new(verb.example(
        "tenure build run 4711 --tests tests.txt -- pytest -q {}",
        "run the tests of a CI build, spread over nodes",
    ))
}

/// Parses the id of a build.
fn parse_build(text: &str) -> Result<String, String> {
    check_build(text).map(|()| text.to_owned())
}

/// Says why a node or a report stopped, and returns the exit code.
fn stopped(stopped: &Stopped) -> ExitCode {
    message::say(&stopped.to_string());
    ExitCode::from(stopped.exit_code())
}
