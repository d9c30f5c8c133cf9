//! Appends entries to the audit log that all servers of a store share.
//!
//! Appends are asynchronous, so that no request waits for them. What cannot be appended is in the
//! files of this server.

use std::sync::Arc;
use std::time::Duration;

use tenure_app::metrics::Counters;
use tenure_core::Millis;
use tenure_store::Store;
use tenure_store::audit::{AuditRetention, AuditRow};
use tenure_store::clock::{Clock as _, ServerClock};
use tokio::sync::{mpsc, oneshot};

use super::{AuditClass, AuditLimits, STORE_FAILED};

/// Maximum number of entries that wait for the store.
const QUEUE_MAX: usize = 4_096;
/// Maximum number of entries per append.
const BATCH_MAX: usize = 256;
/// Number of times that an append is tried.
const ATTEMPTS_MAX: usize = 30;
/// Pause between two attempts.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Interval at which old entries are deleted.
const PRUNE_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// Maximum time that a shutdown waits for queued entries.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

enum SharedRequest {
    Append(Box<AuditRow>),
    /// Acknowledges when all earlier entries are appended or dropped.
    Flush(oneshot::Sender<()>),
}

/// Handle to the task that appends.
pub(super) struct SharedWriter(mpsc::Sender<SharedRequest>);

impl SharedWriter {
    /// Starts the task; `None` if the store has no shared log.
    pub(super) fn start(
        store: &Arc<dyn Store>,
        limits: AuditLimits,
        dropped: &Counters<1>,
    ) -> Option<Self> {
        store.shared_audit()?;
        let (requests, receiver) = mpsc::channel(QUEUE_MAX);
        let task = Task { store: Arc::clone(store), limits, dropped: dropped.clone() };
        tokio::spawn(task.run(receiver));
        Some(Self(requests))
    }

    /// Queues an entry. Returns `false` if the queue is full.
    pub(super) fn append(&self, row: AuditRow) -> bool {
        self.0.try_send(SharedRequest::Append(Box::new(row))).is_ok()
    }

    /// Waits for the queued entries, for at most [`FLUSH_TIMEOUT`].
    pub(super) async fn flush(&self) {
        let (ack, flushed) = oneshot::channel();
        let flush = async {
            if self.0.send(SharedRequest::Flush(ack)).await.is_ok() {
                flushed.await.ok();
            }
        };
        if tokio::time::timeout(FLUSH_TIMEOUT, flush).await.is_err() {
            tracing::warn!("the store did not take the last audit entries; they are in the files");
        }
    }
}

struct Task {
    store: Arc<dyn Store>,
    limits: AuditLimits,
    dropped: Counters<1>,
}

impl Task {
    async fn run(self, mut requests: mpsc::Receiver<SharedRequest>) {
        let mut prune = tokio::time::interval(PRUNE_INTERVAL);
        loop {
            let mut batch = Vec::with_capacity(BATCH_MAX);
            tokio::select! {
                count = requests.recv_many(&mut batch, BATCH_MAX) => {
                    if count == 0 {
                        return;
                    }
                    self.handle(batch).await;
                }
                _ = prune.tick() => self.prune().await,
            }
        }
    }

    async fn handle(&self, batch: Vec<SharedRequest>) {
        let (mut rows, mut acks) = (Vec::new(), Vec::new());
        for request in batch {
            match request {
                SharedRequest::Append(row) => rows.push(*row),
                SharedRequest::Flush(ack) => acks.push(ack),
            }
        }
        if !rows.is_empty() {
            self.append(&rows).await;
        }
        for ack in acks {
            ack.send(()).ok();
        }
    }

    async fn append(&self, rows: &[AuditRow]) {
        let Some(shared) = self.store.shared_audit() else { return };
        for attempt in 1..=ATTEMPTS_MAX {
            match shared.append(rows).await {
                Ok(()) => return,
                Err(error) if attempt == 1 => {
                    tracing::error!(%error, "cannot append to the shared audit log; retrying");
                }
                Err(error) => tracing::debug!(%error, "cannot append to the shared audit log"),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        let count = rows.len() as u64;
        self.dropped.get_or_create(&[("reason", STORE_FAILED.into())]).inc_by(count);
        tracing::error!(count, "audit entries are only in the files of this server");
    }

    async fn prune(&self) {
        let Some(shared) = self.store.shared_audit() else { return };
        let now = ServerClock::starting_after(Millis::default()).now();
        let since = self.limits.max_age_ms.map(|ms| Millis(now.0.saturating_sub(ms)));
        let keep = AuditRetention { since, max_bytes: self.limits.max_bytes };
        for class in [AuditClass::Operators, AuditClass::Denied] {
            if let Err(error) = shared.prune(class.as_str(), keep).await {
                tracing::warn!(%error, "cannot prune the shared audit log; retrying later");
            }
        }
    }
}
