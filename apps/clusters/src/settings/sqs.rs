//! Reads the table `[clusters.sqs]`, the queue that wakes workers.

use std::ops::RangeInclusive;

use tenure_config::{Report, Section};

use super::read::duration;
use super::{DAY_MS, HOUR_MS, MINUTE_MS, SqsSettings};

/// Times for which SQS hides a received message.
const VISIBILITY_MS: RangeInclusive<u64> = 1_000..=12 * HOUR_MS;
/// Durations of one long poll that SQS allows.
const WAIT_MS: RangeInclusive<u64> = 0..=20_000;
/// Numbers of receives before a message goes to the dead-letter queue.
const RECEIVES: RangeInclusive<u64> = 1..=1_000;
/// Times for which SQS keeps messages.
const RETENTION_MS: RangeInclusive<u64> = MINUTE_MS..=14 * DAY_MS;
/// Intervals at which workers claim jobs without a message.
const CLAIM_INTERVAL_MS: RangeInclusive<u64> = 1_000..=HOUR_MS;
/// Maximum length of the name of a queue, with its ending.
const QUEUE_BYTES_MAX: usize = 80;
/// Ending of the names of FIFO queues.
const FIFO: &str = ".fifo";

const KEYS: [&str; 9] = [
    "queue",
    "dead_letters",
    "region",
    "visibility",
    "wait",
    "receives",
    "retention",
    "claim_interval",
    "create",
];

/// Reads the table; `None` if it has no usable region.
pub(super) fn read(section: &Section<'_>, report: &mut Report<'_>) -> Option<SqsSettings> {
    section.check_keys(&KEYS, report);
    let mut name =
        |key, default: &str| queue_name(section, key, report).unwrap_or_else(|| default.to_owned());
    let queue = name("queue", "ocpctl-jobs.fifo");
    let dead_letters = name("dead_letters", "ocpctl-jobs-dlq.fifo");
    if queue == dead_letters {
        let why = format!("{queue} is the queue itself: name another one");
        section.reject::<()>("dead_letters", why, report);
    }
    let mut time = |key, within, default| duration(section, key, within, report).unwrap_or(default);
    let visibility_ms = time("visibility", VISIBILITY_MS, 10 * MINUTE_MS);
    let wait_ms = time("wait", WAIT_MS, 20_000);
    let retention_ms = time("retention", RETENTION_MS, 14 * DAY_MS);
    let claim_interval_ms = time("claim_interval", CLAIM_INTERVAL_MS, 30_000);
    for (key, ms) in [("visibility", visibility_ms), ("wait", wait_ms), ("retention", retention_ms)]
    {
        if !ms.is_multiple_of(1_000) {
            section.reject::<()>(key, "SQS counts whole seconds".to_owned(), report);
        }
    }
    let receives = section.count("receives", RECEIVES, report);
    let receives = receives.and_then(|receives| u32::try_from(receives).ok()).unwrap_or(3);
    let create = section.flag("create", report).unwrap_or(false);
    let region = region(section, report)?;
    Some(SqsSettings {
        queue,
        dead_letters,
        region,
        visibility_ms,
        wait_ms,
        receives,
        retention_ms,
        claim_interval_ms,
        create,
    })
}

fn queue_name(section: &Section<'_>, key: &str, report: &mut Report<'_>) -> Option<String> {
    let name = section.text(key, report)?;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let why = match name.strip_suffix(FIFO) {
        None => format!("{name:?} does not end in {FIFO}: jobs of a cluster need a FIFO queue"),
        Some(stem) if stem.is_empty() || !stem.chars().all(is_allowed) => {
            format!("{name:?} must have letters, digits, `-` and `_` before {FIFO}")
        }
        Some(_) if name.len() > QUEUE_BYTES_MAX => {
            format!("it has {} characters; the maximum is {QUEUE_BYTES_MAX}", name.len())
        }
        Some(_) => return Some(name.to_owned()),
    };
    section.reject(key, why, report)
}

fn region(section: &Section<'_>, report: &mut Report<'_>) -> Option<String> {
    let Some(region) = section.text("region", report) else {
        if !section.has("region") {
            report.add(&section.place, "`region` is missing: the region of the queue");
        }
        return None;
    };
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !region.is_empty() && region.chars().all(is_allowed) {
        return Some(region.to_owned());
    }
    section.reject("region", format!("{region:?} is not a region such as us-east-1"), report)
}
