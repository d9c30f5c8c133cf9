//! What the history says of jobs and their resources, kept apart from the code that wrote it.
//!
//! Every line is checked against the lines before it: a job enters once, each attempt counts one
//! and is allowed, a cancel sticks, a job ends once. Next: [`crate::lanes`], which compares answers
//! and rows with these.

use std::collections::BTreeMap;

use tenure_core::history::Event;
use tenure_core::job::{AttemptOutcome, Begun, Job, Ran};
use tenure_core::record::How;
use tenure_core::{
    JobId, JobState, Kinds, LockSet, Operation, RequestId, ResourceKey, Text, Token,
};

/// What broke, if something did.
type Checked = Result<(), String>;

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits or rests.
    Waiting,
    /// It is worked under this tenure.
    Running(Token),
    /// It is over.
    Over(JobState),
}

/// A job as history tells it.
#[derive(Clone, Debug)]
pub struct ToldJob {
    /// Its resource.
    pub key: ResourceKey,
    /// Its verb.
    pub operation: Text,
    /// Where it is in its life.
    pub stage: Stage,
    /// Attempts that count.
    pub attempts: u32,
    /// Somebody asked it to stop while it ran.
    pub cancelled: bool,
    /// The generation that its latest attempt saw.
    seen: u64,
}

/// A resource as history tells it.
#[derive(Clone, Debug, Default)]
pub struct ToldResource {
    /// Its state.
    pub state: Text,
    /// Counts the changes of what it should be like.
    pub generation: u64,
    /// The generation that it was brought to.
    pub observed: u64,
    /// Nothing may start.
    pub paused: bool,
    /// A reconciler has succeeded in this batch without having seen the latest change.
    behind: bool,
    /// The job that each request made.
    made: BTreeMap<RequestId, JobId>,
}

/// The jobs of all resources.
#[derive(Clone, Debug, Default)]
pub struct Lanes {
    /// Every job that ever was.
    pub jobs: BTreeMap<JobId, ToldJob>,
    /// Every resource that is known.
    pub resources: BTreeMap<ResourceKey, ToldResource>,
    /// The highest generation that each resource ever had; one that is made again counts anew.
    pub highest: BTreeMap<ResourceKey, u64>,
}

impl Lanes {
    /// How many jobs of one resource, or of all, are not over.
    #[must_use]
    pub fn left(&self, key: Option<&ResourceKey>) -> usize {
        let mine = |job: &&ToldJob| key.is_none_or(|key| job.key == *key);
        let jobs = self.jobs.values().filter(mine);
        jobs.filter(|job| !matches!(job.stage, Stage::Over(_))).count()
    }

    /// Takes in one line.
    pub fn take_in(&mut self, key: &ResourceKey, event: &Event, kinds: &Kinds) -> Checked {
        match event {
            Event::Granted { job: Some(begun), token, locks, .. } => {
                self.begins(key, begun, *token, locks, kinds)
            }
            Event::Granted { job: None, .. } | Event::Fenced { .. } => Ok(()),
            Event::Ended { job: Some(ran), token, how, .. } => {
                self.ends(key, ran, *token, how, kinds)
            }
            Event::Ended { job: None, token, .. } => self.runs_on(key, *token),
            Event::Submitted { job, .. } => self.enters(key, job),
            Event::Attached { id, .. } => match self.job(*id)? {
                ToldJob { stage: Stage::Over(_), .. } | ToldJob { cancelled: true, .. } => {
                    Err(format!("a submit attached to job {id}, which cannot finish any more"))
                }
                _ => Ok(()),
            },
            Event::Superseded { id, .. } => self.over(*id, JobState::Superseded),
            Event::Cancelled { id, .. } => self.cancels(*id),
            Event::Redriven { id, .. } => self.dealt_with(*id, JobState::Redriven),
            Event::Discarded { id, .. } => self.dealt_with(*id, JobState::Discarded),
            Event::Incident { id, .. } => Err(format!("job {id} ran without a tenure")),
            _ => self.resource(key, event),
        }
    }

    fn job(&mut self, id: JobId) -> Result<&mut ToldJob, String> {
        self.jobs.get_mut(&id).ok_or_else(|| format!("job {id} was never submitted"))
    }

    fn resource(&mut self, key: &ResourceKey, event: &Event) -> Checked {
        if let Event::Created { state } = event {
            let resource = ToldResource { state: state.clone(), ..ToldResource::default() };
            return match self.resources.insert(key.clone(), resource) {
                Some(_) => Err(format!("{key} was made known twice")),
                None => Ok(()),
            };
        }
        if matches!(event, Event::Deleted { .. }) {
            let live = |job: &ToldJob| job.key == *key && !matches!(job.stage, Stage::Over(_));
            self.resources.remove(key);
            return match self.jobs.values().any(live) {
                true => Err(format!("{key} was deleted while a job was not over")),
                false => Ok(()),
            };
        }
        let resource = self.resources.get_mut(key);
        let resource = resource.ok_or_else(|| format!("{key} is not known"))?;
        match event {
            Event::Specified { generation, .. } => {
                resource.generation = *generation;
                let highest = self.highest.entry(key.clone()).or_default();
                *highest = (*highest).max(*generation);
            }
            Event::Paused { .. } => resource.paused = true,
            Event::Resumed { .. } => resource.paused = false,
            _ => {}
        }
        Ok(())
    }

    fn enters(&mut self, key: &ResourceKey, job: &Job) -> Checked {
        let resource = self.resources.get_mut(key);
        let resource = resource.ok_or_else(|| format!("{key} has jobs but is not known"))?;
        // A resource that was deleted has forgotten its requests: a stated limit.
        if let Some(first) = resource.made.insert(job.request, job.id) {
            let (request, second) = (job.request, job.id);
            return Err(format!("request {request} on {key} made job {first}, then {second}"));
        }
        let told = ToldJob {
            key: key.clone(),
            operation: job.operation.clone(),
            stage: Stage::Waiting,
            attempts: 0,
            cancelled: false,
            seen: 0,
        };
        match self.jobs.insert(job.id, told) {
            Some(_) => Err(format!("job {} enters twice", job.id)),
            None => Ok(()),
        }
    }

    fn begins(
        &mut self,
        key: &ResourceKey,
        begun: &Begun,
        token: Token,
        locks: &LockSet,
        kinds: &Kinds,
    ) -> Checked {
        let id = begun.id;
        let resource = self.resources.get(key).ok_or_else(|| format!("{key} is not known"))?;
        let (state, generation) = (resource.state.clone(), resource.generation);
        if resource.paused {
            return Err(format!("job {id} starts on {key}, which is paused"));
        }
        let job = self.job(id)?;
        let operation = declared(kinds, key, &job.operation)?;
        let most = operation.retry.attempts;
        if job.stage != Stage::Waiting {
            return Err(format!("job {id} starts while it is {:?}", job.stage));
        }
        if begun.attempt != job.attempts + 1 || begun.attempt > most {
            let (n, before) = (begun.attempt, job.attempts);
            return Err(format!("job {id} begins attempt {n}/{most} after {before}"));
        }
        if !operation.allows(&state) || operation.locks != *locks || begun.state != operation.during
        {
            return Err(format!("job {id} may not start like this on {key}, which is {state}"));
        }
        (job.stage, job.attempts, job.seen) = (Stage::Running(token), begun.attempt, generation);
        self.enter(key, begun.state.as_ref());
        Ok(())
    }

    /// After a batch: no more jobs run than the kind allows. Not within one: the order of its lines
    /// among resources means nothing.
    pub fn within_caps(&self, key: &ResourceKey, kinds: &Kinds) -> Checked {
        let Some(kind) = kinds.get(key.kind()) else { return Ok(()) };
        if kind.running_max.is_none() && kind.tenant_running_max.is_none() {
            return Ok(());
        }
        let of_kind =
            |job: &&ToldJob| job.key.kind() == key.kind() && matches!(job.stage, Stage::Running(_));
        let all = self.jobs.values().filter(of_kind).count();
        let mine = |job: &&ToldJob| job.key.tenant() == key.tenant();
        let tenant = self.jobs.values().filter(of_kind).filter(mine).count();
        let above = |cap: Option<usize>, n: usize| cap.is_some_and(|cap| n > cap);
        match above(kind.running_max, all) || above(kind.tenant_running_max, tenant) {
            true => Err(format!("{all} jobs of {} run, {tenant} of one tenant", kind.name)),
            false => Ok(()),
        }
    }

    fn ends(
        &mut self,
        key: &ResourceKey,
        ran: &Ran,
        token: Token,
        how: &How,
        kinds: &Kinds,
    ) -> Checked {
        let Ran { id, outcome, then, .. } = *ran;
        let job = self.job(id)?;
        if job.stage != Stage::Running(token) {
            return Err(format!("job {id} ends with token {token} while it is {:?}", job.stage));
        }
        if job.cancelled && then != JobState::Cancelled {
            let then = then.word();
            return Err(format!("job {id} was asked to stop and is {then}: the cancel was lost"));
        }
        let operation = declared(kinds, key, &job.operation)?;
        let counted = job.attempts;
        let last = counted >= operation.retry.attempts;
        let fits = match then {
            JobState::Succeeded => outcome == AttemptOutcome::Ok && *how == How::Finished,
            JobState::Backoff => !last && ran.due.is_some(),
            JobState::Dead => last,
            JobState::Queued => outcome == AttemptOutcome::HandedBack,
            // Who lost its worker is not to blame.
            JobState::Failed => outcome == AttemptOutcome::Failed,
            JobState::Cancelled => true,
            _ => false,
        };
        if !fits {
            let then = then.word();
            return Err(format!("job {id} is {then} after attempt {counted} that was {outcome:?}"));
        }
        job.attempts -= u32::from(outcome == AttemptOutcome::HandedBack);
        job.stage = if then.is_over() { Stage::Over(then) } else { Stage::Waiting };
        let (seen, reconciles) = (job.seen, job.operation.clone());
        self.enter(key, ran.state.as_ref());
        self.observes(key, ran, seen, &reconciles, kinds)
    }

    /// A resource has been brought to the generation that the attempt saw, and to no other.
    fn observes(
        &mut self,
        key: &ResourceKey,
        ran: &Ran,
        seen: u64,
        operation: &Text,
        kinds: &Kinds,
    ) -> Checked {
        let kind = kinds.get(key.kind());
        let reconcile = kind.and_then(|kind| kind.reconcile.as_ref());
        let Some(resource) = self.resources.get_mut(key) else { return Ok(()) };
        let done = ran.outcome == AttemptOutcome::Ok && reconcile == Some(operation);
        if ran.observed != done.then_some(seen) {
            let (id, observed) = (ran.id, ran.observed);
            return Err(format!("job {id} saw generation {seen} of {key} and says {observed:?}"));
        }
        resource.observed = ran.observed.unwrap_or(resource.observed);
        if reconcile.is_some() {
            let late = resource.observed < resource.generation;
            resource.behind = ran.then == JobState::Succeeded && late;
        }
        Ok(())
    }

    /// A tenure ended without a word about a job, so it has none.
    fn runs_on(&self, key: &ResourceKey, token: Token) -> Checked {
        let runs = |job: &ToldJob| job.key == *key && job.stage == Stage::Running(token);
        match self.jobs.iter().find(|(_, job)| runs(job)) {
            Some((id, _)) => Err(format!("token {token} of {key} ended and job {id} runs on")),
            None => Ok(()),
        }
    }

    fn enter(&mut self, key: &ResourceKey, state: Option<&Text>) {
        if let (Some(resource), Some(state)) = (self.resources.get_mut(key), state) {
            resource.state = state.clone();
        }
    }

    fn over(&mut self, id: JobId, state: JobState) -> Checked {
        let job = self.job(id)?;
        if job.stage != Stage::Waiting {
            return Err(format!("job {id} is {} while it is {:?}", state.word(), job.stage));
        }
        job.stage = Stage::Over(state);
        let key = job.key.clone();
        // Whoever took the waiting reconciler away has taken the blame.
        self.excuse(&key);
        Ok(())
    }

    fn cancels(&mut self, id: JobId) -> Checked {
        let job = self.job(id)?;
        match job.stage {
            Stage::Waiting => self.over(id, JobState::Cancelled),
            Stage::Running(_) if !job.cancelled => {
                job.cancelled = true;
                Ok(())
            }
            stage => Err(format!("job {id} is cancelled while it is {stage:?}")),
        }
    }

    fn dealt_with(&mut self, id: JobId, state: JobState) -> Checked {
        let job = self.job(id)?;
        if job.stage != Stage::Over(JobState::Dead) {
            return Err(format!("job {id} is {} while it is {:?}", state.word(), job.stage));
        }
        job.stage = Stage::Over(state);
        Ok(())
    }

    fn excuse(&mut self, key: &ResourceKey) {
        if let Some(resource) = self.resources.get_mut(key) {
            resource.behind = false;
        }
    }

    /// After a batch: a change that came while a reconciler ran has a job of its own.
    pub fn no_change_is_lost(&mut self, key: &ResourceKey, kinds: &Kinds) -> Checked {
        let behind = self.resources.get(key).is_some_and(|resource| resource.behind);
        let Some(kind) = kinds.get(key.kind()).filter(|_| behind) else { return Ok(()) };
        self.excuse(key);
        let generation = self.resources.get(key).map_or(0, |resource| resource.generation);
        let coming = |job: &ToldJob| match job.stage {
            Stage::Waiting => true,
            Stage::Running(_) => job.seen == generation,
            Stage::Over(_) => false,
        };
        let mine =
            |job: &&ToldJob| job.key == *key && Some(&job.operation) == kind.reconcile.as_ref();
        match self.jobs.values().filter(mine).any(coming) {
            true => Ok(()),
            false => {
                Err(format!("generation {generation} of {key} came during a sync and is lost"))
            }
        }
    }
}

fn declared<'a>(
    kinds: &'a Kinds,
    key: &ResourceKey,
    operation: &Text,
) -> Result<&'a Operation, String> {
    let kind = kinds.get(key.kind());
    let found = kind.and_then(|kind| kind.operations.get(operation));
    found.ok_or_else(|| format!("{key} has no operation {operation}"))
}
