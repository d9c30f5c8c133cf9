//! `tenure bench pipelines`

mod ours;
mod peer;
mod runs;
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

use self::ours::Ours;
use self::peer::Peer;
use self::triggers::Measured;
use tenure_bench::floor;
use tenure_bench::histogram::Spread;
use tenure_bench::kept::Kept;
use tenure_bench::servers::Scratch;
use tenure_bench::table::{self, Row};
use tenure_cli_kit::message::say;
use tenure_cli_kit::store::close;
use tenure_cli_kit::text::parse_duration;
use tenure_cli_kit::{CliContext, Done, Output, ParsedVerb, RunVerb, Verb, print_json};

fn apps() -> Apps {
    Apps::new(vec![Arc::new(crate::Pipelines)])
}

/// What to call the peer.
const PEER: &str = "a lock in memory";

/// What each pipeline is declared as. Its step is never done: the handler of the load stands in for
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

/// Measure pipelines: duplicate triggers while a run goes on, and the time until a run begins
///
/// Over HTTP on loopback, with server, worker and callers in this process; a handler that does
/// nothing stands in for the steps. Beside each figure stands its peer, measured in the same way in
/// the same run: the same route with a lock in memory in place of the store, which forgets
/// everything with its process. Fails unless each pipeline had exactly one run where one was due.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure bench pipelines
  tenure bench pipelines --only duplicates --in-flight 1,64 --seconds 5s
  tenure bench pipelines --only starts --at-once 1,16,256 -o json
  tenure bench pipelines --store memory:
  tenure bench pipelines --store postgres://USER@HOST/DATABASE")]
struct Pipelines {
    /// How long to measure each figure
    #[arg(long, value_parser = parse_duration, value_name = "DUR", default_value = "2s")]
    seconds: Duration,
    /// Directory to write in; must be on the disk you want to know about [default: data directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Duplicate triggers under way at once
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [1, 16, 64, 256])]
    in_flight: Vec<usize>,
    /// Idle pipelines that are triggered at once, for the time until a run begins
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [1, 64])]
    at_once: Vec<usize>,
    /// Only these
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    #[command(flatten)]
    kept: Kept,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// What the machine allows
    Floor,
    /// Triggers while a run goes on
    Duplicates,
    /// From the trigger of an idle pipeline until its run begins
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
            // The server and the directory of the run go away with it.
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
        let least = self.at_once.iter().copied().min().unwrap_or(1);
        ensure!(
            least > 0 && slots <= SLOTS_MAX,
            "--at-once: between 1 and {SLOTS_MAX} pipelines are triggered at once"
        );
        let mut report = Report::default();
        if self.wants(Part::Floor) {
            let (flush, rows) = floor::rows(dir).await?;
            report.flush = Some(flush).filter(|_| self.is_durable());
            report.rows.extend(rows);
        }
        let scratch = Scratch::create(dir)?;
        let names = Names::new(self.in_flight.len(), slots);
        let loaded = names.declare(scratch.path(), slots)?;
        let catalog = loaded.apps.get::<Catalog>().context("the section is there")?;
        let all = names.all();
        let peer = Peer::start(catalog, &names.tenant, &all).await?;
        let store = self.kept.open(&scratch).await?;
        let on = Arc::clone(&store);
        let ours = Ours::start(on, &scratch, &loaded, (&names.tenant, &all), slots).await?;
        let mut run = Run { options: self, names: &names, peer: &peer, ours: &ours, report };
        let done = run.all().await;
        let report = run.report;
        let stopped = ours.stop().await;
        // What is still being written to cannot be removed.
        close(store).await;
        done.and(stopped)?;
        ensure!(report.overlaps == 0, "two runs of one pipeline ran at once");
        Ok(report)
    }

    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// What to call Tenure on the store at hand.
    fn name(&self) -> String {
        let durable = if self.is_durable() { ", durable" } else { "" };
        format!("tenure {}{durable}", self.kept.name())
    }

    fn is_durable(&self) -> bool {
        self.kept.name() != "memory"
    }
}

/// Which pipelines there are. Nobody has used their tenant before, so all of them are idle.
struct Names {
    tenant: String,
    /// One for each figure of duplicates.
    duplicates: Vec<String>,
    starts: Vec<String>,
}

impl Names {
    fn new(duplicates: usize, starts: usize) -> Self {
        let mark = tenure_store::random::request_id().to_string();
        Self {
            tenant: format!("bench-{}", &mark[..8]),
            duplicates: (0..duplicates).map(|n| format!("duplicates-{n}")).collect(),
            starts: (0..starts).map(|n| format!("starts-{n}")).collect(),
        }
    }

    fn all(&self) -> Vec<String> {
        [&self.duplicates[..], &self.starts[..]].concat()
    }

    /// Declares them in files, as everybody does.
    fn declare(&self, under: &Path, slots: usize) -> Result<Loaded> {
        let dir = under.join("pipelines");
        let of_tenant = dir.join(&self.tenant);
        std::fs::create_dir_all(&of_tenant)?;
        for name in self.all() {
            std::fs::write(of_tenant.join(format!("{name}.toml")), DECLARED)?;
        }
        let config = format!("[pipelines]\ndir = \"pipelines\"\nslots = {slots}\n");
        apps().parse(&config, under).context("declare pipelines")
    }
}

/// What was measured.
#[derive(Default)]
struct Report {
    rows: Vec<Row>,
    /// The floor of every durable figure.
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
            "triggers: {triggers}, runs: {runs}, each made by exactly one trigger; \
             overlaps: {overlaps}"
        )
    }

    fn push(&mut self, what: &str, in_flight: usize, measured: &Measured, ratio: String) {
        let sample = &measured.sample;
        let (rate, p50) = (table::rate(sample.pairs_per_s()), table::micros(sample.p50_us));
        say(&format!("{what}, {in_flight} at once: {rate} triggers/s, p50 {p50}"));
        self.triggers += measured.triggers;
        self.runs += measured.runs;
        self.rows.push(Row::load(what, in_flight, sample, ratio));
    }
}

struct Run<'a> {
    options: &'a Pipelines,
    names: &'a Names,
    peer: &'a Peer,
    ours: &'a Ours,
    report: Report,
}

impl Run<'_> {
    async fn all(&mut self) -> Result<()> {
        self.duplicates().await?;
        self.starts().await
    }

    async fn duplicates(&mut self) -> Result<()> {
        if !self.options.wants(Part::Duplicates) {
            return Ok(());
        }
        for (in_flight, pipeline) in self.options.in_flight.iter().zip(&self.names.duplicates) {
            let load = (*in_flight, self.options.seconds);
            let nobody_else = async |_| Ok(None);
            let peer = triggers::duplicates(&self.peer.site, pipeline, load, nobody_else).await?;
            self.report.push(&format!("{PEER}: duplicates"), *in_flight, &peer, String::new());
            let kept = async |id| self.ours.joined(id).await.map(Some);
            let ours = triggers::duplicates(&self.ours.site, pipeline, load, kept).await?;
            let ratio = rates(&ours, &peer, self.report.flush);
            let what = format!("{}: duplicates", self.options.name());
            self.report.push(&what, *in_flight, &ours, ratio);
        }
        self.overlaps();
        Ok(())
    }

    async fn starts(&mut self) -> Result<()> {
        if !self.options.wants(Part::Starts) {
            return Ok(());
        }
        for at_once in self.options.at_once.iter().copied() {
            let (pipelines, budget) = (&self.names.starts[..at_once], self.options.seconds);
            let peer = triggers::starts(&self.peer.site, pipelines, budget).await?;
            let what = format!("{PEER}: trigger to start");
            self.report.push(&what, at_once, &peer, String::new());
            let ours = triggers::starts(&self.ours.site, pipelines, budget).await?;
            let ratio = times(&ours, &peer, self.report.flush);
            let what = format!("{}: trigger to start", self.options.name());
            self.report.push(&what, at_once, &ours, ratio);
        }
        self.overlaps();
        Ok(())
    }

    fn overlaps(&mut self) {
        self.report.overlaps = self.peer.site.runs.overlaps() + self.ours.site.runs.overlaps();
    }
}

/// How many triggers Tenure takes for each of the peer, and in the time of one flush.
fn rates(ours: &Measured, peer: &Measured, flush: Option<Spread>) -> String {
    let (ours, peer) = (ours.sample.pairs_per_s(), peer.sample.pairs_per_s());
    let of_peer = format!("{:.2}× of {PEER}", ours / peer);
    match flush {
        Some(flush) => format!("{of_peer}, {:.1} per flush", ours * flush.p50_us / 1e6),
        None => of_peer,
    }
}

/// How long a start takes in the time of one of the peer, and in flushes.
fn times(ours: &Measured, peer: &Measured, flush: Option<Spread>) -> String {
    let (ours, peer) = (ours.sample.p50_us, peer.sample.p50_us);
    let of_peer = format!("{:.1}× as long as {PEER}", ours / peer);
    match flush {
        Some(flush) => format!("{of_peer}, {:.1} flushes", ours / flush.p50_us),
        None => of_peer,
    }
}

#[cfg(test)]
mod tests;
