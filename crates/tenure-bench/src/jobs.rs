//! `tenure bench jobs`

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use tenure_store::{Committer, Memory};

use crate::beside::Idle;
use crate::cycles::{self, Measured, Shape};
use crate::histogram::Spread;
use crate::kept::Kept;
use crate::load::now;
use crate::servers::Scratch;
use crate::table::{self, Row};
use crate::{calls, claims, floor, remote_cycles, shared};
use async_trait::async_trait;
use tenure_cli_kit::text::parse_duration;
use tenure_cli_kit::{CliContext, Done, Output, RunVerb, print_json};

/// How long nothing happens beside an idle transaction before jobs go through again.
const PAUSE: Duration = Duration::from_secs(60);
/// The load on one server and on two.
const SHARED: Shape = Shape { resources: 1_000, zipf: false };

/// Measure jobs: cycles of submit, claim and finish, hand-off within a lane, the cost of a claim
///
/// A cycle is three durable steps. Overlaps (two jobs at once on one resource) are counted by the
/// load itself; there must be none.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure bench jobs
  tenure bench jobs --only floor,embedded --resources 1,1000 --seconds 5s
  tenure bench jobs --only calls --in-a-call 64 --store postgres://USER@HOST/DATABASE
  tenure bench jobs --only claims --idle 1000000 --past 1000000
  tenure bench jobs --only shared --store postgres://USER@HOST/DATABASE
  tenure bench jobs --only beside --idle-for 1h --store postgres://USER@HOST/DATABASE")]
pub(crate) struct Jobs {
    /// How long to measure each figure
    #[arg(long, value_parser = parse_duration, value_name = "DUR", default_value = "2s")]
    seconds: Duration,
    /// Directory to write in; must be on the disk you want to know about [default: data directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Jobs under way at once
    #[arg(long, default_value_t = 256)]
    in_flight: usize,
    /// Jobs of one call, where they are submitted, claimed and finished in calls of many
    #[arg(long, default_value_t = 64)]
    in_a_call: usize,
    /// Distinct resources
    #[arg(long, value_delimiter = ',', default_values_t = [1, 1_000, 100_000])]
    resources: Vec<usize>,
    /// Only these
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    #[command(flatten)]
    kept: Kept,
    /// Idle resources for the cost of a claim
    #[arg(long, default_value_t = 1_000_000)]
    idle: usize,
    /// Finished jobs for the cost of a claim
    #[arg(long, default_value_t = 1_000_000)]
    past: usize,
    /// How long a transaction is idle before claims beside it are measured; jobs go through for
    /// --seconds, with a minute in between [default: as long as --seconds]
    #[arg(long, value_parser = parse_duration, value_name = "DUR")]
    idle_for: Option<Duration>,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// What the machine allows
    Floor,
    /// The store in memory
    Memory,
    /// The durable store: the embedded one, or that of --store
    Embedded,
    /// The durable store, with jobs in calls of many
    Calls,
    /// A server on the durable store
    Http,
    /// The cost of a claim beside much that is idle or finished
    Claims,
    /// One server and two on one database; needs --store postgres://…
    Shared,
    /// The cost of a claim beside an idle transaction; needs --store postgres://…
    Beside,
}

#[async_trait(?Send)]
impl RunVerb for Jobs {
    async fn run(&self, cx: &CliContext) -> Done {
        if self.only.contains(&Part::Shared) || self.only.contains(&Part::Beside) {
            self.kept.ensure_shared()?;
        }
        let dir = match &self.dir {
            Some(dir) => dir.clone(),
            None => cx.server.data().dir()?,
        };
        std::fs::create_dir_all(&dir)?;
        let (rows, notes) = (Vec::new(), Vec::new());
        let mut run = Run { options: self, dir, rows, notes, flush: None, overlaps: 0 };
        tokio::select! {
            result = run.all() => result?,
            // Servers and directories of the run go away with it.
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
        }
        match cx.output {
            Output::Json => print_json(&table::json(&run.rows))?,
            Output::Table => {
                anstream::println!("{}", table::text_with(&run.rows, "cycles/s"));
                anstream::println!("overlaps: {}", run.overlaps);
                run.notes.iter().for_each(|note| anstream::println!("{note}"));
            }
        }
        anyhow::ensure!(run.overlaps == 0, "two jobs ran at once on one resource");
        Ok(ExitCode::SUCCESS)
    }
}

impl Jobs {
    fn shapes(&self) -> Vec<Shape> {
        let mut shapes = Vec::new();
        for resources in self.resources.iter().copied() {
            shapes.push(Shape { resources, zipf: false });
            if resources > 1 {
                shapes.push(Shape { resources, zipf: true });
            }
        }
        shapes
    }
}

struct Run<'a> {
    options: &'a Jobs,
    dir: PathBuf,
    rows: Vec<Row>,
    /// What could not be measured, and why.
    notes: Vec<String>,
    flush: Option<Spread>,
    overlaps: u64,
}

impl Run<'_> {
    async fn all(&mut self) -> Result<()> {
        self.floor().await?;
        for shape in self.options.shapes() {
            self.cycles(shape).await?;
        }
        self.claims().await?;
        if let Some(url) = self.options.kept.shared() {
            self.shared().await?;
            self.beside(url).await?;
        }
        Ok(())
    }

    fn wants(&self, part: Part) -> bool {
        let wanted = self.options.only.is_empty() || self.options.only.contains(&part);
        if wanted {
            tracing::info!(?part, "measuring");
        }
        wanted
    }

    async fn floor(&mut self) -> Result<()> {
        if self.wants(Part::Floor) {
            let (flush, rows) = floor::rows(&self.dir).await?;
            self.flush = Some(flush);
            self.rows.extend(rows);
        }
        Ok(())
    }

    async fn cycles(&mut self, shape: Shape) -> Result<()> {
        let (in_flight, seconds) = (self.options.in_flight, self.options.seconds);
        if self.wants(Part::Memory) {
            let store = Arc::new(Memory::new());
            let measured = cycles::local(store, shape, in_flight, seconds).await?;
            self.push("memory, in process", shape, &measured);
        }
        if self.wants(Part::Embedded) {
            let scratch = Scratch::create(&self.dir)?;
            let store = self.options.kept.open(&scratch).await?;
            let measured = cycles::local(store, shape, in_flight, seconds).await?;
            let what = format!("{}, durable, in process", self.options.kept.name());
            self.push(&what, shape, &measured);
        }
        if self.wants(Part::Calls) {
            let scratch = Scratch::create(&self.dir)?;
            let store = self.options.kept.open(&scratch).await?;
            let size = self.options.in_a_call.clamp(1, in_flight);
            let measured = calls::local(store, shape, in_flight, size, seconds).await?;
            let what = format!("{}, durable, in calls of {size}", self.options.kept.name());
            self.push(&what, shape, &measured);
        }
        if self.wants(Part::Http) {
            let scratch = Scratch::create(&self.dir)?;
            let kept = &self.options.kept;
            let measured =
                remote_cycles::measure(kept, &scratch, shape, in_flight, seconds).await?;
            let what = format!("{}, durable, over HTTP", kept.name());
            self.push(&what, shape, &measured);
        }
        Ok(())
    }

    async fn claims(&mut self) -> Result<()> {
        if !self.wants(Part::Claims) {
            return Ok(());
        }
        let scratch = Scratch::create(&self.dir)?;
        let store = self.options.kept.open(&scratch).await?;
        let empty = claims::cost(&store, self.options.seconds).await?;
        self.rows.push(Row::floor("a claim, nothing else there", empty));
        claims::fill(&store, self.options.idle, self.options.past).await?;
        let full = claims::cost(&store, self.options.seconds).await?;
        let (idle, past) = (self.options.idle as f64, self.options.past as f64);
        let (idle, past) = (table::rate(idle), table::rate(past));
        let mut row = Row::floor(format!("a claim, {idle} idle, {past} finished"), full);
        row.ratio = format!("{:.2}× of nothing there", full.p50_us / empty.p50_us);
        self.rows.push(row);
        Ok(())
    }

    /// One server and two on one database.
    async fn shared(&mut self) -> Result<()> {
        if !self.wants(Part::Shared) {
            return Ok(());
        }
        let Jobs { in_flight, seconds, kept, .. } = self.options;
        let scratch = Scratch::create(&self.dir)?;
        let measure =
            async |servers: &[_]| cycles::across(servers, SHARED, *in_flight, *seconds).await;
        let measured = shared::each(kept, &scratch, measure).await?;
        self.push_shared("one server alone", &measured.alone, String::new());
        let Some(two) = measured.two else {
            self.notes.push(shared::DEAF.to_owned());
            return Ok(());
        };
        for (servers, measured, ratio) in two.rows(&measured.alone, Measured::per_s) {
            self.push_shared(servers, measured, ratio);
        }
        Ok(())
    }

    /// A claim, one beside a transaction that was idle while jobs went through, and one after it.
    async fn beside(&mut self, url: &str) -> Result<()> {
        if !self.wants(Part::Beside) {
            return Ok(());
        }
        let Jobs { seconds, kept, .. } = self.options;
        let scratch = Scratch::create(&self.dir)?;
        // One of its own: it knows of no other server.
        let store = kept.open(&scratch).await?;
        let server = [Committer::start(Arc::clone(&store))];
        let nothing = claims::cost(&store, *seconds).await?;
        self.rows.push(Row::floor("a claim, no transaction beside it", nothing));
        let idle = match Idle::begin(url).await {
            Ok(idle) => idle,
            Err(error) => {
                self.notes.push(format!("no claim beside an idle transaction: {error:#}"));
                return Ok(());
            }
        };
        let began = now();
        let cycles = table::rate(self.go_through(&server).await? as f64);
        let since = began.elapsed().as_secs();
        let beside = claims::cost(&store, *seconds).await?;
        idle.end().await?;
        let after = claims::cost(&store, *seconds).await?;
        let what = format!("a claim beside a transaction idle for {since} s and {cycles} cycles");
        for (what, cost) in [(what, beside), ("a claim after it".to_owned(), after)] {
            let mut row = Row::floor(what, cost);
            row.ratio = format!("{:.2}× of none beside it", cost.p50_us / nothing.p50_us);
            self.rows.push(row);
        }
        Ok(())
    }

    /// Lets jobs through, again and again for as long as `--idle-for` says; counts them.
    async fn go_through(&mut self, server: &[Committer]) -> Result<u64> {
        let Jobs { in_flight, seconds, idle_for, .. } = self.options;
        let (began, mut cycles) = (now(), 0);
        loop {
            let measured = cycles::across(server, SHARED, *in_flight, *seconds).await?;
            self.overlaps += measured.overlaps;
            cycles += measured.all;
            let left = idle_for.unwrap_or_default().saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(cycles);
            }
            tracing::info!(cycles, left_s = left.as_secs(), "a transaction is idle");
            tokio::time::sleep(left.min(PAUSE)).await;
        }
    }

    /// A row of [`Self::shared`].
    fn push_shared(&mut self, servers: &str, measured: &Measured, ratio: String) {
        let what =
            format!("{}, in process, {servers}, {}", self.options.kept.name(), SHARED.words());
        tracing::info!(what, cycles_per_s = measured.per_s(), "measured");
        self.overlaps += measured.overlaps;
        let mut row = Row::floor(format!("{what}: submit to start"), measured.start);
        row.in_flight = Some(self.options.in_flight);
        row.pairs_per_s = Some(measured.per_s());
        row.ratio = ratio;
        self.rows.push(row);
    }

    fn push(&mut self, what: &str, shape: Shape, measured: &Measured) {
        let what = format!("{what}, {}", shape.words());
        tracing::info!(what, cycles_per_s = measured.per_s(), "measured");
        self.overlaps += measured.overlaps;
        let mut row = Row::floor(format!("{what}: submit to start"), measured.start);
        row.in_flight = Some(self.options.in_flight);
        row.pairs_per_s = Some(measured.per_s());
        row.ratio = self.flush.map_or_else(String::new, |flush| {
            format!("{:.1} cycles per flush", measured.per_s() * flush.p50_us / 1e6)
        });
        self.rows.push(row);
        if measured.hand_off.p50_us > 0.0 {
            self.rows.push(Row::floor(format!("{what}: hand-off in a lane"), measured.hand_off));
        }
    }
}
