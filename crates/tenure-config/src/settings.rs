//! The tables `[worker]`, `[runner]`, `[retention]`, `[server]`, `[audit]` and `[metrics]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_core::limits;

use super::report::Report;
use super::section::Section;

/// Default session time to live of a worker.
const TTL_DEFAULT: Duration = Duration::from_millis(limits::WORKER_TTL_MS_DEFAULT);
/// Minimum time to live with which commands can be supervised.
const TTL_MIN: Duration = Duration::from_millis(limits::SUPERVISED_TTL_MS_MIN);
const DRAIN_DEFAULT: Duration = Duration::from_millis(limits::WORKER_DRAIN_MS_DEFAULT);
/// What a variable may be named.
const VARIABLE_RULE: &str = "a variable consists of letters, digits and `_`";
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// Maximum grace period for running jobs when a worker stops.
const DRAIN_MAX: Duration = Duration::from_millis(DAY_MS);
/// Minimum retention period, so that a finished job can still be inspected.
const RETENTION_MS_MIN: u64 = 60 * 1_000;

/// Default size of each audit log.
const AUDIT_BYTES_DEFAULT: u64 = 192 * 1024 * 1024;
/// Minimum size of each audit log.
const AUDIT_BYTES_MIN: u64 = 1024 * 1024;
/// Maximum size of each audit log.
const AUDIT_BYTES_MAX: u64 = 1024 * 1024 * 1024 * 1024;

/// Settings of the worker that runs commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Maximum number of concurrent jobs. Defaults to the number of cores.
    pub slots: Option<usize>,
    /// Time after which its session expires without a heartbeat.
    pub ttl: Duration,
    /// Interval between its heartbeats. Defaults to a third of the time to live.
    pub heartbeat: Option<Duration>,
    /// Grace period for running jobs after a stop request; then they are handed back.
    pub drain: Duration,
    /// Display name. Defaults to the host and the process id.
    pub name: Option<String>,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self { slots: None, ttl: TTL_DEFAULT, heartbeat: None, drain: DRAIN_DEFAULT, name: None }
    }
}

/// Settings of the commands of jobs and of apps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunnerSettings {
    /// Environment variables of the process that commands get besides the minimum: names, or
    /// prefixes followed by `*`.
    pub pass_env: Vec<String>,
}

/// Retention periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionSettings {
    /// Finished jobs and their logs.
    pub jobs_ms: u64,
    /// Dead letters.
    pub dead_ms: u64,
    /// History.
    pub history_ms: u64,
}

impl Default for RetentionSettings {
    fn default() -> Self {
        Self { jobs_ms: 14 * DAY_MS, dead_ms: 90 * DAY_MS, history_ms: 30 * DAY_MS }
    }
}

/// Settings of the HTTP server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSettings {
    /// Files with the certificate chain and with its private key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Destination of the audit log.
    pub audit: AuditSetting,
    /// Maximum number of open connections.
    pub connections: Option<usize>,
    /// Maximum number of requests with a wrong key per second and address; more are rejected
    /// unchecked.
    pub wrong_keys_per_s: Option<u32>,
    /// Maximum number of requests per second and tenant. Unlimited by default.
    pub tenant_requests_per_s: Option<u32>,
}

/// Destination of the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AuditSetting {
    /// `audit.jsonl` in the data directory.
    #[default]
    Data,
    /// This file.
    File(PathBuf),
    /// No audit log.
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
    section.check_keys(&keys, report);
    let certificate = section.text("tls_certificate", report).map(|path| dir.join(path));
    let key = section.text("tls_key", report).map(|path| dir.join(path));
    match (certificate, key) {
        (Some(certificate), Some(key)) => settings.tls = Some((certificate, key)),
        (None, None) => {}
        (certificate, _) => {
            let (set, missing) = match certificate {
                Some(_) => ("tls_certificate", "tls_key"),
                None => ("tls_key", "tls_certificate"),
            };
            section.reject::<()>(set, format!("`{missing}` is missing: both are needed"), report);
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

/// How much of the audit log is kept: of actions of operators, of calls of workers, and of denied
/// calls alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditLimits {
    /// Maximum size of each, in bytes.
    pub max_bytes: u64,
    /// Age after which entries are deleted.
    pub max_age_ms: Option<u64>,
}

impl Default for AuditLimits {
    fn default() -> Self {
        Self { max_bytes: AUDIT_BYTES_DEFAULT, max_age_ms: None }
    }
}

pub(super) fn audit(root: &Section<'_>, report: &mut Report<'_>) -> AuditLimits {
    let mut limits = AuditLimits::default();
    let Some(section) = root.section("audit", report) else { return limits };
    section.check_keys(&["max_bytes", "max_age"], report);
    if let Some(bytes) = section.count("max_bytes", AUDIT_BYTES_MIN..=AUDIT_BYTES_MAX, report) {
        limits.max_bytes = bytes;
    }
    let (min, max) = (Duration::from_millis(DAY_MS), Duration::from_millis(3_660 * DAY_MS));
    let max_age = duration_within(&section, "max_age", min, max, report);
    limits.max_age_ms = max_age.and_then(|age| u64::try_from(age.as_millis()).ok());
    limits
}

/// Settings of the metrics endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricsSettings {
    /// Whether some metrics have a label for the tenant.
    pub per_tenant: bool,
}

pub(super) fn metrics(root: &Section<'_>, report: &mut Report<'_>) -> MetricsSettings {
    let Some(section) = root.section("metrics", report) else { return MetricsSettings::default() };
    section.check_keys(&["per_tenant"], report);
    MetricsSettings { per_tenant: section.flag("per_tenant", report).unwrap_or(false) }
}

pub(super) fn worker(root: &Section<'_>, report: &mut Report<'_>) -> WorkerSettings {
    let mut settings = WorkerSettings::default();
    let Some(section) = root.section("worker", report) else { return settings };
    section.check_keys(&["slots", "ttl", "heartbeat_interval", "drain", "name"], report);
    let slots = section.count("slots", 1..=limits::WORKER_SLOTS_MAX as u64, report);
    settings.slots = slots.and_then(|slots| usize::try_from(slots).ok());
    // With a shorter time to live, a command could not be stopped before its lock is lost.
    let ttl_max = Duration::from_millis(limits::TTL_MS_MAX);
    if let Some(ttl) = duration_within(&section, "ttl", TTL_MIN, ttl_max, report) {
        settings.ttl = ttl;
    }
    let heartbeat_min = Duration::from_millis(limits::HEARTBEAT_INTERVAL_MS_MIN);
    // One heartbeat may be lost.
    let heartbeat_max = settings.ttl / limits::HEARTBEATS_PER_TTL_MIN;
    settings.heartbeat =
        duration_within(&section, "heartbeat_interval", heartbeat_min, heartbeat_max, report);
    if let Some(drain) = duration_within(&section, "drain", Duration::ZERO, DRAIN_MAX, report) {
        settings.drain = drain;
    }
    settings.name = section.text("name", report).map(str::to_owned);
    let max = limits::SESSION_NAME_BYTES_MAX;
    let is_invalid =
        |name: &str| name.is_empty() || name.len() > max || name.chars().any(char::is_control);
    if settings.name.as_deref().is_some_and(is_invalid) {
        let why = format!(
            "a name has between 1 and {max} bytes on one line; the default is host and process id"
        );
        section.reject::<()>("name", why, report);
    }
    settings
}

pub(super) fn runner(root: &Section<'_>, report: &mut Report<'_>) -> RunnerSettings {
    let Some(section) = root.section("runner", report) else { return RunnerSettings::default() };
    section.check_keys(&["pass_env"], report);
    let names = section.texts("pass_env", report).unwrap_or_default();
    for &pattern in &names {
        let name = pattern.strip_suffix('*').unwrap_or(pattern);
        let why = if pattern == "*" {
            "`*` would pass every credential: name the variables, or use a prefix such as `AWS_*`"
                .to_owned()
        } else if limits::CREDENTIAL_VARIABLES.contains(&name) {
            format!("{pattern} is a credential of Tenure, which no command gets")
        } else if !is_variable(name) {
            format!("{pattern:?} is not the name of a variable: {VARIABLE_RULE}")
        } else {
            continue;
        };
        section.reject::<()>("pass_env", why, report);
    }
    RunnerSettings { pass_env: names.into_iter().map(str::to_owned).collect() }
}

/// Reports a key of a table of environment variables that is not the name of one.
pub fn check_variable(section: &Section<'_>, name: &str, report: &mut Report<'_>) {
    if !is_variable(name) {
        section.reject::<()>(name, VARIABLE_RULE.to_owned(), report);
    }
}

fn is_variable(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(is_allowed)
}

pub(super) fn retention(root: &Section<'_>, report: &mut Report<'_>) -> RetentionSettings {
    let mut settings = RetentionSettings::default();
    let Some(section) = root.section("retention", report) else { return settings };
    section.check_keys(&["jobs", "dead", "history"], report);
    let before = report.len();
    for (key, period) in [
        ("jobs", &mut settings.jobs_ms),
        ("dead", &mut settings.dead_ms),
        ("history", &mut settings.history_ms),
    ] {
        match section.duration_ms(key, report) {
            Some(ms) if ms < RETENTION_MS_MIN => {
                let why =
                    "it must be at least 1m, so that finished jobs can be inspected".to_owned();
                section.reject::<()>(key, why, report);
            }
            Some(ms) => *period = ms,
            None => {}
        }
    }
    if settings.dead_ms < settings.jobs_ms && report.len() == before {
        let key = if section.has("dead") { "dead" } else { "jobs" };
        let why = "dead letters would be dropped before successful jobs: make `dead` at least as \
                           long as `jobs`";
        section.reject::<()>(key, why.to_owned(), report);
    }
    settings
}

fn duration_within(
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
    section.reject(key, format!("it must be between {min:?} and {max:?}"), report)
}
