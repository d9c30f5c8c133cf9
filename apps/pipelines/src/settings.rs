//! The table `[pipelines]`: where pipelines are declared, and what holds for all of them.
//!
//! Some keys have a second name, under which users of older systems know them.

use std::path::{Path, PathBuf};

use tenure_config::{Report, Section};
use tenure_core::limits::WORKER_SLOTS_MAX;

/// The shortest limit of a run, and the longest.
const LIMIT_MS: std::ops::RangeInclusive<u64> = 60_000..=24 * 60 * 60 * 1_000;
/// How long a run may take when nothing is said: an hour.
const LIMIT_MS_DEFAULT: u64 = 60 * 60 * 1_000;
/// Most times that a trigger asks again while another run goes on.
const RETRIES_MAX: u64 = 100;
/// How long it rests in between when nothing is said.
const DELAY_MS_DEFAULT: u64 = 5_000;
/// The longest that a trigger may be held back in all.
const HELD_BACK_MS_MAX: u64 = 60_000;
/// Most runs that may be allowed at once.
const RUNS_MAX: u64 = 100_000;
/// Runs of one process at once when nothing is said: most of the time they wait for others.
const SLOTS_DEFAULT: usize = 16;
/// At which part of its limit a run is worth an alert.
const ALERT_THRESHOLD_DEFAULT: f64 = 0.8;

/// What holds for all pipelines.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineSettings {
    /// Where they are declared, as `TENANT/PIPELINE.toml`.
    pub dir: PathBuf,
    /// Where their secrets are, as files `TENANT/NAME`.
    pub secrets: Option<PathBuf>,
    /// How long a run may take that says nothing of it.
    pub limit_ms: u64,
    /// How often a trigger asks again before it is given the id of the run that goes on.
    pub retries: u32,
    /// How long it rests before it asks again.
    pub delay_ms: u64,
    /// Most runs at once, of all tenants.
    pub max_runs: Option<usize>,
    /// Most runs at once for one tenant.
    pub tenant_max_runs: Option<usize>,
    /// Most runs at once in one process; none when only workers elsewhere do them.
    pub slots: usize,
    /// Whether there are metrics by tenant and pipeline.
    pub metrics: bool,
    /// At which part of its limit a run is worth an alert.
    pub alert_threshold: f64,
}

impl PipelineSettings {
    /// The default settings for pipelines that are declared below `dir`.
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
        }
    }
}

/// The keys, each with its second name.
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
    let both = [LIMIT, RETRIES, DELAY, METRICS, THRESHOLD];
    let plain = ["dir", "secrets", "max_runs", "tenant_max_runs", "slots"];
    section.known(&[&plain[..], both.as_flattened()].concat(), report);
    for [name, other] in both {
        if section.has(name) && section.has(other) {
            section.refuse::<()>(other, format!("it is the same as `{name}`: say one"), report);
        }
    }
    let place = section.text("dir", report);
    if !section.has("dir") {
        report.add("pipelines", "`dir` is missing: the directory with TENANT/PIPELINE.toml");
    }
    let (retries, delay_ms) = contention(section, report);
    let mut count = |key, least, most| {
        let count = section.count(key, least..=most, report);
        count.and_then(|count| usize::try_from(count).ok())
    };
    Some(PipelineSettings {
        max_runs: count("max_runs", 1, RUNS_MAX),
        tenant_max_runs: count("tenant_max_runs", 1, RUNS_MAX),
        slots: count("slots", 0, WORKER_SLOTS_MAX as u64).unwrap_or(SLOTS_DEFAULT),
        dir: dir.join(place?),
        secrets: section.text("secrets", report).map(|place| dir.join(place)),
        limit_ms: limit(section, report).unwrap_or(LIMIT_MS_DEFAULT),
        retries,
        delay_ms,
        metrics: section.flag(given(section, METRICS), report).unwrap_or(true),
        alert_threshold: threshold(section, report).unwrap_or(ALERT_THRESHOLD_DEFAULT),
    })
}

/// The name that is used of two.
fn given(section: &Section<'_>, [name, other]: [&'static str; 2]) -> &'static str {
    if section.has(other) { other } else { name }
}

/// How often a trigger asks again, and after how long.
fn contention(section: &Section<'_>, report: &mut Report<'_>) -> (u32, u64) {
    let key = given(section, RETRIES);
    let retries = section.count(key, 0..=RETRIES_MAX, report).unwrap_or(0);
    let delay_ms = match given(section, DELAY) {
        key @ "delay" => section.duration_ms(key, report),
        key => section.count(key, 0..=HELD_BACK_MS_MAX / 1_000, report).map(|s| s * 1_000),
    };
    let delay_ms = delay_ms.unwrap_or(DELAY_MS_DEFAULT);
    if retries.saturating_mul(delay_ms) > HELD_BACK_MS_MAX {
        let why = "all retries with their delays take more than a minute: nobody waits so long \
                   for an answer; let the caller ask again";
        section.refuse::<()>(key, why.to_owned(), report);
    }
    (u32::try_from(retries).unwrap_or(0), delay_ms)
}

fn limit(section: &Section<'_>, report: &mut Report<'_>) -> Option<u64> {
    match given(section, LIMIT) {
        "limit" => run_limit(section, report),
        key => {
            let seconds = LIMIT_MS.start() / 1_000..=LIMIT_MS.end() / 1_000;
            section.count(key, seconds, report).map(|seconds| seconds * 1_000)
        }
    }
}

/// How long a run may take.
pub(crate) fn run_limit(section: &Section<'_>, report: &mut Report<'_>) -> Option<u64> {
    let limit_ms = section.duration_ms("limit", report)?;
    if LIMIT_MS.contains(&limit_ms) {
        return Some(limit_ms);
    }
    section.refuse("limit", "a run may take between 1m and 24h".to_owned(), report)
}

fn threshold(section: &Section<'_>, report: &mut Report<'_>) -> Option<f64> {
    let key = given(section, THRESHOLD);
    let part = section.number(key, report)?;
    if part > 0.0 && part <= 1.0 {
        return Some(part);
    }
    section.refuse(key, "it is a part of the limit: above 0, at most 1".to_owned(), report)
}
