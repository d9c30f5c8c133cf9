//! Registry of requests in flight: of several deliveries of a request, only the latest is served.
//!
//! What is acquired for a disconnected client is released. A client whose connection broke repeats
//! its request, possibly before the server notices the disconnect. Both deliveries then get the
//! same locks or jobs, and releasing those of the first would take them away from the client that
//! already uses them. A new delivery therefore supersedes the earlier one and waits for its end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::RequestId;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};

/// Scope and id of a request.
type Key = (String, RequestId);

/// The requests in flight.
#[derive(Default)]
pub(crate) struct InFlightRequests(Mutex<HashMap<Key, Request>>);

#[derive(Default)]
struct Request {
    /// Number of the latest delivery, watched by all.
    latest: watch::Sender<u64>,
    /// Held by the delivery that submits to the committer or withdraws.
    mutex: Arc<AsyncMutex<()>>,
}

/// One delivery of a request.
pub(crate) struct Delivery {
    key: Key,
    n: u64,
    latest: watch::Receiver<u64>,
    mutex: Arc<AsyncMutex<()>>,
    in_flight: Arc<InFlightRequests>,
}

impl InFlightRequests {
    /// Registers a delivery. It supersedes earlier ones of the same request.
    pub(crate) fn register(self: &Arc<Self>, scope: &str, request: RequestId) -> Delivery {
        let key = (scope.to_owned(), request);
        let mut requests = self.requests();
        let request = requests.entry(key.clone()).or_default();
        request.latest.send_modify(|latest| *latest += 1);
        let (n, latest) = (*request.latest.borrow(), request.latest.subscribe());
        Delivery { key, n, latest, mutex: Arc::clone(&request.mutex), in_flight: Arc::clone(self) }
    }

    fn requests(&self) -> MutexGuard<'_, HashMap<Key, Request>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Delivery {
    /// Waits until no other delivery of the request is active, and excludes others.
    pub(crate) async fn lock(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.mutex).lock_owned().await
    }

    /// Returns whether a later delivery has been registered.
    pub(crate) fn is_superseded(&self) -> bool {
        *self.latest.borrow() > self.n
    }

    /// Completes when a later delivery is registered.
    pub(crate) async fn superseded(&self) {
        let later = |latest: &u64| *latest > self.n;
        if self.latest.clone().wait_for(later).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let mut requests = self.in_flight.requests();
        // The receiver of this delivery still counts.
        if requests.get(&self.key).is_some_and(|request| request.latest.receiver_count() <= 1) {
            requests.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls a future once and returns whether it is pending.
    async fn pending(future: impl Future) -> bool {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending()))
            .await
    }

    #[tokio::test]
    async fn a_new_delivery_supersedes_the_earlier_one_and_waits_for_its_end() {
        let in_flight = Arc::new(InFlightRequests::default());
        let first = in_flight.register("a", RequestId(2));
        let lock = first.lock().await;
        assert!(pending(first.superseded()).await && !first.is_superseded());
        let second = in_flight.register("a", RequestId(2));
        first.superseded().await;
        assert!(first.is_superseded());
        assert!(pending(second.lock()).await);
        assert!(pending(second.superseded()).await);
        drop(lock);
        drop(second.lock().await);
        drop((first, second));
        assert!(in_flight.requests().is_empty());
    }

    #[tokio::test]
    async fn requests_of_other_scopes_are_independent() {
        let in_flight = Arc::new(InFlightRequests::default());
        let first = in_flight.register("a", RequestId(2));
        let _lock = first.lock().await;
        let other = in_flight.register("b", RequestId(2));
        assert!(pending(first.superseded()).await);
        drop(other.lock().await);
    }
}
