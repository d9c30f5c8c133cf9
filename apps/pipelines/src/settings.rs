//! The table `[pipelines]`: the directory of pipelines and their common settings.
//!
//! Some keys have an alias for compatibility with older systems.

use std::path::{Path, PathBuf};

use tenure_config::{Report, Section};
use tenure_core::limits::WORKER_SLOTS_MAX;

use crate::steps::{AddressPolicy, Network};

/// Allowed time limits of a run.
const LIMIT_MS: std::ops::RangeInclusive<u64> = 60_000..=24 * 60 * 60 * 1_000;
/// Default time limit of a run.
const LIMIT_MS_DEFAULT: u64 = 60 * 60 * 1_000;
/// Maximum number of retries of a trigger while another run is active.
const RETRIES_MAX: u64 = 100;
/// Default delay between two of these retries.
const DELAY_MS_DEFAULT: u64 = 5_000;
/// Maximum total time that a trigger is delayed.
const TRIGGER_DELAY_MS_MAX: u64 = 60_000;
/// Maximum value of the limits of concurrent runs.
const RUNS_MAX: u64 = 100_000;
/// Default number of concurrent runs of one process, which mostly wait for external systems.
const SLOTS_DEFAULT: usize = 16;
/// Default fraction of the time limit at which a run should alert.
const ALERT_THRESHOLD_DEFAULT: f64 = 0.8;

/// Common settings of all pipelines.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineSettings {
    /// Directory with the files `TENANT/PIPELINE.toml`.
    pub dir: PathBuf,
    /// Directory with the secrets `TENANT/NAME`.
    pub secrets: Option<PathBuf>,
    /// Time limit of a run of a pipeline that declares none.
    pub limit_ms: u64,
    /// Number of retries of a trigger before it attaches to the active run.
    pub retries: u32,
    /// Delay between two of these retries.
    pub delay_ms: u64,
    /// Maximum number of concurrent runs of all tenants.
    pub max_runs: Option<usize>,
    /// Maximum number of concurrent runs per tenant.
    pub tenant_max_runs: Option<usize>,
    /// Maximum number of concurrent runs in one process; 0 if only other workers execute them.
    pub slots: usize,
    /// Whether metrics by tenant and pipeline are exported.
    pub metrics: bool,
    /// Fraction of the time limit at which a run should alert.
    pub alert_threshold: f64,
    /// Addresses that HTTP steps may connect to.
    pub addresses: AddressPolicy,
}

impl PipelineSettings {
    /// Creates the default settings for the pipelines in `dir`.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            secrets: None,
            limit_ms: LIMIT_MS_DEFAULT,
            retries: 0,
            delay_ms: DELAY_MS_DEFAULT,
            max_runs: None,
            tenant_max_runs: None,
            slots: SLOTS_DEFAULT,
            metrics: true,
            alert_threshold: ALERT_THRESHOLD_DEFAULT,
            addresses: AddressPolicy::default(),
        }
    }
}

/// Keys with their aliases.
const LIMIT: [&str; 2] = ["limit", "pipeline_lock_timeout_seconds"];
const RETRIES: [&str; 2] = ["retries", "lock_acquisition_retries"];
const DELAY: [&str; 2] = ["delay", "lock_acquisition_retry_delay_seconds"];
const METRICS: [&str; 2] = ["metrics", "lock_metrics_enabled"];
const THRESHOLD: [&str; 2] = ["alert_threshold", "lock_expiration_alert_threshold"];

/// Parses the section; relative paths in it are below `dir`.
pub(super) fn read(
    section: &Section<'_>,
    dir: &Path,
    report: &mut Report<'_>,
) -> Option<PipelineSettings> {
    let aliased = [LIMIT, RETRIES, DELAY, METRICS, THRESHOLD];
    let plain =
        ["dir", "secrets", "max_runs", "tenant_max_runs", "slots", "http_allow", "http_deny"];
    section.check_keys(&[&plain[..], aliased.as_flattened()].concat(), report);
    for [name, alias] in aliased {
        if section.has(name) && section.has(alias) {
            section.reject::<()>(
                alias,
                format!("it is an alias of `{name}`: set only one"),
                report,
            );
        }
    }
    let pipelines = section.text("dir", report);
    if !section.has("dir") {
        report.add("pipelines", "`dir` is missing: the directory with TENANT/PIPELINE.toml");
    }
    let (retries, delay_ms) = contention(section, report);
    let mut count = |key, min, max| {
        let count = section.count(key, min..=max, report);
        count.and_then(|count| usize::try_from(count).ok())
    };
    Some(PipelineSettings {
        max_runs: count("max_runs", 1, RUNS_MAX),
        tenant_max_runs: count("tenant_max_runs", 1, RUNS_MAX),
        slots: count("slots", 0, WORKER_SLOTS_MAX as u64).unwrap_or(SLOTS_DEFAULT),
        dir: dir.join(pipelines?),
        secrets: section.text("secrets", report).map(|secrets| dir.join(secrets)),
        limit_ms: limit(section, report).unwrap_or(LIMIT_MS_DEFAULT),
        retries,
        delay_ms,
        metrics: section.flag(used_name(section, METRICS), report).unwrap_or(true),
        alert_threshold: threshold(section, report).unwrap_or(ALERT_THRESHOLD_DEFAULT),
        addresses: AddressPolicy {
            allow: networks(section, "http_allow", report),
            deny: networks(section, "http_deny", report),
        },
    })
}

/// Reads a list of networks.
fn networks(section: &Section<'_>, key: &str, report: &mut Report<'_>) -> Vec<Network> {
    let texts = section.texts(key, report).unwrap_or_default();
    let mut networks = Vec::new();
    for text in texts {
        match text.parse() {
            Ok(network) => networks.push(network),
            Err(why) => drop(section.reject::<()>(key, why, report)),
        }
    }
    networks
}

/// Returns the name under which a key is set: the alias, or else its own.
fn used_name(section: &Section<'_>, [name, alias]: [&'static str; 2]) -> &'static str {
    if section.has(alias) { alias } else { name }
}

/// Reads the number of retries of a trigger and their delay.
fn contention(section: &Section<'_>, report: &mut Report<'_>) -> (u32, u64) {
    let key = used_name(section, RETRIES);
    let retries = section.count(key, 0..=RETRIES_MAX, report).unwrap_or(0);
    let delay_ms = match used_name(section, DELAY) {
        key @ "delay" => section.duration_ms(key, report),
        key => section.count(key, 0..=TRIGGER_DELAY_MS_MAX / 1_000, report).map(|s| s * 1_000),
    };
    let delay_ms = delay_ms.unwrap_or(DELAY_MS_DEFAULT);
    if retries.saturating_mul(delay_ms) > TRIGGER_DELAY_MS_MAX {
        let why = "all retries with their delays must not exceed one minute; let the caller retry";
        section.reject::<()>(key, why.to_owned(), report);
    }
    (u32::try_from(retries).unwrap_or(0), delay_ms)
}

fn limit(section: &Section<'_>, report: &mut Report<'_>) -> Option<u64> {
    match used_name(section, LIMIT) {
        "limit" => run_limit(section, report),
        key => {
            let seconds = LIMIT_MS.start() / 1_000..=LIMIT_MS.end() / 1_000;
            section.count(key, seconds, report).map(|seconds| seconds * 1_000)
        }
    }
}

/// Reads the time limit of a run.
pub(crate) fn run_limit(section: &Section<'_>, report: &mut Report<'_>) -> Option<u64> {
    let limit_ms = section.duration_ms("limit", report)?;
    if LIMIT_MS.contains(&limit_ms) {
        return Some(limit_ms);
    }
    section.reject("limit", "the time limit must be between 1m and 24h".to_owned(), report)
}

fn threshold(section: &Section<'_>, report: &mut Report<'_>) -> Option<f64> {
    let key = used_name(section, THRESHOLD);
    let fraction = section.number(key, report)?;
    if fraction > 0.0 && fraction <= 1.0 {
        return Some(fraction);
    }
    section.reject(key, "it is a fraction of the limit: above 0, at most 1".to_owned(), report)
}
