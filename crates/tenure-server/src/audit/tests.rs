//! Unit tests of the files.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use axum::response::{IntoResponse as _, Response};
use tenure_app::Problem;
use tenure_app::metrics::Counters;
use tenure_core::Millis;
use tenure_store::audit::AuditFilter;

use super::files::{AuditFiles, AuditWriter, FILES_KEPT};
use super::{Attached, Attachment, AuditClass, AuditLimits, PendingEntry, dropped_labels};

const ALL: AuditFilter =
    AuditFilter { since: None, tenant: None, who: None, action: None, limit: 10 };

fn entry(action: &str, response: &Response) -> PendingEntry {
    let class = AuditClass::Operators;
    PendingEntry::new(class, action, "/v1/x", None, Some(response), Duration::ZERO)
}

/// Opens the log in a directory. With 9 bytes, each entry has a file of its own.
fn open(dir: &Path, limits: AuditLimits) -> (AuditFiles, AuditWriter) {
    let (files, writer, _) = open_attachable(dir, limits);
    (files, writer)
}

fn open_attachable(dir: &Path, limits: AuditLimits) -> (AuditFiles, AuditWriter, Attachment) {
    let (files, attachment) =
        (AuditFiles::new(&dir.join("audit.jsonl"), limits), Attachment::default());
    let writer = AuditWriter::open(&files, Attachment::clone(&attachment)).expect("created");
    (files, writer, attachment)
}

fn rotated(dir: &Path) -> PathBuf {
    dir.join("audit.jsonl.1")
}

#[test]
fn entries_are_read_newest_first_across_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let limits = AuditLimits { max_bytes: 9, max_age_ms: None };
    let (files, mut writer) = open(dir.path(), limits);
    let (ok, no) = ("".into_response(), Problem::unauthenticated().into_response());
    writer.write(entry("one", &ok));
    writer.write(entry("two", &no));
    writer.write(entry("three", &ok));
    writer.flush();
    assert!(rotated(dir.path()).exists());
    let found = files.newest(&ALL).expect("readable");
    let actions: Vec<_> = found
        .iter()
        .map(|line| serde_json::from_str::<tenure_wire::AuditEntry>(line).expect("an entry"))
        .map(|entry| (entry.action, entry.outcome))
        .collect();
    let expected = [("three", "ok"), ("two", "unauthenticated"), ("one", "ok")];
    assert_eq!(actions, expected.map(|(action, outcome)| (action.into(), outcome.into())));
    let one = AuditFilter { action: Some("one".to_owned()), limit: 1, ..ALL };
    assert_eq!(files.newest(&one).expect("readable").len(), 1);
}

/// Attaches a log to a server. Returns the counters of what it drops.
fn attach(attachment: &Attachment) -> Counters<2> {
    let dropped = Counters::<2>::default();
    let attached = Attached { server: "s1".into(), dropped: dropped.clone(), shared: None };
    assert!(attachment.set(attached).is_ok(), "attached once");
    dropped
}

fn count(dropped: &Counters<2>, class: AuditClass, reason: &'static str) -> u64 {
    dropped.get_or_create(&dropped_labels(class.as_str(), reason)).get()
}

#[test]
fn old_files_are_deleted_and_their_entries_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    let limits = AuditLimits { max_bytes: 9, max_age_ms: None };
    let (_, mut writer, attachment) = open_attachable(dir.path(), limits);
    for _ in 0..2 * FILES_KEPT {
        writer.write(entry("one", &"".into_response()));
    }
    // Also what was evicted before the server has started.
    let dropped = attach(&attachment);
    writer.flush();
    let evicted = FILES_KEPT as u64 - 1;
    assert_eq!(count(&dropped, AuditClass::Operators, "size"), evicted);
    assert_eq!(count(&dropped, AuditClass::Workers, "size"), 0);
    writer.write(entry("one", &"".into_response()));
    writer.flush();
    assert_eq!(count(&dropped, AuditClass::Operators, "size"), evicted + 1);
    assert_eq!(count(&dropped, AuditClass::Operators, "age"), 0);
    // One file of each class, and the rotated ones.
    assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), FILES_KEPT + 3);
}

#[test]
fn files_are_rotated_and_deleted_because_of_their_age() {
    let dir = tempfile::tempdir().expect("a directory");
    let limits = AuditLimits { max_age_ms: Some(86_400_000), ..AuditLimits::default() };
    let (_, mut writer, attachment) = open_attachable(dir.path(), limits);
    let dropped = attach(&attachment);
    writer.write(entry("one", &"".into_response()));
    writer.expire();
    assert!(!rotated(dir.path()).exists(), "it is new");
    writer.set_since(AuditClass::Operators, Millis(0));
    writer.expire();
    assert!(rotated(dir.path()).exists(), "its first entry is old");
    let file = File::options().append(true).open(rotated(dir.path())).expect("it is there");
    writer.expire();
    assert!(rotated(dir.path()).exists(), "its last entry is new");
    file.set_modified(UNIX_EPOCH).expect("writable");
    writer.expire();
    assert!(!rotated(dir.path()).exists(), "its last entry is old");
    assert_eq!(count(&dropped, AuditClass::Operators, "age"), 1);
}
