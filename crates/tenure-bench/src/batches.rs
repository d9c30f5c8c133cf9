//! `tenure bench batch`: tests published in batches, over HTTP, in comparison with single requests.
//!
//! A test is a resource of a grouped kind, named BUILD:TERM:NNNNNN, and a job on it: one put and
//! one submit. They are measured apart, and together in the order in which a build publishes them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use clap::Args;
use serde_json::json;
use tenure::Client;
use tenure_cli_kit::{CliContext, Done, Output, RunVerb, print_json};
use tokio::task::JoinSet;

use crate::clock::now;
use crate::histogram::{Latencies, Spread};
use crate::servers::Scratch;
use crate::store_args::StoreArgs;
use crate::table::{self, Row};

/// Configuration of the server.
const CONFIG: &str = "[kinds.test]\ngrouped = true\n[kinds.test.operations.run]\n";

/// Measure batches: puts and submits in batches over HTTP, and as single requests
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure bench batch
  tenure bench batch --tests 10000 --in-a-batch 1000 --dir /var/lib/tenure")]
pub(crate) struct BatchBench {
    /// Number of tests to publish in batches
    #[arg(long, default_value_t = 10_000)]
    tests: usize,
    /// Number of tests to publish with single requests
    #[arg(long, default_value_t = 2_000)]
    single: usize,
    /// Number of requests of a batch
    #[arg(long, default_value_t = 1_000)]
    in_a_batch: usize,
    /// Number of batches in flight
    #[arg(long, default_value_t = 2)]
    batches: usize,
    /// Number of single requests in flight
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Directory to write to, on the disk to measure [default: data directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
}

/// What is published of each test.
#[derive(Clone, Copy)]
enum Part {
    Put,
    Submit,
    Both,
}

/// Result of one measurement.
struct Measured {
    per_s: f64,
    took: Duration,
    latency: Spread,
}

#[async_trait(?Send)]
impl RunVerb for BatchBench {
    async fn run(&self, cx: &CliContext) -> Done {
        let dir = match &self.dir {
            Some(dir) => dir.clone(),
            None => cx.server.data().dir()?,
        };
        std::fs::create_dir_all(&dir)?;
        let rows = tokio::select! {
            rows = self.measure(&dir) => rows?,
            // Dropping the future stops the server and removes its directory.
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
        };
        match cx.output {
            Output::Json => print_json(&table::json(&rows))?,
            Output::Table => anstream::println!("{}", table::text_with(&rows, "requests/s")),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl BatchBench {
    async fn measure(&self, dir: &std::path::Path) -> Result<Vec<Row>> {
        let scratch = Scratch::create(dir)?;
        let config = scratch.path().join("tenure.toml");
        std::fs::write(&config, CONFIG)?;
        let args = ["--config".as_ref(), config.as_os_str()];
        let server = self.store.serve(&scratch, &args).await?;
        let url = format!("http://{}", server.addr());
        let client = Client::connect(&url, server.key()).await?;
        let (single, batch) = ((self.single, 1, self.in_flight), (self.tests, self.in_a_batch));
        let mut rows = Vec::new();
        for (what, part) in [("puts", Part::Put), ("submits", Part::Submit)] {
            let alone = publish(&client, part, "single", single).await?;
            let together =
                publish(&client, part, "batch", (batch.0, batch.1, self.batches)).await?;
            rows.push(self.row(what, single, &alone, String::new()));
            let ratio = format!(
                "{:.1}× of single requests, {} in total",
                together.per_s / alone.per_s,
                table::micros(together.took.as_secs_f64() * 1e6)
            );
            rows.push(self.row(what, (batch.0, batch.1, self.batches), &together, ratio));
        }
        let size = (batch.0, batch.1.div_ceil(2), self.batches);
        let both = publish(&client, Part::Both, "both", size).await?;
        let total = format!("{} in total", table::micros(both.took.as_secs_f64() * 1e6));
        rows.push(self.row("tests put and submitted", size, &both, total));
        Ok(rows)
    }

    fn row(
        &self,
        what: &str,
        (count, size, in_flight): (usize, usize, usize),
        measured: &Measured,
        ratio: String,
    ) -> Row {
        let (store, count) = (self.store.name(), table::rate(count as f64));
        let how =
            if size == 1 { "single requests".to_owned() } else { format!("batches of {size}") };
        let what = format!("{store}, durable, over HTTP: {count} {what}, {how}");
        let mut row = Row::floor(what, measured.latency);
        (row.in_flight, row.pairs_per_s, row.ratio) =
            (Some(in_flight), Some(measured.per_s), ratio);
        row
    }
}

/// Publishes `count` tests, `size` in each batch, with `in_flight` batches in flight; a size of one
/// is a single request.
async fn publish(
    client: &Client,
    part: Part,
    build: &'static str,
    (count, size, in_flight): (usize, usize, usize),
) -> Result<Measured> {
    let next = Arc::new(AtomicUsize::new(0));
    let started = now();
    let mut publishers = JoinSet::new();
    for _ in 0..in_flight {
        let (client, next) = (client.clone(), Arc::clone(&next));
        publishers.spawn(async move {
            let mut latencies = Latencies::new()?;
            loop {
                let from = next.fetch_add(size, Ordering::Relaxed);
                if from >= count {
                    return Ok::<_, anyhow::Error>(latencies);
                }
                let started = now();
                if size == 1 {
                    send_one(&client, part, &test(build, from), from).await?;
                } else {
                    send_batch(&client, part, build, from..count.min(from + size)).await?;
                }
                latencies.record(started.elapsed());
            }
        });
    }
    let mut latencies = Latencies::new()?;
    while let Some(publisher) = publishers.join_next().await {
        latencies.merge(&publisher??)?;
    }
    let took = started.elapsed();
    let requests = if matches!(part, Part::Both) { 2 * count } else { count };
    let per_s = requests as f64 / took.as_secs_f64();
    Ok(Measured { per_s, took, latency: latencies.spread() })
}

fn test(build: &str, n: usize) -> String {
    format!("test/{build}:1:{n:06}")
}

async fn send_one(client: &Client, part: Part, test: &str, n: usize) -> Result<()> {
    if matches!(part, Part::Put | Part::Both) {
        client.resource(test)?.put(&json!({ "case": n })).await.context("put")?;
    }
    if matches!(part, Part::Submit | Part::Both) {
        client.submit(test, "run").send().await.context("submit")?;
    }
    Ok(())
}

async fn send_batch(
    client: &Client,
    part: Part,
    build: &str,
    tests: std::ops::Range<usize>,
) -> Result<()> {
    let mut batch = client.batch();
    for n in tests {
        let test = test(build, n);
        if matches!(part, Part::Put | Part::Both) {
            batch.put(&test, &json!({ "case": n }));
        }
        if matches!(part, Part::Submit | Part::Both) {
            batch.submit(&test, "run");
        }
    }
    for result in batch.send().await {
        result.context("a request of a batch")?;
    }
    Ok(())
}
