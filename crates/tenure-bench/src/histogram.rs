//! Latency histograms: one per worker, merged at the end of a run.
//!
//! Workers must not share a histogram: contention on its lock would distort the result.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

/// Longer latencies are recorded as this value.
const LATENCY_MAX: Duration = Duration::from_secs(60);

/// Two digits give an error below 1 %, less than the difference between two runs, in 30 KiB per
/// worker.
const SIGNIFICANT_DIGITS: u8 = 2;

/// Quantiles of a set of latencies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
}

/// Histogram of latencies in nanoseconds; a pair on the memory store takes less than a microsecond.
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// Creates an empty histogram.
    pub fn new() -> Result<Self> {
        Histogram::new_with_max(nanos(LATENCY_MAX), SIGNIFICANT_DIGITS)
            .map(Self)
            .context("create a latency histogram")
    }

    /// Records a latency.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(nanos(latency));
    }

    /// Adds the values of another histogram.
    pub fn merge(&mut self, other: &Self) -> Result<()> {
        self.0.add(&other.0).context("merge two latency histograms")
    }

    /// Returns the quantiles; zeros if the histogram is empty.
    pub fn spread(&self) -> Spread {
        Spread { p50_us: self.quantile_us(0.50), p99_us: self.quantile_us(0.99) }
    }

    fn quantile_us(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1_000.0
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(micros: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::new().unwrap();
        micros.into_iter().for_each(|us| latencies.record(Duration::from_micros(us)));
        latencies
    }

    #[test]
    fn quantiles_are_within_one_percent() {
        let Spread { p50_us, p99_us } = recorded(1..=1_000).spread();
        assert!((p50_us - 500.0).abs() < 5.0, "{p50_us}");
        assert!((p99_us - 990.0).abs() < 10.0, "{p99_us}");
    }

    #[test]
    fn merging_counts_both_sides() {
        let mut fast = recorded([10; 60]);
        fast.merge(&recorded([1_000; 40])).unwrap();
        let Spread { p50_us, p99_us } = fast.spread();
        assert!(p50_us < 11.0 && p99_us > 990.0, "{p50_us} {p99_us}");
    }

    #[test]
    fn latency_above_the_maximum_is_recorded_as_the_maximum() {
        let Spread { p99_us, .. } = recorded([3_600_000_000]).spread();
        assert!((59e6..62e6).contains(&p99_us), "{p99_us}");
    }

    #[test]
    fn empty_histogram_is_zero() {
        assert_eq!(recorded([]).spread(), Spread { p50_us: 0.0, p99_us: 0.0 });
    }
}
