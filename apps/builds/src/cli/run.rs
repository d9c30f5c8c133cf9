//! `tenure build run`

use std::collections::HashSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tenure::Client;
use tenure_cli_kit::document::usage_error;
use tenure_cli_kit::text::parse_duration;
use tenure_cli_kit::{CliContext, Done, message, process_name};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::summary::{self, Files};
use super::{parse_build, stopped};
use crate::names::{TEST_BYTES_MAX, TESTS_MAX, check_build, check_worker};
use crate::node::api::BuildApi;
use crate::node::ci::{self, CiEnvironment};
use crate::node::command::{STOP_SIGNALS, TestCommand};
use crate::node::end::Stopped;
use crate::node::{Node, NodeOptions, TestSource, check_tests, parse_tests};
use crate::wire::{BuildRulesRequest, RESERVE_MAX};

/// Run tests of a build until none is left
///
/// Start the same line on every node of a CI build. One node is elected: it orders the tests and
/// publishes them. All nodes pull tests until every one has its result; a node that dies loses
/// nothing. At the end each node prints the same summary.
///
/// {} in the command is the test, {file} a file with the tests of a batch, one per line. If a run
/// with several tests fails, each of them is run alone. The environment of the command has
/// TENURE_TEST, TENURE_BUILD, TENURE_WORKER, TENURE_TERM and TENURE_SEED.
///
/// In GitHub Actions, GitLab, Buildkite, CircleCI and Jenkins, build and worker have defaults. The
/// rules of the node that creates the build apply to all. A node that is run again after the build
/// is finished runs the tests again that have failed on it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure build run \"$CI_BUILD\" --tests tests.txt -- pytest -q {}
  tenure build run 4711 --collect 'go test -list . ./... | grep ^Test' -- go test -run '^{}$' ./...
  tenure build run 4711 --tests tests.txt --batch 20 -- bundle exec rspec {file}")]
pub(super) struct Run {
    #[command(flatten)]
    pub(super) node: NodeArgs,
}

/// Options of a node.
#[derive(Args)]
pub(super) struct NodeArgs {
    /// Id of the build, the same on all nodes [default: that of the CI system]
    #[arg(value_parser = parse_build, env = "TENURE_BUILD")]
    build: Option<String>,
    /// File with one test per line; - for standard input
    #[arg(long, value_name = "FILE", required_unless_present = "collect")]
    tests: Option<PathBuf>,
    /// Shell command that prints one test per line; only the leader runs it
    #[arg(long, value_name = "CMD", conflicts_with = "tests")]
    collect: Option<String>,
    /// Name of this node [default: that of the CI system, or HOST/PID]
    #[arg(long, value_name = "ID", env = "TENURE_WORKER")]
    worker: Option<String>,
    /// Seed of the order of the tests [default: the id of the build]
    #[arg(long, value_name = "S")]
    seed: Option<String>,
    /// Number of tests that are reserved at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: usize,
    /// Time limit of one run of a test [default: 30s]
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Number of times that a failed test is run again [default: 1]
    #[arg(long, value_name = "N")]
    max_requeues: Option<u32>,
    /// Fraction of all tests that may be run again [default: 0.05]
    #[arg(long, value_name = "FRACTION")]
    requeue_tolerance: Option<f64>,
    /// Stop all nodes after this number of failed tests
    #[arg(long, value_name = "N")]
    max_failures: Option<u32>,
    /// Stop this node after this number of failed tests in a row
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_consecutive_failures: Option<u32>,
    /// Stop this node after this time
    #[arg(long, value_name = "DUR", value_parser = parse_duration)]
    max_duration: Option<Duration>,
    /// Fail a test that has lost this number of nodes [default: 3]
    #[arg(long, value_name = "N")]
    max_losses: Option<u32>,
    /// Write the results of all nodes as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the failed tests of all nodes, one per line
    #[arg(long, value_name = "FILE")]
    failures: Option<PathBuf>,
    /// File with tests whose failures do not fail the build, one per line
    #[arg(long, value_name = "FILE")]
    known_flaky: Option<PathBuf>,
    /// Start with the tests that were slow in this build
    #[arg(long, value_name = "BUILD", value_parser = parse_build)]
    timings_from: Option<String>,
    /// Refuse to create the build: for nodes that are run again. The default where the CI system
    /// says so
    #[arg(long)]
    existing: bool,
    /// Time to wait for a server that does not answer
    #[arg(long, value_name = "DUR", value_parser = parse_duration, default_value = "60s")]
    server_timeout: Duration,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Run {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        let node = &self.node;
        let options = node.options().map_err(usage_error)?;
        let files = Files { junit: node.junit.as_deref(), failures: node.failures.as_deref() };
        let (api, ended) = node.take_part(cx, options).await?;
        match ended {
            Ok(()) => summary::print(&api, cx.output, &files).await,
            Err(why @ (Stopped::TooManyFailures(_) | Stopped::TimedOut(_))) => {
                summary::print_so_far(&api, cx.output, &files).await?;
                Ok(stopped(&why))
            }
            Err(why) => Ok(stopped(&why)),
        }
    }
}

impl NodeArgs {
    /// Takes part in a build until every test has its result. Returns the API of the build.
    pub(super) async fn take_part(
        &self,
        cx: &CliContext,
        options: NodeOptions,
    ) -> anyhow::Result<(BuildApi, Result<(), Stopped>)> {
        cx.server.one_tenant()?;
        let build = options.build.clone();
        let timeout = self.server_timeout;
        let api =
            |id: &str| Ok::<_, anyhow::Error>(BuildApi::new(cx.server.transport()?, id, timeout));
        let timings = options.timings_from.as_deref().map(api).transpose()?;
        let client = Client::with_transport(Arc::new(cx.server.transport()?), cx.server.tenant());
        let (results, signals) = (api(&build)?, catch_signals()?);
        let mut node = Node::new(api(&build)?, timings, client, options, signals);
        Ok((results, node.run().await))
    }

    pub(super) fn options(&self) -> Result<NodeOptions, String> {
        let ci = ci::detect(|name| std::env::var(name).ok());
        let build = self.build.clone().or(ci.build.clone()).ok_or(
            "the build is not given, and the variables of no known CI system are set: name it \
             after `run`",
        )?;
        check_build(&build)?;
        let worker = self.worker(&ci)?;
        if !(1..=RESERVE_MAX).contains(&self.batch) {
            return Err(format!("--batch must be between 1 and {RESERVE_MAX}"));
        }
        let tests = match (&self.tests, &self.collect) {
            (Some(file), _) => TestSource::List(read_tests(file)?),
            (None, Some(command)) => TestSource::Collect(command.clone()),
            (None, None) => return Err("give --tests or --collect".to_owned()),
        };
        let known_flaky = self.known_flaky.as_deref().map(read_list).transpose()?;
        Ok(NodeOptions {
            build,
            worker,
            tests,
            rules: self.rules(),
            command: TestCommand::new(&self.command)?,
            batch: self.batch,
            max_consecutive_failures: self.max_consecutive_failures,
            max_duration: self.max_duration,
            known_flaky: known_flaky.unwrap_or_default().into_iter().collect::<HashSet<_>>(),
            existing: self.existing || ci.is_retry,
            timings_from: self.timings_from.clone(),
            server_timeout: self.server_timeout,
        })
    }

    fn rules(&self) -> BuildRulesRequest {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        BuildRulesRequest {
            seed: self.seed.clone(),
            timeout_ms: self.timeout.map(millis),
            max_requeues: self.max_requeues,
            requeue_tolerance: self.requeue_tolerance,
            max_failures: self.max_failures,
            max_losses: self.max_losses,
        }
    }

    fn worker(&self, ci: &CiEnvironment) -> Result<String, String> {
        let worker = self.worker.clone().or(ci.worker.clone()).unwrap_or_else(process_name);
        check_worker(&worker).map(|()| worker)
    }
}

/// Reads a list of tests and checks it.
fn read_tests(file: &Path) -> Result<Vec<String>, String> {
    let tests = read_list(file)?;
    let name = file.display();
    check_tests(&tests).map_err(|why| format!("{name}: {why}"))?;
    if tests.len() > TESTS_MAX {
        let count = tests.len();
        return Err(format!("{name} has {count} tests; at most {TESTS_MAX} are allowed"));
    }
    if let Some(long) = tests.iter().find(|test| test.len() > TEST_BYTES_MAX) {
        let start: String = long.chars().take(60).collect();
        return Err(format!("{name}: the test {start:?}… has more than {TEST_BYTES_MAX} bytes"));
    }
    if tests.is_empty() {
        message::warn(&format!("{name} has no tests"));
    }
    Ok(tests)
}

/// Reads a file with one test per line.
fn read_list(file: &Path) -> Result<Vec<String>, String> {
    let text = if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(file)
    };
    let text = text.map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    Ok(parse_tests(&text))
}

/// Collects the signals that stop a node.
pub(super) fn catch_signals() -> anyhow::Result<mpsc::Receiver<i32>> {
    let (sender, receiver) = mpsc::channel(4);
    for number in STOP_SIGNALS {
        let mut caught = signal(SignalKind::from_raw(number)).context("cannot catch signals")?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while caught.recv().await.is_some() {
                if sender.send(number).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(receiver)
}
