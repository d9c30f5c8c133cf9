//! Reads the table `[clusters]`. Every problem is reported at once.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use tenure_config::{Report, Section, duration};
use tenure_core::limits::{
    ATTEMPTS_MAX, HEARTBEAT_INTERVAL_MS_MIN, STALE_MARGIN_MS_MAX, SUPERVISED_TTL_MS_MIN,
    TTL_MS_MAX, WORKER_SLOTS_MAX,
};

use super::{DAY_MS, HOUR_MS, Settings, places, sqs};
use crate::names;

/// Allowed times without a heartbeat after which a worker has lost its jobs.
const LOCK_TTL_MS: RangeInclusive<u64> = SUPERVISED_TTL_MS_MIN..=TTL_MS_MAX;
/// Allowed backoffs after a failure; 0 repeats at once.
const BACKOFF_MS: RangeInclusive<u64> = 0..=DAY_MS;
/// Allowed time limits of an operation.
const LIMIT_MS: RangeInclusive<u64> = 1_000..=DAY_MS;
/// Allowed times from TERM to KILL of the installer.
const STOP_GRACE_MS: RangeInclusive<u64> = 0..=HOUR_MS;
/// Allowed times between the two queries that verify a destroy.
const VERIFY_INTERVAL_MS: RangeInclusive<u64> = 100..=HOUR_MS;
/// Allowed times for which snapshots of destroyed clusters are kept.
const ARTIFACT_RETENTION_MS: RangeInclusive<u64> = HOUR_MS..=10 * 365 * DAY_MS;
/// Maximum number of base domains.
const BASE_DOMAINS_MAX: usize = 1_000;

/// Keys of the table.
const KEYS: [&str; 25] = [
    "installer",
    "work_dir",
    "profiles",
    "failure_rules",
    "base_domains",
    "slots",
    "lock_ttl",
    "heartbeat_interval",
    "stale_margin",
    "attempts",
    "backoff",
    "backoff_max",
    "create_limit",
    "destroy_limit",
    "scale_limit",
    "stop_grace",
    "verify",
    "verify_interval",
    "pass_env",
    "artifacts",
    "artifact_options",
    "artifact_retention",
    "aws_endpoint",
    "advisory_locks",
    "sqs",
];

impl Settings {
    /// Reads the section; relative paths in it are below `dir`. Every problem is reported, and a
    /// value that has one is replaced by its default.
    pub fn read(section: &Section<'_>, dir: &Path, report: &mut Report<'_>) -> Self {
        section.check_keys(&KEYS, report);
        let mut settings = Self::new(dir);
        places::read(&mut settings, section, dir, report);
        settings.base_domains = base_domains(section, report);
        read_liveness(&mut settings, section, report);
        read_retries(&mut settings, section, report);
        read_limits(&mut settings, section, report);
        if let Some(section) = section.section("sqs", report) {
            settings.sqs = sqs::read(&section, report);
        }
        settings
    }
}

/// Reads a duration within bounds; `None` if the key is missing or invalid.
pub(super) fn duration(
    section: &Section<'_>,
    key: &str,
    within: RangeInclusive<u64>,
    report: &mut Report<'_>,
) -> Option<u64> {
    let ms = section.duration_ms(key, report)?;
    if within.contains(&ms) {
        return Some(ms);
    }
    let [got, min, max] = [ms, *within.start(), *within.end()].map(duration::format);
    section.reject(key, format!("it is {got}; it must be between {min} and {max}"), report)
}

/// Reads the slots, the time to live of locks and the interval of heartbeats.
fn read_liveness(settings: &mut Settings, section: &Section<'_>, report: &mut Report<'_>) {
    let slots = section.count("slots", 0..=WORKER_SLOTS_MAX as u64, report);
    if let Some(slots) = slots.and_then(|slots| usize::try_from(slots).ok()) {
        settings.slots = slots;
    }
    let default = settings.lock_ttl_ms;
    let lock_ttl_ms = duration(section, "lock_ttl", LOCK_TTL_MS, report);
    settings.lock_ttl_ms = lock_ttl_ms.unwrap_or(default);
    // The default follows a shorter time to live. One heartbeat may be lost.
    let usual = settings.heartbeat_ms.min(settings.lock_ttl_ms / 3);
    let allowed = HEARTBEAT_INTERVAL_MS_MIN..=settings.lock_ttl_ms / 2;
    // Without a valid `lock_ttl` there is nothing to compare the interval with.
    let is_known = lock_ttl_ms.is_some() || !section.has("lock_ttl");
    let allowed = if is_known { allowed } else { HEARTBEAT_INTERVAL_MS_MIN..=TTL_MS_MAX / 2 };
    let interval = section.duration_ms("heartbeat_interval", report);
    settings.heartbeat_ms = match interval {
        None => usual,
        Some(ms) if allowed.contains(&ms) => ms,
        Some(ms) => {
            let [got, min, max, ttl] =
                [ms, *allowed.start(), *allowed.end(), settings.lock_ttl_ms].map(duration::format);
            let why = format!(
                "it is {got}; it must be between {min} and {max}, half of the lock_ttl of {ttl}, \
                 so that one heartbeat may be lost"
            );
            section.reject("heartbeat_interval", why, report).unwrap_or(usual)
        }
    };
    if let Some(ms) = duration(section, "stale_margin", 0..=STALE_MARGIN_MS_MAX, report) {
        settings.stale_margin_ms = ms;
    }
}

/// Reads the number of attempts and the backoff between them.
fn read_retries(settings: &mut Settings, section: &Section<'_>, report: &mut Report<'_>) {
    let attempts = section.count("attempts", 1..=u64::from(ATTEMPTS_MAX), report);
    if let Some(attempts) = attempts.and_then(|attempts| u32::try_from(attempts).ok()) {
        settings.attempts = attempts;
    }
    let backoff_ms = duration(section, "backoff", BACKOFF_MS, report);
    let backoff_max_ms = duration(section, "backoff_max", BACKOFF_MS, report);
    settings.backoff_ms = backoff_ms.unwrap_or(settings.backoff_ms);
    settings.backoff_max_ms = match backoff_max_ms {
        Some(max) if max < settings.backoff_ms => {
            let [max, first] = [max, settings.backoff_ms].map(duration::format);
            let why = format!("it is {max}, shorter than the first backoff of {first}");
            section.reject("backoff_max", why, report).unwrap_or(settings.backoff_ms)
        }
        Some(max) => max,
        // The default follows a longer first backoff.
        None => settings.backoff_max_ms.max(settings.backoff_ms),
    };
}

/// Reads the time limits.
fn read_limits(settings: &mut Settings, section: &Section<'_>, report: &mut Report<'_>) {
    for (key, within, setting) in [
        ("create_limit", LIMIT_MS, &mut settings.create_limit_ms),
        ("destroy_limit", LIMIT_MS, &mut settings.destroy_limit_ms),
        ("scale_limit", LIMIT_MS, &mut settings.scale_limit_ms),
        ("stop_grace", STOP_GRACE_MS, &mut settings.stop_grace_ms),
        ("verify_interval", VERIFY_INTERVAL_MS, &mut settings.verify_interval_ms),
        ("artifact_retention", ARTIFACT_RETENTION_MS, &mut settings.artifact_retention_ms),
    ] {
        if let Some(ms) = duration(section, key, within, report) {
            *setting = ms;
        }
    }
}

/// Reads the tenants of base domains.
fn base_domains(section: &Section<'_>, report: &mut Report<'_>) -> BTreeMap<String, String> {
    let mut domains = BTreeMap::new();
    let Some(table) = section.section("base_domains", report) else { return domains };
    for (domain, tenant) in table.pairs(report) {
        let problem = names::check_domain(domain).err().or_else(|| {
            let id = names::cluster_id("none", "a", domain);
            names::cluster_key(tenant, &id).err().map(|why| format!("the tenant {tenant:?}: {why}"))
        });
        match problem {
            Some(why) => drop(table.reject::<()>(domain, why, report)),
            None => drop(domains.insert(domain.to_owned(), tenant.to_owned())),
        }
    }
    if domains.len() > BASE_DOMAINS_MAX {
        let why = format!("{} domains; at most {BASE_DOMAINS_MAX} are allowed", domains.len());
        section.reject::<()>("base_domains", why, report);
    }
    domains
}
