//! The worker role of a process: it claims jobs, runs them under their tenures and reports their
//! results.
//!
//! A claim keeps its request id until it is answered, even if the process does other work in
//! between, so that no assigned job is forgotten. A finish stays in the outbox until it is
//! answered. [`crate::task`] has the work itself.

use std::time::Duration;

use tenure::clock::BootInstant;
use tenure_core::retry::Class;
use tenure_core::session::ALL_TENANTS;
use tenure_core::{
    Assignment, Claim, ClaimScope, Command, Finish, JobAction, JobId, JobState, Outcome, Refusal,
    RequestId, ResourceKey, SessionId, StatusUpdate, Text, Token,
};

use crate::holder::{Call, Env, Process};
use crate::kinds::{NAMES, PERMANENT_CODE};
use crate::outbox::OutboxCommand;
use crate::plan::Phase;
use crate::task::{Held, Task, Work};
use crate::updates::draw_update;

/// A claim that is repeated until it is answered or times out.
#[derive(Debug)]
pub struct Claiming {
    call: Option<Call>,
    /// When to send the claim again.
    pub retry_at: BootInstant,
    until: BootInstant,
    sent_before: bool,
}

impl Claiming {
    pub(crate) fn next_wakeup(&self) -> BootInstant {
        self.call.map_or(self.retry_at.min(self.until), |call| call.until)
    }
}

/// A job that is being run.
#[derive(Debug)]
pub struct JobRun {
    /// Id of the job.
    pub id: JobId,
    /// Whether cancellation was requested.
    pub cancelling: bool,
    /// Report that is not answered yet.
    report_call: Option<Call>,
    percent: u8,
}

impl Process {
    /// Returns whether it waits for the reply to this claim.
    pub(crate) fn awaits_claim(&self, call: u64) -> bool {
        let Task::Claiming(claiming) = &self.task else { return false };
        claiming.call.is_some_and(|sent| sent.id == call)
    }

    /// Draws whether to claim jobs next. An unanswered claim is usually repeated first.
    pub(crate) fn wants_jobs(&self, env: &mut Env<'_>) -> bool {
        let unanswered =
            self.claim.is_some() && (env.phase == Phase::Healing || env.rng.chance(700));
        unanswered || env.phase == Phase::Draining || env.rng.chance(env.plan.claim_per_mille)
    }

    /// Starts to claim jobs.
    pub(crate) fn start_claiming(&mut self, env: &mut Env<'_>) {
        let until = env.random_instant(500, 8_000);
        let retry_at = env.now;
        self.task = Task::Claiming(Claiming { call: None, retry_at, until, sent_before: false });
        self.poll_claim(env);
    }

    pub(crate) fn poll_claim(&mut self, env: &mut Env<'_>) {
        let tenant = self.tenant();
        let Task::Claiming(claiming) = &mut self.task else { return };
        if claiming.call.take_if(|call| env.now >= call.until).is_some() {
            claiming.retry_at = env.random_instant(0, 300);
        }
        if claiming.call.is_some() {
            return;
        }
        if env.now >= claiming.until {
            self.task = Task::idle(env);
        } else if env.now >= claiming.retry_at {
            env.stats.repeats += u64::from(claiming.sent_before);
            claiming.sent_before = true;
            let session = self.session;
            let claim = self.claim.get_or_insert_with(|| draw_claim(session, &tenant, env));
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
                    None => claiming.retry_at = env.random_instant(200, 1_500),
                    Some((first, rest)) => self.start_job(first, rest, env),
                }
            }
            Outcome::Refused(Refusal::SessionExpired) => self.session_refused(env),
            _ => {
                self.claim = None;
                self.task = Task::idle(env);
            }
        }
    }

    fn start_job(&mut self, first: &Assignment, rest: &[Assignment], env: &mut Env<'_>) {
        for extra in rest {
            let (id, token) = (extra.job.id, extra.tenure.token);
            let finish = job_finish(id, token, Finish::HandBack, None);
            self.outbox.push(OutboxCommand::new(finish, env.now));
        }
        let view = &first.tenure;
        let (key, locks, token) = (view.key.clone(), view.locks.clone(), view.token);
        if self.revoked.contains(&(key.clone(), token)) {
            self.task = Task::idle(env);
            return;
        }
        let requested = self.cancel_requested.contains(&(key.clone(), token));
        let cancelling = requested || first.job.state == JobState::Cancelling;
        let held = Held { key, locks, token, request: view.request };
        let run = JobRun { id: first.job.id, cancelling, report_call: None, percent: 0 };
        // Some work outlasts a lease whose heartbeats are lost.
        let long = env.phase == Phase::Faulty && env.rng.chance(150);
        let until = env.random_instant(50, if long { 15_000 } else { env.plan.work_ms_max });
        self.task = Task::Working(Work::on_job(held, run, env.now, until));
        self.poll_task(env);
    }

    /// Sometimes reports progress, a log line or a status; the reply may request cancellation.
    pub(crate) fn report(&mut self, env: &mut Env<'_>) {
        let Task::Working(Work { held, job: Some(run), .. }) = &mut self.task else { return };
        run.report_call.take_if(|call| env.now >= call.until);
        if run.report_call.is_some() || !env.rng.chance(300) {
            return;
        }
        run.percent = (run.percent + 10).min(100);
        let token = held.token;
        let action = match env.rng.within(0, 9) {
            0..3 => JobAction::Log { token, text: "a line\n".into() },
            3..6 => JobAction::Progress { token, percent: run.percent, message: "on".into() },
            _ => JobAction::Status { token, update: Box::new(draw_update(&held.key, env)) },
        };
        let command = Command::Job { id: run.id, action };
        run.report_call = Some(env.call(command, Duration::from_millis(900)));
    }

    pub(crate) fn report_answered(&mut self, call: u64, outcome: &Outcome, env: &mut Env<'_>) {
        let Task::Working(Work { held, job: Some(run), .. }) = &mut self.task else { return };
        if run.report_call.take_if(|sent| sent.id == call).is_none() {
            return;
        }
        match outcome {
            Outcome::Noted { cancelling } => {
                env.stats.reports += 1;
                run.cancelling |= cancelling;
            }
            Outcome::Refused(_) => {
                env.notes.push(format!("learns that token {} is lost", held.token));
                self.task = Task::idle(env);
            }
            _ => {}
        }
    }

    /// Handles a cancel request for the job of a tenure, delivered by a heartbeat.
    pub(crate) fn request_cancel(&mut self, key: &ResourceKey, token: Token, env: &mut Env<'_>) {
        self.cancel_requested.insert((key.clone(), token));
        let Task::Working(Work { held, job: Some(run), .. }) = &mut self.task else { return };
        if held.key == *key && held.token == token {
            env.notes.push(format!("learns that job {} is cancelled", run.id));
            run.cancelling = true;
        }
    }
}

/// Creates the finish of a completed job, or `None` if the work has no job.
pub(crate) fn finish_command(work: &Work, env: &mut Env<'_>) -> Option<OutboxCommand> {
    let run = work.job.as_ref()?;
    let outcome = match run.cancelling && env.rng.chance(800) {
        true => Finish::Cancelled,
        false => draw_finish(env),
    };
    let update = env.rng.chance(250).then(|| Box::new(draw_update(&work.held.key, env)));
    Some(OutboxCommand::new(job_finish(run.id, work.held.token, outcome, update), env.now))
}

/// Creates the stale finish, or the stale status, that a process with a lost lease still sends for
/// its job.
pub(crate) fn late_command(id: JobId, held: &Held, env: &mut Env<'_>) -> Command {
    let token = held.token;
    match env.rng.within(0, 9) {
        0..4 => job_finish(id, token, Finish::HandBack, None),
        4..7 => {
            let update = Box::new(draw_update(&held.key, env));
            Command::Job { id, action: JobAction::Status { token, update } }
        }
        _ => job_finish(id, token, draw_finish(env), None),
    }
}

fn job_finish(
    id: JobId,
    token: Token,
    finish: Finish,
    update: Option<Box<StatusUpdate>>,
) -> Command {
    Command::Job { id, action: JobAction::Finish { token, finish, update } }
}

fn draw_finish(env: &mut Env<'_>) -> Finish {
    let delay_ms = env.rng.chance(300).then(|| env.rng.within(0, 3_000));
    let failed = |code: &str, class| Finish::Failed {
        code: code.into(),
        message: "it failed".into(),
        class,
        state: None,
        delay_ms,
    };
    match env.rng.within(0, 99) {
        0..15 => failed("BUSY", Some(Class::Transient)),
        15..22 => failed(PERMANENT_CODE, None),
        22..27 => Finish::HandBack,
        27..37 => Finish::Deferred {
            delay_ms: delay_ms.unwrap_or(500),
            code: "NOT_YET".into(),
            message: "it waits".into(),
        },
        _ => Finish::Ok { state: None, result: Some("1".into()) },
    }
}

fn draw_claim(session: SessionId, tenant: &str, env: &mut Env<'_>) -> Claim {
    let mut kinds: Vec<Text> = NAMES.iter().map(|name| (*name).into()).collect();
    // Once faults stop, every worker claims all kinds, so that every lane drains.
    if env.phase == Phase::Faulty && env.rng.chance(300) {
        let from = env.rng.below(kinds.len());
        kinds.rotate_left(from);
        kinds.truncate(3);
    }
    let max = if env.rng.chance(250) { 2 } else { 1 };
    let restricted = env.phase == Phase::Faulty && env.rng.chance(250);
    let only = if restricted { draw_scope(tenant, env) } else { None };
    Claim { session, request: RequestId(env.rng.id()), kinds, max, tenant: None, only }
}

/// Draws a group or a resource to which a session of `tenant` may restrict a claim.
fn draw_scope(tenant: &str, env: &mut Env<'_>) -> Option<ClaimScope> {
    let own = |key: &&ResourceKey| [key.tenant(), ALL_TENANTS].contains(&tenant);
    let lanes: Vec<_> = env.plan.lanes.iter().filter(own).collect();
    let key = *lanes.get(env.rng.below(lanes.len().max(1)))?;
    let tenant = key.tenant().into();
    Some(match key.name().split_once(':') {
        Some((group, _)) if env.rng.chance(700) => {
            ClaimScope::Group { tenant, group: group.into() }
        }
        _ => ClaimScope::Resource { tenant, name: key.name().into() },
    })
}
