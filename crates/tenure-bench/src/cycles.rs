//! Cycles of jobs: submit, claim, finish. Closed loop: a submitter waits until its job is over.
//!
//! The load watches itself: a resource on which two jobs run at once is an overlap, and one is too
//! many. Submitters and workers find each other through the arguments of the jobs, so nothing but
//! the store is between them. `jobs.rs` is the program; here is the load on a store in this
//! process.

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

use crate::histogram::{Latencies, Spread};
use crate::load::now;
use crate::local::open;

/// The kind of all jobs here.
pub(crate) const KIND: &str = "bench";
/// Their verb.
pub(crate) const WORK: &str = "work";
/// Fewest workers in this process; each takes many jobs at once.
const WORKERS: usize = 4;
/// Most jobs that a worker takes with one claim.
const CLAIM_MAX: usize = 64;

/// The kinds of the benchmark.
pub(crate) fn kinds() -> Result<Arc<Kinds>> {
    Ok(Arc::new(Kinds::new([Kind::new(KIND).operation(Operation::new(WORK))])?))
}

/// Which resources the jobs are for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) resources: usize,
    pub(crate) zipf: bool,
}

impl Shape {
    /// A resource for a random number: all alike, or a few for most of the time.
    pub(crate) fn pick(self, random: u64) -> usize {
        let n = self.resources;
        if !self.zipf {
            return usize::try_from(random % n as u64).unwrap_or(0);
        }
        // The inverse of the distribution function of 1/x, which is Zipf's with exponent one.
        #[expect(clippy::cast_precision_loss, reason = "a random draw")]
        let (u, most) = ((random >> 11) as f64 / (1u64 << 53) as f64, n as f64);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below n")]
        let rank = (most + 1.0).powf(u) as usize;
        rank.clamp(1, n) - 1
    }

    pub(crate) fn words(self) -> String {
        let spread = match (self.resources, self.zipf) {
            (1, _) => "",
            (_, false) => ", uniform",
            (_, true) => ", zipf",
        };
        format!("{} resource(s){spread}", super::table::rate(self.resources as f64))
    }
}

/// What a run measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) cycles: u64,
    /// The same with those that are not counted, of the warm-up and of the end.
    pub(crate) all: u64,
    pub(crate) elapsed: Duration,
    /// From the submit to the moment its worker knows.
    pub(crate) start: Spread,
    /// From a finish to the moment the next worker on the same resource knows.
    pub(crate) hand_off: Spread,
    pub(crate) overlaps: u64,
}

impl Measured {
    pub(crate) fn per_s(&self) -> f64 {
        self.cycles as f64 / self.elapsed.as_secs_f64()
    }
}

/// What submitters and workers share.
pub(crate) struct Floor {
    pub(crate) began: Instant,
    warm: Duration,
    until: Duration,
    cycles: AtomicU64,
    all: AtomicU64,
    overlaps: AtomicU64,
    /// For each resource: whether a job runs on it.
    busy: Vec<AtomicBool>,
    /// For each resource: how many jobs are submitted and not over.
    pending: Vec<AtomicU64>,
    /// For each resource: when a job was finished with others waiting, in nanoseconds, or zero.
    freed: Vec<AtomicU64>,
    /// One for each submitter.
    done: Vec<Semaphore>,
}

impl Floor {
    pub(crate) fn new(shape: Shape, in_flight: usize, budget: Duration) -> Arc<Self> {
        Arc::new(Self {
            began: now(),
            warm: budget / 10,
            until: budget,
            cycles: AtomicU64::new(0),
            all: AtomicU64::new(0),
            overlaps: AtomicU64::new(0),
            busy: (0..shape.resources).map(|_| AtomicBool::new(false)).collect(),
            pending: (0..shape.resources).map(|_| AtomicU64::new(0)).collect(),
            freed: (0..shape.resources).map(|_| AtomicU64::new(0)).collect(),
            done: (0..in_flight).map(|_| Semaphore::new(0)).collect(),
        })
    }

    pub(crate) fn open(&self) -> bool {
        self.began.elapsed() < self.until
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// What a job carries: who waits for it, its resource, when it was submitted.
    pub(crate) fn submit(&self, submitter: usize, resource: usize) -> String {
        self.pending[resource].fetch_add(1, Ordering::SeqCst);
        format!("\"{submitter} {resource} {}\"", self.nanos())
    }

    /// A job was not taken.
    pub(crate) fn refused(&self, resource: usize) {
        self.pending[resource].fetch_sub(1, Ordering::SeqCst);
    }

    /// A worker knows that it has a job.
    pub(crate) fn started(&self, args: &str, times: &mut Times) -> Result<Ticket> {
        let mut words = args.trim_matches('"').split(' ');
        let mut number = || words.next().and_then(|w| w.parse::<u64>().ok()).context("read args");
        let (submitter, resource, sent) = (number()?, number()?, number()?);
        let (submitter, resource) = (usize::try_from(submitter)?, usize::try_from(resource)?);
        if self.busy[resource].swap(true, Ordering::SeqCst) {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        let at = self.nanos();
        let freed = self.freed[resource].swap(0, Ordering::SeqCst);
        if self.began.elapsed() > self.warm {
            times.start.record(Duration::from_nanos(at.saturating_sub(sent)));
            if freed > 0 {
                times.hand_off.record(Duration::from_nanos(at.saturating_sub(freed)));
            }
        }
        Ok(Ticket { submitter, resource })
    }

    /// A worker is about to finish a job.
    pub(crate) fn finishing(&self, ticket: Ticket) {
        let others = self.pending[ticket.resource].fetch_sub(1, Ordering::SeqCst) > 1;
        let freed = if others { self.nanos() } else { 0 };
        self.freed[ticket.resource].store(freed, Ordering::SeqCst);
        self.busy[ticket.resource].store(false, Ordering::SeqCst);
    }

    /// A job is over, as the store says.
    pub(crate) fn finished(&self, ticket: Ticket) {
        self.count();
        self.allow(ticket.submitter, 1);
    }

    /// Counts a job that is over.
    pub(crate) fn count(&self) {
        let at = self.began.elapsed();
        self.all.fetch_add(1, Ordering::Relaxed);
        if at > self.warm && at <= self.until {
            self.cycles.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until the job of a submitter is over.
    pub(crate) async fn wait(&self, submitter: usize) -> Result<()> {
        self.wait_for(submitter, 1).await
    }

    /// Waits until so many jobs of a submitter are over.
    pub(crate) async fn wait_for(&self, submitter: usize, jobs: u32) -> Result<()> {
        let done = self.done[submitter].acquire_many(jobs);
        done.await.context("wait for jobs")?.forget();
        Ok(())
    }

    /// Lets a submitter have so many more jobs under way.
    pub(crate) fn allow(&self, submitter: usize, jobs: usize) {
        self.done[submitter].add_permits(jobs);
    }

    pub(crate) fn measured(&self, times: &Times) -> Measured {
        Measured {
            cycles: self.cycles.load(Ordering::Relaxed),
            all: self.all.load(Ordering::Relaxed),
            elapsed: self.until - self.warm,
            start: times.start.spread(),
            hand_off: times.hand_off.spread(),
            overlaps: self.overlaps.load(Ordering::SeqCst),
        }
    }
}

/// The job that a worker has, as the load knows it.
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

/// Keeps `in_flight` jobs under way on a store in this process for `budget`.
pub(crate) async fn local(
    store: Arc<dyn Store>,
    shape: Shape,
    in_flight: usize,
    budget: Duration,
) -> Result<Measured> {
    across(&[Committer::start(store)], shape, in_flight, budget).await
}

/// The same on several servers: each has as many submitters and workers as the others.
pub(crate) async fn across(
    servers: &[Committer],
    shape: Shape,
    in_flight: usize,
    budget: Duration,
) -> Result<Measured> {
    for server in servers {
        server.store().declare(kinds()?).await?;
    }
    let server = |n: usize| servers[n % servers.len()].clone();
    let floor = Floor::new(shape, in_flight, budget);
    let keys = keys(shape.resources)?;
    let mut submitters = JoinSet::new();
    for submitter in 0..in_flight {
        let (floor, keys) = (Arc::clone(&floor), Arc::clone(&keys));
        submitters.spawn(submit_all(server(submitter), floor, keys, shape, submitter));
    }
    let over = CancellationToken::new();
    let mut workers = JoinSet::new();
    // As many as can have all jobs at work at once.
    let count = in_flight.div_ceil(CLAIM_MAX).max(WORKERS).min(in_flight);
    let slots = in_flight.div_ceil(count).min(CLAIM_MAX);
    for worker in 0..count {
        workers.spawn(work_all(server(worker), Arc::clone(&floor), over.clone(), slots));
    }
    all_over(&floor, submitters, workers, &over).await
}

/// Waits for submitters, and then for the workers.
pub(crate) async fn all_over(
    floor: &Floor,
    mut submitters: JoinSet<Result<()>>,
    mut workers: JoinSet<Result<Times>>,
    over: &CancellationToken,
) -> Result<Measured> {
    let mut times = Times::new()?;
    loop {
        // Both at once: without its worker a submitter would wait for ever.
        tokio::select! {
            Some(done) = submitters.join_next() => done??,
            Some(done) = workers.join_next() => times.merge(&done??)?,
            else => break,
        }
        if submitters.is_empty() {
            over.cancel();
        }
    }
    Ok(floor.measured(&times))
}

pub(crate) fn keys(resources: usize) -> Result<Arc<Vec<ResourceKey>>> {
    let key = |n| ResourceKey::new("bench", KIND, &format!("r{n}"));
    Ok(Arc::new((0..resources).map(key).collect::<Result<_, _>>()?))
}

async fn submit_all(
    committer: Committer,
    floor: Arc<Floor>,
    keys: Arc<Vec<ResourceKey>>,
    shape: Shape,
    submitter: usize,
) -> Result<()> {
    while floor.open() {
        let (resource, command) = submission(&floor, &keys, shape, submitter);
        match committer.submit(command).await? {
            Outcome::Submitted { .. } => floor.wait(submitter).await?,
            // With much in flight a lane fills up now and then: another resource, then.
            Outcome::Refused(Refusal::LaneFull) => floor.refused(resource),
            other => bail!("a submit was answered with {other:?}"),
        }
    }
    Ok(())
}

/// A submit for a resource of the load's choice.
pub(crate) fn submission(
    floor: &Floor,
    keys: &[ResourceKey],
    shape: Shape,
    submitter: usize,
) -> (usize, Command) {
    let request = tenure_store::random::request_id();
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is as random")]
    let resource = shape.pick(request.0 as u64);
    let submit = Submit {
        request,
        operation: WORK.into(),
        args: Some(floor.submit(submitter, resource).into()),
        priority: 0,
        run_at: None,
        by: "bench".into(),
    };
    let action = ResourceAction::Submit(submit);
    (resource, Command::Resource { key: keys[resource].clone(), action })
}

/// Works until no job can come any more.
async fn work_all(
    committer: Committer,
    floor: Arc<Floor>,
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
        // Claims go on after the load has ended, so that nobody is left waiting.
        let jobs = claimed(&committer, &floor, session, slots - running.len()).await?;
        if jobs.is_empty() && over.is_cancelled() && running.is_empty() {
            return Ok(times);
        }
        for job in jobs {
            let ticket = floor.started(job.job.args.as_deref().unwrap_or(""), &mut times)?;
            running.spawn(finish(committer.clone(), Arc::clone(&floor), job, ticket));
        }
    }
}

/// Jobs for a worker; none if none came for a while.
pub(crate) async fn claimed(
    committer: &Committer,
    floor: &Floor,
    session: SessionId,
    max: usize,
) -> Result<Vec<Assignment>> {
    let kinds: Vec<Text> = vec![KIND.into()];
    let claim = Claim { session, request: tenure_store::random::request_id(), kinds, max };
    let patience = Duration::from_millis(if floor.open() { 500 } else { 50 });
    match committer.claim(&claim, patience).await? {
        Outcome::Claimed(jobs) => Ok(jobs),
        other => bail!("a claim was answered with {other:?}"),
    }
}

async fn finish(
    committer: Committer,
    floor: Arc<Floor>,
    job: Assignment,
    ticket: Ticket,
) -> Result<()> {
    floor.finishing(ticket);
    let outcome = committer.submit(done(&job)).await?;
    over(&floor, ticket, &outcome)
}

/// That a job is done.
pub(crate) fn done(job: &Assignment) -> Command {
    let finish = Finish::Ok { state: None, result: None };
    let action = JobAction::Finish { token: job.tenure.token, finish };
    Command::Job { id: job.job.id, action }
}

/// Notes that a job is over, as the store says.
pub(crate) fn over(floor: &Floor, ticket: Ticket, outcome: &Outcome) -> Result<()> {
    check_over(outcome)?;
    floor.finished(ticket);
    Ok(())
}

/// Whether the store says that a job is over.
pub(crate) fn check_over(outcome: &Outcome) -> Result<()> {
    let done = matches!(outcome, Outcome::Finished { already: false, .. });
    ensure!(done, "a finish was answered with {outcome:?}");
    Ok(())
}
