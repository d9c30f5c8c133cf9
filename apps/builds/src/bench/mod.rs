//! `tenure bench builds`: how long publishing takes, and what the queue adds to each test.

mod target;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use async_trait::async_trait;
use clap::{Args, ValueEnum};
use tenure_bench::floor;
use tenure_bench::histogram::Spread;
use tenure_bench::servers::Scratch;
use tenure_bench::store_args::StoreArgs;
use tenure_bench::table::{self, Row};
use tenure_cli_kit::message::say;
use tenure_cli_kit::store::close;
use tenure_cli_kit::text::parse_duration;
use tenure_cli_kit::{CliContext, Done, Output, ParsedVerb, RunVerb, Verb, print_json};

use target::Target;

/// Measure builds: publishing tests, and the time between two tests
///
/// Uses HTTP on loopback, with the server and all nodes in this process. The tests of the nodes are
/// pauses, so what is measured is the queue. Fails unless every test passes.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure bench builds
  tenure bench builds --only publish --tests 10000
  tenure bench builds --only queue --nodes 32 --test 100ms
  tenure bench builds --store postgres://USER@HOST/DATABASE")]
struct BuildsBench {
    /// Number of tests that are published
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    tests: usize,
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 32)]
    nodes: usize,
    /// Duration of each test
    #[arg(long, value_parser = parse_duration, value_name = "DUR", default_value = "100ms")]
    test: Duration,
    /// Number of tests that each node runs
    #[arg(long, value_name = "N", default_value_t = 50)]
    tests_per_node: usize,
    /// Directory to write to, on the disk to measure [default: data directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Measure only these
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    #[command(flatten)]
    store: StoreArgs,
}

/// Measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Limits of the machine
    Floor,
    /// Time until all tests are published
    Publish,
    /// Time from the end of a test to the begin of the next one on its node
    Queue,
}

/// The benchmark `tenure bench builds`.
pub(crate) fn verb() -> Box<dyn Verb> {
    let command = || BuildsBench::augment_args(clap::Command::new("builds"));
    Box::new(ParsedVerb::<BuildsBench>::new(command))
}

#[async_trait(?Send)]
impl RunVerb for BuildsBench {
    async fn run(&self, cx: &CliContext) -> Done {
        let dir = match &self.dir {
            Some(dir) => dir.clone(),
            None => cx.server.data().dir()?,
        };
        std::fs::create_dir_all(&dir)?;
        let rows = tokio::select! {
            rows = self.measure(&dir) => rows?,
            // Dropping the future stops the server and removes the directory.
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
        };
        match cx.output {
            Output::Json => print_json(&table::json(&rows))?,
            Output::Table => anstream::println!("{}", table::text_with(&rows, "tests/s")),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl BuildsBench {
    fn selects(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    async fn measure(&self, dir: &Path) -> Result<Vec<Row>> {
        ensure!(self.nodes > 0 && self.tests > 0, "--nodes and --tests must be at least 1");
        let mut rows = Vec::new();
        let mut flush = None;
        if self.selects(Part::Floor) {
            let (spread, floor) = floor::rows(dir).await?;
            flush = Some(spread);
            rows.extend(floor);
        }
        let scratch = Scratch::create(dir)?;
        let store = self.store.open(&scratch).await?;
        let target = Target::start(std::sync::Arc::clone(&store), &scratch).await?;
        let done = self.measure_target(&target, flush, &mut rows).await;
        let stopped = target.stop().await;
        // The store must be closed before its directory is removed.
        close(store).await;
        done.and(stopped)?;
        Ok(rows)
    }

    async fn measure_target(
        &self,
        target: &Target,
        flush: Option<Spread>,
        rows: &mut Vec<Row>,
    ) -> Result<()> {
        let store = self.store.name();
        if self.selects(Part::Publish) {
            let sample = target.publish(self.tests).await?;
            let took = table::micros(sample.p50_us);
            say(&format!("{store}: {} tests published in {took}", self.tests));
            let ratio = flushes(sample.p50_us, flush);
            rows.push(Row::load(format!("tenure {store}: publish"), 1, &sample, ratio));
        }
        if self.selects(Part::Queue) {
            let sample = target.queue(self.nodes, self.tests_per_node, self.test).await?;
            let took = table::micros(sample.p50_us);
            say(&format!("{store}: {} nodes, p50 {took} between two tests", self.nodes));
            let ratio = flushes(sample.p50_us, flush);
            let what = format!("tenure {store}: end of a test to the next");
            rows.push(Row::load(what, self.nodes, &sample, ratio));
        }
        Ok(())
    }
}

/// Compares a time with that of a flush.
fn flushes(us: f64, flush: Option<Spread>) -> String {
    flush.map(|flush| format!("{:.1} flushes", us / flush.p50_us)).unwrap_or_default()
}
