//! Hand-over: from the moment a release is sent to the moment the next holder knows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tenure_core::ResourceKey;
use tenure_store::{Committer, Store};

use crate::histogram::{Latencies, Spread};
use crate::http::Connection;
use crate::load::now;
use crate::local::{ask, open, release, token};
use crate::remote;

/// When the last release was sent, in nanoseconds after `start`.
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

/// Hand-over among `waiters` and one holder, in this process.
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
        let ask = ask(session, tenure_store::random::request_id(), 60_000);
        let token = token(&committer.acquire(&key, &ask, Duration::from_secs(60)).await?)?;
        if let Some(latency) = watch.granted() {
            latencies.record(latency);
        }
        watch.release();
        committer.submit(release(&key, token)).await?;
    }
    Ok(latencies)
}

/// Hand-over among `waiters` and one holder, over HTTP.
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
            let ask = format!(r#"{{"holder":"w{n}","ttl_ms":60000,"wait_ms":60000}}"#);
            while watch.start.elapsed() < budget {
                let (status, answer) = connection.post(&acquire, &headers, ask.as_bytes()).await?;
                ensure!(status == 200, "an acquire was answered with {status}");
                let body = format!(r#"{{"token":{}}}"#, remote::token(answer)?);
                if let Some(latency) = watch.granted() {
                    latencies.record(latency);
                }
                watch.release();
                let (status, _) = connection.post(&release, &headers, body.as_bytes()).await?;
                ensure!(status == 200, "a release was answered with {status}");
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
