//! The load: so many workers, each of which takes and gives back one lock after the other.
//!
//! Closed loop: a worker starts its next pair when the last one was answered, so a slow server gets
//! less load, not a queue. Must never let one worker use another's lock (the pairs are meant to be
//! uncontended), and never go on after an error: refusing is fast, and would measure as such.
//! Next: `redis.rs` and `etcd.rs` for two kinds of pairs; `histogram.rs` for what is recorded.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;

use crate::histogram::{Latencies, Spread};

/// The first tenth of the budget warms up connections, caches and the server, and is not counted.
const WARM_UP_DIVISOR: u32 = 10;

/// How long after the budget the last pairs may take before the server counts as stuck.
pub const GRACE: Duration = Duration::from_secs(30);

/// One worker's way to a lock server.
pub trait Pairs: Send + 'static {
    /// Acquires and releases one lock, and fails unless both were granted.
    ///
    /// `n` is never given twice in a run, and `n % in_flight` is the worker's index: who wants
    /// fewer locks can fold `n` by a multiple of `in_flight` and still share none.
    fn pair(&mut self, n: u64) -> impl Future<Output = Result<()>> + Send;
}

/// What a run measured.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Pairs that were completed within `elapsed`.
    pub pairs: u64,
    /// The counted part of the budget.
    pub elapsed: Duration,
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
}

impl Sample {
    /// Returns the rate.
    #[must_use]
    pub fn pairs_per_s(&self) -> f64 {
        self.pairs as f64 / self.elapsed.as_secs_f64()
    }
}

/// Keeps `in_flight` pairs under way for `budget`; `make` opens the connection of each worker.
pub async fn pairs<P, F, Fut>(in_flight: usize, budget: Duration, make: F) -> Result<Sample>
where
    P: Pairs,
    F: FnMut(usize) -> Fut,
    Fut: Future<Output = Result<P>>,
{
    ensure!(in_flight > 0, "run a load: nothing is in flight");
    let workers = open(in_flight, make).await?;
    let window = Window::starting(now(), budget);
    drive_within(budget + GRACE, workers, window).await
}

/// The only clock of the benchmark.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// All connections are open before the first pair: opening them is not what is measured.
async fn open<P, F, Fut>(in_flight: usize, mut make: F) -> Result<Vec<P>>
where
    F: FnMut(usize) -> Fut,
    Fut: Future<Output = Result<P>>,
{
    let mut workers = Vec::with_capacity(in_flight);
    for index in 0..in_flight {
        let made = make(index).await;
        workers.push(made.with_context(|| format!("open the connection of worker {index}"))?);
    }
    Ok(workers)
}

async fn drive_within<P: Pairs>(
    limit: Duration,
    workers: Vec<P>,
    window: Window,
) -> Result<Sample> {
    tokio::time::timeout(limit, drive(workers, window))
        .await
        .with_context(|| format!("finish all pairs within {limit:?}"))?
}

/// Dropping the set on the first error stops the other workers.
async fn drive<P: Pairs>(workers: Vec<P>, window: Window) -> Result<Sample> {
    let in_flight = workers.len() as u64;
    let mut running = JoinSet::new();
    for (index, worker) in (0..).zip(workers) {
        running.spawn(work(worker, index, in_flight, window));
    }
    let mut total = Tally::new()?;
    while let Some(joined) = running.join_next().await {
        total.add(&joined.context("join a worker")??)?;
    }
    Ok(total.sample(window))
}

async fn work<P: Pairs>(mut locks: P, index: u64, in_flight: u64, window: Window) -> Result<Tally> {
    let mut tally = Tally::new()?;
    let mut n = index;
    let mut began = now();
    while began < window.until {
        locks.pair(n).await.with_context(|| format!("worker {index}: take and give back {n}"))?;
        let ended = now();
        tally.record(began, ended, window);
        began = ended;
        n += in_flight;
    }
    Ok(tally)
}

/// The counted time, the same for every worker.
#[derive(Clone, Copy)]
pub struct Window {
    from: Instant,
    /// End of the window.
    pub until: Instant,
}

impl Window {
    /// Creates the window of a load that begins now and may last `budget`.
    #[must_use]
    pub fn starting(begin: Instant, budget: Duration) -> Self {
        Self { from: begin + budget / WARM_UP_DIVISOR, until: begin + budget }
    }
}

/// What was counted.
pub struct Tally {
    pairs: u64,
    latencies: Latencies,
}

impl Tally {
    /// Creates an empty tally.
    pub fn new() -> Result<Self> {
        Ok(Self { pairs: 0, latencies: Latencies::new()? })
    }

    /// A pair that outlasts the window is no throughput, but its latency counts: leaving it out
    /// would hide exactly the slowest ones.
    pub fn record(&mut self, began: Instant, ended: Instant, window: Window) {
        if ended < window.from {
            return;
        }
        self.latencies.record(ended - began);
        if ended <= window.until {
            self.pairs += 1;
        }
    }

    /// Adds another tally.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        self.pairs += other.pairs;
        self.latencies.merge(&other.latencies)
    }

    /// Summarizes what was counted in a window.
    #[must_use]
    pub fn sample(&self, window: Window) -> Sample {
        let Spread { p50_us, p99_us } = self.latencies.spread();
        Sample { pairs: self.pairs, elapsed: window.until - window.from, p50_us, p99_us }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_millis(40);

    struct Ideal;

    impl Pairs for Ideal {
        async fn pair(&mut self, _: u64) -> Result<()> {
            tokio::task::yield_now().await;
            Ok(())
        }
    }

    /// Fails at the first number that belongs to another worker of the four.
    struct OnlyMine(u64);

    impl Pairs for OnlyMine {
        async fn pair(&mut self, n: u64) -> Result<()> {
            ensure!(n % 4 == self.0, "{n} is not mine");
            Ok(())
        }
    }

    struct Fails;

    impl Pairs for Fails {
        async fn pair(&mut self, _: u64) -> Result<()> {
            anyhow::bail!("held by somebody else")
        }
    }

    struct Stuck;

    impl Pairs for Stuck {
        async fn pair(&mut self, _: u64) -> Result<()> {
            std::future::pending().await
        }
    }

    #[tokio::test]
    async fn counts_nine_tenths_of_the_budget() {
        let sample = pairs(3, BUDGET, |_| async { Ok(Ideal) }).await.unwrap();
        assert_eq!(sample.elapsed, BUDGET * 9 / 10);
        assert!(sample.pairs > 0 && sample.p50_us <= sample.p99_us, "{sample:?}");
    }

    #[tokio::test]
    async fn no_two_workers_share_a_lock() {
        let sample = pairs(4, BUDGET, |i| async move { Ok(OnlyMine(i as u64)) }).await;
        assert!(sample.unwrap().pairs > 0);
    }

    #[tokio::test]
    async fn an_error_ends_the_run_and_says_whose_it_was() {
        let error = pairs(1, BUDGET, |_| async { Ok(Fails) }).await.unwrap_err();
        assert_eq!(format!("{error:#}"), "worker 0: take and give back 0: held by somebody else");
    }

    #[tokio::test]
    async fn a_worker_that_cannot_connect_ends_the_run() {
        let error = pairs(2, BUDGET, |_| async { anyhow::bail!("no route") as Result<Ideal> });
        let error = error.await.unwrap_err();
        assert_eq!(format!("{error:#}"), "open the connection of worker 0: no route");
    }

    #[tokio::test]
    async fn a_server_that_is_stuck_ends_the_run() {
        let window = Window::starting(now(), BUDGET);
        let error = drive_within(BUDGET, vec![Stuck], window).await.unwrap_err();
        assert_eq!(error.to_string(), "finish all pairs within 40ms");
    }

    #[test]
    fn warm_up_is_not_recorded_and_a_straggler_is_latency_only() {
        let begin = now();
        let at = |ms| begin + Duration::from_millis(ms);
        let window = Window::starting(begin, Duration::from_millis(100));
        let mut tally = Tally::new().unwrap();
        tally.record(at(0), at(9), window);
        assert_eq!(tally.sample(window).p99_us, 0.0);
        tally.record(at(9), at(11), window);
        tally.record(at(11), at(150), window);
        let sample = tally.sample(window);
        assert_eq!(sample.pairs, 1);
        assert!(sample.p99_us > 130_000.0, "{sample:?}");
    }
}
