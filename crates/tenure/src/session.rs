//! A session: the liveness of this process in the store.
//!
//! The heartbeat has its own thread, runtime and connection, so nothing the work does can starve
//! it. It also delivers what must not get lost: releases of dropped tenures and withdrawals of
//! abandoned waits are repeated until they are confirmed or the session is over. It never outlives
//! the session: when the last handle is dropped, it settles its errands, says goodbye and ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tenure_core::session::Revoked;
use tenure_core::{
    Command, LockAction, LockPath, LockSet, Outcome, Refusal, RequestId, ResourceKey, SessionId,
    Text, Token,
};
use tokio::sync::{mpsc, watch};

use crate::clock::{BootInstant, SLEEP_MAX};
use crate::error::Error;
use crate::lease::{Lease, Standing};
use crate::link::Link;
use crate::tenure::{Ask, Lost};

/// How long dropping the last handle waits for the goodbye to reach the store.
const GOODBYE: Duration = Duration::from_secs(2);
/// Pause between two tries of an errand that could not be delivered.
const ERRAND_PAUSE: Duration = Duration::from_millis(200);

/// The liveness of this process in the store; cheap to clone.
#[derive(Clone)]
pub struct Session(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    /// Dropping it tells the heartbeat to say goodbye. At most one errand for each tenure and each
    /// abandoned wait of this process: that is its bound, and a drop cannot wait for room.
    errands: Option<mpsc::UnboundedSender<Errand>>,
    /// Ends when the heartbeat has ended.
    ended: Mutex<Option<std::sync::mpsc::Receiver<()>>>,
}

/// Something that must reach the store.
#[derive(Debug)]
pub(crate) struct Errand {
    pub(crate) key: ResourceKey,
    pub(crate) action: LockAction,
}

/// What the heartbeat and the handles share.
pub(crate) struct Shared {
    pub(crate) id: SessionId,
    pub(crate) tenant: Text,
    pub(crate) link: Arc<dyn Link>,
    ttl: Duration,
    lease: Mutex<Lease>,
    /// The deadline, told to whoever supervises something.
    deadline: watch::Sender<BootInstant>,
    standing: watch::Sender<Standing>,
    tenures: Mutex<Tenures>,
}

/// The tenures of the session and those that were taken from it.
#[derive(Default)]
struct Tenures {
    held: HashMap<(ResourceKey, Token), watch::Sender<Option<Lost>>>,
    revoked: HashMap<(ResourceKey, Token), u64>,
    seen: u64,
}

impl Session {
    pub(crate) async fn open(
        link: &Arc<dyn Link>,
        tenant: &Text,
        name: &str,
        ttl: Duration,
    ) -> Result<Self, Error> {
        let id = tenure_store::random::session_id();
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let (tenant, name) = (tenant.clone(), name.into());
        let command = Command::Open { session: id, tenant: tenant.clone(), name, ttl_ms };
        let sent = BootInstant::now();
        alive(link.send(command, ttl).await?)?;
        let lease = Lease::new(ttl, sent);
        let shared = Arc::new(Shared {
            id,
            tenant,
            link: Arc::clone(link),
            ttl,
            deadline: watch::Sender::new(lease.deadline()),
            standing: watch::Sender::new(Standing::Safe),
            lease: Mutex::new(lease),
            tenures: Mutex::default(),
        });
        Self::start(shared, link.twin()?)
    }

    fn start(shared: Arc<Shared>, link: Box<dyn Link>) -> Result<Self, Error> {
        let (errands, inbox) = mpsc::unbounded_channel();
        let (ending, ended) = std::sync::mpsc::channel();
        let heartbeat = Heartbeat { shared: Arc::clone(&shared), link, inbox, ending };
        std::thread::Builder::new()
            .name("tenure-heartbeat".to_owned())
            .spawn(move || heartbeat.run())
            .map_err(|error| Error::Unavailable(format!("cannot start a thread: {error}")))?;
        let ended = Mutex::new(Some(ended));
        Ok(Self(Arc::new(Handle { shared, errands: Some(errands), ended })))
    }

    /// The identity in the store.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.0.shared.id
    }

    /// Begins to ask for a lock: `kind/name` or `kind/name#lock`.
    pub fn lock(&self, path: &str) -> Result<Ask, Error> {
        let path: LockPath = path.parse()?;
        let key = path.resource(&self.0.shared.tenant)?;
        Ok(Ask::new(self.clone(), key, path.lock.into()))
    }

    /// Begins to ask for several locks of one resource, all or none.
    #[must_use]
    pub fn locks(&self, key: ResourceKey, locks: LockSet) -> Ask {
        Ask::new(self.clone(), key, locks)
    }

    /// What may be believed now.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.0.shared.lease().standing(BootInstant::now())
    }

    /// When everything under this session must have stopped, unless a heartbeat succeeds before.
    #[must_use]
    pub fn deadline(&self) -> BootInstant {
        self.0.shared.lease().deadline()
    }

    /// The deadline as heartbeats move it.
    #[must_use]
    pub fn deadlines(&self) -> watch::Receiver<BootInstant> {
        self.0.shared.deadline.subscribe()
    }

    /// The standing as it changes.
    #[must_use]
    pub fn standings(&self) -> watch::Receiver<Standing> {
        self.0.shared.standing.subscribe()
    }

    /// How long it lives without a heartbeat.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.0.shared.ttl
    }

    /// Gives everything back and ends the session; returns when the store has confirmed it, or when
    /// it could not be reached in time.
    pub async fn close(self) {
        let ended = self.0.ended.lock().expect("nothing panics while it is locked").take();
        drop(self);
        if let Some(ended) = ended {
            // Only waits when this was the last handle; the heartbeat ends with it.
            let wait = tokio::task::spawn_blocking(move || ended.recv_timeout(GOODBYE));
            wait.await.ok();
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// Has something delivered, however often it takes.
    pub(crate) fn deliver(&self, errand: Errand) {
        if let Some(errands) = &self.0.errands {
            // A heartbeat that has ended was refused by the store: then there is nothing to
            // deliver.
            errands.send(errand).ok();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        drop(self.errands.take());
        let ended = self.ended.lock().expect("nothing panics while it is locked").take();
        if let Some(ended) = ended {
            ended.recv_timeout(GOODBYE).ok();
        }
    }
}

impl Shared {
    pub(crate) fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().expect("the arithmetic of leases does not panic")
    }

    fn tenures(&self) -> MutexGuard<'_, Tenures> {
        self.tenures.lock().expect("nothing panics while the tenures are locked")
    }

    /// Follows a tenure: the receiver learns when it is lost, also if it already is.
    pub(crate) fn follow(&self, key: &ResourceKey, token: Token) -> watch::Receiver<Option<Lost>> {
        let mut tenures = self.tenures();
        let at = (key.clone(), token);
        let known = tenures.revoked.contains_key(&at).then_some(Lost::Broken);
        let known = known.or_else(|| self.is_lost().then_some(Lost::Session));
        let sender = watch::Sender::new(known);
        let receiver = sender.subscribe();
        tenures.held.insert(at, sender);
        receiver
    }

    /// Follows a tenure no more.
    pub(crate) fn unfollow(&self, key: &ResourceKey, token: Token) {
        self.tenures().held.remove(&(key.clone(), token));
    }

    fn is_lost(&self) -> bool {
        self.lease().standing(BootInstant::now()) == Standing::Lost
    }

    /// Tells everybody how things stand; the first loss is loud.
    fn announce(&self) {
        let (standing, deadline) = {
            let mut lease = self.lease();
            (lease.standing(BootInstant::now()), lease.deadline())
        };
        self.deadline.send_replace(deadline);
        let before = self.standing.send_replace(standing);
        if standing == Standing::Lost && before != Standing::Lost {
            tracing::error!(session = %self.id, "session lost: everything under it must stop");
            for sender in self.tenures().held.values() {
                sender.send_if_modified(|lost| lost.replace(Lost::Session).is_none());
            }
        } else if standing == Standing::InDanger && before == Standing::Safe {
            tracing::warn!(session = %self.id, "heartbeats fail: session in danger");
        }
    }

    fn revoke(&self, revoked: Vec<Revoked>) {
        let mut tenures = self.tenures();
        for Revoked { n, key, token } in revoked {
            if let Some(sender) = tenures.held.get(&(key.clone(), token)) {
                sender.send_if_modified(|lost| lost.replace(Lost::Broken).is_none());
            }
            tenures.seen = tenures.seen.max(n);
            tenures.revoked.insert((key, token), n);
        }
    }
}

/// The thread that keeps a session alive.
struct Heartbeat {
    shared: Arc<Shared>,
    link: Box<dyn Link>,
    inbox: mpsc::UnboundedReceiver<Errand>,
    /// Dropped when the thread ends.
    ending: std::sync::mpsc::Sender<()>,
}

impl Heartbeat {
    fn run(self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => runtime.block_on(self.beat_on()),
            Err(error) => {
                tracing::error!(%error, "cannot start the heartbeat");
                self.shared.lease().refused();
                self.shared.announce();
            }
        }
    }

    async fn beat_on(mut self) {
        loop {
            let next = self.shared.lease().next_beat();
            tokio::select! {
                biased;
                () = sleep_at_most(next) => {}
                errand = self.inbox.recv() => match errand {
                    Some(errand) => self.run_errand(errand).await,
                    None => break,
                },
            }
            if next.has_passed() {
                self.beat().await;
            }
            self.shared.announce();
            if self.shared.is_lost() {
                // What was held is gone; there is nobody to say goodbye to.
                return;
            }
        }
        self.goodbye().await;
        drop(self.ending);
    }

    async fn beat(&self) {
        let sent = BootInstant::now();
        let patience = self.shared.lease().patience(sent);
        let seen = self.shared.tenures().seen;
        let command = Command::Beat { session: self.shared.id, seen };
        let answer = tokio::time::timeout(patience, self.link.send(command, patience)).await;
        match answer.map(|answer| answer.and_then(alive)) {
            Ok(Ok(revoked)) => {
                self.shared.lease().answered(sent, BootInstant::now());
                self.shared.revoke(revoked);
            }
            Ok(Err(Error::Refused(_))) => self.shared.lease().refused(),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a heartbeat failed");
                self.shared.lease().failed(sent);
            }
            Err(_) => self.shared.lease().failed(sent),
        }
    }

    /// Tries an errand until it is confirmed, with heartbeats in between.
    async fn run_errand(&mut self, errand: Errand) {
        let command = Command::Lock { key: errand.key, action: errand.action };
        loop {
            let patience = self.shared.lease().patience(BootInstant::now());
            let send = self.link.send(command.clone(), patience);
            match tokio::time::timeout(patience, send).await {
                Ok(Ok(_) | Err(Error::Refused(_) | Error::Denied(_) | Error::NotFound(_))) => {
                    return;
                }
                Ok(Err(_)) | Err(_) => {
                    let until_beat = self.shared.lease().next_beat().remaining();
                    tokio::time::sleep(ERRAND_PAUSE.min(until_beat)).await;
                }
            }
            if self.shared.lease().next_beat().has_passed() {
                self.beat().await;
                self.shared.announce();
            }
            if self.shared.is_lost() {
                return;
            }
        }
    }

    async fn goodbye(&mut self) {
        while let Ok(errand) = self.inbox.try_recv() {
            self.run_errand(errand).await;
        }
        let close = Command::Close { session: self.shared.id };
        if let Err(error) = self.link.send(close, GOODBYE).await {
            tracing::debug!(%error, "cannot close the session; it will lapse");
        }
    }
}

/// Sleeps towards `at`, but not longer than the runtime's timers can be trusted across a suspend.
async fn sleep_at_most(at: BootInstant) {
    tokio::time::sleep(at.remaining().min(SLEEP_MAX)).await;
}

fn alive(outcome: Outcome) -> Result<Vec<Revoked>, Error> {
    match outcome {
        Outcome::Alive { revoked, .. } => Ok(revoked),
        Outcome::Refused(refusal) => Err(Error::Refused(refusal)),
        other => Err(Error::Protocol(format!("{other:?} does not answer a heartbeat"))),
    }
}

/// The command that takes a request back.
pub(crate) fn withdraw(key: &ResourceKey, request: RequestId) -> Errand {
    Errand { key: key.clone(), action: LockAction::Withdraw { request } }
}

/// The refusal of a session that is over, as an error.
pub(crate) fn session_over() -> Error {
    Error::Refused(Refusal::SessionOver)
}
