//! A tenure: one holding of a lock, as the code that works under it sees it.
//!
//! Asking is cancellation-safe: whatever becomes of the future, what it was granted is given back.
//! A tenure that is dropped is released, and the release is repeated until the store has confirmed
//! it.

use std::fmt;
use std::time::Duration;

use tenure_core::{
    Acquire, Claimant, Command, LockAction, LockSet, Outcome, RequestId, ResourceKey, TenureView,
    Text, Token,
};
use tokio::sync::watch;

use crate::clock::BootInstant;
use crate::error::Error;
use crate::lease::Standing;
use crate::session::{Session, Signals, lock_errand, session_over, withdraw};

/// How long one question of a waiting request may stay open.
const POLL: Duration = Duration::from_secs(20);
/// Pause before a question that got no answer is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// How long an acquire that does not want to wait in the queue waits for an answer at all.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Why a tenure was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The session could not be kept alive.
    Session,
    /// Somebody broke the lock.
    Broken,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Session => "the session could not be kept alive",
            Self::Broken => "an operator broke the lock",
        })
    }
}

impl std::error::Error for Lost {}

/// Where a waiting request stands.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The place in the queue, 1 for the next.
    pub position: usize,
    /// How many wait in all.
    pub queue_length: usize,
    /// Who holds the lock.
    pub held_by: Option<TenureView>,
}

/// A request for locks in the making.
pub struct Ask {
    session: Session,
    key: ResourceKey,
    locks: LockSet,
    wait: Duration,
    poll: Duration,
    purpose: Option<Text>,
}

impl Ask {
    pub(crate) fn new(session: Session, key: ResourceKey, locks: LockSet) -> Self {
        Self { session, key, locks, wait: Duration::ZERO, poll: POLL, purpose: None }
    }

    /// Waits in the queue for up to this long.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Says what for.
    #[must_use]
    pub fn purpose(mut self, purpose: &str) -> Self {
        self.purpose = Some(purpose.into());
        self
    }

    /// Asks how things stand this often while it waits.
    #[must_use]
    pub fn poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// Takes the locks, or says who has them.
    pub async fn acquire(self) -> Result<Tenure, Error> {
        self.acquire_telling(|_| ()).await
    }

    /// Takes the locks, telling `tell` how things stand while it waits.
    pub async fn acquire_telling(self, mut tell: impl FnMut(&Waiting)) -> Result<Tenure, Error> {
        let request = tenure_store::random::request_id();
        let abandoned = Abandoned { session: &self.session, key: &self.key, request, armed: true };
        let give_up = BootInstant::now() + self.wait.max(ANSWER_MAX);
        let wait_over = BootInstant::now() + self.wait;
        // The first answer comes at once, so that whoever waits knows for whom.
        let mut patience = Duration::ZERO;
        let mut unanswered = false;
        loop {
            let left = wait_over.remaining();
            let command = self.command(request, left);
            match self.session.shared().link.send(command, patience).await {
                Ok(Outcome::Granted(view)) => return self.granted(abandoned, &view),
                Ok(Outcome::Waiting { position, queue_length, held_by }) => {
                    tell(&Waiting { position, queue_length, held_by });
                    patience = wait_over.remaining().min(self.poll).max(Duration::from_millis(1));
                }
                Ok(Outcome::Refused(refusal)) => {
                    // A try that was not answered may still arrive, and must then get nothing.
                    if !unanswered {
                        abandoned.disarm();
                    }
                    return Err(Error::Refused(refusal));
                }
                Ok(other) => return Err(Error::Protocol(format!("{other:?} answers no acquire"))),
                Err(error) if error.is_unavailable() && !give_up.has_passed() => {
                    unanswered = true;
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
            if self.session.standing() == Standing::Lost {
                return Err(session_over());
            }
        }
    }

    fn command(&self, request: RequestId, left: Duration) -> Command {
        let wait_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        // A wait that has begun is ended by the store's answer, not by asking for none.
        let wait_ms = if self.wait.is_zero() { 0 } else { wait_ms.max(1) };
        let acquire = Acquire {
            locks: self.locks.clone(),
            claimant: Claimant::Session(self.session.id()),
            request,
            wait_ms,
            purpose: self.purpose.clone(),
        };
        Command::Lock { key: self.key.clone(), action: LockAction::Acquire(acquire) }
    }

    fn granted(&self, abandoned: Abandoned<'_>, view: &TenureView) -> Result<Tenure, Error> {
        if self.session.standing() == Standing::Lost {
            return Err(session_over());
        }
        abandoned.disarm();
        let hold = Hold::new(self.session.clone(), self.key.clone(), view.token);
        Ok(Tenure { hold, over: false })
    }
}

/// Takes a request back when nobody waits for its answer any more.
struct Abandoned<'a> {
    session: &'a Session,
    key: &'a ResourceKey,
    request: RequestId,
    armed: bool,
}

impl Abandoned<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.session.deliver(withdraw(self.key, self.request));
        }
    }
}

/// A tenure that is followed: who holds what, and what becomes of it.
pub(crate) struct Hold {
    pub(crate) session: Session,
    pub(crate) key: ResourceKey,
    pub(crate) token: Token,
    signals: watch::Receiver<Signals>,
}

impl Hold {
    /// Follows a tenure of a session from here on.
    pub(crate) fn new(session: Session, key: ResourceKey, token: Token) -> Self {
        let signals = session.shared().follow(&key, token);
        Self { session, key, token, signals }
    }

    /// Waits until the tenure is lost.
    pub(crate) async fn lost(&self) -> Lost {
        let mut signals = self.signals.clone();
        let known = signals.wait_for(|signals| signals.lost.is_some()).await.map(|s| s.lost);
        // A sender that is gone went with the session.
        known.ok().flatten().unwrap_or(Lost::Session)
    }

    /// Waits until the job of the tenure is asked to stop.
    pub(crate) async fn cancelled(&self) {
        let mut signals = self.signals.clone();
        if signals.wait_for(|signals| signals.cancel).await.is_err() {
            // Nobody can ask any more: the session is gone, and whoever waits learns of that.
            std::future::pending::<()>().await;
        }
    }

    /// Says whether the tenure is held.
    pub(crate) fn check(&self) -> Result<(), Lost> {
        if let Some(lost) = self.signals.borrow().lost {
            return Err(lost);
        }
        match self.session.standing() {
            Standing::Lost => Err(Lost::Session),
            Standing::Safe | Standing::InDanger => Ok(()),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.session.shared().unfollow(&self.key, self.token);
    }
}

/// One holding of a lock. Dropping it gives the lock back.
pub struct Tenure {
    hold: Hold,
    /// Whether it was released by hand.
    over: bool,
}

impl Tenure {
    /// The fencing number: give it to whatever you write to.
    #[must_use]
    pub fn token(&self) -> Token {
        self.hold.token
    }

    /// The resource.
    #[must_use]
    pub fn key(&self) -> &ResourceKey {
        &self.hold.key
    }

    /// The session behind it.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.hold.session
    }

    /// When the work must have stopped, unless a heartbeat succeeds before.
    #[must_use]
    pub fn deadline(&self) -> BootInstant {
        self.hold.session.deadline()
    }

    /// Waits until the tenure is lost. Never returns while it is held.
    pub async fn lost(&self) -> Lost {
        self.hold.lost().await
    }

    /// Says whether it is held, to be asked right before each effect.
    pub fn check(&self) -> Result<(), Lost> {
        self.hold.check()
    }

    /// Gives the lock back and waits for the store to confirm it.
    pub async fn release(mut self) -> Result<(), Error> {
        let action = LockAction::Release { token: self.hold.token, locks: None };
        let command = Command::Lock { key: self.hold.key.clone(), action };
        let outcome = self.hold.session.shared().link.send(command, Duration::ZERO).await?;
        self.over = true;
        match outcome {
            Outcome::Released { .. } => Ok(()),
            Outcome::Refused(refusal) => Err(Error::Refused(refusal)),
            other => Err(Error::Protocol(format!("{other:?} answers no release"))),
        }
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        if !self.over && self.check().is_ok() {
            let action = LockAction::Release { token: self.hold.token, locks: None };
            self.hold.session.deliver(lock_errand(&self.hold.key, action));
        }
    }
}
