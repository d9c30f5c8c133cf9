//! A session: the liveness of this process in the store.
//!
//! The heartbeat has its own thread, runtime and connection, so nothing the work does can starve
//! it. It also delivers what must not get lost: releases of dropped tenures, withdrawals of
//! abandoned waits and jobs that nobody works any more are repeated until they are confirmed or the
//! session is over. And it hands each new deadline to the watchdogs of supervised commands itself,
//! so that they need no runtime that the work may block. It never outlives the session: when the
//! last handle is dropped, it settles its errands, says goodbye and ends.
//!
//! Next: `heartbeat.rs` for the thread, `lease.rs` for its arithmetic, `tenure.rs` and `worker/`
//! for what lives under a session.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tenure_core::session::Revoked;
use tenure_core::{
    Command, LockAction, LockPath, LockSet, Outcome, Refusal, RequestId, ResourceKey, SessionId,
    Text, Token,
};
use tenure_store::store::Hint;
use tokio::sync::{broadcast, mpsc, watch};

use crate::clock::BootInstant;
use crate::error::Error;
use crate::exec::{Deadlines, Handle as Leash};
use crate::heartbeat::Heartbeat;
use crate::lease::{Lease, Standing};
use crate::link::Link;
use crate::tenure::{Ask, Lost};

/// How long dropping the last handle waits for the goodbye to reach the store.
pub(crate) const GOODBYE: Duration = Duration::from_secs(2);
/// Most notices that are remembered for a tenure which nobody follows yet: its grant may be on its
/// way while the notice comes in. Many times what a store keeps for a session at once.
const NOTICES_MAX: usize = 4_096;

/// The liveness of this process in the store; cheap to clone.
#[derive(Clone)]
pub struct Session(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    /// Dropping it tells the heartbeat to say goodbye. At most one errand for each tenure, attempt
    /// and abandoned wait of this process: that is its bound, and a drop cannot wait for room.
    errands: Option<mpsc::UnboundedSender<Errand>>,
    /// Ends when the heartbeat has ended.
    ended: Mutex<Option<std::sync::mpsc::Receiver<()>>>,
}

/// Something that must reach the store, and may be repeated.
#[derive(Debug)]
pub(crate) struct Errand(pub(crate) Command);

/// What somebody who follows a tenure is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signals {
    /// It is lost.
    pub(crate) lost: Option<Lost>,
    /// It goes on, but its job is asked to stop.
    pub(crate) cancel: bool,
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
    leashes: Mutex<Leashes>,
}

/// The tenures of the session, and what was said of them.
#[derive(Default)]
pub(crate) struct Tenures {
    held: HashMap<(ResourceKey, Token), watch::Sender<Signals>>,
    /// In the order of their numbers.
    notices: BTreeMap<u64, Revoked>,
    /// The last notice that is known here.
    pub(crate) seen: u64,
}

/// The watchdogs of supervised commands, which live by the session's deadline.
#[derive(Default)]
struct Leashes {
    last: u64,
    by_number: BTreeMap<u64, Leash>,
}

/// Tells a watchdog each new deadline until it is dropped.
pub(crate) struct Leashed {
    shared: Arc<Shared>,
    number: u64,
}

/// Opens a session, or renews it. The time counts from before it is sent.
async fn opened(link: &Arc<dyn Link>, open: &Command, ttl: Duration) -> Result<Lease, Error> {
    let sent = BootInstant::now();
    alive(link.send(open.clone(), ttl).await?)?;
    Ok(Lease::new(ttl, sent))
}

impl Drop for Leashed {
    fn drop(&mut self) {
        self.shared.leashes().by_number.remove(&self.number);
    }
}

impl Session {
    pub(crate) async fn open(
        link: &Arc<dyn Link>,
        tenant: &Text,
        name: &str,
        ttl: Duration,
        hints: Option<broadcast::Receiver<Hint>>,
    ) -> Result<Self, Error> {
        let id = tenure_store::random::session_id();
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let (tenant, name) = (tenant.clone(), name.into());
        let command = Command::Open { session: id, tenant: tenant.clone(), name, ttl_ms };
        let late = || {
            let why = format!("the store takes longer to open a session than the {ttl:?} it lasts");
            Error::Unavailable(why)
        };
        let mut lease = opened(link, &command, ttl).await?;
        if lease.standing(BootInstant::now()) != Standing::Safe {
            // The answer was long on its way, and nobody should begin with a session that is about
            // to be lost. Said again, the opening renews it, unless it has lapsed by now.
            lease = match opened(link, &command, ttl).await {
                Err(Error::Refused(Refusal::SessionOver)) => return Err(late()),
                renewed => renewed?,
            };
        }
        if lease.standing(BootInstant::now()) == Standing::Lost {
            return Err(late());
        }
        let shared = Arc::new(Shared {
            id,
            tenant,
            link: Arc::clone(link),
            ttl,
            deadline: watch::Sender::new(lease.deadline()),
            standing: watch::Sender::new(Standing::Safe),
            lease: Mutex::new(lease),
            tenures: Mutex::default(),
            leashes: Mutex::default(),
        });
        Self::start(shared, link.twin()?, hints)
    }

    fn start(
        shared: Arc<Shared>,
        link: Box<dyn Link>,
        hints: Option<broadcast::Receiver<Hint>>,
    ) -> Result<Self, Error> {
        let (errands, inbox) = mpsc::unbounded_channel();
        let (ending, ended) = std::sync::mpsc::channel();
        let heartbeat = Heartbeat { shared: Arc::clone(&shared), link, inbox, hints, ending };
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

    /// Lets go of everything without giving it back: for when nobody can say whether the work has
    /// stopped. The store takes it all away when the time to live is over, and not before.
    pub(crate) fn abandon(&self) {
        self.0.shared.lease().refused();
        self.0.shared.announce();
    }

    /// Has the heartbeat tell a watchdog each new deadline, the present one at once.
    pub(crate) fn leash(&self, leash: &Leash) -> Leashed {
        let shared = &self.0.shared;
        let number = {
            let mut leashes = shared.leashes();
            leashes.last += 1;
            let number = leashes.last;
            leashes.by_number.insert(number, leash.clone());
            number
        };
        // After it is in the list: a deadline that moves in between is not missed.
        let deadline = shared.lease().deadline();
        leash.extend(Deadlines::under(shared.ttl, deadline));
        Leashed { shared: Arc::clone(shared), number }
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

    pub(crate) fn tenures(&self) -> MutexGuard<'_, Tenures> {
        self.tenures.lock().expect("nothing panics while the tenures are locked")
    }

    fn leashes(&self) -> MutexGuard<'_, Leashes> {
        self.leashes.lock().expect("nothing panics while the leashes are locked")
    }

    /// Follows a tenure: the receiver learns what becomes of it, also what is known already.
    pub(crate) fn follow(&self, key: &ResourceKey, token: Token) -> watch::Receiver<Signals> {
        let mut tenures = self.tenures();
        let mut known = Signals::default();
        let about = |notice: &&Revoked| notice.token == token && notice.key == *key;
        tenures.notices.values().filter(about).for_each(|notice| known.hear(notice.cancel));
        if self.is_lost() {
            known.lost = Some(Lost::Session);
        }
        let sender = watch::Sender::new(known);
        let receiver = sender.subscribe();
        tenures.held.insert((key.clone(), token), sender);
        receiver
    }

    /// Follows a tenure no more.
    pub(crate) fn unfollow(&self, key: &ResourceKey, token: Token) {
        let mut tenures = self.tenures();
        tenures.held.remove(&(key.clone(), token));
        tenures.notices.retain(|_, notice| notice.token != token || notice.key != *key);
    }

    /// Somebody else than the heartbeat has learnt that a tenure is over, or its job cancelled.
    pub(crate) fn tell(&self, key: &ResourceKey, token: Token, cancel: bool) {
        if let Some(sender) = self.tenures().held.get(&(key.clone(), token)) {
            sender.send_if_modified(|signals| signals.changed_by(cancel));
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lease().standing(BootInstant::now()) == Standing::Lost
    }

    /// Tells everybody how things stand; the first loss is loud.
    pub(crate) fn announce(&self) {
        let (standing, deadline) = {
            let mut lease = self.lease();
            (lease.standing(BootInstant::now()), lease.deadline())
        };
        self.extend(deadline);
        let before = self.standing.send_replace(standing);
        if standing == Standing::Lost && before != Standing::Lost {
            tracing::error!(session = %self.id, "session lost: everything under it must stop");
            let lose = |signals: &mut Signals| signals.lost.replace(Lost::Session).is_none();
            for sender in self.tenures().held.values() {
                sender.send_if_modified(lose);
            }
        } else if standing == Standing::InDanger && before == Standing::Safe {
            tracing::warn!(session = %self.id, "heartbeats fail: session in danger");
        }
    }

    /// Tells everybody who lives by the deadline that it has moved, if it has.
    fn extend(&self, deadline: BootInstant) {
        let moved = self.deadline.send_if_modified(|old| std::mem::replace(old, deadline) != *old);
        if moved {
            let deadlines = Deadlines::under(self.ttl, deadline);
            self.leashes().by_number.values().for_each(|leash| leash.extend(deadlines));
        }
    }

    pub(crate) fn revoke(&self, revoked: Vec<Revoked>) {
        let mut tenures = self.tenures();
        for notice in revoked {
            if let Some(sender) = tenures.held.get(&(notice.key.clone(), notice.token)) {
                sender.send_if_modified(|signals| signals.changed_by(notice.cancel));
            }
            tenures.seen = tenures.seen.max(notice.n);
            tenures.notices.insert(notice.n, notice);
            while tenures.notices.len() > NOTICES_MAX {
                tenures.notices.pop_first();
            }
        }
    }
}

impl Signals {
    /// Takes a notice in: the job is asked to stop, or the tenure was taken away.
    fn hear(&mut self, cancel: bool) {
        if cancel {
            self.cancel = true;
        } else {
            self.lost.get_or_insert(Lost::Broken);
        }
    }

    fn changed_by(&mut self, cancel: bool) -> bool {
        let before = *self;
        self.hear(cancel);
        *self != before
    }
}

pub(crate) fn alive(outcome: Outcome) -> Result<Vec<Revoked>, Error> {
    match outcome {
        Outcome::Alive { revoked, .. } => Ok(revoked),
        Outcome::Refused(refusal) => Err(Error::Refused(refusal)),
        other => Err(Error::Protocol(format!("{other:?} does not answer a heartbeat"))),
    }
}

/// The command that takes a request back.
pub(crate) fn withdraw(key: &ResourceKey, request: RequestId) -> Errand {
    lock_errand(key, LockAction::Withdraw { request })
}

/// Something on the locks of a resource that must reach the store.
pub(crate) fn lock_errand(key: &ResourceKey, action: LockAction) -> Errand {
    Errand(Command::Lock { key: key.clone(), action })
}

/// The refusal of a session that is over, as an error.
pub(crate) fn session_over() -> Error {
    Error::Refused(Refusal::SessionOver)
}
