//! Job cycles: submit, claim, finish. Closed loop: a submitter waits until its job has finished.
//!
//! The load checks for overlaps: two jobs that run at the same time on one resource. Submitters and
//! workers are matched by the arguments of the jobs, so that only the store is between them.
//! `jobs.rs` is the command; this is the load on a store in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tenure_core::{
    Assignment, Claim, Command, Finish, JobAction, Kind, Kinds, Operation, Outcome, Refusal,
    ResourceAction, ResourceKey, SessionId, Submit, Text,
};
use tenure_store::{Committer, Store};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clock::now;
use crate::histogram::{Latencies, Spread};
use crate::local::open;

/// Kind of all jobs.
pub(crate) const KIND: &str = "bench";
/// Operation of all jobs.
pub(crate) const WORK: &str = "work";
/// Minimum number of workers; each runs many jobs concurrently.
const WORKERS_MIN: usize = 4;
/// Maximum number of jobs of one claim.
const CLAIM_MAX: usize = 64;

/// Returns the kinds of the benchmark.
pub(crate) fn kinds() -> Result<Arc<Kinds>> {
    Ok(Arc::new(Kinds::new([Kind::new(KIND).operation(Operation::new(WORK))])?))
}

/// Distribution of jobs over resources.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyDistribution {
    pub(crate) resources: usize,
    pub(crate) zipf: bool,
}

impl KeyDistribution {
    /// Returns the resource for a random number.
    pub(crate) fn pick(self, random: u64) -> usize {
        let n = self.resources;
        if !self.zipf {
            return usize::try_from(random % n as u64).unwrap_or(0);
        }
        // The inverse of the distribution function of 1/x, which is Zipf's with exponent one.
        #[expect(clippy::cast_precision_loss, reason = "a random draw")]
        let (u, count) = ((random >> 11) as f64 / (1u64 << 53) as f64, n as f64);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below n")]
        let rank = (count + 1.0).powf(u) as usize;
        rank.clamp(1, n) - 1
    }

    pub(crate) fn description(self) -> String {
        let spread = match (self.resources, self.zipf) {
            (1, _) => "",
            (_, false) => ", uniform",
            (_, true) => ", zipf",
        };
        format!("{} resource(s){spread}", super::table::rate(self.resources as f64))
    }
}

/// Result of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) cycles: u64,
    /// All cycles, including those of the warm-up and after the window.
    pub(crate) all: u64,
    pub(crate) elapsed: Duration,
    /// Time from the submit until the worker has the job.
    pub(crate) start: Spread,
    /// Time from a finish until the worker of the next job on the same resource has it.
    pub(crate) hand_off: Spread,
    pub(crate) overlaps: u64,
}

impl Measured {
    pub(crate) fn per_s(&self) -> f64 {
        self.cycles as f64 / self.elapsed.as_secs_f64()
    }
}

/// State shared by submitters and workers.
pub(crate) struct LoadState {
    pub(crate) started_at: Instant,
    warm_up: Duration,
    until: Duration,
    cycles: AtomicU64,
    all: AtomicU64,
    overlaps: AtomicU64,
    /// Whether a job is running, by resource.
    busy: Vec<AtomicBool>,
    /// Number of unfinished jobs, by resource.
    pending: Vec<AtomicU64>,
    /// Time in nanoseconds at which a job finished with others waiting, or zero, by resource.
    freed: Vec<AtomicU64>,
    /// Permits to submit, by submitter.
    permits: Vec<Semaphore>,
}

impl LoadState {
    pub(crate) fn new(
        distribution: KeyDistribution,
        in_flight: usize,
        budget: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            started_at: now(),
            warm_up: budget / 10,
            until: budget,
            cycles: AtomicU64::new(0),
            all: AtomicU64::new(0),
            overlaps: AtomicU64::new(0),
            busy: (0..distribution.resources).map(|_| AtomicBool::new(false)).collect(),
            pending: (0..distribution.resources).map(|_| AtomicU64::new(0)).collect(),
            freed: (0..distribution.resources).map(|_| AtomicU64::new(0)).collect(),
            permits: (0..in_flight).map(|_| Semaphore::new(0)).collect(),
        })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.started_at.elapsed() < self.until
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.started_at.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Records a submit and returns the arguments of its job: submitter, resource and time.
    pub(crate) fn submit(&self, submitter: usize, resource: usize) -> String {
        self.pending[resource].fetch_add(1, Ordering::SeqCst);
        format!("\"{submitter} {resource} {}\"", self.nanos())
    }

    /// Records that a submit was refused.
    pub(crate) fn refused(&self, resource: usize) {
        self.pending[resource].fetch_sub(1, Ordering::SeqCst);
    }

    /// Records that a worker has started a job.
    pub(crate) fn started(&self, args: &str, times: &mut Times) -> Result<Ticket> {
        let mut words = args.trim_matches('"').split(' ');
        let mut number = || words.next().and_then(|w| w.parse::<u64>().ok()).context("read args");
        let (submitter, resource, submitted) = (number()?, number()?, number()?);
        let (submitter, resource) = (usize::try_from(submitter)?, usize::try_from(resource)?);
        if self.busy[resource].swap(true, Ordering::SeqCst) {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        let at = self.nanos();
        let freed = self.freed[resource].swap(0, Ordering::SeqCst);
        if self.started_at.elapsed() > self.warm_up {
            times.start.record(Duration::from_nanos(at.saturating_sub(submitted)));
            if freed > 0 {
                times.hand_off.record(Duration::from_nanos(at.saturating_sub(freed)));
            }
        }
        Ok(Ticket { submitter, resource })
    }

    /// Records that a worker is about to finish a job.
    pub(crate) fn finishing(&self, ticket: Ticket) {
        let others_wait = self.pending[ticket.resource].fetch_sub(1, Ordering::SeqCst) > 1;
        let freed = if others_wait { self.nanos() } else { 0 };
        self.freed[ticket.resource].store(freed, Ordering::SeqCst);
        self.busy[ticket.resource].store(false, Ordering::SeqCst);
    }

    /// Records that the store has finished a job.
    pub(crate) fn finished(&self, ticket: Ticket) {
        self.count();
        self.allow(ticket.submitter, 1);
    }

    /// Counts a finished job.
    pub(crate) fn count(&self) {
        let at = self.started_at.elapsed();
        self.all.fetch_add(1, Ordering::Relaxed);
        if at > self.warm_up && at <= self.until {
            self.cycles.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until the job of a submitter has finished.
    pub(crate) async fn wait(&self, submitter: usize) -> Result<()> {
        self.wait_for(submitter, 1).await
    }

    /// Waits for permits of a submitter.
    pub(crate) async fn wait_for(&self, submitter: usize, jobs: u32) -> Result<()> {
        let permits = self.permits[submitter].acquire_many(jobs);
        permits.await.context("wait for jobs")?.forget();
        Ok(())
    }

    /// Permits a submitter to have more jobs in flight.
    pub(crate) fn allow(&self, submitter: usize, jobs: usize) {
        self.permits[submitter].add_permits(jobs);
    }

    pub(crate) fn measured(&self, times: &Times) -> Measured {
        Measured {
            cycles: self.cycles.load(Ordering::Relaxed),
            all: self.all.load(Ordering::Relaxed),
            elapsed: self.until - self.warm_up,
            start: times.start.spread(),
            hand_off: times.hand_off.spread(),
            overlaps: self.overlaps.load(Ordering::SeqCst),
        }
    }
}

/// A started job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    submitter: usize,
    resource: usize,
}

/// Latencies of one worker.
pub(crate) struct Times {
    start: Latencies,
    hand_off: Latencies,
}

impl Times {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { start: Latencies::new()?, hand_off: Latencies::new()? })
    }

    pub(crate) fn merge(&mut self, other: &Self) -> Result<()> {
        self.start.merge(&other.start)?;
        self.hand_off.merge(&other.hand_off)
    }
}

/// Keeps `in_flight` jobs in flight on a store in this process for `budget`.
pub(crate) async fn local(
    store: Arc<dyn Store>,
    distribution: KeyDistribution,
    in_flight: usize,
    budget: Duration,
) -> Result<Measured> {
    across(&[Committer::start(store)], distribution, in_flight, budget).await
}

/// Keeps `in_flight` jobs in flight, with submitters and workers spread evenly over several
/// servers.
pub(crate) async fn across(
    servers: &[Committer],
    distribution: KeyDistribution,
    in_flight: usize,
    budget: Duration,
) -> Result<Measured> {
    for server in servers {
        server.store().declare(kinds()?).await?;
    }
    let server = |n: usize| servers[n % servers.len()].clone();
    let state = LoadState::new(distribution, in_flight, budget);
    let keys = keys(distribution.resources)?;
    let mut submitters = JoinSet::new();
    for submitter in 0..in_flight {
        let (state, keys) = (Arc::clone(&state), Arc::clone(&keys));
        submitters.spawn(submit_all(server(submitter), state, keys, distribution, submitter));
    }
    let over = CancellationToken::new();
    let mut workers = JoinSet::new();
    // Enough workers to run all jobs concurrently.
    let count = in_flight.div_ceil(CLAIM_MAX).max(WORKERS_MIN).min(in_flight);
    let slots = in_flight.div_ceil(count).min(CLAIM_MAX);
    for worker in 0..count {
        workers.spawn(work_all(server(worker), Arc::clone(&state), over.clone(), slots));
    }
    join_all(&state, submitters, workers, &over).await
}

/// Waits for the submitters, then for the workers.
pub(crate) async fn join_all(
    state: &LoadState,
    mut submitters: JoinSet<Result<()>>,
    mut workers: JoinSet<Result<Times>>,
    over: &CancellationToken,
) -> Result<Measured> {
    let mut times = Times::new()?;
    loop {
        // Both concurrently: if its worker failed, a submitter would wait forever.
        tokio::select! {
            Some(done) = submitters.join_next() => done??,
            Some(done) = workers.join_next() => times.merge(&done??)?,
            else => break,
        }
        if submitters.is_empty() {
            over.cancel();
        }
    }
    Ok(state.measured(&times))
}

pub(crate) fn keys(resources: usize) -> Result<Arc<Vec<ResourceKey>>> {
    let key = |n| ResourceKey::new("bench", KIND, &format!("r{n}"));
    Ok(Arc::new((0..resources).map(key).collect::<Result<_, _>>()?))
}

async fn submit_all(
    committer: Committer,
    state: Arc<LoadState>,
    keys: Arc<Vec<ResourceKey>>,
    distribution: KeyDistribution,
    submitter: usize,
) -> Result<()> {
    while state.is_open() {
        let (resource, command) = submission(&state, &keys, distribution, submitter);
        match committer.submit(command).await? {
            Outcome::Submitted { .. } => state.wait(submitter).await?,
            // A lane may be full when much is in flight; use another resource.
            Outcome::Refused(Refusal::LaneFull) => state.refused(resource),
            other => bail!("a submit returned {other:?}"),
        }
    }
    Ok(())
}

/// Returns a submit for a random resource.
pub(crate) fn submission(
    state: &LoadState,
    keys: &[ResourceKey],
    distribution: KeyDistribution,
    submitter: usize,
) -> (usize, Command) {
    let request = tenure_store::random::request_id();
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is as random")]
    let resource = distribution.pick(request.0 as u64);
    let submit = Submit {
        request,
        operation: WORK.into(),
        args: Some(state.submit(submitter, resource).into()),
        priority: 0,
        run_at: None,
        by: "bench".into(),
        precondition: None,
    };
    let action = ResourceAction::Submit(submit);
    (resource, Command::Resource { key: keys[resource].clone(), action })
}

/// Executes jobs until no more can come.
async fn work_all(
    committer: Committer,
    state: Arc<LoadState>,
    over: CancellationToken,
    slots: usize,
) -> Result<Times> {
    let session = tenure_store::random::session_id();
    committer.submit(open(session)).await?;
    let mut times = Times::new()?;
    let mut running = JoinSet::new();
    loop {
        while running.len() >= slots
            && let Some(done) = running.join_next().await
        {
            done??;
        }
        while let Some(done) = running.try_join_next() {
            done??;
        }
        // Claims continue after the load has ended, so that no job is left.
        let jobs = claim_jobs(&committer, &state, session, slots - running.len()).await?;
        if jobs.is_empty() && over.is_cancelled() && running.is_empty() {
            return Ok(times);
        }
        for job in jobs {
            let ticket = state.started(job.job.args.as_deref().unwrap_or(""), &mut times)?;
            running.spawn(finish(committer.clone(), Arc::clone(&state), job, ticket));
        }
    }
}

/// Claims jobs for a worker; returns none after a timeout.
pub(crate) async fn claim_jobs(
    committer: &Committer,
    state: &LoadState,
    session: SessionId,
    max: usize,
) -> Result<Vec<Assignment>> {
    let kinds: Vec<Text> = vec![KIND.into()];
    let claim = Claim {
        session,
        request: tenure_store::random::request_id(),
        kinds,
        max,
        tenant: None,
        only: None,
    };
    let timeout = Duration::from_millis(if state.is_open() { 500 } else { 50 });
    match committer.claim(&claim, timeout).await? {
        Outcome::Claimed(jobs) => Ok(jobs),
        other => bail!("a claim returned {other:?}"),
    }
}

async fn finish(
    committer: Committer,
    state: Arc<LoadState>,
    job: Assignment,
    ticket: Ticket,
) -> Result<()> {
    state.finishing(ticket);
    let outcome = committer.submit(finish_command(&job)).await?;
    record_finish(&state, ticket, &outcome)
}

/// Returns the command that finishes a job.
pub(crate) fn finish_command(job: &Assignment) -> Command {
    let finish = Finish::Ok { state: None, result: None };
    let action = JobAction::Finish { token: job.tenure.token, finish, update: None };
    Command::Job { id: job.job.id, action }
}

/// Records the end of a job if the store has finished it.
fn record_finish(state: &LoadState, ticket: Ticket, outcome: &Outcome) -> Result<()> {
    check_finished(outcome)?;
    state.finished(ticket);
    Ok(())
}

/// Fails unless the outcome is a finished job.
pub(crate) fn check_finished(outcome: &Outcome) -> Result<()> {
    let done = matches!(outcome, Outcome::Finished { already: false, .. });
    ensure!(done, "a finish returned {outcome:?}");
    Ok(())
}
