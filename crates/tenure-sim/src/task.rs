//! Tasks of a process: it acquires locks, works under them and releases them.
//!
//! An unanswered request is repeated with the same id; a release or a withdrawal stays in the
//! outbox until it is answered. The lease is checked right before each effect; after `Lost` there
//! are none.

use std::time::Duration;

use tenure::clock::BootInstant;
use tenure::lease::{Lease, LeaseState};
use tenure_core::{
    Claimant, Command, LockAction, LockName, LockSet, Outcome, Refusal, RequestId, ResourceKey,
    TenureView, Token,
};

use crate::holder::{Call, Env, Process};
use crate::lock_request::{LockRequest, draw_lock_request};
use crate::message::{Effect, Reply};
use crate::outbox::OutboxCommand;
use crate::plan::Phase;
use crate::worker::{Claiming, JobRun, finish_command, late_command};

/// A tenure that a process was granted.
#[derive(Clone, Debug)]
pub struct Held {
    /// Resource of the tenure.
    pub key: ResourceKey,
    /// Locks it has not released.
    pub locks: LockSet,
    /// Fencing token.
    pub token: Token,
    /// Request that was granted.
    pub request: RequestId,
}

/// A lock request that is in flight or waits in the queue.
#[derive(Debug)]
pub struct Acquiring {
    /// The request.
    pub lock_request: LockRequest,
    call: Option<Call>,
    /// When to send it again.
    pub retry_at: BootInstant,
    give_up_at: Option<BootInstant>,
    sent_before: bool,
}

/// Renewal of a tenure with a solo session.
#[derive(Debug)]
pub struct Solo {
    /// Lease of the tenure.
    pub lease: Lease,
    call: Option<Call>,
}

/// Work under a tenure.
#[derive(Debug)]
pub struct Work {
    /// The tenure.
    pub held: Held,
    /// Renewal of a solo tenure.
    pub solo: Option<Solo>,
    /// The job that is run, if any.
    pub job: Option<JobRun>,
    step_at: BootInstant,
    until: BootInstant,
}

impl Work {
    /// Creates work on a job that starts at `now`.
    pub(crate) fn on_job(held: Held, job: JobRun, now: BootInstant, until: BootInstant) -> Self {
        Self { held, solo: None, job: Some(job), step_at: now, until }
    }
}

/// Current task of a process.
#[derive(Debug)]
pub enum Task {
    /// Does nothing.
    Idle {
        /// End of the idle time.
        until: BootInstant,
    },
    /// Acquires locks.
    Acquiring(Acquiring),
    /// Claims jobs.
    Claiming(Claiming),
    /// Works under a tenure.
    Working(Work),
}

impl Task {
    /// Creates a short idle time.
    pub fn idle(env: &mut Env<'_>) -> Self {
        Self::Idle { until: env.random_instant(20, 1_500) }
    }

    /// Returns when the task has something to do next.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<BootInstant> {
        match self {
            Self::Idle { until } => Some(*until),
            Self::Acquiring(acquiring) => {
                let next = acquiring.call.map_or(acquiring.retry_at, |call| call.until);
                Some(acquiring.give_up_at.map_or(next, |at| at.min(next)))
            }
            Self::Claiming(claiming) => Some(claiming.next_wakeup()),
            Self::Working(work) => {
                let renewal = work.solo.as_ref().map(Solo::next_wakeup);
                Some(renewal.into_iter().fold(work.step_at.min(work.until), BootInstant::min))
            }
        }
    }
}

impl Solo {
    fn next_wakeup(&self) -> BootInstant {
        let next = self.call.map_or(self.lease.next_heartbeat(), |call| call.until);
        next.min(self.lease.deadline())
    }

    fn keep_alive(&mut self, held: &Held, env: &mut Env<'_>) {
        if let Some(call) = self.call.take_if(|call| env.now >= call.until) {
            self.lease.record_failure(call.sent);
        }
        if self.call.is_none() && env.now >= self.lease.next_heartbeat() {
            let action = LockAction::Renew { token: held.token, ttl_ms: None };
            let command = Command::Lock { key: held.key.clone(), action };
            self.call = Some(env.call(command, self.lease.heartbeat_timeout(env.now)));
        }
    }
}

impl Process {
    pub(crate) fn poll_task(&mut self, env: &mut Env<'_>) {
        match &mut self.task {
            Task::Idle { until } if env.now >= *until => self.choose_task(env),
            Task::Idle { .. } => {}
            Task::Acquiring(_) => self.poll_acquire(env),
            Task::Claiming(_) => self.poll_claim(env),
            Task::Working(_) => self.poll_work(env),
        }
    }

    // ----- acquiring -----

    fn choose_task(&mut self, env: &mut Env<'_>) {
        let idle = env.job_model.unfinished(None) == 0 && !env.job_model.has_timers();
        if env.phase == Phase::Draining && idle {
            self.shut_down(env);
        } else if self.lease.is_some() && self.wants_jobs(env) {
            self.start_claiming(env);
        } else if env.phase == Phase::Faulty && env.rng.chance(20) {
            self.close_session(env);
        } else if self.lease.is_some() {
            // With an unanswered claim it may hold a lane and would wait for itself.
            let lock_request = draw_lock_request(self.claim.is_none(), env);
            let give_up = env.phase == Phase::Faulty && env.rng.chance(250);
            let give_up_at = give_up.then(|| env.random_instant(1, 6_000));
            let retry_at = env.now;
            self.task = Task::Acquiring(Acquiring {
                lock_request,
                call: None,
                retry_at,
                give_up_at,
                sent_before: false,
            });
            self.poll_acquire(env);
        } else {
            self.task = Task::idle(env);
        }
    }

    /// Closes the session regardless of what it holds, and abandons the task.
    fn close_session(&mut self, env: &mut Env<'_>) {
        env.calls.push((0, Command::Close { session: self.session, tenant: None }));
        self.drop_session(env);
    }

    /// Closes the session for the last time once the outbox is empty.
    fn shut_down(&mut self, env: &mut Env<'_>) {
        let closing = |command: &OutboxCommand| matches!(command.command, Command::Close { .. });
        if self.outbox.is_empty() {
            self.outbox.push(OutboxCommand::new(
                Command::Close { session: self.session, tenant: None },
                env.now,
            ));
        } else if self.outbox.iter().any(closing) {
            env.notes.push("waits for its session to close".to_owned());
        }
        self.task = Task::idle(env);
    }

    fn poll_acquire(&mut self, env: &mut Env<'_>) {
        let Task::Acquiring(acquiring) = &mut self.task else { return };
        if acquiring.give_up_at.is_some_and(|at| env.now >= at) {
            self.withdraw(env);
            return;
        }
        if acquiring.call.take_if(|call| env.now >= call.until).is_some() {
            acquiring.retry_at = env.random_instant(0, 200);
        }
        if acquiring.call.is_none() && env.now >= acquiring.retry_at {
            env.stats.repeats += u64::from(acquiring.sent_before);
            acquiring.sent_before = true;
            let claimant = match acquiring.lock_request.solo_ttl_ms {
                Some(ttl_ms) => Claimant::Solo { name: format!("h{}", self.index).into(), ttl_ms },
                None => Claimant::Session(self.session),
            };
            let command = acquiring.lock_request.command(claimant);
            acquiring.call = Some(env.call(command, Duration::from_millis(900)));
        }
    }

    fn withdraw(&mut self, env: &mut Env<'_>) {
        let Task::Acquiring(acquiring) = &self.task else { return };
        env.stats.withdrawals += 1;
        let action = LockAction::Withdraw { request: acquiring.lock_request.request };
        let command = Command::Lock { key: acquiring.lock_request.key.clone(), action };
        self.outbox.push(OutboxCommand::new(command, env.now));
        self.task = Task::idle(env);
    }

    pub(crate) fn task_answered(&mut self, reply: &Reply, env: &mut Env<'_>) {
        match &mut self.task {
            Task::Idle { .. } => {}
            Task::Acquiring(acquiring) => {
                if let Some(call) = acquiring.call.take_if(|call| call.id == reply.call) {
                    self.acquire_answered(call, &reply.outcome, env);
                }
            }
            Task::Working(work) => {
                if let Some(solo) = &mut work.solo
                    && let Some(call) = solo.call.take_if(|call| call.id == reply.call)
                {
                    match reply.outcome {
                        Outcome::Renewed(_) => solo.lease.confirm(call.sent, env.now),
                        _ => solo.lease.mark_lost(),
                    }
                }
                self.report_answered(reply.call, &reply.outcome, env);
            }
            Task::Claiming(_) => self.claim_answered(reply.call, &reply.outcome, env),
        }
    }

    fn acquire_answered(&mut self, call: Call, outcome: &Outcome, env: &mut Env<'_>) {
        let Task::Acquiring(acquiring) = &mut self.task else { return };
        match outcome {
            Outcome::Waiting { .. } => acquiring.retry_at = env.random_instant(200, 1_500),
            Outcome::Granted(view) => self.start_work(call, view, env),
            Outcome::Refused(Refusal::SessionExpired) => self.session_refused(env),
            // A duplicate of the request may still be in flight and could be granted later.
            _ => self.withdraw(env),
        }
    }

    pub(crate) fn session_refused(&mut self, env: &mut Env<'_>) {
        if let Some(lease) = &mut self.lease {
            lease.mark_lost();
        }
        env.stats.losses += 1;
        env.notes.push("learns that its session has ended".to_owned());
        self.drop_session(env);
    }

    fn start_work(&mut self, call: Call, view: &TenureView, env: &mut Env<'_>) {
        let Task::Acquiring(acquiring) = &self.task else { return };
        let solo = acquiring.lock_request.solo_ttl_ms.map(|ttl_ms| Solo {
            // The grant may precede the request that returned it: use the remaining TTL.
            lease: Lease::new(
                Duration::from_millis(ttl_ms),
                call.sent - Duration::from_millis(ttl_ms.saturating_sub(view.expires_in_ms)),
            ),
            call: None,
        });
        let (key, locks, token) = (view.key.clone(), view.locks.clone(), view.token);
        if solo.is_none() && self.revoked.contains(&(key.clone(), token)) {
            self.task = Task::idle(env);
            return;
        }
        let held = Held { key, locks, token, request: acquiring.lock_request.request };
        // Some work outlasts a lease whose heartbeats are lost.
        let long = env.phase == Phase::Faulty && env.rng.chance(150);
        let until = env.random_instant(50, if long { 15_000 } else { env.plan.work_ms_max });
        let step_at = env.now;
        self.task = Task::Working(Work { held, solo, job: None, step_at, until });
        self.poll_work(env);
    }

    // ----- working -----

    fn poll_work(&mut self, env: &mut Env<'_>) {
        let Task::Working(work) = &mut self.task else { return };
        if let Some(solo) = &mut work.solo {
            solo.keep_alive(&work.held, env);
        }
        let lease = work.solo.as_mut().map(|solo| &mut solo.lease).or(self.lease.as_mut());
        if lease.is_none_or(|lease| lease.state(env.now) == LeaseState::Lost) {
            env.stats.losses += 1;
            env.notes.push(format!("stops: token {} is lost", work.held.token));
            self.abandon_task(env);
        } else if env.now >= work.until || work.job.as_ref().is_some_and(|job| job.cancelling) {
            self.finish_work(env);
        } else if env.now >= work.step_at {
            work.step_at = env.random_instant(30, 400);
            let Held { key, locks, token, .. } = work.held.clone();
            env.effects.push(Effect { holder: self.index, key, locks, token });
            match env.phase == Phase::Faulty && env.rng.chance(10) {
                true => self.close_session(env),
                false => {
                    self.maybe_release_one_lock(env);
                    self.report(env);
                }
            }
        }
    }

    /// Ends the work regularly.
    fn finish_work(&mut self, env: &mut Env<'_>) {
        if let Task::Working(work) = std::mem::replace(&mut self.task, Task::idle(env)) {
            let release = match env.rng.chance(300) {
                true => {
                    let to = format!("h{}", env.rng.below(env.plan.holders)).into();
                    OutboxCommand::transfer(&work.held, to, env.now)
                }
                false => OutboxCommand::release(&work.held, None, env.now),
            };
            self.outbox.push(finish_command(&work, env).unwrap_or(release));
        }
    }

    fn maybe_release_one_lock(&mut self, env: &mut Env<'_>) {
        let Task::Working(work) = &mut self.task else { return };
        if work.job.is_some() || work.held.locks.size() < 2 || !env.rng.chance(100) {
            return;
        }
        let mut remaining: Vec<LockName> = work.held.locks.iter().cloned().collect();
        let released = remaining.remove(env.rng.below(remaining.len()));
        self.outbox.push(OutboxCommand::release(&work.held, Some(released.into()), env.now));
        if let Ok(remaining) = LockSet::new(remaining) {
            work.held.locks = remaining;
        }
    }

    /// Abandons everything that depended on a lost or closed session. Still tries to release what
    /// it held, as a lock guard does on drop.
    pub(crate) fn abandon_task(&mut self, env: &mut Env<'_>) {
        match &self.task {
            Task::Working(work) => {
                let command = match &work.job {
                    Some(job) => OutboxCommand::new(late_command(job.id, &work.held, env), env.now),
                    None => OutboxCommand::release(&work.held, None, env.now),
                };
                self.outbox.push(command);
                self.task = Task::idle(env);
            }
            Task::Acquiring(_) => self.withdraw(env),
            Task::Claiming(_) => self.task = Task::idle(env),
            Task::Idle { .. } => {}
        }
    }
}
