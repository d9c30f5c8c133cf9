//! Definitions of metrics, and the metrics of apps.
//!
//! Events are counted when the store reports them as durable. Levels are not counted up and down
//! but read from the store at each scrape. Every label has a bound on its values.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use async_trait::async_trait;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Metric;
pub use prometheus_client::registry::Registry;
use tenure_core::{MetricEvent, Text};
use tenure_store::{Store, StoreError};

use crate::live::LoadedApps;

/// Value of a label for everything beyond its bound.
pub const OTHER: &str = "other";

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A count that starts at zero with the process and never decreases.
    Counter,
    /// A current level.
    Gauge,
    /// A distribution of durations or sizes.
    Histogram,
}

impl Type {
    /// Returns the name of the type in the exposition format.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Definition of one metric.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Name in Prometheus.
    pub name: &'static str,
    /// Type.
    pub kind: Type,
    /// Labels, separated by commas.
    pub labels: &'static str,
    /// Help text.
    pub help: &'static str,
}

/// Declares metrics as constants, and `ALL` with every one of them:
/// `ID: Type "name" ["label,label"] "help";`.
#[macro_export]
macro_rules! define_metrics {
    ($($id:ident: $kind:ident $name:literal [$labels:literal] $help:literal;)*) => {
        $(const $id: $crate::metrics::Definition = $crate::metrics::Definition {
            name: $name,
            kind: $crate::metrics::Type::$kind,
            labels: $labels,
            help: $help,
        };)*
        /// Every metric of this module.
        pub const ALL: &[$crate::metrics::Definition] = &[$($id),*];
    };
}

/// Buckets for durations from milliseconds to a day, in seconds.
pub const LONG_BUCKETS: [f64; 16] = [
    0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1_800.0, 3_600.0, 5_400.0,
    14_400.0, 86_400.0,
];

/// Label names and values of a series.
pub type Labels<const N: usize> = [(&'static str, Text); N];
/// Counters by labels.
pub type Counters<const N: usize> = Family<Labels<N>, Counter>;
/// Histograms by labels.
pub type Histograms<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;
/// Gauges by any number of labels.
pub type Gauges = Family<Vec<(&'static str, Text)>, Gauge<f64, AtomicU64>>;

/// Creates a histogram with [`LONG_BUCKETS`].
#[must_use]
pub fn long_histogram() -> Histogram {
    Histogram::new(LONG_BUCKETS)
}

/// Registers a metric under its definition. The registry appends `_total` to counters itself.
pub fn register<M: Metric + Clone>(
    registry: &mut Registry,
    definition: Definition,
    metric: M,
) -> M {
    let name = definition.name.strip_suffix("_total").unwrap_or(definition.name);
    registry.register(name, definition.help, metric.clone());
    metric
}

/// Registers a gauge without labels and sets it.
pub fn set_gauge(registry: &mut Registry, definition: Definition, value: f64) {
    register(registry, definition, Gauge::<f64, AtomicU64>::default()).set(value);
}

/// Converts a count to the number type of Prometheus.
pub fn number(count: impl TryInto<u32>) -> f64 {
    f64::from(count.try_into().unwrap_or(u32::MAX))
}

/// Converts milliseconds to seconds.
pub use tenure_store::census::seconds;

/// Adds the gauges of one scrape to a registry.
pub type Sample = Arc<dyn Fn(&mut Registry) + Send + Sync>;

/// The metrics of an app.
#[async_trait]
pub trait AppMetrics: Send + Sync {
    /// Applies a change of the configuration.
    fn reload(&self, _apps: &LoadedApps) {}

    /// Counts an event that has become durable.
    fn count(&self, event: &MetricEvent);

    /// Reads levels from the store for a scrape.
    async fn sample(&self, _store: &dyn Store) -> Result<Sample, StoreError> {
        Ok(Arc::new(|_| {}))
    }
}
