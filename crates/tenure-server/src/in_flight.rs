//! Registry of requests in flight: all copies of a request share one execution and get its answer.
//!
//! What is acquired for a disconnected client is released. A client whose connection broke repeats
//! its request, possibly before the server notices the disconnect. Both copies are for the same
//! locks or jobs, and releasing those of the first would take them away from the client that
//! already uses them. So a copy joins the execution of the earlier one, which ends when it is
//! answered or when the clients of all copies are gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use tenure_core::{Command, Outcome, Refusal, RequestId};
use tenure_store::StoreError;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};

/// Scope and id of a request.
type Key = (String, RequestId);

/// The answer to all copies of a request.
pub(crate) type Answer = Result<Outcome, StoreError>;

/// An execution, shared by the copies of a request; dropped with the last of them.
pub(crate) type Execution = Shared<BoxFuture<'static, Answer>>;

/// The requests in flight.
#[derive(Default)]
pub(crate) struct InFlightRequests(Mutex<HashMap<Key, Request>>);

#[derive(Default)]
struct Request {
    /// What the current execution does.
    current: Option<(Command, WeakShared<BoxFuture<'static, Answer>>)>,
    /// Number of the current execution.
    latest: watch::Sender<u64>,
    /// Held by the execution that submits to the committer or withdraws.
    mutex: Arc<AsyncMutex<()>>,
}

/// Registration of an execution.
pub(crate) struct Registration {
    key: Key,
    n: u64,
    latest: watch::Receiver<u64>,
    mutex: Arc<AsyncMutex<()>>,
    in_flight: Arc<InFlightRequests>,
}

/// Returns the answer to a request that waits while the server shuts down.
pub(crate) fn shutting_down() -> StoreError {
    StoreError::unavailable("the server is shutting down; retry")
}

impl InFlightRequests {
    /// Joins the execution of an earlier copy of the request, or starts one. `command` is what the
    /// copies have in common: another one under the same id is refused.
    pub(crate) fn join(
        self: &Arc<Self>,
        scope: &str,
        request: RequestId,
        command: Command,
        execute: impl FnOnce(Registration) -> BoxFuture<'static, Answer>,
    ) -> Result<Execution, Refusal> {
        let key = (scope.to_owned(), request);
        let mut requests = self.requests();
        let request = requests.entry(key.clone()).or_default();
        let current = request.current.as_ref();
        if let Some((execution, same)) = current
            .and_then(|(current, execution)| Some((execution.upgrade()?, *current == command)))
        {
            // Dropping the execution locks again.
            drop(requests);
            return if same { Ok(execution) } else { Err(Refusal::RequestReused) };
        }
        request.latest.send_modify(|latest| *latest += 1);
        let (n, latest) = (*request.latest.borrow(), request.latest.subscribe());
        let (mutex, in_flight) = (Arc::clone(&request.mutex), Arc::clone(self));
        let execution = execute(Registration { key, n, latest, mutex, in_flight }).shared();
        request.current = execution.downgrade().map(|weak| (command, weak));
        Ok(execution)
    }

    fn requests(&self) -> MutexGuard<'_, HashMap<Key, Request>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registration {
    /// Waits until no other execution of the request is active, and excludes others.
    pub(crate) async fn lock(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.mutex).lock_owned().await
    }

    /// Returns whether a later execution has been started, because this one was dropped.
    pub(crate) fn is_superseded(&self) -> bool {
        *self.latest.borrow() > self.n
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut requests = self.in_flight.requests();
        // The receiver of this registration still counts.
        if requests.get(&self.key).is_some_and(|request| request.latest.receiver_count() <= 1) {
            requests.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::{Finish, JobAction, JobId, Token};
    use tokio::sync::Notify;

    use super::*;

    /// Polls a future once and returns whether it is pending.
    async fn pending(future: impl Future) -> bool {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending()))
            .await
    }

    fn command(token: u64) -> Command {
        let action =
            JobAction::Finish { token: Token(token), finish: Finish::HandBack, update: None };
        Command::Job { id: JobId(1), action }
    }

    /// Joins a request whose execution is answered when `done` is notified.
    fn join(
        in_flight: &Arc<InFlightRequests>,
        scope: &str,
        token: u64,
        done: &Arc<Notify>,
    ) -> Result<Execution, Refusal> {
        let done = Arc::clone(done);
        in_flight.join(scope, RequestId(2), command(token), |registration| {
            let execution = async move {
                let _lock = registration.lock().await;
                done.notified().await;
                Ok(Outcome::Deleted)
            };
            execution.boxed()
        })
    }

    #[tokio::test]
    async fn all_copies_get_the_answer_of_one_execution() {
        let (in_flight, done) = (Arc::new(InFlightRequests::default()), Arc::default());
        let first = join(&in_flight, "a", 1, &done).unwrap();
        assert!(pending(first.clone()).await);
        let second = join(&in_flight, "a", 1, &done).unwrap();
        drop(first);
        assert!(pending(second.clone()).await);
        let third = join(&in_flight, "a", 1, &done).unwrap();
        done.notify_one();
        assert!(matches!(second.await, Ok(Outcome::Deleted)));
        assert!(matches!(third.await, Ok(Outcome::Deleted)));
        assert!(in_flight.requests().is_empty());
    }

    #[tokio::test]
    async fn another_command_under_the_same_id_is_refused() {
        let (in_flight, done) = (Arc::new(InFlightRequests::default()), Arc::default());
        let first = join(&in_flight, "a", 1, &done).unwrap();
        assert!(matches!(join(&in_flight, "a", 2, &done), Err(Refusal::RequestReused)));
        drop(first);
        assert!(join(&in_flight, "a", 2, &done).is_ok());
        assert!(in_flight.requests().is_empty());
    }

    #[tokio::test]
    async fn an_execution_waits_for_the_end_of_a_dropped_one() {
        let (in_flight, done) = (Arc::new(InFlightRequests::default()), Arc::<Notify>::default());
        let (kept, mut ending) = tokio::sync::oneshot::channel();
        let execution = in_flight.join("a", RequestId(2), command(1), |registration| {
            async move {
                let lock = registration.lock().await;
                kept.send((registration, lock)).ok();
                std::future::pending().await
            }
            .boxed()
        });
        let first = execution.unwrap();
        assert!(pending(first.clone()).await);
        drop(first);
        let (registration, lock) = ending.try_recv().unwrap();
        assert!(!registration.is_superseded());
        done.notify_one();
        let second = join(&in_flight, "a", 1, &done).unwrap();
        assert!(pending(second.clone()).await, "the first one is not over");
        assert!(registration.is_superseded());
        drop((lock, registration));
        assert!(second.await.is_ok());
        assert!(in_flight.requests().is_empty());
    }

    #[tokio::test]
    async fn requests_of_other_scopes_are_independent() {
        let (in_flight, done) = (Arc::new(InFlightRequests::default()), Arc::default());
        let first = join(&in_flight, "a", 1, &done).unwrap();
        assert!(pending(first.clone()).await);
        let other = join(&in_flight, "b", 2, &done).unwrap();
        done.notify_one();
        assert!(first.await.is_ok());
        assert!(pending(other).await);
    }
}
