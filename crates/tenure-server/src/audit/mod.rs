//! The audit log: an entry for each mutation and each refused request.
//!
//! An entry is queued for the writer before the response is sent, so a response without an entry
//! requires that the machine fails in between, or that the writer cannot keep up. Entries contain
//! no secrets.
//!
//! Each class of entries has its own files of JSON lines (`files.rs`), so that a flood of calls of
//! one class evicts no entry of another. If several servers can use the store, those of operators
//! and denied calls are also appended to it (`shared.rs`).

mod files;
mod shared;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::response::Response;
use tenure_app::Caller;
use tenure_app::metrics::{Counters, Labels};
use tenure_app::problem::ProblemCode;
pub use tenure_config::AuditLimits;
use tenure_core::{Millis, Text};
use tenure_store::audit::AuditFilter;
use tenure_store::clock::{Clock as _, ServerClock};
use tenure_store::{Store, StoreError};
use tenure_wire::{AuditEntry, AuditResponse, parse_instant};
use tokio::sync::{mpsc, oneshot};

use crate::auth::keys::Principal;
use files::{AuditFiles, AuditWriter};
use shared::SharedWriter;

/// Maximum number of queued entries; beyond it, requests block for [`ENQUEUE_TIMEOUT`].
const QUEUE_MAX: usize = 4_096;
/// Time after which an entry that cannot be queued is dropped.
const ENQUEUE_TIMEOUT: Duration = Duration::from_millis(250);
/// Maximum length of a path in an entry.
const PATH_BYTES_MAX: usize = 512;
/// Interval at which files are rotated and deleted because of their age.
const AGE_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// Reasons for which an entry is dropped. The last two remain in the files of the server.
pub(crate) const DROP_REASONS: [&str; 6] =
    [QUEUE_FULL, FILE_FAILED, TOO_MANY, TOO_OLD, STORE_FAILED, DENIED_RATE];
const QUEUE_FULL: &str = "queue_full";
const FILE_FAILED: &str = "file_failed";
/// Evicted because of the maximum size.
const TOO_MANY: &str = "size";
/// Evicted because of the maximum age.
const TOO_OLD: &str = "age";
const STORE_FAILED: &str = "store_failed";
const DENIED_RATE: &str = "denied_rate";

/// Who can cause entries, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuditClass {
    /// Actions of operators and admins: few.
    Operators,
    /// Actions that workers may perform: many.
    Workers,
    /// Denied calls and calls without a key: as many as an attacker likes.
    Denied,
}

impl AuditClass {
    pub(crate) const ALL: [Self; 3] = [Self::Operators, Self::Workers, Self::Denied];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Operators => "operators",
            Self::Workers => "workers",
            Self::Denied => "denied",
        }
    }
}

/// An entry, without its time and server.
#[derive(Debug)]
pub(crate) struct PendingEntry {
    class: AuditClass,
    line: AuditEntry,
}

impl PendingEntry {
    pub(crate) fn new(
        class: AuditClass,
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
            class,
            line: AuditEntry {
                at: String::new(),
                action: action.to_owned(),
                path: path.chars().take(PATH_BYTES_MAX).collect(),
                principal: None,
                key: None,
                role: None,
                tenant: None,
                server: None,
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
    /// Acknowledges when all earlier entries are in the files.
    Flush(oneshot::Sender<()>),
}

/// What the log needs from the server that writes it.
struct Attached {
    /// Name of the server.
    server: String,
    dropped: Counters<2>,
    shared: Option<SharedWriter>,
}

impl Attached {
    fn count_dropped(&self, class: AuditClass, reason: &'static str, count: u64) {
        self.dropped.get_or_create(&dropped_labels(class.as_str(), reason)).inc_by(count);
    }
}

/// Returns the labels of the counter of dropped entries.
pub(crate) fn dropped_labels(class: &'static str, reason: &'static str) -> Labels<2> {
    [("class", class.into()), ("reason", reason.into())]
}

/// The server, once it has started.
type Attachment = Arc<OnceLock<Attached>>;

/// Handle to the audit log; cheap to clone.
#[derive(Clone)]
pub struct Audit(Option<AuditLog>);

#[derive(Clone)]
struct AuditLog {
    requests: mpsc::Sender<WriterRequest>,
    files: AuditFiles,
    attachment: Attachment,
}

impl Audit {
    /// Creates a handle that discards all entries.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// Opens or creates an audit log and starts its writer thread. `path` is the file of the
    /// actions of operators; those of other classes are next to it.
    pub fn open(path: &Path, limits: AuditLimits) -> io::Result<Self> {
        let files = AuditFiles::new(path, limits);
        let attachment = Attachment::default();
        let writer = AuditWriter::open(&files, Arc::clone(&attachment))?;
        let (requests, receiver) = mpsc::channel(QUEUE_MAX);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        std::thread::Builder::new()
            .name("tenure-audit".to_owned())
            .spawn(move || runtime.block_on(run_writer(writer, receiver)))?;
        Ok(Self(Some(AuditLog { requests, files, attachment })))
    }

    /// Connects the log with the server that writes it, and with the log that all servers of its
    /// store share.
    pub(crate) fn attach(&self, server: &str, store: &Arc<dyn Store>, dropped: &Counters<2>) {
        let Some(log) = &self.0 else { return };
        let shared = SharedWriter::start(store, log.files.limits, dropped);
        let attached = Attached { server: server.to_owned(), dropped: dropped.clone(), shared };
        // A log belongs to one server.
        log.attachment.set(attached).ok();
    }

    /// Queues an entry; drops it after [`ENQUEUE_TIMEOUT`].
    pub(crate) async fn write(&self, entry: PendingEntry) {
        let Some(log) = &self.0 else { return };
        let class = entry.class;
        let request = WriterRequest::Append(Box::new(entry));
        if log.requests.send_timeout(request, ENQUEUE_TIMEOUT).await.is_err() {
            log.report_full_queue(class);
        }
    }

    /// Queues an entry without waiting; drops it if the queue is full.
    pub(crate) fn try_write(&self, entry: PendingEntry) {
        let Some(log) = &self.0 else { return };
        let class = entry.class;
        if log.requests.try_send(WriterRequest::Append(Box::new(entry))).is_err() {
            log.report_full_queue(class);
        }
    }

    /// Completes when all entries queued so far are in the files.
    pub(crate) async fn flush(&self) -> io::Result<()> {
        let Some(log) = &self.0 else { return Ok(()) };
        let stopped = || io::Error::other("the audit writer has stopped");
        let (ack, flushed) = oneshot::channel();
        log.requests.send(WriterRequest::Flush(ack)).await.map_err(|_| stopped())?;
        flushed.await.map_err(|_| stopped())
    }

    /// Completes when all entries queued so far are in the files and, if it answers in time, in the
    /// store.
    pub(crate) async fn close(&self) -> io::Result<()> {
        self.flush().await?;
        let attached = self.0.as_ref().and_then(|log| log.attachment.get());
        if let Some(shared) = attached.and_then(|attached| attached.shared.as_ref()) {
            shared.flush().await;
        }
        Ok(())
    }

    /// Returns the newest matching entries, newest first: those of this server, and those that
    /// other servers share, unless they cannot be read. `None` if the audit log is off.
    pub(crate) async fn newest(
        &self,
        filter: AuditFilter,
        store: &dyn Store,
    ) -> Result<Option<AuditResponse>, StoreError> {
        let Some(log) = &self.0 else { return Ok(None) };
        let unreadable = |error: io::Error| {
            StoreError::unavailable(format!("cannot read the audit log: {error}"))
        };
        self.flush().await.map_err(unreadable)?;
        let (files, local) = (log.files.clone(), filter.clone());
        let read = tokio::task::spawn_blocking(move || files.newest(&local)).await;
        let mut lines = read.map_err(io::Error::other).flatten().map_err(unreadable)?;
        let mut partial = None;
        if let Some(shared) = store.shared_audit() {
            let mut known: HashSet<String> = lines.iter().cloned().collect();
            match shared.newest(&filter).await {
                Ok(of_all) => {
                    lines.extend(of_all.into_iter().filter(|line| known.insert(line.clone())));
                }
                Err(error) => partial = Some(error.to_string()),
            }
        }
        let mut entries: Vec<AuditEntry> =
            lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        entries.sort_by_cached_key(|entry| std::cmp::Reverse(instant_of(entry)));
        entries.truncate(filter.limit);
        Ok(Some(AuditResponse { items: entries, next: None, partial }))
    }
}

impl AuditLog {
    fn report_full_queue(&self, class: AuditClass) {
        tracing::error!("audit entry dropped: the writer is too slow or has stopped");
        if let Some(attached) = self.attachment.get() {
            attached.count_dropped(class, QUEUE_FULL, 1);
        }
    }
}

fn instant_of(entry: &AuditEntry) -> Millis {
    parse_instant(&entry.at).unwrap_or_default()
}

/// Returns the time that a filter means: an instant, or a duration before now.
pub(crate) fn parse_since(text: &str) -> Result<Millis, String> {
    let now = ServerClock::starting_after(Millis::default()).now();
    if let Ok(age) = tenure_config::duration::parse(text) {
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        return Ok(Millis(now.0.saturating_sub(age_ms)));
    }
    parse_instant(text).map_err(|_| {
        format!(
            "since is {text:?}; write a duration such as 2h or an instant such as {}",
            tenure_wire::instant(now)
        )
    })
}

/// Writes queued entries until all handles are dropped.
async fn run_writer(mut writer: AuditWriter, mut requests: mpsc::Receiver<WriterRequest>) {
    loop {
        match tokio::time::timeout(AGE_INTERVAL, requests.recv()).await {
            Ok(Some(request)) => writer.handle(request),
            Ok(None) => return,
            Err(_) => writer.expire(),
        }
        // Queued entries go into the same write.
        while let Ok(request) = requests.try_recv() {
            writer.handle(request);
        }
        writer.flush();
    }
}
