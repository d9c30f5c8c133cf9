//! What a process does with its session: asks for locks, works under them, gives them back.
//!
//! A request without an answer is repeated with the same id; a release or a withdrawal is a chore
//! that stays until it is confirmed. Right before each effect the lease is asked; after `Lost`
//! there is none.

use std::time::Duration;

use tenure::clock::BootInstant;
use tenure::lease::{Lease, Standing};
use tenure_core::{
    Claimant, Command, LockAction, LockName, LockSet, Outcome, Refusal, RequestId, ResourceKey,
    TenureView, Token,
};

use crate::chore::Chore;
use crate::holder::{Call, Env, Process};
use crate::labour::{Claiming, Labour, end_of_job, late_word};
use crate::message::{Effect, Reply};
use crate::plan::Mood;
use crate::want::{Want, draw_want};

/// What a process was granted.
#[derive(Clone, Debug)]
pub struct Held {
    /// Of which resource.
    pub key: ResourceKey,
    /// Which locks, as far as it did not give them back.
    pub locks: LockSet,
    /// The fencing number.
    pub token: Token,
    /// The request that got it.
    pub request: RequestId,
}

/// A request on its way or in the queue.
#[derive(Debug)]
pub struct Asking {
    /// For what.
    pub want: Want,
    call: Option<Call>,
    /// When to ask again.
    pub retry_at: BootInstant,
    give_up_at: Option<BootInstant>,
    asked: bool,
}

/// The heartbeat of a tenure with a session of its own.
#[derive(Debug)]
pub struct Solo {
    /// What its holder may believe.
    pub lease: Lease,
    call: Option<Call>,
}

/// Work under a tenure.
#[derive(Debug)]
pub struct Work {
    /// The tenure.
    pub held: Held,
    /// Its own heartbeat, if it has one.
    pub solo: Option<Solo>,
    /// The job that it is about, if it is about one.
    pub job: Option<Labour>,
    step_at: BootInstant,
    until: BootInstant,
}

impl Work {
    /// Work on a job, from now on.
    pub(crate) fn on_job(held: Held, job: Labour, now: BootInstant, until: BootInstant) -> Self {
        Self { held, solo: None, job: Some(job), step_at: now, until }
    }
}

/// What a process does.
#[derive(Debug)]
pub enum Task {
    /// Nothing, for a while.
    Idle {
        /// How long.
        until: BootInstant,
    },
    /// Asks and waits.
    Asking(Asking),
    /// Asks for jobs.
    Claiming(Claiming),
    /// Works.
    Working(Work),
}

impl Task {
    /// Nothing, for a short while.
    pub fn idle(env: &mut Env<'_>) -> Self {
        Self::Idle { until: env.soon(20, 1_500) }
    }

    /// When there is something to do.
    #[must_use]
    pub fn next_turn(&self) -> Option<BootInstant> {
        match self {
            Self::Idle { until } => Some(*until),
            Self::Asking(asking) => {
                let next = asking.call.map_or(asking.retry_at, |call| call.until);
                Some(asking.give_up_at.map_or(next, |at| at.min(next)))
            }
            Self::Claiming(claiming) => Some(claiming.next_turn()),
            Self::Working(work) => {
                let beat = work.solo.as_ref().map(Solo::next_turn);
                Some(beat.into_iter().fold(work.step_at.min(work.until), BootInstant::min))
            }
        }
    }
}

impl Solo {
    fn next_turn(&self) -> BootInstant {
        let next = self.call.map_or(self.lease.next_beat(), |call| call.until);
        next.min(self.lease.deadline())
    }

    fn keep_alive(&mut self, held: &Held, env: &mut Env<'_>) {
        if let Some(call) = self.call.take_if(|call| env.now >= call.until) {
            self.lease.failed(call.sent);
        }
        if self.call.is_none() && env.now >= self.lease.next_beat() {
            let action = LockAction::Renew { token: held.token, ttl_ms: None };
            let command = Command::Lock { key: held.key.clone(), action };
            self.call = Some(env.call(command, self.lease.patience(env.now)));
        }
    }
}

impl Process {
    pub(crate) fn task_turn(&mut self, env: &mut Env<'_>) {
        match &mut self.task {
            Task::Idle { until } if env.now >= *until => self.choose(env),
            Task::Idle { .. } => {}
            Task::Asking(_) => self.ask(env),
            Task::Claiming(_) => self.claim(env),
            Task::Working(_) => self.work(env),
        }
    }

    // ----- asking -----

    fn choose(&mut self, env: &mut Env<'_>) {
        if env.mood == Mood::Draining && env.lanes.left(None) == 0 {
            self.finish(env);
        } else if self.lease.is_some() && self.would_work(env) {
            self.look_for_jobs(env);
        } else if env.mood == Mood::Faulty && env.rng.chance(20) {
            self.say_goodbye(env);
        } else if self.lease.is_some() {
            // Whoever has a claim out may hold a lane without knowing: it must not wait for it.
            let want = draw_want(self.claim.is_none(), env);
            let give_up = env.mood == Mood::Faulty && env.rng.chance(250);
            let give_up_at = give_up.then(|| env.soon(1, 6_000));
            let retry_at = env.now;
            self.task =
                Task::Asking(Asking { want, call: None, retry_at, give_up_at, asked: false });
            self.ask(env);
        } else {
            self.task = Task::idle(env);
        }
    }

    /// Closes the session, whatever it holds, and stops before that.
    fn say_goodbye(&mut self, env: &mut Env<'_>) {
        env.calls.push((0, Command::Close { session: self.session }));
        self.drop_session(env);
    }

    /// Nothing more to come: says goodbye when everything is confirmed.
    fn finish(&mut self, env: &mut Env<'_>) {
        let closing = |chore: &Chore| matches!(chore.command, Command::Close { .. });
        if self.chores.is_empty() {
            self.chores.push(Chore::new(Command::Close { session: self.session }, env.now));
        } else if self.chores.iter().any(closing) {
            env.notes.push("waits for its goodbye".to_owned());
        }
        self.task = Task::idle(env);
    }

    fn ask(&mut self, env: &mut Env<'_>) {
        let Task::Asking(asking) = &mut self.task else { return };
        if asking.give_up_at.is_some_and(|at| env.now >= at) {
            self.withdraw(env);
            return;
        }
        if asking.call.take_if(|call| env.now >= call.until).is_some() {
            asking.retry_at = env.soon(0, 200);
        }
        if asking.call.is_none() && env.now >= asking.retry_at {
            env.stats.repeats += u64::from(asking.asked);
            asking.asked = true;
            let claimant = match asking.want.solo_ttl_ms {
                Some(ttl_ms) => Claimant::Solo { name: format!("h{}", self.at).into(), ttl_ms },
                None => Claimant::Session(self.session),
            };
            let command = asking.want.command(claimant);
            asking.call = Some(env.call(command, Duration::from_millis(900)));
        }
    }

    fn withdraw(&mut self, env: &mut Env<'_>) {
        let Task::Asking(asking) = &self.task else { return };
        env.stats.withdrawals += 1;
        let action = LockAction::Withdraw { request: asking.want.request };
        let command = Command::Lock { key: asking.want.key.clone(), action };
        self.chores.push(Chore::new(command, env.now));
        self.task = Task::idle(env);
    }

    pub(crate) fn task_answered(&mut self, reply: &Reply, env: &mut Env<'_>) {
        match &mut self.task {
            Task::Idle { .. } => {}
            Task::Asking(asking) => {
                if let Some(call) = asking.call.take_if(|call| call.id == reply.call) {
                    self.ask_answered(call, &reply.outcome, env);
                }
            }
            Task::Working(work) => {
                if let Some(solo) = &mut work.solo
                    && let Some(call) = solo.call.take_if(|call| call.id == reply.call)
                {
                    match reply.outcome {
                        Outcome::Renewed(_) => solo.lease.answered(call.sent, env.now),
                        _ => solo.lease.refused(),
                    }
                }
                self.report_answered(reply.call, &reply.outcome, env);
            }
            Task::Claiming(_) => self.claim_answered(reply.call, &reply.outcome, env),
        }
    }

    fn ask_answered(&mut self, call: Call, outcome: &Outcome, env: &mut Env<'_>) {
        let Task::Asking(asking) = &mut self.task else { return };
        match outcome {
            Outcome::Waiting { .. } => asking.retry_at = env.soon(200, 1_500),
            Outcome::Granted(view) => self.granted(call, view, env),
            Outcome::Refused(Refusal::SessionOver) => self.told_it_is_over(env),
            // A copy of the question may still be on its way, and would be granted to nobody.
            _ => self.withdraw(env),
        }
    }

    pub(crate) fn told_it_is_over(&mut self, env: &mut Env<'_>) {
        if let Some(lease) = &mut self.lease {
            lease.refused();
        }
        env.stats.losses += 1;
        env.notes.push("is told that its session is over".to_owned());
        self.drop_session(env);
    }

    fn granted(&mut self, call: Call, view: &TenureView, env: &mut Env<'_>) {
        let Task::Asking(asking) = &self.task else { return };
        let solo = asking.want.solo_ttl_ms.map(|ttl_ms| Solo {
            // The grant may be older than the question that found it: count what is left.
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
        let held = Held { key, locks, token, request: asking.want.request };
        // Some work outlasts a lease whose heartbeats do not come through.
        let long = env.mood == Mood::Faulty && env.rng.chance(150);
        let until = env.soon(50, if long { 15_000 } else { env.plan.work_ms_max });
        let step_at = env.now;
        self.task = Task::Working(Work { held, solo, job: None, step_at, until });
        self.work(env);
    }

    // ----- working -----

    fn work(&mut self, env: &mut Env<'_>) {
        let Task::Working(work) = &mut self.task else { return };
        if let Some(solo) = &mut work.solo {
            solo.keep_alive(&work.held, env);
        }
        let lease = work.solo.as_mut().map(|solo| &mut solo.lease).or(self.lease.as_mut());
        if lease.is_none_or(|lease| lease.standing(env.now) == Standing::Lost) {
            env.stats.losses += 1;
            env.notes.push(format!("stops: token {} is lost", work.held.token));
            self.abandon_task(env);
        } else if env.now >= work.until || work.job.as_ref().is_some_and(|job| job.cancelling) {
            self.leave_work(env);
        } else if env.now >= work.step_at {
            work.step_at = env.soon(30, 400);
            let Held { key, locks, token, .. } = work.held.clone();
            env.effects.push(Effect { holder: self.at, key, locks, token });
            match env.mood == Mood::Faulty && env.rng.chance(10) {
                true => self.say_goodbye(env),
                false => {
                    self.sometimes_give_back_one(env);
                    self.report(env);
                }
            }
        }
    }

    /// Stops working of its own accord.
    fn leave_work(&mut self, env: &mut Env<'_>) {
        if let Task::Working(work) = std::mem::replace(&mut self.task, Task::idle(env)) {
            let release = Chore::release(&work.held, None, env.now);
            self.chores.push(end_of_job(&work, env).unwrap_or(release));
        }
    }

    fn sometimes_give_back_one(&mut self, env: &mut Env<'_>) {
        let Task::Working(work) = &mut self.task else { return };
        if work.job.is_some() || work.held.locks.size() < 2 || !env.rng.chance(100) {
            return;
        }
        let mut left: Vec<LockName> = work.held.locks.iter().cloned().collect();
        let gone = left.remove(env.rng.below(left.len()));
        self.chores.push(Chore::release(&work.held, Some(gone.into()), env.now));
        if let Ok(left) = LockSet::new(left) {
            work.held.locks = left;
        }
    }

    /// Lets go of everything that hung on a lost or closed session. What it held it tries to give
    /// back, as a guard that goes out of scope would.
    pub(crate) fn abandon_task(&mut self, env: &mut Env<'_>) {
        match &self.task {
            Task::Working(work) => {
                let chore = match &work.job {
                    Some(job) => Chore::new(late_word(job.id, work.held.token, env), env.now),
                    None => Chore::release(&work.held, None, env.now),
                };
                self.chores.push(chore);
                self.task = Task::idle(env);
            }
            Task::Asking(_) => self.withdraw(env),
            Task::Claiming(_) => self.task = Task::idle(env),
            Task::Idle { .. } => {}
        }
    }
}
