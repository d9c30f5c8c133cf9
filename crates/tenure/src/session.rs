//! Sessions: the liveness of this process in the store.
//!
//! The heartbeat has its own thread, runtime and connection, so work cannot starve it. The same
//! thread delivers cleanup commands: releases of dropped tenures, withdrawals of abandoned waits
//! and hand-backs of abandoned jobs are retried until they are confirmed or the session has
//! expired. It also passes each new deadline to the watchdogs of supervised commands, so that this
//! does not depend on a runtime that work may block. The thread never outlives the session:
//! when the last handle is dropped, it sends the remaining cleanup commands, closes the session and
//! exits.
//!
//! See `heartbeat.rs` for the thread, `lease.rs` for its arithmetic, `tenure.rs` and `worker/` for
//! what is held under a session.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tenure_core::session::Revocation;
use tenure_core::{
    Command, LockAction, LockPath, LockSet, Outcome, Refusal, RequestId, ResourceKey, SessionId,
    Text, Token,
};
use tokio::sync::{mpsc, watch};

use crate::clock::BootInstant;
use crate::error::Error;
use crate::heartbeat::Heartbeat;
use crate::lease::{Lease, LeaseState};
use crate::random;
use crate::session_options::SessionOptions;
use crate::tenure::{AcquireRequest, Lost};
use crate::transport::{Notices, Transport};

/// Time that dropping the last handle waits for the session to be closed in the store.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of notices kept for tenures that are not tracked yet: a notice may overtake the
/// response that grants its tenure. Many times what a store keeps per session.
const NOTICES_MAX: usize = 4_096;

/// Liveness of this process in the store.
///
/// One heartbeat renews every tenure of the session. Cloning is cheap: clones share one session,
/// which is closed when the last clone is dropped.
#[derive(Clone)]
pub struct Session(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    /// Queue of the heartbeat thread; dropping it closes the session. Unbounded because `Drop`
    /// cannot wait, but it holds at most one command per tenure, attempt and abandoned wait of this
    /// process.
    cleanups: Option<mpsc::UnboundedSender<CleanupCommand>>,
    /// Disconnected when the heartbeat thread has exited.
    exited: Mutex<Option<std::sync::mpsc::Receiver<()>>>,
}

/// Idempotent command that the heartbeat thread retries until the store confirms it.
#[derive(Debug)]
pub(crate) struct CleanupCommand(pub(crate) Command);

/// State of a tenure as reported by the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signals {
    /// Set once the tenure is lost.
    pub(crate) lost: Option<Lost>,
    /// The tenure is held, but its job was cancelled.
    pub(crate) cancelled: bool,
}

/// State shared by the heartbeat thread and the session handles.
pub(crate) struct Shared {
    pub(crate) id: SessionId,
    pub(crate) tenant: Text,
    pub(crate) transport: Arc<dyn Transport>,
    ttl: Duration,
    lease: Mutex<Lease>,
    /// Publishes the deadline to supervisors.
    deadline: watch::Sender<BootInstant>,
    state: watch::Sender<LeaseState>,
    tenures: Mutex<Tenures>,
    deadline_listeners: Mutex<DeadlineListeners>,
}

/// Tenures of the session and the notices received for them.
#[derive(Default)]
pub(crate) struct Tenures {
    tracked: HashMap<(ResourceKey, Token), watch::Sender<Signals>>,
    /// Ordered by notice number.
    notices: BTreeMap<u64, Revocation>,
    /// Number of the last notice received.
    pub(crate) last_notice: u64,
}

/// Called by the heartbeat thread with each new deadline.
type DeadlineListener = Box<dyn Fn(BootInstant) + Send>;

/// Listeners to the session's deadline, such as the watchdogs of supervised commands.
#[derive(Default)]
struct DeadlineListeners {
    last_id: u64,
    by_id: BTreeMap<u64, DeadlineListener>,
}

/// Keeps a listener registered until it is dropped.
#[must_use = "the listener is removed when this is dropped"]
pub(crate) struct DeadlineRegistration {
    shared: Arc<Shared>,
    id: u64,
}

/// Opens or renews a session. The lease counts from before the request is sent.
async fn open_lease(
    transport: &Arc<dyn Transport>,
    open: &Command,
    options: &SessionOptions,
) -> Result<(SessionId, Lease), Error> {
    let sent = BootInstant::now();
    match transport.send(open.clone(), options.ttl).await? {
        // A server may give the session an id of its own.
        Outcome::Alive { session, .. } => Ok((session, options.lease(sent))),
        other => Err(Error::from_outcome("open a session", other)),
    }
}

impl Drop for DeadlineRegistration {
    fn drop(&mut self) {
        self.shared.deadline_listeners().by_id.remove(&self.id);
    }
}

impl Session {
    pub(crate) async fn open(
        transport: &Arc<dyn Transport>,
        tenant: &Text,
        options: &SessionOptions,
        watch_notices: bool,
    ) -> Result<Self, Error> {
        options.validate()?;
        let (session, ttl) = (random::session_id(), options.ttl);
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let (tenant, name) = (tenant.clone(), options.name.clone());
        let command = Command::Open { session, tenant: tenant.clone(), name, ttl_ms };
        let open_timed_out = || {
            let message = format!("opening the session took longer than its ttl of {ttl:?}");
            Error::Unavailable(message)
        };
        let (id, mut lease) = open_lease(transport, &command, options).await?;
        if lease.state(BootInstant::now()) != LeaseState::Safe {
            // A late response leaves too little time to work with. Repeating the open command
            // renews the session, unless it has expired by now.
            lease = match open_lease(transport, &command, options).await {
                Err(Error::Refused(Refusal::SessionExpired)) => return Err(open_timed_out()),
                renewed => renewed?.1,
            };
        }
        if lease.state(BootInstant::now()) == LeaseState::Lost {
            return Err(open_timed_out());
        }
        let shared = Arc::new(Shared {
            id,
            tenant,
            transport: Arc::clone(transport),
            ttl,
            deadline: watch::Sender::new(lease.deadline()),
            state: watch::Sender::new(LeaseState::Safe),
            lease: Mutex::new(lease),
            tenures: Mutex::default(),
            deadline_listeners: Mutex::default(),
        });
        let notices = if watch_notices { transport.notices(id) } else { None };
        Self::start(shared, transport.open_dedicated()?, notices)
    }

    fn start(
        shared: Arc<Shared>,
        transport: Box<dyn Transport>,
        notices: Option<Notices>,
    ) -> Result<Self, Error> {
        let (cleanups, cleanup_queue) = mpsc::unbounded_channel();
        let (exit_signal, exited) = std::sync::mpsc::channel();
        let heartbeat = Heartbeat {
            shared: Arc::clone(&shared),
            transport,
            cleanup_queue,
            notices,
            exit_signal,
        };
        std::thread::Builder::new()
            .name("tenure-heartbeat".to_owned())
            .spawn(move || heartbeat.run())
            .map_err(|error| {
                Error::Unavailable(format!("cannot start the heartbeat thread: {error}"))
            })?;
        let exited = Mutex::new(Some(exited));
        Ok(Self(Arc::new(Handle { shared, cleanups: Some(cleanups), exited })))
    }

    /// Returns the id of the session in the store.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.0.shared.id
    }

    /// Builds a request for a lock, `kind/name` or `kind/name#lock`.
    pub fn lock(&self, path: &str) -> Result<AcquireRequest, Error> {
        let path: LockPath = path.parse()?;
        let key = path.resource(&self.0.shared.tenant)?;
        Ok(AcquireRequest::new(self.clone(), key, path.lock.into()))
    }

    /// Builds a request for several locks of one resource, granted all or none.
    #[must_use]
    pub fn locks(&self, key: ResourceKey, locks: LockSet) -> AcquireRequest {
        AcquireRequest::new(self.clone(), key, locks)
    }

    /// Returns the current state of the lease.
    #[must_use]
    pub fn state(&self) -> LeaseState {
        self.0.shared.lease().state(BootInstant::now())
    }

    /// Returns the instant by which all work under this session must have stopped, unless a
    /// heartbeat succeeds before.
    #[must_use]
    pub fn deadline(&self) -> BootInstant {
        self.0.shared.lease().deadline()
    }

    /// Returns a receiver that observes the deadline as heartbeats extend it.
    #[must_use]
    pub fn watch_deadline(&self) -> watch::Receiver<BootInstant> {
        self.0.shared.deadline.subscribe()
    }

    /// Returns a receiver that observes changes of the lease state.
    #[must_use]
    pub fn watch_state(&self) -> watch::Receiver<LeaseState> {
        self.0.shared.state.subscribe()
    }

    /// Returns the time to live: the time after which the store expires the session if no heartbeat
    /// arrives.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.0.shared.ttl
    }

    /// Releases all tenures and closes the session.
    ///
    /// Returns when the store has confirmed it, or after a timeout. Only closes the session if this
    /// is the last handle.
    pub async fn close(self) {
        let exited = self.0.exited.lock().expect("nothing panics while it is locked").take();
        drop(self);
        if let Some(exited) = exited {
            // The heartbeat thread exits only if this was the last handle.
            let wait = tokio::task::spawn_blocking(move || exited.recv_timeout(CLOSE_TIMEOUT));
            wait.await.ok();
        }
    }

    /// Marks the session as lost without closing it, for when it is unknown whether the work has
    /// stopped. The store expires it after the time to live, and not before.
    #[cfg(all(feature = "exec", feature = "worker"))]
    pub(crate) fn abandon(&self) {
        self.0.shared.lease().mark_lost();
        self.0.shared.publish_state();
    }

    /// Calls `listener` with the current deadline, and then from the heartbeat thread with each new
    /// one, until the result is dropped. The listener must not block, panic or call this session.
    /// It may get an older deadline after a newer one.
    #[cfg_attr(not(feature = "exec"), expect(dead_code))]
    pub(crate) fn on_deadline(
        &self,
        listener: impl Fn(BootInstant) + Clone + Send + 'static,
    ) -> DeadlineRegistration {
        let shared = &self.0.shared;
        let id = {
            let mut listeners = shared.deadline_listeners();
            listeners.last_id += 1;
            let id = listeners.last_id;
            listeners.by_id.insert(id, Box::new(listener.clone()));
            id
        };
        // Called after registration, so that no deadline published in between is missed.
        listener(self.deadline());
        DeadlineRegistration { shared: Arc::clone(shared), id }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// Queues a command that the heartbeat thread retries until it is confirmed.
    pub(crate) fn enqueue_cleanup(&self, command: CleanupCommand) {
        if let Some(cleanups) = &self.0.cleanups {
            // The thread exits early only when the session is lost: there is nothing left to clean
            // up.
            cleanups.send(command).ok();
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        drop(self.cleanups.take());
        let exited = self.exited.lock().expect("nothing panics while it is locked").take();
        if let Some(exited) = exited {
            exited.recv_timeout(CLOSE_TIMEOUT).ok();
        }
    }
}

impl Shared {
    pub(crate) fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().expect("the arithmetic of leases does not panic")
    }

    pub(crate) fn tenures(&self) -> MutexGuard<'_, Tenures> {
        self.tenures.lock().expect("nothing panics while the tenures are locked")
    }

    fn deadline_listeners(&self) -> MutexGuard<'_, DeadlineListeners> {
        self.deadline_listeners.lock().expect("listeners do not panic")
    }

    /// Tracks a tenure: the receiver observes its signals, including notices that have already
    /// arrived.
    pub(crate) fn track(&self, key: &ResourceKey, token: Token) -> watch::Receiver<Signals> {
        let mut tenures = self.tenures();
        let mut signals = Signals::default();
        let matches = |notice: &&Revocation| notice.token == token && notice.key == *key;
        tenures
            .notices
            .values()
            .filter(matches)
            .for_each(|notice| signals.apply_notice(notice.cancel));
        if self.is_lost() {
            signals.lost = Some(Lost::Session);
        }
        let sender = watch::Sender::new(signals);
        let receiver = sender.subscribe();
        tenures.tracked.insert((key.clone(), token), sender);
        receiver
    }

    /// Stops tracking a tenure.
    pub(crate) fn untrack(&self, key: &ResourceKey, token: Token) {
        let mut tenures = self.tenures();
        tenures.tracked.remove(&(key.clone(), token));
        tenures.notices.retain(|_, notice| notice.token != token || notice.key != *key);
    }

    /// Signals that a tenure is lost, or that its job was cancelled, when the store says so in the
    /// response to another command than a heartbeat.
    #[cfg(feature = "worker")]
    pub(crate) fn signal_tenure(&self, key: &ResourceKey, token: Token, cancel: bool) {
        if let Some(sender) = self.tenures().tracked.get(&(key.clone(), token)) {
            sender.send_if_modified(|signals| signals.apply_if_new(cancel));
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lease().state(BootInstant::now()) == LeaseState::Lost
    }

    /// Publishes the deadline and the lease state, and signals the loss to every tenure once.
    pub(crate) fn publish_state(&self) {
        let (state, deadline) = {
            let mut lease = self.lease();
            (lease.state(BootInstant::now()), lease.deadline())
        };
        self.publish_deadline(deadline);
        let before = self.state.send_replace(state);
        if state == LeaseState::Lost && before != LeaseState::Lost {
            tracing::error!(session = %self.id, "session lost; all work under it must stop");
            let mark_lost = |signals: &mut Signals| signals.lost.replace(Lost::Session).is_none();
            for sender in self.tenures().tracked.values() {
                sender.send_if_modified(mark_lost);
            }
        } else if state == LeaseState::InDanger && before == LeaseState::Safe {
            tracing::warn!(session = %self.id, "heartbeats are failing; session in danger");
        }
    }

    /// Publishes the deadline if it has changed.
    fn publish_deadline(&self, deadline: BootInstant) {
        let changed =
            self.deadline.send_if_modified(|old| std::mem::replace(old, deadline) != *old);
        if changed {
            self.deadline_listeners().by_id.values().for_each(|listener| listener(deadline));
        }
    }

    pub(crate) fn apply_notices(&self, revoked: Vec<Revocation>) {
        let mut tenures = self.tenures();
        for notice in revoked {
            if let Some(sender) = tenures.tracked.get(&(notice.key.clone(), notice.token)) {
                sender.send_if_modified(|signals| signals.apply_if_new(notice.cancel));
            }
            tenures.last_notice = tenures.last_notice.max(notice.n);
            tenures.notices.insert(notice.n, notice);
            while tenures.notices.len() > NOTICES_MAX {
                tenures.notices.pop_first();
            }
        }
    }
}

impl Signals {
    /// Applies a notice: either the job was cancelled, or the tenure was revoked.
    fn apply_notice(&mut self, cancel: bool) {
        if cancel {
            self.cancelled = true;
        } else {
            self.lost.get_or_insert(Lost::Broken);
        }
    }

    fn apply_if_new(&mut self, cancel: bool) -> bool {
        let before = *self;
        self.apply_notice(cancel);
        *self != before
    }
}

pub(crate) fn expect_alive(outcome: Outcome) -> Result<Vec<Revocation>, Error> {
    match outcome {
        Outcome::Alive { revoked, .. } => Ok(revoked),
        Outcome::Refused(refusal) => Err(Error::Refused(refusal)),
        other => Err(Error::Protocol(format!("heartbeat returned {other:?}"))),
    }
}

/// Withdraws a lock request.
pub(crate) fn withdraw_cleanup(key: &ResourceKey, request: RequestId) -> CleanupCommand {
    lock_cleanup(key, LockAction::Withdraw { request })
}

/// Builds a cleanup command on the locks of a resource.
pub(crate) fn lock_cleanup(key: &ResourceKey, action: LockAction) -> CleanupCommand {
    CleanupCommand(Command::Lock { key: key.clone(), action })
}

/// Returns the error for a session that has expired.
pub(crate) fn session_expired() -> Error {
    Error::Refused(Refusal::SessionExpired)
}
