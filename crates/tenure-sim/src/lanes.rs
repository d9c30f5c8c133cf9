//! The oracle for jobs: answers and rows against what history says, and how long things take once
//! nothing fails.

use std::collections::BTreeMap;

use tenure_core::history::Event;
use tenure_core::job::AttemptOutcome;
use tenure_core::lane::Next;
use tenure_core::record::How;
use tenure_core::{
    Assignment, Claim, Command, Job, JobAction, JobId, JobState, Outcome, Record, Refusal,
    ResourceAction, ResourceKey, Token, Verdict as Answer,
};

use crate::books::Facts;
use crate::holder::Holder;
use crate::message::{Peer, Reply};
use crate::oracle::{Oracle, Verdict};
use crate::plan::{Mood, WORKED_WITHIN_US};
use crate::sim::Sim;
use crate::skew::SECOND;
use crate::stats::Stats;
use crate::task::{Held, Task, Work};
use crate::told::{Stage, ToldJob};

impl Oracle {
    /// An answer about jobs is what history says, as the server sees it.
    pub(crate) fn job_answer_fits(&self, reply: &Reply, batch: u64) -> Verdict {
        let facts = &self.books.now;
        match (&*reply.command, &reply.outcome) {
            (
                Command::Resource { key, action: ResourceAction::Submit(_) },
                Outcome::Submitted { job, .. },
            ) => match told(facts, *job)? {
                told if told.key == *key => Ok(()),
                told => Err(format!("job {job} of {} was the answer for {key}", told.key)),
            },
            (Command::Job { id, action: JobAction::Finish { token, .. } }, outcome) => {
                finish_fits(facts, *id, *token, outcome, batch)
            }
            (Command::Job { id, .. }, Outcome::Refused(Refusal::NoSuchJob)) => {
                Err(format!("job {id} is not known any more"))
            }
            (Command::Job { id, action: JobAction::Cancel { .. } }, Outcome::Cancelled { .. }) => {
                stopped(told(facts, *id)?, *id)
            }
            (Command::Claim(claim), Outcome::Claimed(jobs)) => {
                jobs.iter().try_for_each(|job| assignment_fits(facts, claim, job, batch))
            }
            _ => Ok(()),
        }
    }

    /// An answer about jobs that reaches somebody is durable.
    pub(crate) fn job_acknowledged(&self, reply: &Reply) -> Verdict {
        let facts = &self.books.durable;
        let durable = match (&*reply.command, &reply.outcome) {
            (_, Outcome::Submitted { job, .. }) => facts.lanes.jobs.contains_key(job),
            (_, Outcome::Claimed(jobs)) => jobs.iter().all(|assignment| {
                facts.tenure(&assignment.tenure.key, assignment.tenure.token).is_some()
            }),
            (
                Command::Job { id, action: JobAction::Finish { token, .. } },
                Outcome::Finished { .. },
            ) => told(facts, *id).is_ok_and(|job| finished(facts, &job.key, *token).is_some()),
            (Command::Job { id, .. }, Outcome::Cancelled { .. }) => {
                told(facts, *id).is_ok_and(|job| stopped(job, *id).is_ok())
            }
            (Command::Resource { key, .. }, Outcome::Put { generation, .. }) => {
                facts.lanes.highest.get(key).is_some_and(|highest| highest >= generation)
            }
            _ => true,
        };
        match durable {
            true => Ok(()),
            false => Err(format!("the answer {:?} is not durable", reply.outcome)),
        }
    }

    /// After an answered heartbeat a worker knows that its job was asked to stop before it.
    pub(crate) fn knows_of_stop(&self, holder: &Holder, held: &Held, batch: u64) -> Verdict {
        let task = holder.process.as_ref().map(|process| &process.task);
        let Some(Task::Working(Work { job: Some(labour), .. })) = task else { return Ok(()) };
        let asked = self.books.durable.stop(&held.key, held.token);
        match asked.is_some_and(|when| when < batch) && !labour.cancelling {
            true => Err(format!("h{} was not told that job {} should stop", holder.at, labour.id)),
            false => Ok(()),
        }
    }

    /// The lane of a record, and the state of its resource, are what history says.
    pub(crate) fn lane_fits(&self, key: &ResourceKey, record: &Record) -> Verdict {
        let lanes = &self.books.now.lanes;
        let told = lanes.resources.get(key);
        let same = match (&record.resource, told) {
            (None, None) => true,
            (Some(is), Some(told)) => {
                is.state == told.state
                    && (is.generation, is.observed) == (told.generation, told.observed)
                    && is.paused.is_some() == told.paused
            }
            _ => false,
        };
        let stage = |job: &Job| job.token().map_or(Stage::Waiting, Stage::Running);
        let as_told = |job: &Job| lanes.jobs.get(&job.id).is_some_and(|t| t.stage == stage(job));
        let all = record.lane().len() == lanes.left(Some(key));
        match same && all && record.lane().iter().all(|job| as_told(job)) {
            true => Ok(()),
            false => Err(format!("{key} is {:?}, but history says {told:?}", record.resource)),
        }
    }

    /// A job that is over is kept as history says it ended.
    pub(crate) fn finished_fit(&self, finished: &[(ResourceKey, Box<Job>)]) -> Verdict {
        // One may be dealt with in the batch in which it ended: the last row counts.
        let last: BTreeMap<JobId, &Job> =
            finished.iter().map(|(_, job)| (job.id, &**job)).collect();
        for (id, job) in last {
            let told = told(&self.books.now, id)?;
            if told.stage != Stage::Over(job.state) || told.attempts != job.attempt {
                let (state, attempt) = (job.state.word(), job.attempt);
                return Err(format!("job {id} is kept as {state} at {attempt}, but is {told:?}"));
            }
        }
        Ok(())
    }
}

fn told(facts: &Facts, id: JobId) -> Result<&ToldJob, String> {
    facts.lanes.jobs.get(&id).ok_or_else(|| format!("job {id} never was"))
}

/// The batch in which the worker of a tenure ended it, if it did.
fn finished(facts: &Facts, key: &ResourceKey, token: Token) -> Option<u64> {
    let (how, batch) = facts.tenure(key, token)?.end.as_ref()?;
    (*how == How::Finished).then_some(*batch)
}

fn stopped(job: &ToldJob, id: JobId) -> Verdict {
    match job.cancelled || job.stage == Stage::Over(JobState::Cancelled) {
        true => Ok(()),
        false => Err(format!("job {id} was said to be cancelled and is {:?}", job.stage)),
    }
}

fn finish_fits(facts: &Facts, id: JobId, token: Token, outcome: &Outcome, batch: u64) -> Verdict {
    let job = told(facts, id)?;
    match outcome {
        Outcome::Finished { already, .. } => match finished(facts, &job.key, token) {
            Some(when) if *already || when == batch => Ok(()),
            _ => Err(format!("a finish of job {id} with token {token} ended another attempt")),
        },
        Outcome::Refused(Refusal::Lost { .. }) if job.stage == Stage::Running(token) => {
            Err(format!("the present token {token} of job {id} was refused"))
        }
        _ => Ok(()),
    }
}

fn assignment_fits(facts: &Facts, claim: &Claim, assignment: &Assignment, batch: u64) -> Verdict {
    let Assignment { tenure, job, .. } = assignment;
    let (key, token, id) = (&tenure.key, tenure.token, job.id);
    let Some(held) = facts.tenure(key, token) else {
        return Err(format!("job {id} was given out with token {token}, never granted"));
    };
    if held.session != claim.session || held.request != claim.request {
        return Err(format!("job {id} of {key} was given to somebody else"));
    }
    let just_ended = held.end.as_ref().is_some_and(|(_, when)| *when == batch);
    match told(facts, id)?.stage == Stage::Running(token) || just_ended {
        true => Ok(()),
        false => Err(format!("job {id} was given out with token {token}, which is over")),
    }
}

/// Counts what happened to jobs.
pub(crate) fn count(event: &Event, stats: &mut Stats) {
    let counter = match event {
        Event::Submitted { verdict: Answer::Replaced, .. } => &mut stats.replaced,
        Event::Submitted { .. } => &mut stats.submits,
        Event::Attached { .. } => &mut stats.attached,
        Event::Granted { job: Some(begun), .. } if begun.attempt > 1 => &mut stats.retries,
        Event::Granted { job: Some(_), .. } => &mut stats.starts,
        Event::Ended { job: Some(ran), .. } => match (ran.outcome, ran.then) {
            (AttemptOutcome::Lost, JobState::Dead) => &mut stats.lost_to_death,
            (AttemptOutcome::Lost, _) => &mut stats.lost_attempts,
            (AttemptOutcome::HandedBack, _) => &mut stats.handed_back,
            (_, JobState::Succeeded) => &mut stats.successes,
            (_, JobState::Dead) => &mut stats.deaths,
            (_, JobState::Failed) => &mut stats.failures,
            (_, JobState::Cancelled) => &mut stats.stopped,
            _ => return,
        },
        Event::Cancelled { .. } => &mut stats.cancels,
        Event::Redriven { .. } => &mut stats.redriven,
        Event::Discarded { .. } => &mut stats.discarded,
        Event::Specified { .. } => &mut stats.changes,
        Event::Paused { .. } => &mut stats.pauses,
        Event::Deleted { .. } => &mut stats.deletes,
        _ => return,
    };
    *counter += 1;
}

/// A job that is ready or running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pending {
    job: JobId,
    runs: bool,
    /// The tenure that it runs with, or the last one of its resource.
    token: Token,
}

impl Sim {
    /// Once nothing fails, no job is ready or running for ever.
    pub(crate) fn inspect_lanes(&mut self) -> Verdict {
        if self.mood == Mood::Faulty {
            return Ok(());
        }
        self.resume_all();
        let mut since = BTreeMap::new();
        for pending in self.pending() {
            let first = self.pending.get(&pending).copied().unwrap_or(self.now_us);
            since.insert(pending, first);
            let waited_us = self.now_us - first;
            if waited_us > WORKED_WITHIN_US {
                let Pending { job, runs, token } = pending;
                let seconds = waited_us / SECOND;
                return Err(match runs {
                    true => format!("job {job} runs with token {token} for {seconds} s"),
                    false => format!("job {job} is ready for {seconds} s and nobody gets it"),
                });
            }
        }
        self.pending = since;
        Ok(())
    }

    /// The jobs that could be worked now, and those that are.
    fn pending(&self) -> Vec<Pending> {
        let Some(running) = &self.server.running else { return Vec::new() };
        let (world, now) = (running.ledger.world(), running.now(self.now_us));
        let mut pending = Vec::new();
        for key in &self.plan.lanes {
            let Some(record) = world.records.get(key) else { continue };
            let kind = self.oracle.books.kinds.get(key.kind()).expect("every kind is declared");
            if let Next::Ready { job, .. } = record.next(kind, now) {
                pending.push(Pending { job, runs: false, token: record.token });
            }
            let runs = |job: &Job| Some(Pending { job: job.id, runs: true, token: job.token()? });
            pending.extend(record.lane().iter().filter_map(|job| runs(job)));
        }
        pending
    }

    /// An operator sees to it that nothing stays paused: a late copy of a pause may have come.
    fn resume_all(&mut self) {
        let lanes = &self.oracle.books.durable.lanes.resources;
        let paused = lanes.iter().filter(|(_, told)| told.paused).map(|(key, _)| key.clone());
        for key in paused.collect::<Vec<_>>() {
            let (by, reason) = ("ann".into(), "all is well".into());
            let action = ResourceAction::Resume { by, reason };
            self.send(Peer::Operator, 0, Command::Resource { key, action });
        }
    }

    /// Every job is over, once, and kept.
    pub(crate) fn lanes_at_rest(&self) -> Verdict {
        let lanes = &self.oracle.books.durable.lanes;
        let mut kept = self.server.disk.over()?;
        for (id, job) in &lanes.jobs {
            match (job.stage, kept.remove(id)) {
                (Stage::Over(state), Some(kept)) if state == kept => {}
                (stage, kept) => {
                    let key = &job.key;
                    return Err(format!(
                        "job {id} of {key} is {stage:?} at the end, kept {kept:?}"
                    ));
                }
            }
        }
        match kept.keys().next() {
            Some(id) => Err(format!("job {id} is kept but never was")),
            None => Ok(()),
        }
    }
}
