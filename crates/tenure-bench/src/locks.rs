//! `tenure bench locks`

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use tenure_store::Memory;

use crate::etcd::EtcdLocks;
use crate::histogram::Spread;
use crate::load::Sample;
use crate::redis::RedisLocks;
use crate::remote::RemotePairs;
use crate::servers::{self, Durability, Scratch};
use crate::store_args::StoreArgs;
use crate::table::{self, Row};
use crate::{floor, handover, load, local, memory, shared_database};
use async_trait::async_trait;
use tenure_cli_kit::text::parse_duration;
use tenure_cli_kit::{CliContext, Done, Output, RunVerb, print_json};

/// Numbers of requests that wait behind a holder.
const WAITERS: [usize; 2] = [2, 100];
/// Note on notifications in these loads.
const NOTIFICATION_NOTE: &str = "uncontended pairs send no wake-ups, so a second server receives \
    announcements only, and replicates what the first writes";
const MIB: f64 = 1_048_576.0;

/// Measure locks: uncontended pairs of acquire and release, hand-over, and memory
///
/// Durable stores, Redis with fsync and etcd write to the same directory. Every figure is compared
/// with the limits of the machine in the same run.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure bench locks
  tenure bench locks --only floor,embedded,redis --seconds 5s
  tenure bench locks --dir /mnt/disk -o json
  tenure bench locks --only shared --store postgres://USER@HOST/DATABASE")]
pub(crate) struct LocksBench {
    /// Duration of each measurement
    #[arg(long, value_parser = parse_duration, value_name = "DUR", default_value = "2s")]
    seconds: Duration,
    /// Directory to write to, on the disk to measure [default: data directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Numbers of requests in flight
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16, 64, 256])]
    in_flight: Vec<usize>,
    /// Measure only these
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    #[command(flatten)]
    store: StoreArgs,
    /// Number of locks to hold for the memory usage
    #[arg(long, default_value_t = 1_000_000)]
    held: usize,
}

/// Measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Limits of the machine
    Floor,
    /// Memory usage of held locks
    Held,
    /// The engine alone, without a store
    Engine,
    /// The memory store
    Memory,
    /// The durable store: embedded, or --store
    Embedded,
    /// A server on the durable store, over HTTP
    Http,
    /// Time from a release until the next waiter has the lock
    Handover,
    /// Redis, if it is installed
    Redis,
    /// etcd, if it is installed
    Etcd,
    /// One and two servers on one database; needs --store postgres://…
    Shared,
}

#[async_trait(?Send)]
impl RunVerb for LocksBench {
    async fn run(&self, cx: &CliContext) -> Done {
        if self.only.contains(&Part::Shared) {
            self.store.ensure_shared()?;
        }
        let dir = match &self.dir {
            Some(dir) => dir.clone(),
            None => cx.server.data().dir()?,
        };
        std::fs::create_dir_all(&dir)?;
        let mut run =
            Measurement { options: self, dir, rows: Vec::new(), notes: Vec::new(), flush: None };
        tokio::select! {
            result = run.measure_all() => result?,
            // Dropping the future stops servers and removes directories.
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
        }
        match cx.output {
            Output::Json => print_json(&table::json(&run.rows))?,
            Output::Table => {
                anstream::println!("{}", table::text(&run.rows));
                run.notes.iter().for_each(|note| anstream::println!("{note}"));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

struct Measurement<'a> {
    options: &'a LocksBench,
    dir: PathBuf,
    rows: Vec<Row>,
    notes: Vec<String>,
    /// Time of a disk flush, the lower bound of durable writes.
    flush: Option<Spread>,
}

impl Measurement<'_> {
    async fn measure_all(&mut self) -> Result<()> {
        // First, before other measurements grow this process.
        self.held().await?;
        self.floor().await?;
        self.engine()?;
        for in_flight in self.options.in_flight.iter().copied() {
            self.memory(in_flight).await?;
            self.embedded(in_flight).await?;
            self.http(in_flight).await?;
            self.redis(in_flight).await?;
            self.etcd(in_flight).await?;
        }
        self.handover().await?;
        self.shared().await
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

    async fn held(&mut self) -> Result<()> {
        if self.selects(Part::Held) {
            let scratch = Scratch::create(&self.dir)?;
            let count = self.options.held;
            let bytes = memory::growth(self.options.store.open(&scratch).await?, count).await?;
            #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
            let (mib, each) = (bytes as f64 / MIB, bytes as f64 / count as f64);
            self.notes.push(format!(
                "memory: {count} held locks on the embedded store use {mib:.0} MiB, \
                                 {each:.0} bytes each"
            ));
        }
        Ok(())
    }

    fn engine(&mut self) -> Result<()> {
        if self.selects(Part::Engine) {
            let rate = local::engine(self.options.seconds)?;
            let per_s = table::rate(rate);
            self.notes.push(format!("engine: {per_s} commands/s on one core, no store"));
        }
        Ok(())
    }

    async fn memory(&mut self, in_flight: usize) -> Result<()> {
        if self.selects(Part::Memory) {
            let store = Arc::new(Memory::new());
            let sample = local::measure(store, in_flight, self.options.seconds).await?;
            self.push("tenure memory, in process", in_flight, &sample, String::new());
        }
        Ok(())
    }

    async fn embedded(&mut self, in_flight: usize) -> Result<()> {
        if self.selects(Part::Embedded) {
            let scratch = Scratch::create(&self.dir)?;
            let store = self.options.store.open(&scratch).await?;
            let sample = local::measure(store, in_flight, self.options.seconds).await?;
            let ratio = self.per_flush(&sample);
            let what = format!("tenure {}, durable, in process", self.options.store.name());
            self.push(&what, in_flight, &sample, ratio);
        }
        Ok(())
    }

    async fn http(&mut self, in_flight: usize) -> Result<()> {
        if self.selects(Part::Http) {
            let scratch = Scratch::create(&self.dir)?;
            let server = self.options.store.serve(&scratch, &[]).await?;
            let open = |worker| RemotePairs::open(server.addr(), server.key(), worker);
            let sample = load::pairs(in_flight, self.options.seconds, open).await?;
            let ratio = self.per_flush(&sample);
            let what = format!("tenure {}, durable, over HTTP", self.options.store.name());
            self.push(&what, in_flight, &sample, ratio);
        }
        Ok(())
    }

    async fn redis(&mut self, in_flight: usize) -> Result<()> {
        if !self.selects(Part::Redis) {
            return Ok(());
        }
        for (durability, what) in
            [(Durability::Disk, "redis, fsync always"), (Durability::Memory, "redis, not durable")]
        {
            let Some(server) = servers::redis(&self.dir, durability).await? else {
                self.note_missing("redis-server");
                return Ok(());
            };
            let open = |worker| RedisLocks::open(server.addr(), worker);
            let sample = load::pairs(in_flight, self.options.seconds, open).await?;
            let ratio = self.ratio_to_tenure(in_flight, &sample);
            self.push(what, in_flight, &sample, ratio);
        }
        Ok(())
    }

    async fn etcd(&mut self, in_flight: usize) -> Result<()> {
        if !self.selects(Part::Etcd) {
            return Ok(());
        }
        let Some(server) = servers::etcd(&self.dir).await? else {
            self.note_missing("etcd-server");
            return Ok(());
        };
        let open = |_| EtcdLocks::open(server.addr());
        let sample = load::pairs(in_flight, self.options.seconds, open).await?;
        let ratio = self.ratio_to_tenure(in_flight, &sample);
        self.push("etcd, durable, JSON gateway", in_flight, &sample, ratio);
        let note = "etcd: gRPC achieves up to 2.3 times as many pairs as the JSON gateway";
        if !self.notes.iter().any(|other| other == note) {
            self.notes.push(note.to_owned());
        }
        Ok(())
    }

    async fn handover(&mut self) -> Result<()> {
        if !self.selects(Part::Handover) {
            return Ok(());
        }
        for waiters in WAITERS {
            let scratch = Scratch::create(&self.dir)?;
            let store = self.options.store.open(&scratch).await?;
            let spread = handover::local(store, waiters, self.options.seconds).await?;
            self.rows.push(Row::floor(format!("hand-over, {waiters} waiting, in process"), spread));
            let scratch = Scratch::create(&self.dir)?;
            let server = self.options.store.serve(&scratch, &[]).await?;
            let spread = handover::remote(&server, waiters, self.options.seconds).await?;
            self.rows.push(Row::floor(format!("hand-over, {waiters} waiting, over HTTP"), spread));
        }
        Ok(())
    }

    /// Measures one and two servers on one database, with the highest number of requests in flight.
    async fn shared(&mut self) -> Result<()> {
        let (store, seconds) = (&self.options.store, self.options.seconds);
        let Some(in_flight) = self.options.in_flight.iter().copied().max() else { return Ok(()) };
        if store.shared().is_none() || !self.selects(Part::Shared) {
            return Ok(());
        }
        let scratch = Scratch::create(&self.dir)?;
        let measure = async |servers: &[_]| local::across(servers, in_flight, seconds).await;
        let measured = shared_database::measure_each(store, &scratch, measure).await?;
        let name = store.name();
        let what = format!("tenure {name}, in process, one server alone");
        self.push(&what, in_flight, &measured.alone, String::new());
        let Some(two) = measured.two else {
            self.notes.push(shared_database::NO_NOTIFICATIONS.to_owned());
            return Ok(());
        };
        for (servers, sample, ratio) in two.rows(&measured.alone, Sample::pairs_per_s) {
            let what = format!("tenure {name}, in process, {servers}");
            self.push(&what, in_flight, sample, ratio);
        }
        self.notes.push(NOTIFICATION_NOTE.to_owned());
        Ok(())
    }

    fn push(&mut self, what: &str, in_flight: usize, sample: &Sample, ratio: String) {
        tracing::info!(what, in_flight, pairs_per_s = sample.pairs_per_s(), "measured");
        self.rows.push(Row::load(what, in_flight, sample, ratio));
    }

    /// Returns the number of pairs in the time of one flush; batching makes it exceed one.
    fn per_flush(&self, sample: &Sample) -> String {
        self.flush.map_or_else(String::new, |flush| {
            let pairs = sample.pairs_per_s() * flush.p50_us / 1e6;
            format!("{pairs:.1} pairs per flush")
        })
    }

    /// Compares another system with Tenure over HTTP at the same number of requests in flight.
    fn ratio_to_tenure(&self, in_flight: usize, sample: &Sample) -> String {
        let tenure = self
            .rows
            .iter()
            .rev()
            .find(|row| row.in_flight == Some(in_flight) && row.what.contains("over HTTP"));
        let rate = tenure.and_then(|row| row.pairs_per_s);
        rate.map_or_else(String::new, |tenure| {
            format!("tenure over HTTP is {:.1}×", tenure / sample.pairs_per_s())
        })
    }

    fn note_missing(&mut self, package: &str) {
        let note = format!("{package} is not installed: apt-get install {package}");
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}
