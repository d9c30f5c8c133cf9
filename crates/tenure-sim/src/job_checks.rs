//! Checks of job replies and records against history, and of job progress once faults stop.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tenure_core::lane::NextJob;
use tenure_core::record::TenureEnd;
use tenure_core::{
    Assignment, Claim, Command, Job, JobAction, JobId, JobState, Millis, Outcome, Record, Refusal,
    ResourceAction, ResourceKey, Text, TimerChange, TimerSetting, Token,
};

use crate::claim_order::Rank;
use crate::history_model::ModelState;
use crate::holder::Holder;
use crate::job_model::{ModelJob, Stage};
use crate::message::{Peer, Reply};
use crate::oracle::{CheckResult, Oracle};
use crate::plan::{JOB_WAIT_MAX_US, Phase, SCHEDULE_MS_MAX};
use crate::resource_checks::{check_resource, check_scope};
use crate::server::Applied;
use crate::sim::Sim;
use crate::skewed_clock::SECOND;
use crate::task::{Held, Task, Work};

impl Oracle {
    /// Checks that a job reply matches history as of the applied batch.
    pub(crate) fn check_job_reply(&self, reply: &Reply, applied: &Applied) -> CheckResult {
        let batch = applied.number;
        let model = &self.history.now;
        match (&*reply.command, &reply.outcome) {
            (
                Command::Resource { key, action: ResourceAction::Submit(_) },
                Outcome::Submitted { job, .. },
            ) => match job_of(model, *job)? {
                expected if expected.key == *key => Ok(()),
                expected => Err(format!("job {job} of {} was returned for {key}", expected.key)),
            },
            (Command::Job { id, action: JobAction::Finish { token, .. } }, outcome) => {
                check_finish_reply(model, *id, *token, outcome, batch)
            }
            (Command::Job { id, .. }, Outcome::Refused(Refusal::NoSuchJob)) => {
                match job_of(model, *id)?.forgotten {
                    true => Ok(()),
                    false => Err(format!("job {id} was reported missing")),
                }
            }
            (Command::Job { id, action: JobAction::Cancel { .. } }, Outcome::Cancelled { .. }) => {
                check_cancelled(job_of(model, *id)?, *id)
            }
            (Command::Claim(claim), Outcome::Claimed(jobs)) => {
                jobs.iter().try_for_each(|job| check_assignment(model, claim, job, applied))
            }
            _ => Ok(()),
        }
    }

    /// Checks that a delivered job reply is durable.
    pub(crate) fn check_job_acknowledged(&self, reply: &Reply) -> CheckResult {
        self.check_status_acknowledged(reply)?;
        let model = &self.history.durable;
        let durable = match (&*reply.command, &reply.outcome) {
            (_, Outcome::Submitted { job, .. }) => model.job_model.jobs.contains_key(job),
            (_, Outcome::Claimed(jobs)) => jobs.iter().all(|assignment| {
                model.tenure(&assignment.tenure.key, assignment.tenure.token).is_some()
            }),
            (
                Command::Job { id, action: JobAction::Finish { token, .. } },
                Outcome::Finished { .. },
            ) => job_of(model, *id)
                .is_ok_and(|job| finish_batch_of(model, &job.key, *token).is_some()),
            (Command::Job { id, .. }, Outcome::Cancelled { .. }) => {
                job_of(model, *id).is_ok_and(|job| check_cancelled(job, *id).is_ok())
            }
            (Command::Resource { key, .. }, Outcome::Put { generation, .. }) => model
                .job_model
                .max_generation
                .get(key)
                .is_some_and(|max_generation| max_generation >= generation),
            _ => true,
        };
        match durable {
            true => Ok(()),
            false => Err(format!("reply {:?} was delivered but is not durable", reply.outcome)),
        }
    }

    /// Checks that a heartbeat reply delivered every cancel requested before it.
    pub(crate) fn check_cancel_delivered(
        &self,
        holder: &Holder,
        held: &Held,
        batch: u64,
    ) -> CheckResult {
        let task = holder.process.as_ref().map(|process| &process.task);
        let Some(Task::Working(Work { job: Some(run), .. })) = task else { return Ok(()) };
        let requested = self.history.durable.cancel_batch(&held.key, held.token);
        match requested.is_some_and(|when| when < batch) && !run.cancelling {
            true => {
                Err(format!("h{} did not learn that job {} is cancelled", holder.index, run.id))
            }
            false => Ok(()),
        }
    }

    /// Checks that the lane and the resource state of a record match history.
    pub(crate) fn check_lane(
        &self,
        key: &ResourceKey,
        record: &Record,
        now: Millis,
    ) -> CheckResult {
        let jobs = &self.history.now.job_model;
        let expected = jobs.resources.get(key);
        if let (Some(is), Some(expected)) = (&record.resource, expected) {
            check_resource(key, is, expected, now)?;
        }
        let same = match (&record.resource, expected) {
            (None, None) => true,
            (Some(is), Some(expected)) => {
                is.state == expected.state
                    && (is.generation, is.observed) == (expected.generation, expected.observed)
                    && is.paused.is_some() == expected.paused
            }
            _ => false,
        };
        let stage = |job: &Job| job.token().map_or(Stage::Waiting, Stage::Running);
        let matches_history =
            |job: &Job| jobs.jobs.get(&job.id).is_some_and(|t| t.stage == stage(job));
        let all = record.lane().len() == jobs.unfinished(Some(key));
        match same && all && record.lane().iter().all(|job| matches_history(job)) {
            true => Ok(()),
            false => Err(format!("{key} is {:?}, but history says {expected:?}", record.resource)),
        }
    }

    /// Checks that ended jobs are stored as history says they ended.
    pub(crate) fn check_ended_jobs(&self, finished: &[(ResourceKey, Box<Job>)]) -> CheckResult {
        // A job can be redriven or discarded in the batch in which it ended: the last row counts.
        let last: BTreeMap<JobId, &Job> =
            finished.iter().map(|(_, job)| (job.id, &**job)).collect();
        for (id, job) in last {
            let expected = job_of(&self.history.now, id)?;
            if expected.stage != Stage::Ended(job.state) || expected.attempts != job.attempt {
                let (state, attempt) = (job.state.as_str(), job.attempt);
                return Err(format!(
                    "job {id} is stored as {state} at {attempt}, but history says {expected:?}"
                ));
            }
        }
        Ok(())
    }
}

fn job_of(model: &ModelState, id: JobId) -> Result<&ModelJob, String> {
    model.job_model.jobs.get(&id).ok_or_else(|| format!("job {id} was never submitted"))
}

/// Returns the batch in which the worker finished the job of a tenure.
fn finish_batch_of(model: &ModelState, key: &ResourceKey, token: Token) -> Option<u64> {
    let (how, batch) = model.tenure(key, token)?.end.as_ref()?;
    (*how == TenureEnd::Finished).then_some(*batch)
}

fn check_cancelled(job: &ModelJob, id: JobId) -> CheckResult {
    match job.cancelled || job.stage == Stage::Ended(JobState::Cancelled) {
        true => Ok(()),
        false => Err(format!("job {id} was reported cancelled but is {:?}", job.stage)),
    }
}

fn check_finish_reply(
    model: &ModelState,
    id: JobId,
    token: Token,
    outcome: &Outcome,
    batch: u64,
) -> CheckResult {
    let job = job_of(model, id)?;
    match outcome {
        Outcome::Finished { already, .. } => match finish_batch_of(model, &job.key, token) {
            Some(when) if *already || when == batch => Ok(()),
            _ => Err(format!("a finish of job {id} with token {token} ended another attempt")),
        },
        Outcome::Refused(Refusal::Lost { .. }) if job.stage == Stage::Running(token) => {
            Err(format!("the current token {token} of job {id} was refused"))
        }
        _ => Ok(()),
    }
}

fn check_assignment(
    model: &ModelState,
    claim: &Claim,
    assignment: &Assignment,
    applied: &Applied,
) -> CheckResult {
    let Assignment { tenure, job, status, .. } = assignment;
    let (key, token, id) = (&tenure.key, tenure.token, job.id);
    check_scope(claim, key)?;
    if let Some(resource) = model.job_model.resources.get(key)
        // It may have been written again in this batch.
        && resource.patch.is_none_or(|(_, at)| at != applied.now)
        && !resource.has_status(status.as_deref())
    {
        let is = &resource.status;
        return Err(format!("job {id} was assigned with status {status:?}, which is {is:?}"));
    }
    let Some(held) = model.tenure(key, token) else {
        return Err(format!("job {id} was assigned with token {token}, which was never granted"));
    };
    if held.session != claim.session || held.request != claim.request {
        return Err(format!("job {id} of {key} was assigned to another claim"));
    }
    let just_ended = held.end.as_ref().is_some_and(|(_, when)| *when == applied.number);
    match job_of(model, id)?.stage == Stage::Running(token) || just_ended {
        true => Ok(()),
        false => Err(format!("job {id} was assigned with token {token}, which has ended")),
    }
}

/// A job that is ready or running, and the progress of its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JobProgress {
    job: JobId,
    /// Rank of a ready job; none if it runs.
    rank: Option<Rank>,
    /// Tenure it runs with, or the last one of its resource.
    token: Token,
}

impl Sim {
    /// Checks that, once faults stop, no job stays ready or running without progress.
    ///
    /// How long a ready job waits in all depends on the jobs that rank before it and on the caps of
    /// its kind. While such jobs start, it makes progress: none can be added without end, because
    /// later jobs of the same priority rank behind it. Starts of any other job are none.
    pub(crate) fn check_job_progress(&mut self) -> CheckResult {
        let started = std::mem::take(&mut self.oracle.claim_order.started).into_iter().min();
        if self.phase == Phase::Faulty {
            return Ok(());
        }
        self.resume_all();
        if self.phase == Phase::Draining {
            self.remove_unreachable_timers();
            self.cancel_unreachable_jobs();
        }
        let mut since = BTreeMap::new();
        for progress in self.job_progress() {
            let before = self.job_progress_since.get(&progress).copied();
            let advanced = progress.rank.zip(started).is_some_and(|(rank, first)| first < rank);
            let first = before.filter(|_| !advanced).unwrap_or(self.now_us);
            since.insert(progress, first);
            let waited_us = self.now_us - first;
            if waited_us > JOB_WAIT_MAX_US {
                let JobProgress { job, rank, token } = progress;
                let seconds = waited_us / SECOND;
                return Err(match rank {
                    None => format!("job {job} runs with token {token} for {seconds} s"),
                    Some(_) => format!(
                        "job {job} is ready for {seconds} s, and no worker claims it or one \
                         before it"
                    ),
                });
            }
        }
        self.job_progress_since = since;
        Ok(())
    }

    /// Returns the jobs that are ready or running.
    fn job_progress(&self) -> Vec<JobProgress> {
        let Some(running) = &self.server.running else { return Vec::new() };
        let (world, now) = (running.ledger.world(), running.now(self.now_us));
        let mut progress = Vec::new();
        for key in &self.plan.lanes {
            let Some(record) = world.records.get(key) else { continue };
            let kind = self.oracle.history.kinds.get(key.kind()).expect("every kind is declared");
            if let NextJob::Ready { job, priority, since, .. } = record.next_job(kind, now) {
                let rank = Some((Reverse(priority), since));
                progress.push(JobProgress { job, rank, token: record.token });
            }
            let runs =
                |job: &Job| Some(JobProgress { job: job.id, rank: None, token: job.token()? });
            progress.extend(record.lane().iter().filter_map(|job| runs(job)));
        }
        progress
    }

    /// Resumes all paused resources: a delayed duplicate of a pause may have arrived.
    fn resume_all(&mut self) {
        let resources = &self.oracle.history.durable.job_model.resources;
        let paused =
            resources.iter().filter(|(_, resource)| resource.paused).map(|(key, _)| key.clone());
        for key in paused.collect::<Vec<_>>() {
            let (by, reason) = ("ann".into(), "all is well".into());
            let action = ResourceAction::Resume { by, reason };
            self.send(Peer::Operator, 0, Command::Resource { key, action });
        }
    }

    /// Returns whether an instant was chosen before a restart that set the store clock back so far
    /// that it may not come before the run ends.
    fn is_out_of_reach(&self, due: Millis) -> bool {
        let Some(running) = &self.server.running else { return false };
        let now = running.now(self.now_us);
        due > now.plus(SCHEDULE_MS_MAX) && due <= self.latest_store_time.plus(SCHEDULE_MS_MAX)
    }

    /// Cancels the jobs that are out of reach.
    fn cancel_unreachable_jobs(&mut self) {
        let jobs = self.oracle.history.durable.job_model.jobs.iter();
        let out_of_reach =
            |job: &ModelJob| job.first_start().is_some_and(|due| self.is_out_of_reach(due));
        let unreachable = jobs.filter(|(_, job)| out_of_reach(job)).map(|(id, _)| *id);
        for id in unreachable.collect::<Vec<_>>() {
            let (by, reason) = ("ann".into(), "the clock was set back".into());
            let action = JobAction::Cancel { by, reason };
            self.send(Peer::Operator, 0, Command::Job { id, action });
        }
    }

    /// Removes the timers that are out of reach, and those whose submit is refused: nothing may
    /// change that any more.
    fn remove_unreachable_timers(&mut self) {
        let mut unreachable: Vec<(ResourceKey, Text)> = Vec::new();
        for (key, resource) in &self.oracle.history.durable.job_model.resources {
            let timers = resource.timers.iter();
            let timers = timers.filter(|(_, it)| it.refused || self.is_out_of_reach(it.due));
            unreachable.extend(timers.map(|(operation, _)| (key.clone(), operation.clone())));
        }
        for (key, operation) in unreachable {
            let timers = vec![TimerChange { operation, setting: TimerSetting::Remove }];
            let action = ResourceAction::SetTimers { timers, by: "ann".into(), precondition: None };
            self.send(Peer::Operator, 0, Command::Resource { key, action });
        }
    }

    /// Checks that every job has ended and is stored once.
    pub(crate) fn check_all_jobs_ended(&self) -> CheckResult {
        let jobs = &self.oracle.history.durable.job_model;
        let mut stored = self.server.disk.ended_jobs()?;
        for (id, job) in &jobs.jobs {
            match (job.stage, stored.remove(id)) {
                (Stage::Ended(state), Some(stored)) if state == stored => {}
                (Stage::Ended(_), None) if job.forgotten => {}
                (stage, stored) => {
                    let key = &job.key;
                    return Err(format!(
                        "job {id} of {key} is {stage:?} at the end, stored as {stored:?}"
                    ));
                }
            }
        }
        match stored.keys().next() {
            Some(id) => Err(format!("job {id} is stored but was never submitted")),
            None => Ok(()),
        }
    }
}
