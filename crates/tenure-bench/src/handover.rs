//! Hand-over: time from sending a release until the next holder has the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tenure_core::ResourceKey;
use tenure_store::{Committer, Store};

use crate::clock::now;
use crate::histogram::{Latencies, Spread};
use crate::http::Connection;
use crate::local::{acquire_request, open, release, token};
use crate::remote;

/// Time of the last release, in nanoseconds after `start`.
struct Stopwatch {
    start: Instant,
    released: AtomicU64,
}

impl Stopwatch {
    fn new() -> Arc<Self> {
        Arc::new(Self { start: now(), released: AtomicU64::new(0) })
    }

    fn release(&self) {
        let nanos = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.released.store(nanos, Ordering::SeqCst);
    }

    fn granted(&self) -> Option<Duration> {
        let released = self.released.load(Ordering::SeqCst);
        let since = || self.start.elapsed().saturating_sub(Duration::from_nanos(released));
        (released > 0).then(since)
    }
}

/// Measures hand-over between `waiters` and one holder in this process.
pub(crate) async fn local(
    store: Arc<dyn Store>,
    waiters: usize,
    budget: Duration,
) -> Result<Spread> {
    let committer = Committer::start(store);
    let watch = Stopwatch::new();
    let key = ResourceKey::new("bench", "lock", &format!("handover-{waiters}"))?;
    let worker = |_| local_worker(committer.clone(), key.clone(), Arc::clone(&watch), budget);
    gather((0..=waiters).map(worker)).await
}

async fn local_worker(
    committer: Committer,
    key: ResourceKey,
    watch: Arc<Stopwatch>,
    budget: Duration,
) -> Result<Latencies> {
    let mut latencies = Latencies::new()?;
    let session = tenure_store::random::session_id();
    committer.submit(open(session)).await?;
    while watch.start.elapsed() < budget {
        let request = acquire_request(session, tenure_store::random::request_id(), 60_000);
        let token = token(&committer.acquire(&key, &request, Duration::from_secs(60)).await?)?;
        if let Some(latency) = watch.granted() {
            latencies.record(latency);
        }
        watch.release();
        committer.submit(release(&key, token)).await?;
    }
    Ok(latencies)
}

/// Measures hand-over between `waiters` and one holder over HTTP.
pub(crate) async fn remote(
    server: &remote::Server,
    waiters: usize,
    budget: Duration,
) -> Result<Spread> {
    let watch = Stopwatch::new();
    let bearer = format!("Bearer {}", server.key());
    let path = format!("/v1/locks/lock/handover-{waiters}");
    let worker = |n: usize| {
        let (bearer, path, watch) = (bearer.clone(), path.clone(), Arc::clone(&watch));
        let addr = server.addr();
        async move {
            let mut latencies = Latencies::new()?;
            let mut connection = Connection::open(addr).await?;
            let headers = [("authorization", bearer.as_str())];
            let (acquire, release) = (format!("{path}/acquire"), format!("{path}/release"));
            let request = format!(r#"{{"holder":"w{n}","ttl_ms":60000,"wait_ms":60000}}"#);
            while watch.start.elapsed() < budget {
                let (status, response) =
                    connection.post(&acquire, &headers, request.as_bytes()).await?;
                ensure!(status == 200, "an acquire returned status {status}");
                let body = format!(r#"{{"token":{}}}"#, remote::token(response)?);
                if let Some(latency) = watch.granted() {
                    latencies.record(latency);
                }
                watch.release();
                let (status, _) = connection.post(&release, &headers, body.as_bytes()).await?;
                ensure!(status == 200, "a release returned status {status}");
            }
            Ok(latencies)
        }
    };
    gather((0..=waiters).map(worker)).await
}

async fn gather<W>(workers: impl Iterator<Item = W>) -> Result<Spread>
where
    W: Future<Output = Result<Latencies>> + Send + 'static,
{
    let tasks: Vec<_> = workers.map(tokio::spawn).collect();
    let mut all = Latencies::new()?;
    for task in tasks {
        all.merge(&task.await??)?;
    }
    Ok(all.spread())
}
