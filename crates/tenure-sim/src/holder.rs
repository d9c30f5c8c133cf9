//! A holder: one process that opens a session, beats, asks, works and gives back.
//!
//! It does what the library does, driven by the real `tenure::lease::Lease` on the skewed clock
//! of its machine. It never looks at true time, and it never acts without asking its lease first.
//! What it asks for and does with it is in [`crate::task`]; who freezes and kills it is
//! [`crate::faults`].

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::clock::BootInstant;
use tenure::lease::{Lease, Standing};
use tenure_core::{
    Claim, Command, JobId, Kinds, Millis, Outcome, Refusal, RequestId, ResourceKey, SessionId,
    Text, Token,
};

use crate::chore::Chore;
use crate::message::{Effect, Mail, Reply};
use crate::plan::{Mood, Plan};
use crate::rng::Rng;
use crate::skew::Skewed;
use crate::stats::Stats;
use crate::task::{Held, Task};
use crate::told::Lanes;

/// A machine with a process on it, or without.
#[derive(Debug)]
pub struct Holder {
    /// Its number.
    pub at: usize,
    /// The clock of its machine.
    pub clock: Skewed,
    /// Counts its processes.
    pub life: u64,
    /// None while it is down.
    pub process: Option<Process>,
    /// Since when it is frozen, and whether the whole machine sleeps.
    pub frozen: Option<(u64, bool)>,
    /// What arrived while it was frozen.
    pub mailbox: Vec<Mail>,
    /// The number of its latest alarm; older ones mean nothing.
    pub alarm: u64,
    /// Cut off from the network until then, in true time.
    pub cut_until: u64,
    /// When something last befell it, in true time.
    pub hurt_us: u64,
}

impl Holder {
    /// A machine without a process.
    #[must_use]
    pub fn new(at: usize, rng: &mut Rng) -> Self {
        let clock = Skewed::new(rng.within(1, 1_000_000_000_000), rng.skew());
        let (process, frozen, mailbox) = (None, None, Vec::new());
        Self { at, clock, life: 0, process, frozen, mailbox, alarm: 0, cut_until: 0, hurt_us: 0 }
    }

    /// Whether a session is the present one of its process, or of its present tenure.
    #[must_use]
    pub fn owns(&self, session: SessionId) -> bool {
        let Some(process) = &self.process else { return false };
        let solo = matches!(&process.task, Task::Working(work) if work.held.request.0 == session.0);
        process.session == session || solo
    }

    /// What it believes to hold at a true time. A frozen process believes nothing.
    #[must_use]
    pub fn belief(&self, now_us: u64) -> Option<&Held> {
        let process = self.process.as_ref().filter(|_| self.frozen.is_none())?;
        process.belief(self.clock.show(now_us))
    }
}

/// What a process may draw on, and what it wants done.
pub struct Env<'a> {
    /// Its clock.
    pub now: BootInstant,
    /// How things stand.
    pub mood: Mood,
    /// The shape of this run.
    pub plan: &'a Plan,
    /// What can be done to resources.
    pub kinds: &'a Kinds,
    /// The store's time, for those who schedule something.
    pub store_now: Millis,
    /// What is to be seen of the jobs that are not over.
    pub lanes: &'a Lanes,
    /// Its random numbers.
    pub rng: &'a mut Rng,
    /// What happened.
    pub stats: &'a mut Stats,
    /// Requests to send: number of the call, and what.
    pub calls: Vec<(u64, Command)>,
    /// Effects to do now.
    pub effects: Vec<Effect>,
    /// Words for the trace.
    pub notes: Vec<String>,
}

impl Env<'_> {
    /// The instant `low` to `high` milliseconds from now.
    pub fn soon(&mut self, low: u64, high: u64) -> BootInstant {
        self.now + Duration::from_millis(self.rng.within(low, high))
    }

    /// Sends a request and waits so long for the answer.
    pub fn call(&mut self, command: Command, patience: Duration) -> Call {
        let id = self.rng.bits();
        self.calls.push((id, command));
        Call { id, sent: self.now, until: self.now + patience }
    }
}

/// A request without an answer yet.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its number.
    pub id: u64,
    /// When it left.
    pub sent: BootInstant,
    /// When the caller gives up on it.
    pub until: BootInstant,
}

/// One life of a process.
#[derive(Debug)]
pub struct Process {
    /// Which holder it is.
    pub at: usize,
    /// Its session.
    pub session: SessionId,
    /// How long that lives without a heartbeat.
    pub ttl: Duration,
    /// What it may believe; none until the session is open.
    pub lease: Option<Lease>,
    /// The heartbeat, or the opening, that is on its way.
    beat: Option<Call>,
    seen: u64,
    /// Tenures of this session that were taken away. An answer that granted one of them may still
    /// be on its way, so they are remembered as long as the session.
    pub(crate) revoked: BTreeSet<(ResourceKey, Token)>,
    /// Tenures of this session whose jobs are asked to stop; likewise.
    pub(crate) stopped: BTreeSet<(ResourceKey, Token)>,
    /// The claim that is not answered yet: it may have got jobs of which nothing is known here.
    pub(crate) claim: Option<Claim>,
    /// Jobs that it has heard of.
    pub(crate) known: Vec<JobId>,
    /// When it wants something next.
    pub(crate) wish_at: BootInstant,
    /// What it does.
    pub task: Task,
    /// What it must see to besides.
    pub chores: Vec<Chore>,
    /// Nothing new may begin.
    draining: bool,
    /// It has closed its session for good.
    pub finished: bool,
}

impl Process {
    /// A process that has just started.
    #[must_use]
    pub fn new(at: usize, env: &mut Env<'_>) -> Self {
        let (until, wish_at) = (env.soon(0, 500), env.soon(0, 2_000));
        let mut process = Self {
            at,
            session: SessionId(0),
            ttl: Duration::ZERO,
            lease: None,
            beat: None,
            seen: 0,
            revoked: BTreeSet::new(),
            stopped: BTreeSet::new(),
            claim: None,
            known: Vec::new(),
            wish_at,
            task: Task::Idle { until },
            chores: Vec::new(),
            draining: false,
            finished: false,
        };
        process.renew_session(env);
        process
    }

    /// Begins a new session; whatever the old one was, it is not used again.
    fn renew_session(&mut self, env: &mut Env<'_>) {
        self.session = SessionId(env.rng.id());
        self.ttl = Duration::from_millis(env.rng.within(2_000, 10_000));
        (self.lease, self.beat, self.seen, self.claim) = (None, None, 0, None);
        self.revoked.clear();
        self.stopped.clear();
    }

    /// What it believes to hold.
    #[must_use]
    pub fn belief(&self, now: BootInstant) -> Option<&Held> {
        let Task::Working(work) = &self.task else { return None };
        let lease = work.solo.as_ref().map(|solo| &solo.lease).or(self.lease.as_ref())?;
        // A copy, because asking changes the lease and the oracle must change nothing.
        (lease.clone().standing(now) != Standing::Lost).then_some(&work.held)
    }

    /// Does whatever is due.
    pub fn turn(&mut self, env: &mut Env<'_>) {
        if self.finished {
            return;
        }
        self.draining = env.mood == Mood::Draining;
        self.look_at_lease(env);
        self.keep_alive(env);
        self.task_turn(env);
        self.wishes_turn(env);
        self.chores_turn(env);
    }

    /// When it has something to do next.
    #[must_use]
    pub fn next_turn(&self) -> Option<BootInstant> {
        if self.finished {
            return None;
        }
        let beat = match (&self.beat, &self.lease) {
            (Some(call), lease) => {
                let deadline = lease.as_ref().map_or(call.until, Lease::deadline);
                Some(call.until.min(deadline))
            }
            (None, Some(lease)) => Some(lease.next_beat().min(lease.deadline())),
            (None, None) => None,
        };
        let chores = self.chores.iter().map(Chore::next_turn);
        let next = beat.into_iter().chain(self.task.next_turn()).chain(chores).min();
        // A process that has nothing else to do is not kept awake by wishes it may not have.
        next.map(|next| if next > self.wish_at && !self.draining { self.wish_at } else { next })
    }

    // ----- the session -----

    fn look_at_lease(&mut self, env: &mut Env<'_>) {
        let Some(lease) = &mut self.lease else { return };
        if lease.standing(env.now) == Standing::Lost {
            env.stats.losses += 1;
            env.notes.push("lost its session".to_owned());
            self.drop_session(env);
        }
    }

    /// Gives the session up, with all that hangs on it.
    pub(crate) fn drop_session(&mut self, env: &mut Env<'_>) {
        self.abandon_task(env);
        self.renew_session(env);
    }

    fn keep_alive(&mut self, env: &mut Env<'_>) {
        if let Some(call) = self.beat.take_if(|call| env.now >= call.until)
            && let Some(lease) = &mut self.lease
        {
            lease.failed(call.sent);
        }
        if self.beat.is_some() {
            return;
        }
        let Some(lease) = &self.lease else {
            self.beat = Some(env.call(self.opening(), self.ttl / 3));
            return;
        };
        if env.now >= lease.next_beat() {
            let patience = lease.patience(env.now);
            let command = Command::Beat { session: self.session, seen: self.seen };
            self.beat = Some(env.call(command, patience));
        }
    }

    fn opening(&self) -> Command {
        Command::Open {
            session: self.session,
            tenant: self.tenant(),
            name: format!("h{}", self.at).into(),
            ttl_ms: u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Most machines work for all tenants.
    fn tenant(&self) -> Text {
        if self.at % 3 == 2 { "t".into() } else { "*".into() }
    }

    /// Whether an answer is for the heartbeat that is on its way.
    #[must_use]
    pub fn awaits_beat(&self, reply: &Reply) -> bool {
        self.beat.is_some_and(|call| call.id == reply.call)
    }

    /// Takes an answer or a hint.
    pub fn receive(&mut self, mail: Mail, env: &mut Env<'_>) {
        match mail {
            Mail::Hint(request) => self.hint(request, env),
            Mail::Ready => self.jobs_are_ready(env),
            Mail::Reply(reply) => {
                if let Some(call) = self.beat.take_if(|call| call.id == reply.call) {
                    self.beat_answered(call, &reply.outcome, env);
                } else {
                    self.answered(&reply, env);
                }
            }
        }
    }

    fn beat_answered(&mut self, call: Call, outcome: &Outcome, env: &mut Env<'_>) {
        match (outcome, &mut self.lease) {
            (Outcome::Alive { revoked, .. }, Some(lease)) => {
                lease.answered(call.sent, env.now);
                for revoked in revoked {
                    self.seen = self.seen.max(revoked.n);
                    match revoked.cancel {
                        true => self.asked_to_stop(&revoked.key, revoked.token, env),
                        false => drop(self.revoked.insert((revoked.key.clone(), revoked.token))),
                    }
                }
                self.stop_revoked_work(env);
            }
            (Outcome::Alive { .. }, None) => self.lease = Some(Lease::new(self.ttl, call.sent)),
            (Outcome::Refused(Refusal::SessionOver), Some(lease)) => lease.refused(),
            (_, _) => self.drop_session(env),
        }
    }

    fn stop_revoked_work(&mut self, env: &mut Env<'_>) {
        let Task::Working(work) = &self.task else { return };
        if self.revoked.contains(&(work.held.key.clone(), work.held.token)) {
            env.notes.push(format!("learns that token {} was taken away", work.held.token));
            self.task = Task::idle(env);
        }
    }

    fn answered(&mut self, reply: &Reply, env: &mut Env<'_>) {
        if !self.chore_answered(reply, env) {
            self.task_answered(reply, env);
        }
    }

    fn jobs_are_ready(&mut self, env: &Env<'_>) {
        if let Task::Claiming(claiming) = &mut self.task {
            claiming.retry_at = env.now;
        }
    }

    fn hint(&mut self, request: RequestId, env: &Env<'_>) {
        if let Task::Asking(asking) = &mut self.task
            && asking.want.request == request
        {
            asking.retry_at = env.now;
        }
    }
}
