//! `tenure bench pipelines`

mod baseline;
mod runs;
mod tenure_target;
mod triggers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use clap::{Args, ValueEnum};
use tenure_app::{Apps, Loaded};
use tenure_core::limits::WORKER_SLOTS_MAX as SLOTS_MAX;

use crate::Catalog;

use self::baseline::Baseline;
use self::tenure_target::TenureTarget;
use self::triggers::Measured;
use tenure_bench::floor;
use tenure_bench::histogram::Spread;
use tenure_bench::servers::Scratch;
use tenure_bench::store_args::StoreArgs;
use tenure_bench::table::{self, Row};
use tenure_cli_kit::message::say;
use tenure_cli_kit::store::close;
use tenure_cli_kit::text::parse_duration;
use tenure_cli_kit::{CliContext, Done, Output, ParsedVerb, RunVerb, Verb, print_json};

fn apps() -> Apps {
    Apps::new(vec![Arc::new(crate::Pipelines)])
}

/// Name of the baseline.
const BASELINE: &str = "in-memory lock";

/// Declaration of each pipeline. Its step is never executed: a handler of the benchmark replaces
/// it.
const DECLARED: &str = r#"
[parameters.date]
type = "date"

[parameters.full]
type = "boolean"
default = false

[[steps]]
name = "work"
command = ["true"]
"#;

/// Measure pipelines: duplicate triggers during a run, and the time until a run starts
///
/// Uses HTTP on loopback, with server, worker and callers in this process; an empty handler
/// replaces the steps. Each figure is compared with a baseline measured in the same way: the same
/// route with an in-memory lock instead of the store, without durability. Fails unless each
/// pipeline has exactly one run at a time.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure bench pipelines
  tenure bench pipelines --only duplicates --in-flight 1,64 --seconds 5s
  tenure bench pipelines --only starts --at-once 1,16,256 -o json
  tenure bench pipelines --store memory:
  tenure bench pipelines --store postgres://USER@HOST/DATABASE")]
struct Pipelines {
    /// Duration of each measurement
    #[arg(long, value_parser = parse_duration, value_name = "DUR", default_value = "2s")]
    seconds: Duration,
    /// Directory to write to, on the disk to measure [default: data directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Numbers of concurrent duplicate triggers
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [1, 16, 64, 256])]
    in_flight: Vec<usize>,
    /// Numbers of idle pipelines that are triggered concurrently, for the time until a run starts
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [1, 64])]
    at_once: Vec<usize>,
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
    /// Triggers during a run
    Duplicates,
    /// Time from the trigger of an idle pipeline until its run starts
    Starts,
}

/// The benchmark `tenure bench pipelines`.
pub(crate) fn verb() -> Box<dyn Verb> {
    let command = || Pipelines::augment_args(clap::Command::new("pipelines"));
    Box::new(ParsedVerb::<Pipelines>::new(command))
}

#[async_trait(?Send)]
impl RunVerb for Pipelines {
    async fn run(&self, cx: &CliContext) -> Done {
        let dir = match &self.dir {
            Some(dir) => dir.clone(),
            None => cx.server.data().dir()?,
        };
        std::fs::create_dir_all(&dir)?;
        let report = tokio::select! {
            report = self.measure(&dir) => report?,
            // Dropping the future stops the server and removes the directory.
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
        };
        match cx.output {
            Output::Json => print_json(&table::json(&report.rows))?,
            Output::Table => {
                anstream::println!("{}", table::text_with(&report.rows, "triggers/s"));
                anstream::println!("{}", report.counts());
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Pipelines {
    async fn measure(&self, dir: &Path) -> Result<Report> {
        let slots = self.at_once.iter().copied().max().unwrap_or(1);
        let min = self.at_once.iter().copied().min().unwrap_or(1);
        ensure!(
            min > 0 && slots <= SLOTS_MAX,
            "--at-once must be between 1 and {SLOTS_MAX} pipelines"
        );
        let mut report = Report::default();
        if self.selects(Part::Floor) {
            let (flush, rows) = floor::rows(dir).await?;
            report.flush = Some(flush).filter(|_| self.is_durable());
            report.rows.extend(rows);
        }
        let scratch = Scratch::create(dir)?;
        let names = Names::new(self.in_flight.len(), slots);
        let loaded = names.declare(scratch.path(), slots)?;
        let catalog = loaded.apps.get::<Catalog>().context("the section [pipelines]")?;
        let all = names.all();
        let baseline = Baseline::start(catalog, &names.tenant, &all).await?;
        let store = self.store.open(&scratch).await?;
        let on = Arc::clone(&store);
        let tenure =
            TenureTarget::start(on, &scratch, &loaded, (&names.tenant, &all), slots).await?;
        let mut measurement = Measurement {
            options: self,
            names: &names,
            baseline: &baseline,
            tenure: &tenure,
            report,
        };
        let done = measurement.run().await;
        let report = measurement.report;
        let stopped = tenure.stop().await;
        // The store must be closed before its directory is removed.
        close(store).await;
        done.and(stopped)?;
        ensure!(report.overlaps == 0, "two runs of one pipeline overlapped");
        Ok(report)
    }

    fn selects(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Returns the name of Tenure with the store.
    fn name(&self) -> String {
        let durable = if self.is_durable() { ", durable" } else { "" };
        format!("tenure {}{durable}", self.store.name())
    }

    fn is_durable(&self) -> bool {
        self.store.name() != "memory"
    }
}

/// Names of the pipelines. Their tenant is new, so all of them are idle.
struct Names {
    tenant: String,
    /// One for each measurement of duplicates.
    duplicates: Vec<String>,
    starts: Vec<String>,
}

impl Names {
    fn new(duplicates: usize, starts: usize) -> Self {
        let id = tenure_store::random::request_id().to_string();
        Self {
            tenant: format!("bench-{}", &id[..8]),
            duplicates: (0..duplicates).map(|n| format!("duplicates-{n}")).collect(),
            starts: (0..starts).map(|n| format!("starts-{n}")).collect(),
        }
    }

    fn all(&self) -> Vec<String> {
        [&self.duplicates[..], &self.starts[..]].concat()
    }

    /// Declares the pipelines in files.
    fn declare(&self, root: &Path, slots: usize) -> Result<Loaded> {
        let dir = root.join("pipelines");
        let tenant_dir = dir.join(&self.tenant);
        std::fs::create_dir_all(&tenant_dir)?;
        for name in self.all() {
            std::fs::write(tenant_dir.join(format!("{name}.toml")), DECLARED)?;
        }
        let config = format!("[pipelines]\ndir = \"pipelines\"\nslots = {slots}\n");
        apps().parse(&config, root).context("declare pipelines")
    }
}

/// Results of all measurements.
#[derive(Default)]
struct Report {
    rows: Vec<Row>,
    /// Time of a disk flush, the lower bound of durable writes.
    flush: Option<Spread>,
    triggers: u64,
    runs: u64,
    overlaps: u64,
}

impl Report {
    fn counts(&self) -> String {
        let (triggers, runs) = (table::rate(self.triggers as f64), table::rate(self.runs as f64));
        let overlaps = self.overlaps;
        format!(
            "triggers: {triggers}, runs: {runs}, each created by exactly one trigger; \
                         overlaps: {overlaps}"
        )
    }

    fn push(&mut self, what: &str, in_flight: usize, measured: &Measured, ratio: String) {
        let sample = &measured.sample;
        let (rate, p50) = (table::rate(sample.pairs_per_s()), table::micros(sample.p50_us));
        say(&format!("{what}, {in_flight} concurrent: {rate} triggers/s, p50 {p50}"));
        self.triggers += measured.triggers;
        self.runs += measured.runs;
        self.rows.push(Row::load(what, in_flight, sample, ratio));
    }
}

struct Measurement<'a> {
    options: &'a Pipelines,
    names: &'a Names,
    baseline: &'a Baseline,
    tenure: &'a TenureTarget,
    report: Report,
}

impl Measurement<'_> {
    async fn run(&mut self) -> Result<()> {
        self.duplicates().await?;
        self.starts().await
    }

    async fn duplicates(&mut self) -> Result<()> {
        if !self.options.selects(Part::Duplicates) {
            return Ok(());
        }
        for (in_flight, pipeline) in self.options.in_flight.iter().zip(&self.names.duplicates) {
            let load = (*in_flight, self.options.seconds);
            let no_check = async |_| Ok(None);
            let baseline =
                triggers::duplicates(&self.baseline.target, pipeline, load, no_check).await?;
            self.report.push(
                &format!("{BASELINE}: duplicates"),
                *in_flight,
                &baseline,
                String::new(),
            );
            let joined = async |id| self.tenure.joined(id).await.map(Some);
            let tenure = triggers::duplicates(&self.tenure.target, pipeline, load, joined).await?;
            let ratio = compare_rates(&tenure, &baseline, self.report.flush);
            let what = format!("{}: duplicates", self.options.name());
            self.report.push(&what, *in_flight, &tenure, ratio);
        }
        self.count_overlaps();
        Ok(())
    }

    async fn starts(&mut self) -> Result<()> {
        if !self.options.selects(Part::Starts) {
            return Ok(());
        }
        for at_once in self.options.at_once.iter().copied() {
            let (pipelines, budget) = (&self.names.starts[..at_once], self.options.seconds);
            let baseline = triggers::starts(&self.baseline.target, pipelines, budget).await?;
            let what = format!("{BASELINE}: trigger to start");
            self.report.push(&what, at_once, &baseline, String::new());
            let tenure = triggers::starts(&self.tenure.target, pipelines, budget).await?;
            let ratio = compare_times(&tenure, &baseline, self.report.flush);
            let what = format!("{}: trigger to start", self.options.name());
            self.report.push(&what, at_once, &tenure, ratio);
        }
        self.count_overlaps();
        Ok(())
    }

    fn count_overlaps(&mut self) {
        self.report.overlaps =
            self.baseline.target.runs.overlaps() + self.tenure.target.runs.overlaps();
    }
}

/// Compares the rate of triggers with the baseline and with the time of a flush.
fn compare_rates(tenure: &Measured, baseline: &Measured, flush: Option<Spread>) -> String {
    let (tenure, baseline) = (tenure.sample.pairs_per_s(), baseline.sample.pairs_per_s());
    let ratio = format!("{:.2}× of {BASELINE}", tenure / baseline);
    match flush {
        Some(flush) => format!("{ratio}, {:.1} per flush", tenure * flush.p50_us / 1e6),
        None => ratio,
    }
}

/// Compares the time until a start with the baseline and with the time of a flush.
fn compare_times(tenure: &Measured, baseline: &Measured, flush: Option<Spread>) -> String {
    let (tenure, baseline) = (tenure.sample.p50_us, baseline.sample.p50_us);
    let ratio = format!("{:.1}× as long as {BASELINE}", tenure / baseline);
    match flush {
        Some(flush) => format!("{ratio}, {:.1} flushes", tenure / flush.p50_us),
        None => ratio,
    }
}

#[cfg(test)]
mod tests;
