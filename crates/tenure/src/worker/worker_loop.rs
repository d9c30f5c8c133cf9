//! The loop of a worker: claims jobs while it has free slots, and shuts down gracefully.
//!
//! A claim without a response is sent again with the same request id, so jobs whose claim response
//! was lost are found again. When the session is lost, its jobs stop and a new session is opened.
//! At the end no claim is left without a response and no job is left running, or the summary counts
//! them.
//!
//! See `attempt.rs` for one attempt.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tenure_core::{Assignment, Claim, ClaimScope, Code, Command, JobState, Outcome, Text, limits};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tracing::Instrument as _;

use super::attempt::{AttemptResult, hand_back, run_attempt};
use super::context::Context;
use super::wakeups::{Wakeup, Wakeups};
use super::{Summary, Worker};
use crate::clock::{BootInstant, sleep_until};
use crate::error::Error;
use crate::lease::LeaseState;
use crate::random;
use crate::session::Session;

/// Duration of one long poll of a claim.
const CLAIM_POLL: Duration = Duration::from_secs(20);
/// Minimum interval between two claims that return no job.
const EMPTY_CLAIM_INTERVAL: Duration = Duration::from_secs(1);
/// Time on shutdown to recover jobs of a claim that got no response. Jobs that are not recovered
/// end with the session.
const RECOVER_TIMEOUT: Duration = Duration::from_secs(5);
/// Initial delay after a failed request; doubles with each failure.
const RETRY_BACKOFF_MIN: Duration = Duration::from_millis(200);
/// Maximum delay after a failed request.
const RETRY_BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Initial time for which a kind is not claimed after a job without a handler; doubles each time.
const KIND_BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Maximum time for which a kind is not claimed.
const KIND_BACKOFF_MAX: Duration = Duration::from_secs(60);

/// Running worker.
pub(super) struct WorkerLoop {
    worker: Worker,
    slots: Arc<Semaphore>,
    /// Asks all handlers to stop when set to true, or when dropped.
    stop_requested: watch::Sender<bool>,
    /// A result was reported, after which other jobs may be ready.
    reported: Arc<Notify>,
    summary: Arc<Mutex<Summary>>,
}

impl WorkerLoop {
    pub(super) fn new(worker: Worker) -> Self {
        let slots = Arc::new(Semaphore::new(worker.slots));
        let (stop_requested, reported) = (watch::Sender::new(false), Arc::default());
        Self { worker, slots, stop_requested, reported, summary: Arc::default() }
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
                    // Jobs of the last session have lost their tenures and end soon.
                    self.wait_idle(self.worker.hand_back).await;
                    return Err(error);
                }
            };
            let mut claimer = Claimer::new(&self, session);
            let shutting_down = tokio::select! {
                biased;
                () = &mut shutdown => true,
                () = claimer.run() => false,
            };
            if shutting_down {
                return Ok(self.drain(Some(claimer)).await);
            }
            tracing::error!(worker = %self.worker.name, session = %claimer.session.id(),
                "session lost; its jobs stop, opening a new session");
        }
    }

    /// Opens a session, retrying while the store is unavailable.
    async fn open(&self) -> Result<Session, Error> {
        let (name, options) = (&self.worker.name, self.worker.session_options());
        let mut backoff = Backoff::new();
        loop {
            match self.worker.client.session_with_notices(&options).await {
                Ok(session) => {
                    tracing::info!(worker = %name, session = %session.id(), "ready for jobs");
                    self.summary().sessions += 1;
                    return Ok(session);
                }
                Err(error) if error.is_unavailable() => {
                    tracing::warn!(worker = %name, %error, "cannot open a session; retrying");
                    backoff.wait().await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for a free slot and takes all that are free.
    async fn free_slots(&self) -> OwnedSemaphorePermit {
        let slots = Arc::clone(&self.slots);
        let mut free = slots.acquire_owned().await.expect("the semaphore is never closed");
        let more = self.slots.available_permits().min(limits::CLAIM_MAX - 1);
        let more = u32::try_from(more).expect("a claim is small");
        if let Ok(more) = Arc::clone(&self.slots).try_acquire_many_owned(more) {
            free.merge(more);
        }
        free
    }

    /// Waits until no job is running; returns false on timeout.
    async fn wait_idle(&self, within: Duration) -> bool {
        let all = u32::try_from(self.worker.slots).expect("the number of slots is validated");
        timeout(within, self.slots.acquire_many(all)).await.is_ok()
    }

    /// Drains running jobs, then hands back the rest, within the configured times.
    async fn drain(&self, claimer: Option<Claimer<'_>>) -> Summary {
        let Worker { name, drain, hand_back, .. } = &self.worker;
        tracing::info!(worker = %name, jobs = self.running(), "stopping: no more jobs are taken");
        let recover = async {
            if let Some(claimer) = &claimer {
                timeout(RECOVER_TIMEOUT, claimer.recover_claim()).await.ok();
            }
        };
        let drain_jobs = async {
            let mut idle = self.wait_idle(*drain).await;
            if !idle {
                tracing::warn!(worker = %name, jobs = self.running(), "handing jobs back");
                self.stop_requested.send_replace(true);
                idle = self.wait_idle(*hand_back).await;
            }
            idle
        };
        let ((), idle) = tokio::join!(recover, drain_jobs);
        if idle {
            if let Some(claimer) = claimer {
                claimer.session.close().await;
            }
        } else {
            let abandoned = self.running();
            tracing::error!(worker = %name, jobs = abandoned, "jobs did not stop; abandoned");
            self.summary().abandoned = abandoned;
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

/// Claims jobs under one session.
struct Claimer<'a> {
    worker_loop: &'a WorkerLoop,
    session: Session,
    /// Claim without a response yet: it may have been granted jobs that are unknown here. It is
    /// repeated as it was, since the store refuses another claim under its id. Slots become free
    /// meanwhile, never fewer.
    pending_claim: Option<Claim>,
    /// Wake-up that the pending claim answers.
    wakeup: Option<Wakeup>,
    backoffs: HashMap<Text, KindBackoff>,
}

/// Backoff of a kind that is not claimed for a while.
struct KindBackoff {
    until: BootInstant,
    length: Duration,
}

impl<'a> Claimer<'a> {
    fn new(worker_loop: &'a WorkerLoop, session: Session) -> Self {
        Self { worker_loop, session, pending_claim: None, wakeup: None, backoffs: HashMap::new() }
    }

    /// Claims jobs until the session is lost.
    async fn run(&mut self) {
        let mut states = self.session.watch_state();
        tokio::select! {
            biased;
            _ = states.wait_for(|state| *state == LeaseState::Lost) => {}
            () = self.claim_until_session_ends() => {}
        }
    }

    /// Claims jobs until the store reports that the session has ended.
    async fn claim_until_session_ends(&mut self) {
        let mut backoff = Backoff::new();
        loop {
            let free = self.worker_loop.free_slots().await;
            let Some(poll) = self.prepare_claim(free.num_permits()).await else { continue };
            let sent = BootInstant::now();
            match self.claim(self.pending_claim.clone(), poll).await {
                Ok(jobs) => {
                    backoff = Backoff::new();
                    self.pending_claim = None;
                    let woken = self.wakeup.take().map(Wakeup::finish).is_some();
                    if !jobs.is_empty() {
                        self.start(jobs, free);
                    } else if !woken {
                        drop(free);
                        // Limits the poll rate on transports that do not hold back claims.
                        sleep_until(sent + jittered(EMPTY_CLAIM_INTERVAL.min(poll))).await;
                    }
                }
                Err(error) if error.code() == Some(Code::Lost) => return,
                Err(error) => {
                    tracing::warn!(worker = %self.worker_loop.worker.name, %error, "claim failed");
                    drop(free);
                    backoff.wait().await;
                }
            }
        }
    }

    /// Returns the kinds to claim now and the duration of the long poll.
    fn claimable_kinds(&self) -> (Vec<Text>, Duration) {
        let backoff_left =
            |kind: &Text| self.backoffs.get(kind).map(|backoff| backoff.until.remaining());
        let all = || self.worker_loop.worker.handlers.keys();
        let ready = all().filter(|kind| backoff_left(kind).is_none_or(|left| left.is_zero()));
        let waiting = all().filter_map(backoff_left).filter(|left| !left.is_zero());
        let poll = waiting.min().unwrap_or(CLAIM_POLL).min(CLAIM_POLL);
        (ready.cloned().collect(), poll)
    }

    /// Makes the pending claim, unless there is one. Returns the duration of its long poll, or
    /// `None` if there is nothing to claim yet.
    async fn prepare_claim(&mut self, max: usize) -> Option<Duration> {
        let (kinds, poll) = self.claimable_kinds();
        if self.pending_claim.is_some() {
            return Some(if self.wakeup.is_some() { Duration::ZERO } else { poll });
        }
        if kinds.is_empty() {
            tokio::time::sleep(poll).await;
            return None;
        }
        let worker = &self.worker_loop.worker;
        let only = || worker.only.as_ref().map(|only| only.scope.clone());
        let (kinds, only, poll) = match &worker.wakeups {
            None => (kinds, only(), poll),
            Some(wakeups) => {
                let wakeup = self.next_wakeup(&**wakeups).await;
                let (kinds, only) = match &wakeup.resource {
                    // Others may have become claimable meanwhile.
                    None => (self.claimable_kinds().0, only()),
                    Some(key) if worker.serves(key) => {
                        let (tenant, name) = (key.tenant().into(), key.name().into());
                        (vec![key.kind().into()], Some(ClaimScope::Resource { tenant, name }))
                    }
                    Some(key) => {
                        tracing::debug!(worker = %worker.name, resource = %key,
                            "woken for a resource that this worker does not serve");
                        wakeup.finish();
                        return None;
                    }
                };
                self.wakeup = Some(wakeup);
                (kinds, only, Duration::ZERO)
            }
        };
        let (session, request) = (self.session.id(), random::request_id());
        self.pending_claim = Some(Claim { session, request, kinds, max, tenant: None, only });
        Some(poll)
    }

    /// Waits for a wake-up, or until a job of this worker has made others ready.
    async fn next_wakeup(&self, wakeups: &dyn Wakeups) -> Wakeup {
        tokio::select! {
            biased;
            () = self.worker_loop.reported.notified() => Wakeup::default(),
            wakeup = wakeups.next() => wakeup,
        }
    }

    async fn claim(&self, claim: Option<Claim>, poll: Duration) -> Result<Vec<Assignment>, Error> {
        let Some(claim) = claim else { return Ok(Vec::new()) };
        match self.worker_loop.worker.client.transport().send(Command::Claim(claim), poll).await? {
            Outcome::Claimed(jobs) => Ok(jobs),
            Outcome::Refused(refusal) => Err(Error::Refused(refusal)),
            other => Err(Error::Protocol(format!("claim returned {other:?}"))),
        }
    }

    /// Starts each job in a slot of its own.
    fn start(&mut self, jobs: Vec<Assignment>, mut free: OwnedSemaphorePermit) {
        for assignment in jobs {
            let key = assignment.tenure.key.clone();
            let job = Context::new(self.session.clone(), assignment);
            let handler = self.worker_loop.worker.handler(key.kind(), job.operation());
            if handler.is_some() {
                self.backoffs.remove(key.kind());
            } else {
                self.back_off(key.kind(), job.operation());
            }
            let slot = free.split(1);
            let (grace, stop_requested) =
                (self.worker_loop.worker.grace, self.worker_loop.stop_requested.subscribe());
            let (summary, reported) =
                (Arc::clone(&self.worker_loop.summary), Arc::clone(&self.worker_loop.reported));
            let span = (self.worker_loop.worker.span)(&job);
            let work = async move {
                let result = match handler {
                    Some(handler) if slot.is_some() => {
                        run_attempt(job, handler, grace, stop_requested).await
                    }
                    _ => hand_back(job).await,
                };
                tracing::debug!(?result, "attempt ended");
                summary.lock().expect("nothing panics while the summary is locked").record(result);
                drop(slot);
                if matches!(result, AttemptResult::Reported(_)) {
                    reported.notify_one();
                }
            };
            tokio::spawn(work.instrument(span));
        }
    }

    /// Backs off from a kind after a job without a handler, so that another worker can claim it.
    fn back_off(&mut self, kind: &str, operation: &str) {
        let length = self
            .backoffs
            .get(kind)
            .map_or(KIND_BACKOFF_MIN, |backoff| (backoff.length * 2).min(KIND_BACKOFF_MAX));
        tracing::warn!(worker = %self.worker_loop.worker.name, kind, operation, ?length,
            "no handler for the operation; handing the job back, backing off from the kind");
        let until = BootInstant::now() + length;
        self.backoffs.insert(kind.into(), KindBackoff { until, length });
    }

    /// Repeats the claim without a response and hands back the jobs that it was granted.
    async fn recover_claim(&self) {
        let mut backoff = Backoff::new();
        while self.session.state() != LeaseState::Lost {
            // A claim that was granted nothing may claim jobs now, which are handed back at once.
            match self.claim(self.pending_claim.clone(), Duration::ZERO).await {
                Ok(jobs) => {
                    for assignment in jobs {
                        let result =
                            hand_back(Context::new(self.session.clone(), assignment)).await;
                        self.worker_loop.summary().record(result);
                    }
                    return;
                }
                Err(error) if error.code() == Some(Code::Lost) => return,
                Err(_) => backoff.wait().await,
            }
        }
    }
}

impl Summary {
    fn record(&mut self, result: AttemptResult) {
        match result {
            AttemptResult::Reported(state) => {
                self.reported += 1;
                self.succeeded += u64::from(state == JobState::Succeeded);
            }
            AttemptResult::HandedBack => self.handed_back += 1,
            AttemptResult::Lost => self.lost += 1,
        }
    }
}

/// Exponential backoff with jitter.
struct Backoff(Duration);

impl Backoff {
    fn new() -> Self {
        Self(RETRY_BACKOFF_MIN)
    }

    async fn wait(&mut self) {
        tokio::time::sleep(jittered(self.0)).await;
        self.0 = (self.0 * 2).min(RETRY_BACKOFF_MAX);
    }
}

/// Returns a random duration between half and all of `length`, so that a fleet that failed together
/// does not retry together.
fn jittered(length: Duration) -> Duration {
    let share = u32::try_from(random::request_id().0 % 512).expect("the remainder is below 512");
    length / 2 + length / 2 * share / 512
}
