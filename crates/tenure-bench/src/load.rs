//! Load generator: workers that each acquire and release one lock after the other.
//!
//! Closed loop: a worker starts its next pair when the last one has completed, so that a slow
//! server gets less load rather than a queue. Workers never share a lock (pairs are uncontended),
//! and any error aborts the run, since refusals are fast and would distort the result.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;

use crate::clock::now;
use crate::histogram::{Latencies, Spread};

/// Fraction of the budget, at its start, that warms up connections and caches and is not counted.
const WARM_UP_DIVISOR: u32 = 10;

/// Time after the budget in which the last pairs must complete.
pub const GRACE: Duration = Duration::from_secs(30);

/// A worker's client of a lock server.
pub trait Pairs: Send + 'static {
    /// Acquires and releases one lock. Fails unless both succeed.
    ///
    /// `n` is unique in a run, and `n % in_flight` is the index of the worker. An implementation
    /// that needs fewer locks can reduce `n` modulo a multiple of `in_flight` and still share none.
    fn pair(&mut self, n: u64) -> impl Future<Output = Result<()>> + Send;
}

/// Result of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Pairs completed within `elapsed`.
    pub pairs: u64,
    /// Counted part of the budget.
    pub elapsed: Duration,
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
}

impl Sample {
    /// Returns the rate in pairs per second.
    #[must_use]
    pub fn pairs_per_s(&self) -> f64 {
        self.pairs as f64 / self.elapsed.as_secs_f64()
    }
}

/// Keeps `in_flight` pairs in flight for `budget`; `make` opens the connection of each worker.
pub async fn pairs<P, F, Fut>(in_flight: usize, budget: Duration, make: F) -> Result<Sample>
where
    P: Pairs,
    F: FnMut(usize) -> Fut,
    Fut: Future<Output = Result<P>>,
{
    ensure!(in_flight > 0, "the number of requests in flight must be above 0");
    let workers = open(in_flight, make).await?;
    let window = Window::starting(now(), budget);
    drive_within(budget + GRACE, workers, window).await
}

/// Opens all connections before the first pair, so that opening them is not measured.
async fn open<P, F, Fut>(in_flight: usize, mut make: F) -> Result<Vec<P>>
where
    F: FnMut(usize) -> Fut,
    Fut: Future<Output = Result<P>>,
{
    let mut workers = Vec::with_capacity(in_flight);
    for index in 0..in_flight {
        let opened = make(index).await;
        workers.push(opened.with_context(|| format!("open the connection of worker {index}"))?);
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

/// Runs all workers. Dropping the set on the first error stops the others.
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
    let mut started = now();
    while started < window.until {
        locks.pair(n).await.with_context(|| format!("worker {index}: acquire and release {n}"))?;
        let ended = now();
        tally.record(started, ended, window);
        started = ended;
        n += in_flight;
    }
    Ok(tally)
}

/// Counted time, the same for all workers.
#[derive(Clone, Copy)]
pub struct Window {
    from: Instant,
    /// End of the window.
    pub until: Instant,
}

impl Window {
    /// Creates the window of a load that starts at `begin` and lasts `budget`.
    #[must_use]
    pub fn starting(begin: Instant, budget: Duration) -> Self {
        Self { from: begin + budget / WARM_UP_DIVISOR, until: begin + budget }
    }
}

/// Counts and latencies of one or more workers.
pub struct Tally {
    pairs: u64,
    latencies: Latencies,
}

impl Tally {
    /// Creates an empty tally.
    pub fn new() -> Result<Self> {
        Ok(Self { pairs: 0, latencies: Latencies::new()? })
    }

    /// Records a pair. A pair that ends after the window does not count as throughput, but its
    /// latency does, since dropping it would hide the slowest pairs.
    pub fn record(&mut self, started: Instant, ended: Instant, window: Window) {
        if ended < window.from {
            return;
        }
        self.latencies.record(ended - started);
        if ended <= window.until {
            self.pairs += 1;
        }
    }

    /// Adds another tally.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        self.pairs += other.pairs;
        self.latencies.merge(&other.latencies)
    }

    /// Summarizes the counts of a window.
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

    /// Fails on a number of another one of four workers.
    struct OwnNumbersOnly(u64);

    impl Pairs for OwnNumbersOnly {
        async fn pair(&mut self, n: u64) -> Result<()> {
            ensure!(n % 4 == self.0, "{n} belongs to another worker");
            Ok(())
        }
    }

    struct Fails;

    impl Pairs for Fails {
        async fn pair(&mut self, _: u64) -> Result<()> {
            anyhow::bail!("held by another")
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
        let sample = pairs(4, BUDGET, |i| async move { Ok(OwnNumbersOnly(i as u64)) }).await;
        assert!(sample.unwrap().pairs > 0);
    }

    #[tokio::test]
    async fn error_aborts_the_run_and_names_the_worker() {
        let error = pairs(1, BUDGET, |_| async { Ok(Fails) }).await.unwrap_err();
        assert_eq!(format!("{error:#}"), "worker 0: acquire and release 0: held by another");
    }

    #[tokio::test]
    async fn failed_connection_aborts_the_run() {
        let error = pairs(2, BUDGET, |_| async { anyhow::bail!("no route") as Result<Ideal> });
        let error = error.await.unwrap_err();
        assert_eq!(format!("{error:#}"), "open the connection of worker 0: no route");
    }

    #[tokio::test]
    async fn stuck_server_aborts_the_run() {
        let window = Window::starting(now(), BUDGET);
        let error = drive_within(BUDGET, vec![Stuck], window).await.unwrap_err();
        assert_eq!(error.to_string(), "finish all pairs within 40ms");
    }

    #[test]
    fn warm_up_is_ignored_and_a_straggler_counts_as_latency_only() {
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
