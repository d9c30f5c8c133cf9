//! A world with jobs, and every question about one step of it.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tenure_core::engine::wake;
use tenure_core::history::{Entry, Event, Sealed};
use tenure_core::job::AttemptOutcome;
use tenure_core::kind::Backoff;
use tenure_core::verify::Verifier;
use tenure_core::{
    Changes, Claim, Command, Job, JobAction, JobId, JobState, Kind, Kinds, Millis, Outcome, Record,
    RequestId, ResourceKey, SessionId, Token, World, invariants, limits, step,
};

use crate::kinds::kinds;
use crate::wish::{TENANTS, Wish};

type Asked = Result<(), TestCaseError>;

/// A world, its history, and what became of its jobs.
pub(crate) struct Run {
    pub(crate) world: World,
    pub(crate) now: Millis,
    keys: Vec<ResourceKey>,
    /// Every job that ever was, in the order of their submits.
    jobs: Vec<JobId>,
    /// The jobs that are over, and how.
    over: HashMap<JobId, JobState>,
    /// What a store would keep of them.
    past: HashMap<JobId, (ResourceKey, Box<Job>)>,
    lines: Vec<(ResourceKey, Sealed)>,
    /// The requests that made a job, for each resource; a resource that is deleted forgets.
    made: HashSet<(ResourceKey, u128)>,
    /// The step in which each claim took jobs.
    claims: HashMap<RequestId, usize>,
    steps: usize,
}

impl Run {
    pub(crate) fn new(keys: Vec<ResourceKey>) -> Self {
        let mut world = World::default();
        let now = Millis(1_000_000);
        world.declare(kinds(), now);
        let (jobs, lines) = (Vec::new(), Vec::new());
        let (over, past) = (HashMap::new(), HashMap::new());
        let (made, claims, steps) = (HashSet::new(), HashMap::new(), 0);
        let mut run = Self { world, now, keys, jobs, over, past, lines, made, claims, steps };
        for session in 0..TENANTS.len() {
            run.step(&run.command(&Wish::Open(session))).expect("a session is opened");
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

    /// One of the latest jobs, or one that never was.
    pub(crate) fn job(&self, pick: usize) -> JobId {
        self.jobs.iter().rev().nth(pick % 4).copied().unwrap_or(JobId(pick as u128))
    }

    /// The token that a job runs with, or another one.
    pub(crate) fn token(&self, pick: usize, token: Option<u64>) -> Token {
        let id = self.job(pick);
        let key = self.world.whereabouts.get(&id);
        let job = key.and_then(|key| self.world.records.get(key)?.job(id));
        token.map(Token).or_else(|| job?.token()).unwrap_or(Token(1))
    }

    /// One step, with every question about it.
    pub(crate) fn step(&mut self, command: &Command) -> Result<Outcome, TestCaseError> {
        // A store brings the jobs that are over and that a command names.
        if let Some(id) = command.job().filter(|id| !self.world.whereabouts.contains_key(id))
            && let Some(past) = self.past.get(&id)
        {
            self.world.past.insert(id, past.clone());
        }
        let before = self.world.clone();
        let outcome = step(&mut self.world, command, self.now);
        self.world.past.clear();
        let changes = self.world.take_changes();
        self.starts_are_good(&before, &changes)?;
        self.ends_are_good(&changes)?;
        self.events_are_good(&before, &changes)?;
        self.redriven_is_marked(command, &outcome)?;
        self.changes_are_told(&before, &changes)?;
        self.lines.extend(self.world.seal(changes.events));
        self.records_are_good(&before)?;
        if let Command::Claim(claim) = command {
            self.claim_is_filled(claim, &outcome)?;
        }
        Ok(outcome)
    }

    /// A dead job that was made into another says so.
    fn redriven_is_marked(&self, command: &Command, outcome: &Outcome) -> Asked {
        let Command::Job { id, action: JobAction::Retry { .. } } = command else { return Ok(()) };
        if let Outcome::Submitted { job, .. } = outcome
            && job != id
        {
            prop_assert_ne!(self.over.get(id), Some(&JobState::Dead), "job {} stays dead", id);
        }
        Ok(())
    }

    /// A store that keeps history need not write a record whose change the events tell: any other
    /// change is noted.
    fn changes_are_told(&self, before: &World, changes: &Changes) -> Asked {
        for (key, record) in &self.world.records {
            let new = || Box::new(Record::new(key));
            let mut told = before.records.get(key).cloned().unwrap_or_else(new);
            for (of, at, event) in &changes.events {
                if of == key {
                    prop_assert!(changes.records.contains(key), "{key} changed and nobody knows");
                    told.apply(event, *at);
                }
            }
            let same = timeless(&told) == timeless(record);
            prop_assert!(same || changes.untold.contains(key), "an untold change of {key}");
        }
        Ok(())
    }

    /// Every attempt is counted once, allowed by state and rule, and within the caps.
    fn starts_are_good(&mut self, before: &World, changes: &Changes) -> Asked {
        let mut attempts: HashMap<JobId, u32> = HashMap::new();
        for (key, _, event) in &changes.events {
            if let Event::Submitted { job, .. } = event {
                prop_assert!(!self.jobs.contains(&job.id), "job {} is made twice", job.id);
                let first = self.made.insert((key.clone(), job.request.0));
                prop_assert!(first, "request {} makes a second job", job.request);
                self.jobs.push(job.id);
                attempts.insert(job.id, 0);
            }
            if let Event::Deleted { .. } = event {
                self.made.retain(|(of, _)| of != key);
            }
            let Event::Granted { job: Some(begun), .. } = event else { continue };
            let job = before.records.get(key).and_then(|record| record.job(begun.id));
            let counted = attempts.get(&begun.id).copied().or(job.map(|job| job.attempt));
            prop_assert_eq!(Some(begun.attempt), counted.map(|n| n + 1), "of job {}", begun.id);
            attempts.insert(begun.id, begun.attempt);
        }
        for kind in self.kinds().iter() {
            self.caps_hold(kind)?;
        }
        Ok(())
    }

    fn caps_hold(&self, kind: &Kind) -> Asked {
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
            let known = self.world.ready.running(&kind.name, tenant);
            prop_assert_eq!((all, jobs), known, "the index counts wrong for {}", tenant);
        }
        Ok(())
    }

    /// A job ends once; later it may only be marked as dealt with.
    fn ends_are_good(&mut self, changes: &Changes) -> Asked {
        for (key, job) in &changes.finished {
            let was = self.over.insert(job.id, job.state);
            let fits = match job.state {
                JobState::Redriven | JobState::Discarded => was == Some(JobState::Dead),
                state => state.is_over() && was.is_none(),
            };
            prop_assert!(fits, "job {} was {was:?} and is {:?}", job.id, job.state);
            prop_assert!(job.ended_at.is_some(), "job {} has no end", job.id);
            prop_assert!(!self.world.whereabouts.contains_key(&job.id));
            let cancelled = job.cancel.is_some() == (job.state == JobState::Cancelled);
            let by_worker = job.state == JobState::Cancelled && job.cancel.is_none();
            prop_assert!(cancelled || by_worker, "a cancel was overwritten: {job:?}");
            self.past.insert(job.id, (key.clone(), job.clone()));
        }
        Ok(())
    }

    /// Whoever joins a job joins one that can still finish, a claim takes jobs once, and a
    /// reconciler that succeeded leaves no change undone.
    fn events_are_good(&mut self, before: &World, changes: &Changes) -> Asked {
        self.steps += 1;
        for (key, _, event) in &changes.events {
            let record = &self.world.records[key];
            match event {
                Event::Attached { id, .. } => {
                    let state = record.job(*id).map(|job| job.state);
                    let alive = state.is_some_and(|state| state != JobState::Cancelling);
                    prop_assert!(alive, "attached to job {id}, which is {state:?}");
                }
                Event::Granted { job: Some(begun), request, .. } => {
                    let first = *self.claims.entry(*request).or_insert(self.steps);
                    prop_assert_eq!(first, self.steps, "claim {} took jobs twice", request);
                    self.start_is_allowed(key, record, begun.id)?;
                    self.nobody_overtaken(key, record, begun.id)?;
                }
                Event::Ended { job: Some(ran), token, .. } => {
                    let given_back = ran.outcome == AttemptOutcome::HandedBack;
                    let tenures = before.records.get(key).map_or(&[][..], |r| &r.tenures);
                    let tenure = tenures.iter().find(|t| given_back && t.token == *token);
                    // A claim whose job was given back may have another.
                    tenure.map(|tenure| self.claims.remove(&tenure.request));
                    let seen = before.records.get(key).and_then(|r| r.job(ran.id));
                    let seen = seen.map(|job| job.generation);
                    prop_assert!(ran.observed.is_none() || ran.observed == seen, "{ran:?}");
                    if ran.then == JobState::Succeeded {
                        self.nothing_undone(key, record)?;
                    }
                }
                Event::Specified { .. } => self.nothing_undone(key, record)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn start_is_allowed(&self, key: &ResourceKey, record: &Record, started: JobId) -> Asked {
        let (Some(resource), Some(job)) = (&record.resource, record.job(started)) else {
            return Ok(());
        };
        let operation = &self.kind(key).operations[&job.operation];
        prop_assert!(resource.paused.is_none(), "job {started} started on {key}, which is paused");
        let before = job.before.as_deref().unwrap_or("");
        prop_assert!(operation.allows(before), "job {started} started from {before}");
        prop_assert_eq!(job.generation, resource.generation, "job {} saw another", started);
        Ok(())
    }

    /// A claim that could have had more has as many as it wanted, but for caps.
    fn claim_is_filled(&mut self, claim: &Claim, outcome: &Outcome) -> Asked {
        let Outcome::Claimed(jobs) = outcome else { return Ok(()) };
        // One that is repeated has what it had before, and takes no more.
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
            let mine = **tenant == *"*" || **tenant == *key.tenant();
            prop_assert!(
                !self.could_start(kind, record) || !mine || is_capped(kind),
                "a job of {key} could start, and a claim got less"
            );
        }
        Ok(())
    }

    /// Whether a job of the lane could start, said as a rule and not as a walk along the lane.
    fn could_start(&self, kind: &Kind, record: &Record) -> bool {
        let Some(resource) = record.resource.as_ref().filter(|it| it.paused.is_none()) else {
            return false;
        };
        let waiting: Vec<_> = record.lane().iter().filter(|job| !job.state.is_running()).collect();
        let operation = |job: &Job| &kind.operations[&job.operation];
        let may = |job: &Job| job.due <= self.now && operation(job).allows(&resource.state);
        let holds = |job: &Job| {
            let rests = job.state == JobState::Backoff && job.due > self.now;
            rests && kind.backoff == Backoff::Hold
        };
        let share = |a: &Job, b: &Job| {
            operation(a).locks.iter().any(|lock| operation(b).locks.contains(lock))
        };
        waiting.iter().enumerate().any(|(at, job)| {
            let in_the_way = |other: &Job| holds(other) || may(other) && share(other, job);
            may(job)
                && record.obtainable(&operation(job).locks)
                && !waiting[..at].iter().any(|other| in_the_way(other))
        })
    }

    /// Who started had nobody ahead who wanted one of its locks and could have had it, nor one who
    /// rests and holds the lane.
    fn nobody_overtaken(&self, key: &ResourceKey, record: &Record, started: JobId) -> Asked {
        let kind = self.kind(key);
        let Some(job) = record.job(started) else { return Ok(()) };
        let (mine, state) = (&kind.operations[&job.operation].locks, job.before.as_deref());
        let ahead = record.lane().iter().take_while(|other| other.id != started);
        for other in ahead.filter(|other| !other.state.is_running()) {
            let operation = &kind.operations[&other.operation];
            let wants = operation.locks.iter().any(|lock| mine.contains(lock));
            let could = other.due <= self.now && operation.allows(state.unwrap_or(""));
            prop_assert!(!wants || !could, "job {started} overtook job {}", other.id);
            let rests = other.state == JobState::Backoff && other.due > self.now;
            let holds = rests && kind.backoff == Backoff::Hold;
            prop_assert!(!holds, "job {started} overtook job {}, which rests", other.id);
        }
        Ok(())
    }

    fn nothing_undone(&self, key: &ResourceKey, record: &Record) -> Asked {
        let (Some(resource), Some(name)) = (&record.resource, &self.kind(key).reconcile) else {
            return Ok(());
        };
        let sees = |job: &Job| !job.state.is_running() || job.generation == resource.generation;
        let coming = resource.lane.iter().any(|job| job.operation == *name && sees(job));
        let done = resource.observed == resource.generation;
        prop_assert!(done || coming, "the change of {key} is lost: {resource:?}");
        Ok(())
    }

    fn records_are_good(&self, before: &World) -> Asked {
        invariants::all(&self.world).map_err(TestCaseError::fail)?;
        for (key, record) in &self.world.records {
            let new = || Box::new(Record::new(key));
            let old = before.records.get(key).cloned().unwrap_or_else(new);
            invariants::forward(key, &old, record).map_err(TestCaseError::fail)?;
            self.state_is_good(key, record)?;
        }
        let lanes = self.world.records.values().map(|record| record.lane().len());
        prop_assert_eq!(lanes.sum::<usize>(), self.world.whereabouts.len());
        let lost = self
            .jobs
            .iter()
            .find(|id| !self.world.whereabouts.contains_key(id) && !self.over.contains_key(id));
        prop_assert!(lost.is_none(), "job {lost:?} is neither waiting nor over");
        Ok(())
    }

    /// A resource is in a state on the way if and only if the operation of it runs; a reconciler
    /// that succeeded leaves nothing undone.
    fn state_is_good(&self, key: &ResourceKey, record: &Record) -> Asked {
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

    /// What a claim could pick is what an index made from the records alone says.
    pub(crate) fn index_is_good(&self) -> Asked {
        let mut world = self.world.clone();
        wake(&mut world, self.now);
        let mut fresh = World { kinds: world.kinds.clone(), ..World::default() };
        for (key, record) in &world.records {
            fresh.admit(key, record.clone(), self.now);
        }
        prop_assert_eq!(&world.whereabouts, &fresh.whereabouts);
        prop_assert_eq!(&world.bonds, &fresh.bonds);
        prop_assert_eq!(world.ready.next_due(), fresh.ready.next_due());
        fresh.sessions = world.sessions.clone();
        for kind in self.kinds().iter() {
            let of = |world: &World| world.ready.ready(&kind.name);
            prop_assert_eq!(of(&world), of(&fresh), "ready resources of {}", kind.name);
            let (ours, theirs) = (self.takes(&world, kind), self.takes(&fresh, kind));
            prop_assert_eq!(ours.len(), theirs.len(), "of {}", kind.name);
            // Under a cap it matters which tenant was served last, which only the index knows.
            prop_assert!(is_capped(kind) || ours == theirs, "{ours:?} {theirs:?}");
        }
        Ok(())
    }

    /// The jobs that a worker for all tenants gets when it asks for all there are.
    fn takes(&self, world: &World, kind: &Kind) -> HashSet<JobId> {
        let mut world = world.clone();
        let session = SessionId(99);
        let (tenant, name) = ("*".into(), "all".into());
        step(&mut world, &Command::Open { session, tenant, name, ttl_ms: 60_000 }, self.now);
        let (request, kinds) = (RequestId(99), vec![kind.name.clone()]);
        let claim = Claim { session, request, kinds, max: limits::CLAIM_MAX };
        match step(&mut world, &Command::Claim(claim), self.now) {
            Outcome::Claimed(jobs) => jobs.iter().map(|assignment| assignment.job.id).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// The verifier accepts the history, and the history alone makes up the records again.
    pub(crate) fn history_is_good(&self) -> Asked {
        let mut verifier = Verifier::default();
        let mut replayed: HashMap<ResourceKey, Record> = HashMap::new();
        for (key, sealed) in &self.lines {
            verifier.line(key, &sealed.line, sealed.hash);
            let record = replayed.entry(key.clone()).or_insert_with(|| Record::new(key));
            let entry = Entry::parse(&sealed.line).expect("a sealed line reads back");
            record.replay(&entry, sealed.hash);
        }
        for (key, record) in &self.world.records {
            verifier.compare(key, record);
            let new = Record::new(key);
            let again = replayed.get(key).unwrap_or(&new);
            prop_assert_eq!(&told(record, again), &told(again, record), "of {}", key);
        }
        let report = verifier.finish();
        prop_assert!(report.problems.is_empty(), "{:?}", report.problems);
        Ok(())
    }
}

/// A record without how far its attempts have come, which nobody keeps.
fn timeless(record: &Record) -> Record {
    let mut timeless = record.clone();
    for job in timeless.resource.iter_mut().flat_map(|resource| &mut resource.lane) {
        (job.progress, job.log_bytes) = (None, 0);
    }
    timeless
}

/// A record without what history does not tell: the queue, withdrawn requests, how far attempts
/// have come, and rests that were cut short.
fn told(record: &Record, other: &Record) -> Record {
    let mut told = timeless(record);
    told.queue.clear();
    told.recent.clear();
    for job in told.resource.iter_mut().flat_map(|resource| &mut resource.lane) {
        if let Some(other) = other.job(job.id) {
            job.due = job.due.min(other.due);
        }
    }
    told
}

/// Whether something else than a resource itself may keep a job from starting.
fn is_capped(kind: &Kind) -> bool {
    kind.running_max.is_some() || kind.tenant_running_max.is_some()
}
