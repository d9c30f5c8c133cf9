//! One sending of a request at a time, the latest.
//!
//! What was taken for a client that has hung up is given back. But a client whose connection broke
//! sends the same request again, perhaps before this server notices that the first connection is
//! gone. Then both sendings get the same locks or jobs, and giving back those of the first would
//! rob the client of what it has just begun to use. So a new sending makes the earlier one stop,
//! and goes on when that is done. Nothing else is decided here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::RequestId;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};

/// The scope of a request, and the request.
type Key = (String, RequestId);

/// The requests that are being answered.
#[derive(Default)]
pub(crate) struct Repeats(Mutex<HashMap<Key, Request>>);

#[derive(Default)]
struct Request {
    /// The number of the latest sending; each sending listens.
    latest: watch::Sender<u64>,
    /// Held by the one that is with the committer, or gives back.
    turn: Arc<AsyncMutex<()>>,
}

/// One sending of a request.
pub(crate) struct Sending {
    key: Key,
    n: u64,
    latest: watch::Receiver<u64>,
    turn: Arc<AsyncMutex<()>>,
    repeats: Arc<Repeats>,
}

impl Repeats {
    /// A sending arrives; earlier ones of the same request are told.
    pub(crate) fn enter(self: &Arc<Self>, scope: &str, request: RequestId) -> Sending {
        let key = (scope.to_owned(), request);
        let mut requests = self.requests();
        let request = requests.entry(key.clone()).or_default();
        request.latest.send_modify(|latest| *latest += 1);
        let (n, latest) = (*request.latest.borrow(), request.latest.subscribe());
        Sending { key, n, latest, turn: Arc::clone(&request.turn), repeats: Arc::clone(self) }
    }

    fn requests(&self) -> MutexGuard<'_, HashMap<Key, Request>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sending {
    /// The right to go to the committer, when no earlier sending is there any more.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }

    /// Whether the request was sent again.
    pub(crate) fn is_repeated(&self) -> bool {
        *self.latest.borrow() > self.n
    }

    /// Completes when the request was sent again.
    pub(crate) async fn repeated(&self) {
        let later = |latest: &u64| *latest > self.n;
        if self.latest.clone().wait_for(later).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let mut requests = self.repeats.requests();
        // Its own receiver still counts.
        if requests.get(&self.key).is_some_and(|request| request.latest.receiver_count() <= 1) {
            requests.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether something is still under way after it was looked at once.
    async fn pending(future: impl Future) -> bool {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending()))
            .await
    }

    #[tokio::test]
    async fn a_new_sending_stops_the_earlier_one_and_waits_until_it_has_stopped() {
        let repeats = Arc::new(Repeats::default());
        let first = repeats.enter("a", RequestId(2));
        let turn = first.turn().await;
        assert!(pending(first.repeated()).await && !first.is_repeated());
        let second = repeats.enter("a", RequestId(2));
        first.repeated().await;
        assert!(first.is_repeated());
        assert!(pending(second.turn()).await);
        assert!(pending(second.repeated()).await);
        drop(turn);
        drop(second.turn().await);
        drop((first, second));
        assert!(repeats.requests().is_empty());
    }

    #[tokio::test]
    async fn other_requests_do_not_matter() {
        let repeats = Arc::new(Repeats::default());
        let first = repeats.enter("a", RequestId(2));
        let _turn = first.turn().await;
        let other = repeats.enter("b", RequestId(2));
        assert!(pending(first.repeated()).await);
        drop(other.turn().await);
    }
}
