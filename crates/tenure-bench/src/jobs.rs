//! `tenure bench jobs`

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use tenure_store::{Committer, Memory, Store};

use crate::clock::now;
use crate::cycles::{self, KeyDistribution, Measured};
use crate::histogram::Spread;
use crate::idle_transaction::IdleTransaction;
use crate::servers::Scratch;
use crate::store_args::StoreArgs;
use crate::table::{self, Row};
use crate::{batched_cycles, claims, floor, group_claims, remote_cycles, shared_database};
use async_trait::async_trait;
use tenure_cli_kit::text::parse_duration;
use tenure_cli_kit::{CliContext, Done, Output, RunVerb, print_json};

/// Pause between two loads during an idle transaction.
const PAUSE: Duration = Duration::from_secs(60);
/// Load on servers that share a database.
const SHARED_LOAD: KeyDistribution = KeyDistribution { resources: 1_000, zipf: false };

/// Measure jobs: cycles of submit, claim and finish, hand-off in a lane, and the cost of a claim
///
/// A cycle consists of three durable writes. The load itself counts overlaps, that is, jobs that
/// run at the same time on one resource; fails if there are any.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure bench jobs
  tenure bench jobs --only floor,embedded --resources 1,1000 --seconds 5s
  tenure bench jobs --only calls --in-a-call 64 --store postgres://USER@HOST/DATABASE
  tenure bench jobs --only claims --idle 1000000 --past 1000000
  tenure bench jobs --only groups --groups 500
  tenure bench jobs --only shared --store postgres://USER@HOST/DATABASE
  tenure bench jobs --only beside --idle-for 1h --store postgres://USER@HOST/DATABASE")]
pub(crate) struct JobsBench {
    /// Duration of each measurement
    #[arg(long, value_parser = parse_duration, value_name = "DUR", default_value = "2s")]
    seconds: Duration,
    /// Directory to write to, on the disk to measure [default: data directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Number of jobs in flight
    #[arg(long, default_value_t = 256)]
    in_flight: usize,
    /// Number of jobs per call, for `--only calls`
    #[arg(long, default_value_t = 64)]
    in_a_call: usize,
    /// Numbers of distinct resources
    #[arg(long, value_delimiter = ',', default_values_t = [1, 1_000, 100_000])]
    resources: Vec<usize>,
    /// Measure only these
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    #[command(flatten)]
    store: StoreArgs,
    /// Number of idle resources for the cost of a claim
    #[arg(long, default_value_t = 1_000_000)]
    idle: usize,
    /// Number of finished jobs for the cost of a claim
    #[arg(long, default_value_t = 1_000_000)]
    past: usize,
    /// Number of groups for the cost of a claim of one group
    #[arg(long, default_value_t = 500)]
    groups: usize,
    /// Time that a transaction is idle before claims are measured; meanwhile jobs run for --seconds
    /// once a minute [default: same as --seconds]
    #[arg(long, value_parser = parse_duration, value_name = "DUR")]
    idle_for: Option<Duration>,
}

/// Measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Limits of the machine
    Floor,
    /// The memory store
    Memory,
    /// The durable store: embedded, or --store
    Embedded,
    /// The durable store, with many jobs per call
    Calls,
    /// A server on the durable store, over HTTP
    Http,
    /// The cost of a claim with many idle resources and finished jobs
    Claims,
    /// The cost of a claim of one group, alone and beside many groups of ready jobs
    Groups,
    /// One and two servers on one database; needs --store postgres://…
    Shared,
    /// The cost of a claim during an idle transaction; needs --store postgres://…
    Beside,
}

#[async_trait(?Send)]
impl RunVerb for JobsBench {
    async fn run(&self, cx: &CliContext) -> Done {
        if self.only.contains(&Part::Shared) || self.only.contains(&Part::Beside) {
            self.store.ensure_shared()?;
        }
        let dir = match &self.dir {
            Some(dir) => dir.clone(),
            None => cx.server.data().dir()?,
        };
        std::fs::create_dir_all(&dir)?;
        let (rows, notes) = (Vec::new(), Vec::new());
        let mut run = Measurement { options: self, dir, rows, notes, flush: None, overlaps: 0 };
        tokio::select! {
            result = run.measure_all() => result?,
            // Dropping the future stops servers and removes directories.
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
        anyhow::ensure!(run.overlaps == 0, "two jobs overlapped on one resource");
        Ok(ExitCode::SUCCESS)
    }
}

impl JobsBench {
    fn distributions(&self) -> Vec<KeyDistribution> {
        let mut distributions = Vec::new();
        for resources in self.resources.iter().copied() {
            distributions.push(KeyDistribution { resources, zipf: false });
            if resources > 1 {
                distributions.push(KeyDistribution { resources, zipf: true });
            }
        }
        distributions
    }
}

struct Measurement<'a> {
    options: &'a JobsBench,
    dir: PathBuf,
    rows: Vec<Row>,
    /// Notes on measurements that were skipped.
    notes: Vec<String>,
    flush: Option<Spread>,
    overlaps: u64,
}

impl Measurement<'_> {
    async fn measure_all(&mut self) -> Result<()> {
        self.floor().await?;
        for distribution in self.options.distributions() {
            self.cycles(distribution).await?;
        }
        self.claims().await?;
        self.group_claims().await?;
        if let Some(url) = self.options.store.shared() {
            self.shared().await?;
            self.idle_transaction(url).await?;
        }
        Ok(())
    }

    fn selects(&self, part: Part) -> bool {
        let selected = self.options.only.is_empty() || self.options.only.contains(&part);
        if selected {
            tracing::info!(?part, "measuring");
        }
        selected
    }

    async fn floor(&mut self) -> Result<()> {
        if self.selects(Part::Floor) {
            let (flush, rows) = floor::rows(&self.dir).await?;
            self.flush = Some(flush);
            self.rows.extend(rows);
        }
        Ok(())
    }

    async fn cycles(&mut self, distribution: KeyDistribution) -> Result<()> {
        let (in_flight, seconds) = (self.options.in_flight, self.options.seconds);
        if self.selects(Part::Memory) {
            let store = Arc::new(Memory::new());
            let measured = cycles::local(store, distribution, in_flight, seconds).await?;
            self.push("memory, in process", distribution, &measured);
        }
        if self.selects(Part::Embedded) {
            let scratch = Scratch::create(&self.dir)?;
            let store = self.options.store.open(&scratch).await?;
            let measured = cycles::local(store, distribution, in_flight, seconds).await?;
            let what = format!("{}, durable, in process", self.options.store.name());
            self.push(&what, distribution, &measured);
        }
        if self.selects(Part::Calls) {
            let scratch = Scratch::create(&self.dir)?;
            let store = self.options.store.open(&scratch).await?;
            let size = self.options.in_a_call.clamp(1, in_flight);
            let measured =
                batched_cycles::local(store, distribution, in_flight, size, seconds).await?;
            let what = format!("{}, durable, in calls of {size}", self.options.store.name());
            self.push(&what, distribution, &measured);
        }
        if self.selects(Part::Http) {
            let scratch = Scratch::create(&self.dir)?;
            let store = &self.options.store;
            let measured =
                remote_cycles::measure(store, &scratch, distribution, in_flight, seconds).await?;
            let what = format!("{}, durable, over HTTP", store.name());
            self.push(&what, distribution, &measured);
        }
        Ok(())
    }

    async fn claims(&mut self) -> Result<()> {
        if !self.selects(Part::Claims) {
            return Ok(());
        }
        let scratch = Scratch::create(&self.dir)?;
        let store = self.options.store.open(&scratch).await?;
        let empty = claims::cost(&store, self.options.seconds).await?;
        self.rows.push(Row::floor("claim on an empty store", empty));
        claims::fill(&store, self.options.idle, self.options.past).await?;
        let full = claims::cost(&store, self.options.seconds).await?;
        let (idle, past) = (self.options.idle as f64, self.options.past as f64);
        let (idle, past) = (table::rate(idle), table::rate(past));
        let mut row =
            Row::floor(format!("claim with {idle} idle resources, {past} finished jobs"), full);
        row.ratio = format!("{:.2}× of an empty store", full.p50_us / empty.p50_us);
        self.rows.push(row);
        Ok(())
    }

    /// Measures claims of one group, in memory, where only the processor counts, and durable.
    async fn group_claims(&mut self) -> Result<()> {
        if !self.selects(Part::Groups) {
            return Ok(());
        }
        let JobsBench { groups, seconds, .. } = self.options;
        for durable in [false, true] {
            let mut alone = None;
            for groups in [1, *groups] {
                let scratch = Scratch::create(&self.dir)?;
                let store = if durable {
                    self.options.store.open(&scratch).await?
                } else {
                    Arc::new(Memory::new()) as Arc<dyn Store>
                };
                let name = if durable { self.options.store.name() } else { "memory" };
                let claims = group_claims::cost(&store, groups, *seconds).await?;
                let what = format!("{name}: claim of one group, {groups} with ready jobs");
                let mut row = Row::floor(what, claims.latency);
                row.pairs_per_s = Some(claims.per_s);
                let alone = *alone.get_or_insert(claims.per_s);
                if groups > 1 {
                    row.ratio = format!("{:.2}× of one group", claims.per_s / alone);
                }
                self.rows.push(row);
            }
        }
        Ok(())
    }

    /// Measures one and two servers on one database.
    async fn shared(&mut self) -> Result<()> {
        if !self.selects(Part::Shared) {
            return Ok(());
        }
        let JobsBench { in_flight, seconds, store, .. } = self.options;
        let scratch = Scratch::create(&self.dir)?;
        let measure =
            async |servers: &[_]| cycles::across(servers, SHARED_LOAD, *in_flight, *seconds).await;
        let measured = shared_database::measure_each(store, &scratch, measure).await?;
        self.push_shared("one server alone", &measured.alone, String::new());
        let Some(two) = measured.two else {
            self.notes.push(shared_database::NO_NOTIFICATIONS.to_owned());
            return Ok(());
        };
        for (servers, measured, ratio) in two.rows(&measured.alone, Measured::per_s) {
            self.push_shared(servers, measured, ratio);
        }
        Ok(())
    }

    /// Measures claims before, during and after a transaction that is idle while jobs run.
    async fn idle_transaction(&mut self, url: &str) -> Result<()> {
        if !self.selects(Part::Beside) {
            return Ok(());
        }
        let JobsBench { seconds, store: args, .. } = self.options;
        let scratch = Scratch::create(&self.dir)?;
        // A separate store, which knows of no other server.
        let store = args.open(&scratch).await?;
        let server = [Committer::start(Arc::clone(&store))];
        let before = claims::cost(&store, *seconds).await?;
        self.rows.push(Row::floor("claim without an idle transaction", before));
        let idle = match IdleTransaction::begin(url).await {
            Ok(idle) => idle,
            Err(error) => {
                self.notes.push(format!(
                    "claims during an idle transaction were not measured: {error:#}"
                ));
                return Ok(());
            }
        };
        let started = now();
        let cycles = table::rate(self.run_jobs(&server).await? as f64);
        let idle_s = started.elapsed().as_secs();
        let during = claims::cost(&store, *seconds).await?;
        idle.end().await?;
        let after = claims::cost(&store, *seconds).await?;
        let what = format!("claim with a transaction idle for {idle_s} s and {cycles} cycles");
        for (what, cost) in [(what, during), ("claim after the idle transaction".to_owned(), after)]
        {
            let mut row = Row::floor(what, cost);
            row.ratio = format!("{:.2}× of no idle transaction", cost.p50_us / before.p50_us);
            self.rows.push(row);
        }
        Ok(())
    }

    /// Runs jobs repeatedly for the time of `--idle-for` and returns their number.
    async fn run_jobs(&mut self, server: &[Committer]) -> Result<u64> {
        let JobsBench { in_flight, seconds, idle_for, .. } = self.options;
        let (started, mut cycles) = (now(), 0);
        loop {
            let measured = cycles::across(server, SHARED_LOAD, *in_flight, *seconds).await?;
            self.overlaps += measured.overlaps;
            cycles += measured.all;
            let left = idle_for.unwrap_or_default().saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(cycles);
            }
            tracing::info!(cycles, left_s = left.as_secs(), "idle transaction open");
            tokio::time::sleep(left.min(PAUSE)).await;
        }
    }

    /// Adds a row of [`Self::shared`].
    fn push_shared(&mut self, servers: &str, measured: &Measured, ratio: String) {
        let what = format!(
            "{}, in process, {servers}, {}",
            self.options.store.name(),
            SHARED_LOAD.description()
        );
        tracing::info!(what, cycles_per_s = measured.per_s(), "measured");
        self.overlaps += measured.overlaps;
        let mut row = Row::floor(format!("{what}: submit to start"), measured.start);
        row.in_flight = Some(self.options.in_flight);
        row.pairs_per_s = Some(measured.per_s());
        row.ratio = ratio;
        self.rows.push(row);
    }

    fn push(&mut self, what: &str, distribution: KeyDistribution, measured: &Measured) {
        let what = format!("{what}, {}", distribution.description());
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
