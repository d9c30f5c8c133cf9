//! A world with jobs, and the checks of each step.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tenure_core::engine::process_due;
use tenure_core::history::{Event, SealedEntry};
use tenure_core::job::AttemptOutcome;
use tenure_core::kind::Backoff;
use tenure_core::{
    Changes, Claim, Command, Job, JobAction, JobId, JobState, Kind, Kinds, Millis, Outcome, Record,
    RequestId, ResourceKey, SessionId, Token, World, invariants, limits, step,
};

use crate::kinds::kinds;
use crate::template::{TENANTS, Template};

pub(crate) type Checked = Result<(), TestCaseError>;

/// A world, its history, and the fate of its jobs.
pub(crate) struct Run {
    pub(crate) world: World,
    pub(crate) now: Millis,
    keys: Vec<ResourceKey>,
    /// All jobs, in submit order.
    jobs: Vec<JobId>,
    /// Final states of the finished jobs.
    finished: HashMap<JobId, JobState>,
    /// Finished jobs, as a store would keep them.
    past: HashMap<JobId, (ResourceKey, Box<Job>)>,
    pub(crate) lines: Vec<(ResourceKey, SealedEntry)>,
    /// Requests that created a job, per resource, and when; cleared when the resource is deleted.
    created: HashMap<(ResourceKey, u128), Millis>,
    /// Step in which each claim took jobs.
    claims: HashMap<RequestId, usize>,
    steps: usize,
    /// Last token of each resource, also of forgotten ones.
    pub(crate) last_tokens: HashMap<ResourceKey, Token>,
}

impl Run {
    pub(crate) fn new(keys: Vec<ResourceKey>) -> Self {
        let mut world = World::default();
        let now = Millis(1_000_000);
        world.declare(kinds(), now);
        let (jobs, lines) = (Vec::new(), Vec::new());
        let (finished, past) = (HashMap::new(), HashMap::new());
        let (created, claims, steps) = (HashMap::new(), HashMap::new(), 0);
        let last_tokens = HashMap::new();
        let mut run = Self {
            world,
            now,
            keys,
            jobs,
            finished,
            past,
            lines,
            created,
            claims,
            steps,
            last_tokens,
        };
        for session in 0..TENANTS.len() {
            run.step(&run.command(&Template::Open(session))).expect("a session is opened");
        }
        run
    }

    pub(crate) fn key(&self, at: usize) -> ResourceKey {
        self.keys[at % self.keys.len()].clone()
    }

    pub(crate) fn keys(&self) -> Vec<ResourceKey> {
        self.keys.clone()
    }

    pub(crate) fn kinds(&self) -> &Kinds {
        &self.world.kinds
    }

    pub(crate) fn kind(&self, key: &ResourceKey) -> &Kind {
        self.world.kinds.get(key.kind()).expect("all kinds are declared")
    }

    /// Returns one of the latest jobs, or an unknown one.
    pub(crate) fn job(&self, pick: usize) -> JobId {
        self.jobs.iter().rev().nth(pick % 4).copied().unwrap_or(JobId(pick as u128))
    }

    /// Returns the token of a job's running attempt, or another one.
    pub(crate) fn token(&self, pick: usize, token: Option<u64>) -> Token {
        let id = self.job(pick);
        let key = self.world.job_index.get(&id);
        let job = key.and_then(|key| self.world.records.get(key)?.job(id));
        token.map(Token).or_else(|| job?.token()).unwrap_or(Token(1))
    }

    /// Repeats a command that must change nothing.
    pub(crate) fn repeat(&self, command: &Command) -> Result<Outcome, TestCaseError> {
        let mut world = self.world.clone();
        self.load_finished(&mut world, command);
        let outcome = step(&mut world, command, self.now);
        prop_assert_eq!(&world.records, &self.world.records, "{:?}", command);
        prop_assert_eq!(world.take_changes(), Changes::default(), "{:?}", command);
        Ok(outcome)
    }

    /// A store loads the finished jobs that a command names.
    fn load_finished(&self, world: &mut World, command: &Command) {
        if let Some(id) = command.job().filter(|id| !world.job_index.contains_key(id))
            && let Some(past) = self.past.get(&id)
        {
            world.finished_jobs.insert(id, past.clone());
        }
    }

    /// Runs one step and checks it.
    pub(crate) fn step(&mut self, command: &Command) -> Result<Outcome, TestCaseError> {
        let mut world = std::mem::take(&mut self.world);
        self.load_finished(&mut world, command);
        self.world = world;
        let before = self.world.clone();
        let outcome = step(&mut self.world, command, self.now);
        self.world.finished_jobs.clear();
        let changes = self.world.take_changes();
        self.check_starts(&before, &changes)?;
        self.check_ends(&changes)?;
        self.check_events(&before, &changes)?;
        self.check_redriven(command, &outcome)?;
        self.check_snapshot(&outcome)?;
        self.check_put(command, &outcome)?;
        self.check_unlogged(&before, &changes)?;
        self.check_resources(&before, command, &outcome, &changes)?;
        for (key, _) in &changes.forgotten {
            self.lines.retain(|(of, _)| of != key);
            self.past.retain(|_, (of, _)| of != key);
        }
        self.lines.extend(self.world.seal(changes.events));
        self.check_records(&before)?;
        if let Command::Claim(claim) = command {
            self.check_claim(claim, &outcome)?;
        }
        Ok(outcome)
    }

    /// The outcome of a submit contains the job as it is in the record, if it is there.
    fn check_snapshot(&self, outcome: &Outcome) -> Checked {
        let Outcome::Submitted { job, snapshot, .. } = outcome else { return Ok(()) };
        let record = self.world.job_index.get(job).and_then(|key| self.world.records.get(key));
        prop_assert_eq!(snapshot.as_deref(), record.and_then(|record| record.job(*job)));
        Ok(())
    }

    /// The outcome of a put contains the resource as it is in the record.
    fn check_put(&self, command: &Command, outcome: &Outcome) -> Checked {
        let Outcome::Put { generation, snapshot, .. } = outcome else { return Ok(()) };
        let record = command.key().and_then(|key| self.world.records.get(key));
        let resource = record.and_then(|record| record.resource.as_ref());
        prop_assert_eq!(snapshot.as_ref(), resource);
        prop_assert_eq!(snapshot.as_ref().map(|put| put.generation), Some(*generation));
        Ok(())
    }

    /// A dead job that was submitted again is marked as redriven.
    fn check_redriven(&self, command: &Command, outcome: &Outcome) -> Checked {
        let Command::Job { id, action: JobAction::Retry { .. } } = command else { return Ok(()) };
        if let Outcome::Submitted { job, .. } = outcome
            && job != id
        {
            prop_assert_ne!(self.finished.get(id), Some(&JobState::Dead), "job {} stays dead", id);
        }
        Ok(())
    }

    /// Each attempt is counted once, allowed by state and retry rule, and within the caps.
    fn check_starts(&mut self, before: &World, changes: &Changes) -> Checked {
        let mut attempts: HashMap<JobId, u32> = HashMap::new();
        for (key, _, event) in &changes.events {
            if let Event::Submitted { job, .. } = event {
                prop_assert!(!self.jobs.contains(&job.id), "job {} is made twice", job.id);
                let first = self.created.insert((key.clone(), job.request.0), self.now);
                let long_ago = |at: Millis| self.now.since(at) > limits::RECENT_TTL_MS;
                prop_assert!(
                    first.is_none_or(long_ago),
                    "request {} makes a second job",
                    job.request
                );
                self.jobs.push(job.id);
                attempts.insert(job.id, 0);
            }
            if let Event::Deleted { .. } = event {
                self.created.retain(|(of, _), _| of != key);
            }
            let Event::Granted { job: Some(started), .. } = event else { continue };
            let job = before.records.get(key).and_then(|record| record.job(started.id));
            let counted = attempts.get(&started.id).copied().or(job.map(|job| job.attempt));
            prop_assert_eq!(Some(started.attempt), counted.map(|n| n + 1), "of job {}", started.id);
            attempts.insert(started.id, started.attempt);
        }
        for kind in self.kinds().iter() {
            self.check_caps(kind)?;
        }
        Ok(())
    }

    fn check_caps(&self, kind: &Kind) -> Checked {
        let mut running: HashMap<&str, usize> = HashMap::new();
        for (key, record) in &self.world.records {
            if *key.kind() == *kind.name {
                let jobs = record.lane().iter().filter(|job| job.state.is_running()).count();
                *running.entry(key.tenant()).or_default() += jobs;
            }
        }
        let (all, most) = (running.values().sum(), running.values().max().copied().unwrap_or(0));
        prop_assert!(kind.running_max.is_none_or(|max| max >= all), "{all} {} run", kind.name);
        let tenant_max = kind.tenant_running_max;
        prop_assert!(tenant_max.is_none_or(|max| max >= most), "{most} {} run", kind.name);
        for (tenant, jobs) in running {
            let known = self.world.ready.running_counts(&kind.name, tenant);
            prop_assert_eq!((all, jobs), known, "the index counts wrong for {}", tenant);
        }
        Ok(())
    }

    /// A job finishes once; afterwards it may only be marked as resolved.
    fn check_ends(&mut self, changes: &Changes) -> Checked {
        for (key, job) in &changes.finished {
            let was = self.finished.insert(job.id, job.state);
            let fits = match job.state {
                JobState::Redriven | JobState::Discarded => was == Some(JobState::Dead),
                state => state.is_finished() && was.is_none(),
            };
            prop_assert!(fits, "job {} was {was:?} and is {:?}", job.id, job.state);
            prop_assert!(job.ended_at.is_some(), "job {} has no end", job.id);
            prop_assert!(!self.world.job_index.contains_key(&job.id));
            let cancelled = job.cancel.is_some() == (job.state == JobState::Cancelled);
            let by_worker = job.state == JobState::Cancelled && job.cancel.is_none();
            prop_assert!(cancelled || by_worker, "a cancel was overwritten: {job:?}");
            self.past.insert(job.id, (key.clone(), job.clone()));
        }
        Ok(())
    }

    /// A submit attaches only to a job that can still finish, a claim takes jobs once, and a
    /// successful reconciliation leaves no change behind.
    fn check_events(&mut self, before: &World, changes: &Changes) -> Checked {
        self.steps += 1;
        // Jobs that had finished, or were asked to stop, before the event at hand.
        let lanes = before.records.values().flat_map(|record| record.lane());
        let cancelling = lanes.filter(|job| job.state == JobState::Cancelling).map(|job| job.id);
        let mut stopping: HashSet<JobId> = cancelling.collect();
        stopping.extend(self.past.keys().filter(|id| !Self::ends_now(**id, changes)));
        for (key, _, event) in &changes.events {
            let record = &self.world.records[key];
            match event {
                Event::Cancelled { id, .. } | Event::Superseded { id, .. } => {
                    stopping.insert(*id);
                }
                Event::Attached { id, .. } => {
                    prop_assert!(!stopping.contains(id), "attached to job {id}, which stops");
                }
                Event::Granted { job: Some(started), request, .. } => {
                    let first = *self.claims.entry(*request).or_insert(self.steps);
                    prop_assert_eq!(first, self.steps, "claim {} took jobs twice", request);
                    self.check_start(key, record, started.id)?;
                    self.check_order(key, record, started.id)?;
                }
                Event::Ended { job: Some(completed), token, .. } => {
                    if completed.job_state.is_finished() {
                        stopping.insert(completed.id);
                    }
                    let given_back = completed.outcome == AttemptOutcome::HandedBack;
                    let tenures = before.records.get(key).map_or(&[][..], |r| &r.tenures);
                    let tenure = tenures.iter().find(|t| given_back && t.token == *token);
                    // A claim whose job was handed back may take another.
                    tenure.map(|tenure| self.claims.remove(&tenure.request));
                    let seen = before.records.get(key).and_then(|r| r.job(completed.id));
                    let seen = seen.map(|job| job.generation);
                    prop_assert!(
                        completed.observed.is_none() || completed.observed == seen,
                        "{completed:?}"
                    );
                    if completed.job_state == JobState::Succeeded {
                        self.check_reconciled(key, record)?;
                    }
                }
                Event::Specified { .. } => self.check_reconciled(key, record)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn ends_now(id: JobId, changes: &Changes) -> bool {
        let ends = |job: &Job| {
            job.id == id && !matches!(job.state, JobState::Redriven | JobState::Discarded)
        };
        changes.finished.iter().any(|(_, job)| ends(job))
    }

    fn check_start(&self, key: &ResourceKey, record: &Record, started: JobId) -> Checked {
        let (Some(resource), Some(job)) = (&record.resource, record.job(started)) else {
            return Ok(());
        };
        let operation = &self.kind(key).operations[&job.operation];
        prop_assert!(resource.paused.is_none(), "job {started} started on {key}, which is paused");
        let before = job.state_before.as_deref().unwrap_or("");
        prop_assert!(operation.allows(before), "job {started} started from {before}");
        prop_assert_eq!(job.generation, resource.generation, "job {} saw another", started);
        Ok(())
    }

    /// A claim takes as many jobs as it asked for if they could start, except for caps.
    fn check_claim(&mut self, claim: &Claim, outcome: &Outcome) -> Checked {
        let Outcome::Claimed(jobs) = outcome else { return Ok(()) };
        // A repeated claim returns what it has and takes no more.
        let before = self.claims.get(&claim.request).is_some_and(|step| *step < self.steps);
        let repeated = before || !jobs.is_empty() && !self.claims.contains_key(&claim.request);
        if repeated {
            self.claims.entry(claim.request).or_insert(self.steps);
        }
        if jobs.len() >= claim.max || repeated {
            return Ok(());
        }
        let tenant = &self.world.sessions.get(claim.session).expect("it has claimed").tenant;
        for (key, record) in &self.world.records {
            let kind = self.kind(key);
            let in_scope = claim.covers(key) && (**tenant == *"*" || **tenant == *key.tenant());
            prop_assert!(
                !self.could_start(kind, record) || !in_scope || is_capped(kind),
                "a job of {key} could start, and a claim got less"
            );
        }
        Ok(())
    }

    /// Returns `true` if a job of the lane could start; stated declaratively instead of scanning
    /// the lane.
    fn could_start(&self, kind: &Kind, record: &Record) -> bool {
        let Some(resource) = record.resource.as_ref().filter(|it| it.paused.is_none()) else {
            return false;
        };
        let waiting: Vec<_> = record.lane().iter().filter(|job| !job.state.is_running()).collect();
        let operation = |job: &Job| &kind.operations[&job.operation];
        let may = |job: &Job| job.due <= self.now && operation(job).allows(&resource.state);
        let in_backoff = |job: &Job| job.state == JobState::Backoff && job.due > self.now;
        let holds = |job: &Job| in_backoff(job) && kind.backoff == Backoff::Hold;
        let reserves = |job: &Job| may(job) || in_backoff(job) && kind.backoff == Backoff::Reserve;
        let share = |a: &Job, b: &Job| {
            operation(a).locks.iter().any(|lock| operation(b).locks.contains(lock))
        };
        waiting.iter().enumerate().any(|(at, job)| {
            let in_the_way = |other: &Job| holds(other) || reserves(other) && share(other, job);
            may(job)
                && record.is_grantable(&operation(job).locks)
                && !waiting[..at].iter().any(|other| in_the_way(other))
        })
    }

    /// A started job had no startable job ahead of it that needed one of its locks, and none in
    /// backoff that holds the lane.
    fn check_order(&self, key: &ResourceKey, record: &Record, started: JobId) -> Checked {
        let kind = self.kind(key);
        let Some(job) = record.job(started) else { return Ok(()) };
        let (locks, state) = (&kind.operations[&job.operation].locks, job.state_before.as_deref());
        let ahead = record.lane().iter().take_while(|other| other.id != started);
        for other in ahead.filter(|other| !other.state.is_running()) {
            let operation = &kind.operations[&other.operation];
            let conflicts = operation.locks.iter().any(|lock| locks.contains(lock));
            let could = other.due <= self.now && operation.allows(state.unwrap_or(""));
            prop_assert!(!conflicts || !could, "job {started} overtook job {}", other.id);
            let in_backoff = other.state == JobState::Backoff && other.due > self.now;
            let holds = in_backoff
                && match kind.backoff {
                    Backoff::Hold => true,
                    Backoff::Reserve => conflicts,
                    Backoff::Pass => false,
                };
            prop_assert!(!holds, "job {started} overtook job {}, which is in backoff", other.id);
        }
        Ok(())
    }

    fn check_reconciled(&self, key: &ResourceKey, record: &Record) -> Checked {
        let (Some(resource), Some(name)) = (&record.resource, &self.kind(key).reconcile) else {
            return Ok(());
        };
        let sees = |job: &Job| !job.state.is_running() || job.generation == resource.generation;
        let coming = resource.lane.iter().any(|job| job.operation == *name && sees(job));
        let done = resource.observed == resource.generation;
        prop_assert!(done || coming, "the change of {key} is lost: {resource:?}");
        Ok(())
    }

    fn check_records(&self, before: &World) -> Checked {
        invariants::check_all(&self.world).map_err(TestCaseError::fail)?;
        for (key, record) in &self.world.records {
            let new = || before.floors.new_record(key);
            let old = before.records.get(key).cloned().unwrap_or_else(new);
            invariants::check_forward(key, &old, record).map_err(TestCaseError::fail)?;
            self.check_state(key, record)?;
        }
        let lanes = self.world.records.values().map(|record| record.lane().len());
        prop_assert_eq!(lanes.sum::<usize>(), self.world.job_index.len());
        let lost = self
            .jobs
            .iter()
            .find(|id| !self.world.job_index.contains_key(id) && !self.finished.contains_key(id));
        prop_assert!(lost.is_none(), "job {lost:?} is neither in a lane nor finished");
        Ok(())
    }

    /// A resource is in a `during` state if and only if the operation of that state runs.
    fn check_state(&self, key: &ResourceKey, record: &Record) -> Checked {
        let (Some(resource), kind) = (&record.resource, self.kind(key)) else { return Ok(()) };
        prop_assert!(kind.states.contains(&resource.state), "{key} is {}", resource.state);
        let during = |job: &&Job| {
            let operation = kind.operations.get(&job.operation);
            operation.and_then(|operation| operation.during.as_ref()) == Some(&resource.state)
        };
        let transient =
            kind.operations.values().any(|o| o.during.as_ref() == Some(&resource.state));
        let lane = resource.lane.iter().map(|job| &**job);
        let running = lane.filter(|job| job.state.is_running());
        let fits = running.filter(during).count() == usize::from(transient);
        prop_assert!(fits, "{key} is {} and its lane {:?}", resource.state, resource.lane);
        prop_assert!(resource.observed <= resource.generation, "{key} has seen the future");
        Ok(())
    }

    /// The incrementally updated index equals one built from the records.
    pub(crate) fn check_index(&self) -> Checked {
        let mut world = self.world.clone();
        process_due(&mut world, self.now);
        let mut fresh = World { kinds: world.kinds.clone(), ..World::default() };
        for (key, record) in &world.records {
            fresh.insert_record(key, record.clone(), self.now);
        }
        prop_assert_eq!(&world.job_index, &fresh.job_index);
        prop_assert_eq!(&world.session_index, &fresh.session_index);
        prop_assert_eq!(world.ready.next_due(), fresh.ready.next_due());
        fresh.sessions = world.sessions.clone();
        for kind in self.kinds().iter() {
            let of = |world: &World| world.ready.ready_count(&kind.name);
            prop_assert_eq!(of(&world), of(&fresh), "ready resources of {}", kind.name);
            for key in self.keys.iter().filter(|key| *key.kind() == *kind.name) {
                let counts = |world: &World| {
                    world.ready.group_counts(key.tenant(), key.kind(), key.group().unwrap_or(""))
                };
                prop_assert_eq!(counts(&world), counts(&fresh), "of the group of {}", key);
            }
            let (ours, theirs) = (self.claim_all(&world, kind), self.claim_all(&fresh, kind));
            prop_assert_eq!(ours.len(), theirs.len(), "of {}", kind.name);
            // Under a cap the result depends on the last served tenant, which only the index knows.
            prop_assert!(is_capped(kind) || ours == theirs, "{ours:?} {theirs:?}");
        }
        Ok(())
    }

    /// Returns the jobs that a worker for all tenants gets when it claims as many as possible.
    pub(crate) fn claim_all(&self, world: &World, kind: &Kind) -> HashSet<JobId> {
        let mut world = world.clone();
        let session = SessionId(99);
        let (tenant, name) = ("*".into(), "all".into());
        step(&mut world, &Command::Open { session, tenant, name, ttl_ms: 60_000 }, self.now);
        let (request, kinds) = (RequestId(99), vec![kind.name.clone()]);
        let claim =
            Claim { session, request, kinds, max: limits::CLAIM_MAX, tenant: None, only: None };
        match step(&mut world, &Command::Claim(claim), self.now) {
            Outcome::Claimed(jobs) => jobs.iter().map(|assignment| assignment.job.id).collect(),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns `true` if something other than the resource itself may keep a job from starting.
pub(crate) fn is_capped(kind: &Kind) -> bool {
    kind.running_max.is_some() || kind.tenant_running_max.is_some()
}
