//! Appends entries to the audit log that all servers of a store share.
//!
//! Appends are asynchronous, so that no request waits for them, and are repeated until the queue is
//! full. What cannot be appended is in the files of this server.

use std::sync::Arc;
use std::time::Duration;

use tenure_app::metrics::Counters;
use tenure_core::Millis;
use tenure_store::Store;
use tenure_store::audit::{AuditRetention, AuditRow, SharedAudit};
use tenure_store::clock::{Clock as _, ServerClock};
use tokio::sync::{mpsc, oneshot};

use super::{AuditClass, AuditLimits, STORE_FAILED, dropped_labels};

/// Maximum number of entries that wait for the store.
const QUEUE_MAX: usize = 4_096;
/// Maximum number of entries per append.
const BATCH_MAX: usize = 256;
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
        dropped: &Counters<2>,
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
    dropped: Counters<2>,
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
                    self.handle(batch, &requests).await;
                }
                _ = prune.tick() => self.prune().await,
            }
        }
    }

    async fn handle(&self, batch: Vec<SharedRequest>, queue: &mpsc::Receiver<SharedRequest>) {
        let (mut rows, mut acks) = (Vec::new(), Vec::new());
        for request in batch {
            match request {
                SharedRequest::Append(row) => rows.push(*row),
                SharedRequest::Flush(ack) => acks.push(ack),
            }
        }
        if let Some(shared) = self.store.shared_audit()
            && !rows.is_empty()
            && !append(shared, &rows, queue, RETRY_PAUSE).await
        {
            for row in &rows {
                self.dropped.get_or_create(&dropped_labels(row.class, STORE_FAILED)).inc();
            }
            tracing::error!(
                count = rows.len(),
                "audit entries are only in the files of this server"
            );
        }
        for ack in acks {
            ack.send(()).ok();
        }
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

/// Appends entries until it succeeds. Returns `false` if newer entries need the room in the queue,
/// or the server stops.
async fn append(
    shared: &dyn SharedAudit,
    rows: &[AuditRow],
    queue: &mpsc::Receiver<SharedRequest>,
    pause: Duration,
) -> bool {
    let mut failing = false;
    while let Err(error) = shared.append(rows).await {
        if failing {
            tracing::debug!(%error, "cannot append to the shared audit log");
        } else {
            tracing::error!(%error, "cannot append to the shared audit log; retrying");
        }
        failing = true;
        if queue.capacity() == 0 || queue.is_closed() {
            return false;
        }
        tokio::time::sleep(pause).await;
    }
    true
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use tenure_core::RequestId;
    use tenure_store::StoreError;
    use tenure_store::audit::AuditFilter;
    use tenure_store::store::Result;

    use super::*;

    /// A log that fails some times.
    struct FailingLog(AtomicUsize);

    #[async_trait]
    impl SharedAudit for FailingLog {
        async fn append(&self, _rows: &[AuditRow]) -> Result<()> {
            let left = self.0.load(Ordering::SeqCst);
            self.0.store(left.saturating_sub(1), Ordering::SeqCst);
            if left == 0 { Ok(()) } else { Err(StoreError::unavailable("simulated outage")) }
        }

        async fn newest(&self, _filter: &AuditFilter) -> Result<Vec<String>> {
            Ok(Vec::new())
        }

        async fn prune(&self, _class: &str, _keep: AuditRetention) -> Result<usize> {
            Ok(0)
        }
    }

    fn row() -> AuditRow {
        AuditRow {
            id: RequestId(1),
            at: Millis(1),
            server: "a".to_owned(),
            class: "operators",
            tenant: None,
            principal: None,
            key: None,
            action: "lock.break".to_owned(),
            entry: "{}".to_owned(),
        }
    }

    #[tokio::test]
    async fn an_append_is_repeated_until_the_queue_is_full() {
        let (sender, queue) = mpsc::channel(1);
        let log = FailingLog(AtomicUsize::new(100));
        assert!(append(&log, &[row()], &queue, Duration::ZERO).await, "the queue has room");
        sender.try_send(SharedRequest::Append(Box::new(row()))).expect("it has room");
        let log = FailingLog(AtomicUsize::new(100));
        assert!(
            !append(&log, &[row()], &queue, Duration::ZERO).await,
            "newer entries need the room"
        );
    }
}
