//! A worker at work: it takes jobs while it has free slots, and goes home in an orderly way.
//!
//! A claim that was not answered is sent again with the same id, so a job whose claim got lost is
//! found again. When the session is lost, its jobs stop and a new one is opened. At the end no
//! claim is left unanswered and no job running, or the summary says how many are.
//!
//! Next: `attempt.rs` for what becomes of each job.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tenure_core::{Assignment, Claim, Code, Command, JobState, Outcome, RequestId, Text, limits};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tracing::Instrument as _;

use super::attempt::{Came, attend, give_back};
use super::context::Context;
use super::{Summary, Worker};
use crate::clock::{BootInstant, sleep_until};
use crate::error::Error;
use crate::lease::Standing;
use crate::session::Session;

/// How long a claim is held back while nothing is ready.
const CLAIM_PATIENCE: Duration = Duration::from_secs(20);
/// Empty answers that come sooner than this are not asked for again at once: the poll floor.
const POLL_FLOOR: Duration = Duration::from_secs(1);
/// How long to look, at the end, for what an unanswered claim has got. What is not found then ends
/// with the session.
const RECOVER_MAX: Duration = Duration::from_secs(5);
/// First pause after something failed; it grows.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long a kind is left alone after a job of it was for somebody else; it grows.
const REST: Duration = Duration::from_secs(1);
/// The longest such rest.
const REST_MAX: Duration = Duration::from_secs(60);

/// A worker at work.
pub(super) struct Shift {
    worker: Worker,
    slots: Arc<Semaphore>,
    /// Tells all jobs to stop; so does its end.
    orders: watch::Sender<bool>,
    summary: Arc<Mutex<Summary>>,
}

impl Shift {
    pub(super) fn new(worker: Worker) -> Self {
        let slots = Arc::new(Semaphore::new(worker.slots));
        Self { worker, slots, orders: watch::Sender::new(false), summary: Arc::default() }
    }

    pub(super) async fn run(self, shutdown: impl Future<Output = ()>) -> Result<Summary, Error> {
        tokio::pin!(shutdown);
        loop {
            let session = tokio::select! {
                biased;
                () = &mut shutdown => return Ok(self.drain(None).await),
                session = self.open() => session,
            };
            let session = match session {
                Ok(session) => session,
                Err(error) => {
                    // Those of the last session have lost their tenures and end soon.
                    self.quiet(self.worker.hand_back).await;
                    return Err(error);
                }
            };
            let mut claims = Claims::new(&self, session);
            let over = tokio::select! {
                biased;
                () = &mut shutdown => true,
                () = claims.take_on() => false,
            };
            if over {
                return Ok(self.drain(Some(claims)).await);
            }
            tracing::error!(worker = %self.worker.name, session = %claims.session.id(),
                "the session is lost: its jobs stop, a new session is opened");
        }
    }

    /// Opens a session, however long the store is away.
    async fn open(&self) -> Result<Session, Error> {
        let (name, ttl) = (&self.worker.name, self.worker.ttl);
        let mut pause = Pause::new();
        loop {
            match self.worker.client.alert_session(name, ttl).await {
                Ok(session) => {
                    tracing::info!(worker = %name, session = %session.id(), "ready for jobs");
                    self.summary().sessions += 1;
                    return Ok(session);
                }
                Err(error) if error.is_unavailable() => {
                    tracing::warn!(worker = %name, %error, "cannot open a session, trying on");
                    pause.wait().await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// All free slots, at least one.
    async fn free_slots(&self) -> OwnedSemaphorePermit {
        let slots = Arc::clone(&self.slots);
        let mut free = slots.acquire_owned().await.expect("nobody closes it");
        let more = self.slots.available_permits().min(limits::CLAIM_MAX - 1);
        let more = u32::try_from(more).expect("a claim is small");
        if let Ok(more) = Arc::clone(&self.slots).try_acquire_many_owned(more) {
            free.merge(more);
        }
        free
    }

    /// Waits until no job is left, and says whether that came about.
    async fn quiet(&self, within: Duration) -> bool {
        let all = u32::try_from(self.worker.slots).expect("their number is checked");
        timeout(within, self.slots.acquire_many(all)).await.is_ok()
    }

    /// Lets jobs go on for a while, then hands them back, and is over in any case.
    async fn drain(&self, claims: Option<Claims<'_>>) -> Summary {
        let Worker { name, drain, hand_back, .. } = &self.worker;
        tracing::info!(worker = %name, jobs = self.running(), "stopping: no more jobs are taken");
        let recover = async {
            if let Some(claims) = &claims {
                timeout(RECOVER_MAX, claims.recover()).await.ok();
            }
        };
        let wind_up = async {
            let mut quiet = self.quiet(*drain).await;
            if !quiet {
                tracing::warn!(worker = %name, jobs = self.running(), "handing jobs back");
                self.orders.send_replace(true);
                quiet = self.quiet(*hand_back).await;
            }
            quiet
        };
        let ((), quiet) = tokio::join!(recover, wind_up);
        if quiet {
            if let Some(claims) = claims {
                claims.session.close().await;
            }
        } else {
            let left = self.running();
            tracing::error!(worker = %name, jobs = left, "jobs do not stop; they are left alone");
            self.summary().abandoned = left;
        }
        self.summary().clone()
    }

    fn running(&self) -> usize {
        self.worker.slots - self.slots.available_permits()
    }

    fn summary(&self) -> MutexGuard<'_, Summary> {
        self.summary.lock().expect("nothing panics while the summary is locked")
    }
}

/// The claims of one session.
struct Claims<'a> {
    shift: &'a Shift,
    session: Session,
    /// The claim that is not answered yet: it may have got jobs of which nothing is known here.
    unanswered: Option<RequestId>,
    resting: HashMap<Text, Rest>,
}

/// A kind that is left alone for a while.
struct Rest {
    until: BootInstant,
    length: Duration,
}

impl<'a> Claims<'a> {
    fn new(shift: &'a Shift, session: Session) -> Self {
        Self { shift, session, unanswered: None, resting: HashMap::new() }
    }

    /// Takes jobs until the session is lost.
    async fn take_on(&mut self) {
        let mut standings = self.session.standings();
        tokio::select! {
            biased;
            _ = standings.wait_for(|standing| *standing == Standing::Lost) => {}
            () = self.claim_on() => {}
        }
    }

    /// Takes jobs until the store says that the session is over.
    async fn claim_on(&mut self) {
        let mut pause = Pause::new();
        loop {
            let free = self.shift.free_slots().await;
            let (kinds, patience) = self.kinds();
            if kinds.is_empty() {
                tokio::time::sleep(patience).await;
                continue;
            }
            let sent = BootInstant::now();
            let request = *self.unanswered.get_or_insert_with(tenure_store::random::request_id);
            match self.ask(request, kinds, free.num_permits(), patience).await {
                Ok(jobs) => {
                    pause = Pause::new();
                    self.unanswered = None;
                    if jobs.is_empty() {
                        drop(free);
                        // A way that holds nothing back is asked now and then.
                        sleep_until(sent + jittered(POLL_FLOOR.min(patience))).await;
                    } else {
                        self.start(jobs, free);
                    }
                }
                Err(error) if error.code() == Some(Code::Lost) => return,
                Err(error) => {
                    tracing::warn!(worker = %self.shift.worker.name, %error, "cannot claim");
                    drop(free);
                    pause.wait().await;
                }
            }
        }
    }

    /// The kinds to ask for now, and for how long to ask.
    fn kinds(&self) -> (Vec<Text>, Duration) {
        let rest = |kind: &Text| self.resting.get(kind).map(|rest| rest.until.remaining());
        let all = || self.shift.worker.handlers.keys();
        let ready = all().filter(|kind| rest(kind).is_none_or(|left| left.is_zero()));
        let wakes = all().filter_map(rest).filter(|left| !left.is_zero());
        let patience = wakes.min().unwrap_or(CLAIM_PATIENCE).min(CLAIM_PATIENCE);
        (ready.cloned().collect(), patience)
    }

    async fn ask(
        &self,
        request: RequestId,
        kinds: Vec<Text>,
        max: usize,
        patience: Duration,
    ) -> Result<Vec<Assignment>, Error> {
        let claim = Claim { session: self.session.id(), request, kinds, max };
        match self.shift.worker.client.link().send(Command::Claim(claim), patience).await? {
            Outcome::Claimed(jobs) => Ok(jobs),
            Outcome::Refused(refusal) => Err(Error::Refused(refusal)),
            other => Err(Error::Protocol(format!("{other:?} answers no claim"))),
        }
    }

    /// Puts each job into a slot.
    fn start(&mut self, jobs: Vec<Assignment>, mut free: OwnedSemaphorePermit) {
        for assignment in jobs {
            let key = assignment.tenure.key.clone();
            let job = Context::new(self.session.clone(), assignment);
            let handler = self.shift.worker.handler(key.kind(), job.operation());
            if handler.is_some() {
                self.resting.remove(key.kind());
            } else {
                self.rest(key.kind(), job.operation());
            }
            let slot = free.split(1);
            let (grace, orders) = (self.shift.worker.grace, self.shift.orders.subscribe());
            let summary = Arc::clone(&self.shift.summary);
            let span = (self.shift.worker.span)(&job);
            let work = async move {
                let came = match handler {
                    Some(handler) if slot.is_some() => attend(job, handler, grace, orders).await,
                    _ => give_back(job).await,
                };
                tracing::debug!(?came, "the attempt has ended");
                summary.lock().expect("nothing panics while the summary is locked").note(came);
                drop(slot);
            };
            tokio::spawn(work.instrument(span));
        }
    }

    /// A job that this worker has no handler for is for another one, which must get a chance.
    fn rest(&mut self, kind: &str, operation: &str) {
        let length = self.resting.get(kind).map_or(REST, |rest| (rest.length * 2).min(REST_MAX));
        tracing::warn!(worker = %self.shift.worker.name, kind, operation, ?length,
            "no handler for this operation: its job is handed back, the kind left alone");
        let until = BootInstant::now() + length;
        self.resting.insert(kind.into(), Rest { until, length });
    }

    /// Finds out whether the last claim got something after all, and gives that back.
    async fn recover(&self) {
        let Some(request) = self.unanswered else { return };
        let mut pause = Pause::new();
        while self.session.standing() != Standing::Lost {
            let kinds: Vec<_> = self.shift.worker.handlers.keys().cloned().collect();
            // One that got nothing takes a job now, for the moment until it is given back.
            match self.ask(request, kinds, 1, Duration::ZERO).await {
                Ok(jobs) => {
                    for assignment in jobs {
                        let came = give_back(Context::new(self.session.clone(), assignment)).await;
                        self.shift.summary().note(came);
                    }
                    return;
                }
                Err(error) if error.code() == Some(Code::Lost) => return,
                Err(_) => pause.wait().await,
            }
        }
    }
}

impl Summary {
    fn note(&mut self, came: Came) {
        match came {
            Came::Reported(state) => {
                self.reported += 1;
                self.succeeded += u64::from(state == JobState::Succeeded);
            }
            Came::HandedBack => self.handed_back += 1,
            Came::Lost => self.lost += 1,
        }
    }
}

/// Pauses that grow.
struct Pause(Duration);

impl Pause {
    fn new() -> Self {
        Self(PAUSE)
    }

    async fn wait(&mut self) {
        tokio::time::sleep(jittered(self.0)).await;
        self.0 = (self.0 * 2).min(PAUSE_MAX);
    }
}

/// Between half and all of it, so that a fleet that failed together does not come back together.
fn jittered(length: Duration) -> Duration {
    let share = u32::try_from(tenure_store::random::request_id().0 % 512).expect("it is below 512");
    length / 2 + length / 2 * share / 512
}
