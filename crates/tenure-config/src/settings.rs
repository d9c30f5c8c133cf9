//! The tables `[worker]`, `[retention]`, `[server]` and `[metrics]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_core::limits;

use super::report::Report;
use super::section::Section;

/// Session time to live of a worker that says nothing.
const TTL_DEFAULT: Duration = Duration::from_millis(limits::WORKER_TTL_MS_DEFAULT);
/// Shortest one under which commands can be supervised.
const TTL_MIN: Duration = Duration::from_millis(limits::SUPERVISED_TTL_MS_MIN);
const DRAIN_DEFAULT: Duration = Duration::from_millis(limits::WORKER_DRAIN_MS_DEFAULT);
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// Longest wait for work to end when a worker stops.
const DRAIN_MAX: Duration = Duration::from_millis(DAY_MS);
/// Below this nobody could look at a job after it is over.
const KEEP_MS_MIN: u64 = 60 * 1_000;

/// How the worker works that runs commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Jobs at once; as many as there are cores when nothing is said.
    pub slots: Option<usize>,
    /// How long its session lives without a heartbeat.
    pub ttl: Duration,
    /// How long work may go on after it was told to stop; then it is handed back.
    pub drain: Duration,
    /// What people call it; host and process when nothing is said.
    pub name: Option<String>,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self { slots: None, ttl: TTL_DEFAULT, drain: DRAIN_DEFAULT, name: None }
    }
}

/// How long things are kept after they are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Jobs and their logs.
    pub jobs_ms: u64,
    /// Jobs in quarantine.
    pub dead_ms: u64,
    /// History.
    pub history_ms: u64,
}

impl Default for Keep {
    fn default() -> Self {
        Self { jobs_ms: 14 * DAY_MS, dead_ms: 90 * DAY_MS, history_ms: 30 * DAY_MS }
    }
}

/// How a server deals with those who ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSettings {
    /// A file with the certificate and those above it, and one with its private key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Where to note what was done; a file in the data directory when nothing is said.
    pub audit: AuditSetting,
    /// Connections that are open at once.
    pub connections: Option<usize>,
    /// Wrong keys from one address in a second; more are refused without a look.
    pub wrong_keys_per_s: Option<u32>,
    /// Requests of each tenant in a second; as many as it likes when nothing is said.
    pub tenant_requests_per_s: Option<u32>,
}

/// Where to note what was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AuditSetting {
    /// In `audit.jsonl` in the data directory.
    #[default]
    Data,
    /// In this file.
    File(PathBuf),
    /// Nowhere.
    Off,
}

pub(super) fn server(root: &Section<'_>, dir: &Path, report: &mut Report<'_>) -> ServerSettings {
    let mut settings = ServerSettings::default();
    let Some(section) = root.section("server", report) else { return settings };
    let keys = [
        "tls_certificate",
        "tls_key",
        "audit",
        "connections",
        "tenant_requests_per_s",
        "wrong_keys_per_s",
    ];
    section.known(&keys, report);
    let certificate = section.text("tls_certificate", report).map(|path| dir.join(path));
    let key = section.text("tls_key", report).map(|path| dir.join(path));
    match (certificate, key) {
        (Some(certificate), Some(key)) => settings.tls = Some((certificate, key)),
        (None, None) => {}
        (given, _) => {
            let (has, lacks) = match given {
                Some(_) => ("tls_certificate", "tls_key"),
                None => ("tls_key", "tls_certificate"),
            };
            section.refuse::<()>(has, format!("`{lacks}` is missing: both are needed"), report);
        }
    }
    settings.audit = match section.text("audit", report) {
        None => AuditSetting::Data,
        Some("off") => AuditSetting::Off,
        Some(path) => AuditSetting::File(dir.join(path)),
    };
    let connections = section.count("connections", 1..=1_000_000, report);
    settings.connections = connections.and_then(|count| usize::try_from(count).ok());
    let mut rate = |key| {
        let rate = section.count(key, 1..=1_000_000, report);
        rate.and_then(|rate| u32::try_from(rate).ok())
    };
    settings.tenant_requests_per_s = rate("tenant_requests_per_s");
    settings.wrong_keys_per_s = rate("wrong_keys_per_s");
    settings
}

/// What is told to those who watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricsSettings {
    /// Whether some metrics tell tenants apart.
    pub per_tenant: bool,
}

pub(super) fn metrics(root: &Section<'_>, report: &mut Report<'_>) -> MetricsSettings {
    let Some(section) = root.section("metrics", report) else { return MetricsSettings::default() };
    section.known(&["per_tenant"], report);
    MetricsSettings { per_tenant: section.flag("per_tenant", report).unwrap_or(false) }
}

pub(super) fn worker(root: &Section<'_>, report: &mut Report<'_>) -> WorkerSettings {
    let mut settings = WorkerSettings::default();
    let Some(section) = root.section("worker", report) else { return settings };
    section.known(&["slots", "ttl", "drain", "name"], report);
    let slots = section.count("slots", 1..=limits::WORKER_SLOTS_MAX as u64, report);
    settings.slots = slots.and_then(|slots| usize::try_from(slots).ok());
    // Below the shortest time to live a command could not be stopped before its lock is lost.
    let ttl_max = Duration::from_millis(limits::TTL_MS_MAX);
    if let Some(ttl) = within(&section, "ttl", TTL_MIN, ttl_max, report) {
        settings.ttl = ttl;
    }
    if let Some(drain) = within(&section, "drain", Duration::ZERO, DRAIN_MAX, report) {
        settings.drain = drain;
    }
    settings.name = section.text("name", report).map(str::to_owned);
    let max = limits::SESSION_NAME_BYTES_MAX;
    let bad =
        |name: &str| name.is_empty() || name.len() > max || name.chars().any(char::is_control);
    if settings.name.as_deref().is_some_and(bad) {
        let why = format!(
            "a name has between 1 and {max} bytes on one line; leave it out for host and process"
        );
        section.refuse::<()>("name", why, report);
    }
    settings
}

pub(super) fn retention(root: &Section<'_>, report: &mut Report<'_>) -> Keep {
    let mut keep = Keep::default();
    let Some(section) = root.section("retention", report) else { return keep };
    section.known(&["jobs", "dead", "history"], report);
    let before = report.len();
    for (key, kept) in [
        ("jobs", &mut keep.jobs_ms),
        ("dead", &mut keep.dead_ms),
        ("history", &mut keep.history_ms),
    ] {
        match section.duration_ms(key, report) {
            Some(ms) if ms < KEEP_MS_MIN => {
                let why = "less than 1m: nobody could look at anything that is over".to_owned();
                section.refuse::<()>(key, why, report);
            }
            Some(ms) => *kept = ms,
            None => {}
        }
    }
    if keep.dead_ms < keep.jobs_ms && report.len() == before {
        let key = if section.has("dead") { "dead" } else { "jobs" };
        let why = "dead letters would be dropped before the jobs that went well: make `dead` at \
                   least as long as `jobs`";
        section.refuse::<()>(key, why.to_owned(), report);
    }
    keep
}

fn within(
    section: &Section<'_>,
    key: &str,
    min: Duration,
    max: Duration,
    report: &mut Report<'_>,
) -> Option<Duration> {
    let duration = Duration::from_millis(section.duration_ms(key, report)?);
    if (min..=max).contains(&duration) {
        return Some(duration);
    }
    section.refuse(key, format!("it must be between {min:?} and {max:?}"), report)
}
