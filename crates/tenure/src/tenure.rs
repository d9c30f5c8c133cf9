//! Tenures: holdings of locks, and the requests that acquire them.
//!
//! Acquiring is cancellation safe: when the future is dropped, the request is withdrawn and
//! whatever it was granted is released. A tenure that is dropped is released; the release is
//! retried until the store confirms it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::{
    Acquire, Claimant, Command, LockAction, LockSet, Outcome, Refusal, RequestId, ResourceKey,
    TenureView, Text, Token,
};
use tokio::sync::watch;

use crate::clock::BootInstant;
use crate::error::Error;
use crate::lease::LeaseState;
use crate::random;
use crate::session::{Session, Signals, lock_cleanup, session_expired, withdraw_cleanup};

/// Default duration of one long poll of a waiting request.
const POLL_INTERVAL_DEFAULT: Duration = Duration::from_secs(20);
/// Delay before a request that got no response is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Time after which an acquire that does not wait in the queue stops retrying an unavailable
/// server.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why a tenure was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// The session was not renewed in time.
    Session,
    /// An operator broke the lock.
    Broken,
    /// The leadership was transferred, or may have been: see [`crate::Leadership::transfer_to`].
    Transferred,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Session => "the session could not be kept alive",
            Self::Broken => "an operator broke the lock",
            Self::Transferred => "the leadership was transferred",
        })
    }
}

impl std::error::Error for Lost {}

/// Position of a waiting request in the queue of its lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiting {
    /// Position in the queue, starting at 1.
    pub position: usize,
    /// Number of requests in the queue.
    pub queue_length: usize,
    /// Current holder of the lock.
    pub held_by: Option<TenureView>,
}

/// Builder for a request that acquires locks of one resource.
pub struct AcquireRequest {
    session: Session,
    key: ResourceKey,
    locks: LockSet,
    wait: Duration,
    poll_interval: Duration,
    purpose: Option<Text>,
    max_age_ms: Option<u64>,
}

impl AcquireRequest {
    pub(crate) fn new(session: Session, key: ResourceKey, locks: LockSet) -> Self {
        Self {
            session,
            key,
            locks,
            wait: Duration::ZERO,
            poll_interval: POLL_INTERVAL_DEFAULT,
            purpose: None,
            max_age_ms: None,
        }
    }

    /// Sets the maximum time to wait in the queue. The default is zero: fail at once if a lock is
    /// held.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets the purpose, which is shown to operators and recorded in history.
    #[must_use]
    pub fn purpose(mut self, purpose: &str) -> Self {
        self.purpose = Some(purpose.into());
        self
    }

    /// Sets the age above which the held lock is reported by metrics and a warning, instead of that
    /// of its kind. It never ends the tenure.
    #[must_use]
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age_ms = Some(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Sets the interval at which the position in the queue is refreshed while the request waits.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// Acquires the locks.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::Refused`] naming the holder if a lock is still held when the wait is
    /// over.
    pub async fn acquire(self) -> Result<Tenure, Error> {
        self.acquire_with_updates(|_| ()).await
    }

    /// Acquires the locks and calls `on_update` with the position in the queue while it waits.
    pub async fn acquire_with_updates(
        self,
        mut on_update: impl FnMut(&Waiting),
    ) -> Result<Tenure, Error> {
        let request = random::request_id();
        let withdraw_on_drop =
            WithdrawOnDrop { session: &self.session, key: &self.key, request, armed: true };
        let retry_until = BootInstant::now() + self.wait.max(RESPONSE_TIMEOUT);
        let wait_until = BootInstant::now() + self.wait;
        // The first response is immediate, so that the caller learns the holder.
        let mut max_wait = Duration::ZERO;
        let mut response_lost = false;
        loop {
            let remaining = wait_until.remaining();
            let command = self.command(request, remaining);
            match self.session.shared().transport.send(command, max_wait).await {
                Ok(Outcome::Granted(view)) => return self.start_tenure(withdraw_on_drop, &view),
                Ok(Outcome::Waiting { position, queue_length, held_by }) => {
                    on_update(&Waiting { position, queue_length, held_by });
                    max_wait = wait_until
                        .remaining()
                        .min(self.poll_interval)
                        .max(Duration::from_millis(1));
                }
                Ok(Outcome::Refused(refusal)) => {
                    // An earlier send without a response may still arrive: it must then be
                    // withdrawn.
                    if !response_lost {
                        withdraw_on_drop.disarm();
                    }
                    return Err(Error::Refused(refusal));
                }
                Ok(other) => return Err(Error::Protocol(format!("acquire returned {other:?}"))),
                Err(error) if error.is_unavailable() && !retry_until.has_passed() => {
                    response_lost = true;
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(error) => return Err(error),
            }
            if self.session.state() == LeaseState::Lost {
                return Err(session_expired());
            }
        }
    }

    fn command(&self, request: RequestId, remaining: Duration) -> Command {
        let wait_ms = u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX);
        // The store ends a wait; a zero here would turn the request into one that does not wait.
        let wait_ms = if self.wait.is_zero() { 0 } else { wait_ms.max(1) };
        let acquire = Acquire {
            locks: self.locks.clone(),
            claimant: Claimant::Session(self.session.id()),
            request,
            wait_ms,
            purpose: self.purpose.clone(),
            max_age_ms: self.max_age_ms,
            tenant: None,
        };
        Command::Lock { key: self.key.clone(), action: LockAction::Acquire(acquire) }
    }

    fn start_tenure(
        &self,
        withdraw_on_drop: WithdrawOnDrop<'_>,
        view: &TenureView,
    ) -> Result<Tenure, Error> {
        if self.session.state() == LeaseState::Lost {
            return Err(session_expired());
        }
        withdraw_on_drop.disarm();
        let inner = TrackedTenure::new(self.session.clone(), self.key.clone(), view.token);
        Ok(Tenure { inner, released: AtomicBool::new(false) })
    }
}

/// Withdraws the request when dropped, unless disarmed.
struct WithdrawOnDrop<'a> {
    session: &'a Session,
    key: &'a ResourceKey,
    request: RequestId,
    armed: bool,
}

impl WithdrawOnDrop<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for WithdrawOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.session.enqueue_cleanup(withdraw_cleanup(self.key, self.request));
        }
    }
}

/// Tenure whose signals are tracked by its session.
pub(crate) struct TrackedTenure {
    pub(crate) session: Session,
    pub(crate) key: ResourceKey,
    pub(crate) token: Token,
    signals: watch::Receiver<Signals>,
}

impl TrackedTenure {
    /// Starts to track a tenure of `session`.
    pub(crate) fn new(session: Session, key: ResourceKey, token: Token) -> Self {
        let signals = session.shared().track(&key, token);
        Self { session, key, token, signals }
    }

    /// Completes when the tenure is lost.
    pub(crate) async fn lost(&self) -> Lost {
        let mut signals = self.signals.clone();
        loop {
            let deadline = self.session.deadline();
            let signalled = async {
                let observed = signals.wait_for(|signals| signals.lost.is_some()).await;
                observed.map(|signals| signals.lost).ok().flatten()
            };
            tokio::select! {
                biased;
                // The sender is dropped only with the session.
                lost = signalled => return lost.unwrap_or(Lost::Session),
                // The heartbeat thread reports the loss earlier, unless it is stalled.
                () = tokio::time::sleep(deadline.remaining()) => {
                    if let Err(lost) = self.check() {
                        return lost;
                    }
                }
            }
        }
    }

    /// Completes when the job of the tenure is cancelled.
    #[cfg(feature = "worker")]
    pub(crate) async fn cancelled(&self) {
        let mut signals = self.signals.clone();
        if signals.wait_for(|signals| signals.cancelled).await.is_err() {
            // No cancellation can arrive any more; the caller observes the loss instead.
            std::future::pending::<()>().await;
        }
    }

    /// Returns an error if the tenure is lost.
    pub(crate) fn check(&self) -> Result<(), Lost> {
        if let Some(lost) = self.signals.borrow().lost {
            return Err(lost);
        }
        match self.session.state() {
            LeaseState::Lost => Err(Lost::Session),
            LeaseState::Safe | LeaseState::InDanger => Ok(()),
        }
    }
}

impl Drop for TrackedTenure {
    fn drop(&mut self) {
        self.session.shared().untrack(&self.key, self.token);
    }
}

/// One holding of a lock.
///
/// Dropping a tenure releases the lock in the background; [`Tenure::release`] waits for the
/// confirmation.
pub struct Tenure {
    inner: TrackedTenure,
    /// Set once a release was confirmed, so that `Drop` does not release again.
    released: AtomicBool,
}

impl Tenure {
    /// Returns the fencing token. Pass it to every system that is written to under this tenure.
    #[must_use]
    pub fn token(&self) -> Token {
        self.inner.token
    }

    /// Returns the key of the resource.
    #[must_use]
    pub fn key(&self) -> &ResourceKey {
        &self.inner.key
    }

    /// Returns the session that holds the tenure.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.inner.session
    }

    /// Returns the instant by which the work must have stopped, unless a heartbeat succeeds before.
    #[must_use]
    pub fn deadline(&self) -> BootInstant {
        self.inner.session.deadline()
    }

    /// Completes when the tenure is lost, never before.
    pub async fn lost(&self) -> Lost {
        self.inner.lost().await
    }

    /// Returns an error if the tenure is lost.
    ///
    /// Call it right before each effect that is not protected by the token.
    pub fn check(&self) -> Result<(), Lost> {
        self.inner.check()
    }

    /// Releases the lock and waits until the store confirms it.
    pub async fn release(self) -> Result<(), Error> {
        match self.send_release(None).await? {
            Outcome::Released { .. } => Ok(()),
            Outcome::Refused(refusal) => Err(Error::Refused(refusal)),
            other => Err(Error::Protocol(format!("release returned {other:?}"))),
        }
    }

    /// Releases the lock, to the named waiter if there is one. A refusal to do so because it does
    /// not wait leaves the tenure as it is.
    pub(crate) async fn send_release(&self, to: Option<&str>) -> Result<Outcome, Error> {
        let to = to.map(Text::from);
        let action = LockAction::Release { token: self.inner.token, locks: None, to };
        let command = Command::Lock { key: self.inner.key.clone(), action };
        let outcome = self.inner.session.shared().transport.send(command, Duration::ZERO).await?;
        let is_held = matches!(outcome, Outcome::Refused(Refusal::NotWaiting { .. }));
        self.released.store(!is_held, Ordering::Relaxed);
        Ok(outcome)
    }
}

impl fmt::Debug for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenure")
            .field("key", self.key())
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        if !self.released.load(Ordering::Relaxed) && self.check().is_ok() {
            let action = LockAction::Release { token: self.inner.token, locks: None, to: None };
            self.inner.session.enqueue_cleanup(lock_cleanup(&self.inner.key, action));
        }
    }
}
