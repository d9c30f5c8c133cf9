//! The audit log: an entry for each mutation and each refused request on this server.
//!
//! It is a file of JSON lines. An entry is queued for the writer before the response is sent, so a
//! response without an entry requires that the machine fails in between, or that the writer cannot
//! keep up. The file is rotated; entries contain no secrets.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::response::Response;
use tenure_core::Text;
use tenure_store::clock::{Clock as _, ServerClock};
use tenure_store::private_file;
use tenure_wire::{AuditEntry, instant};
use tokio::sync::{mpsc, oneshot};

use crate::auth::keys::Principal;
use tenure_app::Caller;
use tenure_app::problem::ProblemCode;

/// Maximum number of queued entries; beyond it, requests block for [`ENQUEUE_TIMEOUT`].
const QUEUE_MAX: usize = 4_096;
/// Time after which an entry that cannot be queued is dropped.
const ENQUEUE_TIMEOUT: Duration = Duration::from_millis(250);
/// Maximum length of a path in an entry.
const PATH_BYTES_MAX: usize = 512;
/// Size at which the file is rotated.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Number of rotated files that are kept.
const FILES_KEPT: usize = 8;

/// An entry, without its time.
#[derive(Debug)]
pub(crate) struct PendingEntry {
    line: AuditEntry,
}

impl PendingEntry {
    pub(crate) fn new(
        action: &str,
        path: &str,
        address: Option<IpAddr>,
        response: Option<&Response>,
        took: Duration,
    ) -> Self {
        let code = response.and_then(|response| response.extensions().get::<ProblemCode>());
        let outcome = match (response, code) {
            (_, Some(code)) => &code.0,
            (Some(_), None) => "ok",
            (None, None) => "not answered",
        };
        Self {
            line: AuditEntry {
                at: String::new(),
                action: action.to_owned(),
                path: path.chars().take(PATH_BYTES_MAX).collect(),
                principal: None,
                key: None,
                role: None,
                tenant: None,
                address: address.map(|address| address.to_string()),
                status: response.map_or(0, |response| response.status().as_u16()),
                outcome: outcome.to_owned(),
                reason: None,
                request_id: tenure_app::request_id::current(),
                took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            },
        }
    }

    /// Adds the caller, or the principal that was refused.
    pub(crate) fn by(mut self, caller: Option<&Caller>, principal: Option<&Principal>) -> Self {
        if let Some(principal) = principal {
            self.line.principal = Some(principal.name.to_string());
            self.line.key = principal.key.as_ref().map(Text::to_string);
            self.line.role = Some(principal.role);
            self.line.tenant = Some(principal.tenant.to_string());
        }
        if let Some(caller) = caller {
            let tenant = caller.audit.tenant.get().unwrap_or(&caller.tenant);
            self.line.tenant = Some(tenant.to_string());
            self.line.reason = caller.audit.reason.get().map(Text::to_string);
        }
        self
    }
}

enum WriterRequest {
    Append(Box<PendingEntry>),
    /// Acknowledges when all earlier entries are in the file.
    Flush(oneshot::Sender<()>),
}

/// Filter for entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditQuery {
    /// Tenant.
    pub(crate) tenant: Option<Text>,
    /// Action.
    pub(crate) action: Option<String>,
    /// Maximum number of entries.
    pub(crate) limit: usize,
}

impl AuditQuery {
    fn matches(&self, line: &AuditEntry) -> bool {
        let tenant = self.tenant.as_deref();
        tenant.is_none_or(|tenant| line.tenant.as_deref() == Some(tenant))
            && self.action.as_ref().is_none_or(|action| *action == line.action)
    }
}

/// Handle to the audit log; cheap to clone.
#[derive(Clone)]
pub struct Audit(Option<(mpsc::Sender<WriterRequest>, PathBuf)>);

impl Audit {
    /// Creates a handle that discards all entries.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// Opens or creates an audit log and starts its writer thread.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let mut writer = AuditWriter::open(path)?;
        let (requests, mut receiver) = mpsc::channel(QUEUE_MAX);
        std::thread::Builder::new().name("tenure-audit".to_owned()).spawn(move || {
            while let Some(request) = receiver.blocking_recv() {
                writer.handle(request);
                // Queued entries go into the same write.
                while let Ok(request) = receiver.try_recv() {
                    writer.handle(request);
                }
                writer.flush();
            }
        })?;
        Ok(Self(Some((requests, path.to_path_buf()))))
    }

    /// Queues an entry; drops it after [`ENQUEUE_TIMEOUT`].
    pub(crate) async fn write(&self, entry: PendingEntry) {
        if let Some((requests, _)) = &self.0
            && requests
                .send_timeout(WriterRequest::Append(Box::new(entry)), ENQUEUE_TIMEOUT)
                .await
                .is_err()
        {
            tracing::error!("audit entry dropped: the writer is too slow or has stopped");
        }
    }

    /// Queues an entry without waiting; drops it if the queue is full.
    pub(crate) fn try_write(&self, entry: PendingEntry) {
        if let Some((requests, _)) = &self.0
            && requests.try_send(WriterRequest::Append(Box::new(entry))).is_err()
        {
            tracing::error!("audit entry dropped: the queue is full");
        }
    }

    /// Completes when all entries queued so far are in the file.
    pub(crate) async fn flush(&self) -> std::io::Result<()> {
        let Some((requests, _)) = &self.0 else { return Ok(()) };
        let stopped = || std::io::Error::other("the audit writer has stopped");
        let (ack, flushed) = oneshot::channel();
        requests.send(WriterRequest::Flush(ack)).await.map_err(|_| stopped())?;
        flushed.await.map_err(|_| stopped())
    }

    /// Returns the newest matching entries, newest first; `None` if the audit log is off.
    pub(crate) async fn newest(
        &self,
        query: AuditQuery,
    ) -> std::io::Result<Option<Vec<AuditEntry>>> {
        let Some((_, path)) = self.0.clone() else { return Ok(None) };
        self.flush().await?;
        let read = tokio::task::spawn_blocking(move || newest(&path, &query)).await;
        read.map_err(std::io::Error::other)?.map(Some)
    }
}

/// Appends entries to the file and rotates it.
struct AuditWriter {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
    clock: ServerClock,
    /// Whether the last write failed: a failure is logged once.
    failing: bool,
}

impl AuditWriter {
    fn open(path: &Path) -> std::io::Result<Self> {
        for n in 0..=FILES_KEPT {
            private_file::restrict(&numbered(path, n))?;
        }
        let file = append(path)?;
        let bytes = file.metadata()?.len();
        let clock = ServerClock::starting_after(tenure_core::Millis::default());
        let (path, file) = (path.to_path_buf(), BufWriter::new(file));
        Ok(Self { path, file, bytes, clock, failing: false })
    }

    fn handle(&mut self, request: WriterRequest) {
        match request {
            WriterRequest::Append(entry) => self.write(*entry),
            WriterRequest::Flush(ack) => {
                self.flush();
                // The requester may have been cancelled.
                ack.send(()).ok();
            }
        }
    }

    fn write(&mut self, PendingEntry { mut line }: PendingEntry) {
        line.at = instant(self.clock.now());
        let mut text = serde_json::to_string(&line).expect("plain JSON");
        text.push('\n');
        let written = self.rotate().and_then(|()| self.file.write_all(text.as_bytes()));
        self.bytes += text.len() as u64;
        self.report(written);
    }

    fn flush(&mut self) {
        let flushed = self.file.flush();
        self.report(flushed);
    }

    fn report(&mut self, result: std::io::Result<()>) {
        match result {
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::error!(%error, "cannot write the audit log");
            }
            Err(_) => {}
            Ok(()) => self.failing = false,
        }
    }

    /// Rotates the file if it has reached [`FILE_BYTES_MAX`].
    fn rotate(&mut self) -> std::io::Result<()> {
        if self.bytes < FILE_BYTES_MAX {
            return Ok(());
        }
        self.file.flush()?;
        // After a failed rotation the current file may have been renamed already.
        for n in (0..FILES_KEPT).rev().filter(|_| self.path.exists()) {
            let from = numbered(&self.path, n);
            if from.exists() {
                fs::rename(from, numbered(&self.path, n + 1))?;
            }
        }
        self.file = BufWriter::new(append(&self.path)?);
        self.bytes = 0;
        Ok(())
    }
}

/// Reads the newest matching entries, newest first.
fn newest(path: &Path, query: &AuditQuery) -> std::io::Result<Vec<AuditEntry>> {
    let mut found = Vec::new();
    for n in 0..=FILES_KEPT {
        let path = numbered(path, n);
        if found.len() == query.limit || !path.exists() {
            break;
        }
        let mut of_file = VecDeque::new();
        for text in BufReader::new(File::open(path)?).lines() {
            // A crash can leave a truncated line.
            let Ok(line) = serde_json::from_str::<AuditEntry>(&text?) else { continue };
            if query.matches(&line) {
                of_file.push_front(line);
                of_file.truncate(query.limit - found.len());
            }
        }
        found.extend(of_file);
    }
    Ok(found)
}

/// Returns the path of the current file, `n` = 0, or of a rotated one.
fn numbered(path: &Path, n: usize) -> PathBuf {
    if n == 0 { path.to_path_buf() } else { path.with_added_extension(n.to_string()) }
}

fn append(path: &Path) -> std::io::Result<File> {
    private_file::options().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;
    use tenure_app::Problem;

    fn entry(action: &str, response: &Response) -> PendingEntry {
        PendingEntry::new(action, "/v1/x", None, Some(response), Duration::ZERO)
    }

    #[tokio::test]
    async fn entries_are_read_newest_first_across_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.jsonl");
        let mut writer = AuditWriter::open(&path).expect("created");
        let (ok, no) = ("".into_response(), Problem::unauthenticated().into_response());
        writer.write(entry("one", &ok));
        writer.bytes = FILE_BYTES_MAX;
        writer.write(entry("two", &no));
        writer.write(entry("three", &ok));
        writer.flush();
        assert!(numbered(&path, 1).exists());
        let query = AuditQuery { limit: 10, ..AuditQuery::default() };
        let found = newest(&path, &query).expect("readable");
        let outcomes: Vec<_> =
            found.iter().map(|line| (line.action.as_str(), line.outcome.as_str())).collect();
        assert_eq!(outcomes, [("three", "ok"), ("two", "unauthenticated"), ("one", "ok")]);
        let query =
            AuditQuery { limit: 1, action: Some("one".to_owned()), ..AuditQuery::default() };
        assert_eq!(newest(&path, &query).expect("readable").len(), 1);
    }

    #[test]
    fn old_files_are_deleted() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.jsonl");
        let mut writer = AuditWriter::open(&path).expect("created");
        for _ in 0..2 * FILES_KEPT {
            writer.bytes = FILE_BYTES_MAX;
            writer.write(entry("one", &"".into_response()));
        }
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), FILES_KEPT + 1);
    }
}
