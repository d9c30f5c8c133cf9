//! Small worlds with jobs: what can happen in them, and what must be true of each step.
//!
//! Any worker may finish any attempt with any token it can have heard of, so lost replies, late
//! copies and workers that come back from the dead are all included.

use std::rc::Rc;
use std::sync::Arc;

use tenure_core::answers::Answered;
use tenure_core::history::Event;
use tenure_core::job::AttemptOutcome;
use tenure_core::{
    Claim, Command, Finish, Job, JobAction, JobId, Kind, Kinds, LockAction, Millis, Outcome,
    Record, RequestId, ResourceAction, SessionId, Submit, Text, Token,
};
use tenure_sim::told::Stage;

use crate::state::{Done, Small, State, key};

type Verdict = Result<(), String>;

/// What a small world has of jobs.
#[derive(Default)]
pub(crate) struct Work {
    pub(crate) kinds: Arc<Kinds>,
    pub(crate) submits: Vec<Submit>,
    pub(crate) claims: Vec<Claim>,
    pub(crate) finishes: Vec<Finish>,
    /// Changes of what the resource should be like.
    pub(crate) specs: Vec<Text>,
    /// Worlds in which more jobs were made are not followed further.
    pub(crate) jobs_max: usize,
}

/// A world with one kind; it is the kind of the one resource.
pub(crate) fn kinds(kind: Kind) -> Arc<Kinds> {
    assert_eq!(*kind.name, *key().kind(), "the kind of the resource");
    Arc::new(Kinds::new([kind]).expect("it makes sense"))
}

/// A request for an operation.
pub(crate) fn submit(request: u128, operation: &str) -> Submit {
    let (request, operation, by) = (RequestId(request), operation.into(), "ann".into());
    Submit { request, operation, args: None, priority: 0, run_at: None, by }
}

/// A claim of a session.
pub(crate) fn claim(request: u128, session: u128) -> Claim {
    let kinds = vec![key().kind().into()];
    Claim { session: SessionId(session), request: RequestId(request), kinds, max: 1 }
}

/// A failure that may be tried again.
pub(crate) fn failed() -> Finish {
    Finish::Failed { code: "BUSY".into(), message: "".into(), class: None, state: None }
}

impl State {
    /// Everything that can happen to jobs now.
    pub(crate) fn of_jobs(&self, small: &Small) -> Vec<Command> {
        let work = &small.work;
        let resource = |action| Command::Resource { key: key(), action };
        let (by, reason): (Text, Text) = ("ann".into(), "so".into());
        let mut commands = Vec::new();
        commands.extend(work.submits.iter().map(|s| resource(ResourceAction::Submit(s.clone()))));
        commands.extend(work.claims.iter().cloned().map(Command::Claim));
        let put = |spec: &Text| ResourceAction::Put { spec: spec.clone(), by: by.clone() };
        commands.extend(work.specs.iter().map(|spec| resource(put(spec))));
        for id in self.lanes.jobs.keys().copied() {
            let (by, reason) = (by.clone(), reason.clone());
            commands.push(Command::Job { id, action: JobAction::Cancel { by, reason } });
            for token in (1..=self.record.token.0).map(Token) {
                let finish = |finish: &Finish| {
                    let finish = finish.clone();
                    Command::Job { id, action: JobAction::Finish { token, finish } }
                };
                commands.extend(work.finishes.iter().map(finish));
            }
        }
        commands
    }

    /// Whether there are as many jobs as are followed.
    pub(crate) fn is_busy_enough(&self, small: &Small) -> bool {
        self.lanes.jobs.len() > small.work.jobs_max
    }
}

/// A claim whose job was given back may have another.
pub(crate) fn give_back(event: &Event, before: &State, granted: &mut Vec<RequestId>) {
    let Event::Ended { job: Some(ran), token, .. } = event else { return };
    let tenure = before.record.tenures.iter().find(|tenure| tenure.token == *token);
    if let Some(tenure) = tenure.filter(|_| ran.outcome == AttemptOutcome::HandedBack) {
        granted.retain(|request| *request != tenure.request);
    }
}

/// Asks everything about a step that may be about jobs.
pub(crate) fn ask(before: &State, command: &Command, done: &mut Done) -> Verdict {
    if done.after.kinds.iter().next().is_none() {
        return Ok(());
    }
    history_leads_on(before, done)?;
    events_make_up_the_record(before, done)?;
    lanes_are_as_told(done)?;
    stale_finishes_change_nothing(before, command, done)?;
    again_is_the_same(command, done)
}

/// Each line follows from the lines before; no change is lost.
fn history_leads_on(before: &State, done: &mut Done) -> Verdict {
    if done.events.is_empty() {
        return Ok(());
    }
    let mut lanes = (*before.lanes).clone();
    for event in &done.events {
        lanes.take_in(&key(), event, &done.after.kinds)?;
    }
    lanes.no_change_is_lost(&key(), &done.after.kinds)?;
    done.after.lanes = Rc::new(lanes);
    Ok(())
}

/// What a step did to the record is what its events say, and nothing else but what they never say.
fn events_make_up_the_record(before: &State, done: &Done) -> Verdict {
    let mut told = before.record.clone();
    for event in &done.events {
        told.apply(event, before.now);
    }
    let after = &done.after.record;
    let same = told.tenures == after.tenures
        && told.token == after.token
        && without_dues(&told) == without_dues(after);
    match same {
        true => Ok(()),
        false => Err("the record is not what its history makes of it".to_owned()),
    }
}

/// The part of a record that is about jobs, but for rests that may be cut short.
fn without_dues(record: &Record) -> Option<Box<tenure_core::resource::Resource>> {
    let mut resource = record.resource.clone()?;
    resource.lane.iter_mut().for_each(|job| job.due = Millis(0));
    Some(resource)
}

/// The lane has the jobs that are not over, and each is where history says it is.
fn lanes_are_as_told(done: &Done) -> Verdict {
    let State { lanes, record, over, .. } = &done.after;
    for (id, told) in &lanes.jobs {
        let job = record.job(*id);
        let fits = match told.stage {
            Stage::Waiting => job.is_some_and(|job| !job.state.is_running()),
            Stage::Running(token) => job.is_some_and(|job| job.token() == Some(token)),
            Stage::Over(state) => {
                job.is_none() && over.iter().any(|job| job.id == *id && job.state == state)
            }
        };
        if !fits {
            return Err(format!("job {id} is {job:?}, but history says {:?}", told.stage));
        }
    }
    Ok(())
}

/// A finish whose token is not that of the present attempt moves nothing.
fn stale_finishes_change_nothing(before: &State, command: &Command, done: &Done) -> Verdict {
    let Command::Job { id, action: JobAction::Finish { token, .. } } = command else {
        return Ok(());
    };
    let settle = Command::Lock { key: key(), action: LockAction::Settle };
    let anyway = before.done(&settle).after;
    if anyway.record.job(*id).is_some_and(|job| job.token() == Some(*token)) {
        return Ok(());
    }
    let still = anyway.record.tenures == done.after.record.tenures
        && anyway.record.resource == done.after.record.resource;
    let taken = matches!(done.outcome, Outcome::Finished { already: false, .. });
    match still && !taken {
        true => Ok(()),
        false => Err(format!("stale token {token} finished job {id}: {:?}", done.outcome)),
    }
}

/// A command that comes twice is answered alike and moves nothing the second time.
fn again_is_the_same(command: &Command, done: &Done) -> Verdict {
    if !matches!(command, Command::Resource { .. } | Command::Job { .. } | Command::Claim(_)) {
        return Ok(());
    }
    let again = done.after.done(command);
    let same = match (&done.outcome, &again.outcome) {
        (Outcome::Claimed(first), Outcome::Claimed(second)) => {
            let ids = |jobs: &[tenure_core::Assignment]| -> Vec<(JobId, Token)> {
                jobs.iter().map(|a| (a.job.id, a.tenure.token)).collect()
            };
            ids(first) == ids(second)
        }
        (Outcome::Finished { state: a, .. }, Outcome::Finished { state: b, .. })
        | (Outcome::Cancelled { state: a }, Outcome::Cancelled { state: b }) => a == b,
        (Outcome::Put { generation: a, .. }, Outcome::Put { generation: b, .. }) => a == b,
        (first, second) => first == second,
    };
    let still = done.after.record.resource == again.after.record.resource
        && done.after.record.tenures == again.after.record.tenures;
    let quiet = |event: &Event| matches!(event, Event::Fenced { .. });
    match same && still && again.events.iter().all(quiet) {
        true => Ok(()),
        false => Err(format!("{command:?} gave {:?}, then {:?}", done.outcome, again.outcome)),
    }
}

/// Gives jobs the names of their requests and forgets instants that nobody asks for.
pub(crate) fn plain(record: &mut Record, over: &mut [Job], now: Millis) {
    let mut names: Vec<(JobId, JobId)> = Vec::new();
    let lane = record.lane().iter().map(|job| &**job);
    for job in lane.chain(over.iter()) {
        names.push((job.id, JobId(job.request.0)));
    }
    let name = |id: JobId| names.iter().find(|(old, _)| *old == id).map_or(id, |(_, new)| *new);
    for tenure in &mut record.tenures {
        tenure.job = tenure.job.map(name);
    }
    if let Some(resource) = &mut record.resource {
        resource.since = Millis(0);
        resource.last_job = resource.last_job.map(name);
        let plain = |a: Answered| Answered { job: name(a.job), at: Millis(0), ..a };
        resource.answered = resource.answered.iter().map(plain).collect();
        resource.lane.iter_mut().for_each(|job| plain_job(job, now, &name));
    }
    over.iter_mut().for_each(|job| plain_job(job, now, &name));
}

fn plain_job(job: &mut Job, now: Millis, name: &impl Fn(JobId) -> JobId) {
    job.id = name(job.id);
    job.previous = job.previous.map(name);
    job.followed_by = job.followed_by.map(name);
    (job.submitted_at, job.due) = (Millis(0), Millis(job.due.since(now)));
    job.ended_at = job.ended_at.map(|_| Millis(0));
    if let Some(asked) = &mut job.cancel {
        asked.at = Millis(0);
    }
    for attempt in &mut job.attempts {
        attempt.started_at = Millis(0);
        attempt.ended_at = attempt.ended_at.map(|_| Millis(0));
    }
}
