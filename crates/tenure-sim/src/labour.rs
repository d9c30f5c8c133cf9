//! What a process does as a worker: claims jobs, works them under their tenures, says what came of
//! it.
//!
//! A claim keeps its id until it is answered, however often it is sent and whatever the process
//! does in between: so nothing is taken that nobody knows of. A finish is a chore that stays until
//! it is answered. The work itself is that of [`crate::task`].

use std::time::Duration;

use tenure::clock::BootInstant;
use tenure_core::retry::Class;
use tenure_core::{
    Assignment, Claim, Command, Finish, JobAction, JobId, JobState, Outcome, Refusal, RequestId,
    ResourceKey, SessionId, Text, Token,
};

use crate::chore::Chore;
use crate::holder::{Call, Env, Process};
use crate::kinds::{FINAL, NAMES};
use crate::plan::Mood;
use crate::task::{Held, Task, Work};

/// A claim that is repeated until it is answered, or until its process has better things to do.
#[derive(Debug)]
pub struct Claiming {
    call: Option<Call>,
    /// When to ask again.
    pub retry_at: BootInstant,
    until: BootInstant,
    asked: bool,
}

impl Claiming {
    pub(crate) fn next_turn(&self) -> BootInstant {
        self.call.map_or(self.retry_at.min(self.until), |call| call.until)
    }
}

/// The job behind some work.
#[derive(Debug)]
pub struct Labour {
    /// Which.
    pub id: JobId,
    /// Whether it is asked to stop.
    pub cancelling: bool,
    /// What was last said about it, without an answer yet.
    said: Option<Call>,
    percent: u8,
}

impl Process {
    /// Whether it waits for the answer to this claim.
    pub(crate) fn awaits_jobs(&self, call: u64) -> bool {
        let Task::Claiming(claiming) = &self.task else { return false };
        claiming.call.is_some_and(|sent| sent.id == call)
    }

    /// Whether it looks for jobs next. One whose claim is out asks what has become of it.
    pub(crate) fn would_work(&self, env: &mut Env<'_>) -> bool {
        let out = self.claim.is_some() && (env.mood == Mood::Healing || env.rng.chance(700));
        out || env.mood == Mood::Draining || env.rng.chance(env.plan.labour)
    }

    /// Looks for work.
    pub(crate) fn look_for_jobs(&mut self, env: &mut Env<'_>) {
        let until = env.soon(500, 8_000);
        let retry_at = env.now;
        self.task = Task::Claiming(Claiming { call: None, retry_at, until, asked: false });
        self.claim(env);
    }

    pub(crate) fn claim(&mut self, env: &mut Env<'_>) {
        let Task::Claiming(claiming) = &mut self.task else { return };
        if claiming.call.take_if(|call| env.now >= call.until).is_some() {
            claiming.retry_at = env.soon(0, 300);
        }
        if claiming.call.is_some() {
            return;
        }
        if env.now >= claiming.until {
            self.task = Task::idle(env);
        } else if env.now >= claiming.retry_at {
            env.stats.repeats += u64::from(claiming.asked);
            claiming.asked = true;
            let session = self.session;
            let claim = self.claim.get_or_insert_with(|| draw_claim(session, env));
            let command = Command::Claim(claim.clone());
            claiming.call = Some(env.call(command, Duration::from_millis(900)));
        }
    }

    pub(crate) fn claim_answered(&mut self, call: u64, outcome: &Outcome, env: &mut Env<'_>) {
        let Task::Claiming(claiming) = &mut self.task else { return };
        if claiming.call.take_if(|sent| sent.id == call).is_none() {
            return;
        }
        match outcome {
            Outcome::Claimed(jobs) => {
                self.claim = None;
                match jobs.split_first() {
                    None => claiming.retry_at = env.soon(200, 1_500),
                    Some((first, rest)) => self.start(first, rest, env),
                }
            }
            Outcome::Refused(Refusal::SessionOver) => self.told_it_is_over(env),
            _ => self.task = Task::idle(env),
        }
    }

    fn start(&mut self, first: &Assignment, rest: &[Assignment], env: &mut Env<'_>) {
        for spare in rest {
            let (id, token) = (spare.job.id, spare.tenure.token);
            self.chores.push(Chore::new(finish(id, token, Finish::HandBack), env.now));
        }
        let view = &first.tenure;
        let (key, locks, token) = (view.key.clone(), view.locks.clone(), view.token);
        if self.revoked.contains(&(key.clone(), token)) {
            self.task = Task::idle(env);
            return;
        }
        let asked = self.stopped.contains(&(key.clone(), token));
        let cancelling = asked || first.job.state == JobState::Cancelling;
        let held = Held { key, locks, token, request: view.request };
        let labour = Labour { id: first.job.id, cancelling, said: None, percent: 0 };
        // Some work outlasts a lease whose heartbeats do not come through.
        let long = env.mood == Mood::Faulty && env.rng.chance(150);
        let until = env.soon(50, if long { 15_000 } else { env.plan.work_ms_max });
        self.task = Task::Working(Work::on_job(held, labour, env.now, until));
        self.task_turn(env);
    }

    /// Says how far it has come, now and then; the answer may say that it should stop.
    pub(crate) fn report(&mut self, env: &mut Env<'_>) {
        let Task::Working(Work { held, job: Some(labour), .. }) = &mut self.task else { return };
        labour.said.take_if(|call| env.now >= call.until);
        if labour.said.is_some() || !env.rng.chance(300) {
            return;
        }
        labour.percent = (labour.percent + 10).min(100);
        let token = held.token;
        let action = match env.rng.chance(300) {
            true => JobAction::Log { token, text: "a line\n".into() },
            false => JobAction::Progress { token, percent: labour.percent, message: "on".into() },
        };
        let command = Command::Job { id: labour.id, action };
        labour.said = Some(env.call(command, Duration::from_millis(900)));
    }

    pub(crate) fn report_answered(&mut self, call: u64, outcome: &Outcome, env: &mut Env<'_>) {
        let Task::Working(Work { held, job: Some(labour), .. }) = &mut self.task else { return };
        if labour.said.take_if(|said| said.id == call).is_none() {
            return;
        }
        match outcome {
            Outcome::Noted { cancelling } => {
                env.stats.reports += 1;
                labour.cancelling |= cancelling;
            }
            Outcome::Refused(_) => {
                env.notes.push(format!("is told that token {} is lost", held.token));
                self.task = Task::idle(env);
            }
            _ => {}
        }
    }

    /// A heartbeat says that the job of a tenure should stop.
    pub(crate) fn asked_to_stop(&mut self, key: &ResourceKey, token: Token, env: &mut Env<'_>) {
        self.stopped.insert((key.clone(), token));
        let Task::Working(Work { held, job: Some(labour), .. }) = &mut self.task else { return };
        if held.key == *key && held.token == token {
            env.notes.push(format!("learns that job {} should stop", labour.id));
            labour.cancelling = true;
        }
    }
}

/// The work is done: its end is a chore that stays until it is answered.
pub(crate) fn end_of_job(work: &Work, env: &mut Env<'_>) -> Option<Chore> {
    let labour = work.job.as_ref()?;
    let came = match labour.cancelling && env.rng.chance(800) {
        true => Finish::Cancelled,
        false => draw_finish(env),
    };
    Some(Chore::new(finish(labour.id, work.held.token, came), env.now))
}

/// What a process that lost its lease would still like to say about its job.
pub(crate) fn late_word(id: JobId, token: Token, env: &mut Env<'_>) -> Command {
    let came = match env.rng.chance(500) {
        true => Finish::HandBack,
        false => draw_finish(env),
    };
    finish(id, token, came)
}

fn finish(id: JobId, token: Token, finish: Finish) -> Command {
    Command::Job { id, action: JobAction::Finish { token, finish } }
}

fn draw_finish(env: &mut Env<'_>) -> Finish {
    let failed = |code: &str, class| Finish::Failed {
        code: code.into(),
        message: "it failed".into(),
        class,
        state: None,
    };
    match env.rng.within(0, 99) {
        0..15 => failed("BUSY", Some(Class::Transient)),
        15..22 => failed(FINAL, None),
        22..27 => Finish::HandBack,
        _ => Finish::Ok { state: None, result: Some("1".into()) },
    }
}

fn draw_claim(session: SessionId, env: &mut Env<'_>) -> Claim {
    let mut kinds: Vec<Text> = NAMES.iter().map(|name| (*name).into()).collect();
    // Once nothing fails, everybody works everything, so that every lane runs dry.
    if env.mood == Mood::Faulty && env.rng.chance(300) {
        let from = env.rng.below(kinds.len());
        kinds.rotate_left(from);
        kinds.truncate(3);
    }
    let max = if env.rng.chance(250) { 2 } else { 1 };
    Claim { session, request: RequestId(env.rng.id()), kinds, max }
}
