//! A holder: a process that opens a session, sends heartbeats, acquires locks and claims jobs,
//! works, and releases them.
//!
//! It does what the client library does, driven by the real `tenure::lease::Lease` on the skewed
//! clock of its machine. It never reads true time, and it checks its lease before every effect.
//! [`crate::task`] has its work; [`crate::faults`] freezes and kills it.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::clock::BootInstant;
use tenure::lease::{Lease, LeaseState};
use tenure_core::{
    Claim, Command, JobId, Kinds, Millis, Outcome, Refusal, RequestId, ResourceKey, SessionId,
    Text, Token,
};

use crate::job_model::JobModel;
use crate::message::{Effect, HolderMessage, Reply};
use crate::outbox::OutboxCommand;
use crate::plan::{Phase, Plan};
use crate::rng::Rng;
use crate::skewed_clock::SkewedClock;
use crate::stats::Stats;
use crate::task::{Held, Task};

/// A machine that runs at most one process.
#[derive(Debug)]
pub struct Holder {
    /// Index of the holder.
    pub index: usize,
    /// Clock of the machine.
    pub clock: SkewedClock,
    /// Number of process starts.
    pub epoch: u64,
    /// None while it is down.
    pub process: Option<Process>,
    /// True time since which it is frozen, and whether the whole machine is suspended.
    pub frozen: Option<(u64, bool)>,
    /// Messages that arrived while it was frozen.
    pub inbox: Vec<HolderMessage>,
    /// Number of its latest scheduled wakeup; earlier ones are ignored.
    pub wakeup: u64,
    /// True time until which it is partitioned from the network.
    pub partitioned_until: u64,
    /// True time at which its latest fault started, or ended if it has.
    pub last_fault_us: u64,
}

impl Holder {
    /// Creates a machine without a process.
    #[must_use]
    pub fn new(index: usize, rng: &mut Rng) -> Self {
        let clock = SkewedClock::new(rng.within(1, 1_000_000_000_000), rng.skew());
        let (process, frozen, inbox) = (None, None, Vec::new());
        Self {
            index,
            clock,
            epoch: 0,
            process,
            frozen,
            inbox,
            wakeup: 0,
            partitioned_until: 0,
            last_fault_us: 0,
        }
    }

    /// Returns whether a session is the current one of its process or of its solo tenure.
    #[must_use]
    pub fn owns_session(&self, session: SessionId) -> bool {
        let Some(process) = &self.process else { return false };
        let solo = matches!(&process.task, Task::Working(work) if work.held.request.0 == session.0);
        process.session == session || solo
    }

    /// Returns the tenure it believes to hold at a true time; none while it is frozen.
    #[must_use]
    pub fn believed_tenure(&self, now_us: u64) -> Option<&Held> {
        let process = self.process.as_ref().filter(|_| self.frozen.is_none())?;
        process.believed_tenure(self.clock.read(now_us))
    }
}

/// Environment of a process: what it may read, and what it wants to send.
pub struct Env<'a> {
    /// Reading of the machine's clock.
    pub now: BootInstant,
    /// Phase of the run.
    pub phase: Phase,
    /// Parameters of the run.
    pub plan: &'a Plan,
    /// Kinds of the simulated resources.
    pub kinds: &'a Kinds,
    /// Store time, for scheduled jobs.
    pub store_now: Millis,
    /// Jobs as of the last applied batch.
    pub job_model: &'a JobModel,
    /// Random numbers of the run.
    pub rng: &'a mut Rng,
    /// Counters of the run.
    pub stats: &'a mut Stats,
    /// Requests to send, with their call ids.
    pub calls: Vec<(u64, Command)>,
    /// Effects to send.
    pub effects: Vec<Effect>,
    /// Messages for the trace.
    pub notes: Vec<String>,
}

impl Env<'_> {
    /// Draws an instant `low` to `high` milliseconds from now.
    pub fn random_instant(&mut self, low: u64, high: u64) -> BootInstant {
        self.now + Duration::from_millis(self.rng.within(low, high))
    }

    /// Sends a request with a timeout.
    pub fn call(&mut self, command: Command, timeout: Duration) -> Call {
        let id = self.rng.bits();
        self.calls.push((id, command));
        Call { id, sent: self.now, until: self.now + timeout }
    }
}

/// A request that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Call id.
    pub id: u64,
    /// When it was sent.
    pub sent: BootInstant,
    /// When it times out.
    pub until: BootInstant,
}

/// A running process.
#[derive(Debug)]
pub struct Process {
    /// Index of its holder.
    pub index: usize,
    /// Current session.
    pub session: SessionId,
    /// TTL of the session.
    pub ttl: Duration,
    /// Lease of the session; none until it is open.
    pub lease: Option<Lease>,
    /// The heartbeat or open that is in flight.
    heartbeat: Option<Call>,
    revocations_seen: u64,
    /// Revoked tenures of this session. Kept for the whole session, because a delayed reply may
    /// still grant one of them.
    pub(crate) revoked: BTreeSet<(ResourceKey, Token)>,
    /// Tenures of this session whose jobs are asked to cancel; kept for the same reason.
    pub(crate) cancel_requested: BTreeSet<(ResourceKey, Token)>,
    /// The claim that is not answered yet; it may have been assigned jobs.
    pub(crate) claim: Option<Claim>,
    /// Recent jobs it may cancel, retry or discard.
    pub(crate) known_jobs: Vec<JobId>,
    /// When it issues its next user command.
    pub(crate) user_command_at: BootInstant,
    /// Current task.
    pub task: Task,
    /// Commands that must be answered.
    pub outbox: Vec<OutboxCommand>,
    /// Whether no new work may start.
    draining: bool,
    /// Whether it has closed its session for the last time.
    pub finished: bool,
}

impl Process {
    /// Starts a process.
    #[must_use]
    pub fn new(index: usize, env: &mut Env<'_>) -> Self {
        let (until, user_command_at) = (env.random_instant(0, 500), env.random_instant(0, 2_000));
        let mut process = Self {
            index,
            session: SessionId(0),
            ttl: Duration::ZERO,
            lease: None,
            heartbeat: None,
            revocations_seen: 0,
            revoked: BTreeSet::new(),
            cancel_requested: BTreeSet::new(),
            claim: None,
            known_jobs: Vec::new(),
            user_command_at,
            task: Task::Idle { until },
            outbox: Vec::new(),
            draining: false,
            finished: false,
        };
        process.reset_session(env);
        process
    }

    /// Switches to a new session that is not open yet.
    fn reset_session(&mut self, env: &mut Env<'_>) {
        self.session = SessionId(env.rng.id());
        self.ttl = Duration::from_millis(env.rng.within(2_000, 10_000));
        (self.lease, self.heartbeat, self.revocations_seen, self.claim) = (None, None, 0, None);
        self.revoked.clear();
        self.cancel_requested.clear();
    }

    /// Returns the tenure it believes to hold.
    #[must_use]
    pub fn believed_tenure(&self, now: BootInstant) -> Option<&Held> {
        let Task::Working(work) = &self.task else { return None };
        let lease = work.solo.as_ref().map(|solo| &solo.lease).or(self.lease.as_ref())?;
        // On a copy, because `standing` updates the lease and the oracle must change nothing.
        (lease.clone().state(now) != LeaseState::Lost).then_some(&work.held)
    }

    /// Does everything that is due.
    pub fn poll(&mut self, env: &mut Env<'_>) {
        if self.finished {
            return;
        }
        self.draining = env.phase == Phase::Draining;
        self.check_lease(env);
        self.keep_alive(env);
        self.poll_task(env);
        self.poll_user_commands(env);
        self.poll_outbox(env);
    }

    /// Returns when the process has something to do next.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<BootInstant> {
        if self.finished {
            return None;
        }
        let heartbeat = match (&self.heartbeat, &self.lease) {
            (Some(call), lease) => {
                let deadline = lease.as_ref().map_or(call.until, Lease::deadline);
                Some(call.until.min(deadline))
            }
            (None, Some(lease)) => Some(lease.next_heartbeat().min(lease.deadline())),
            (None, None) => None,
        };
        let outbox = self.outbox.iter().map(OutboxCommand::next_wakeup);
        let next = heartbeat.into_iter().chain(self.task.next_wakeup()).chain(outbox).min();
        // User commands alone do not wake a process: a draining one issues none.
        next.map(|next| {
            if next > self.user_command_at && !self.draining { self.user_command_at } else { next }
        })
    }

    // ----- the session -----

    fn check_lease(&mut self, env: &mut Env<'_>) {
        let Some(lease) = &mut self.lease else { return };
        if lease.state(env.now) == LeaseState::Lost {
            env.stats.losses += 1;
            env.notes.push("lost its session".to_owned());
            self.drop_session(env);
        }
    }

    /// Abandons the session and everything that depends on it.
    pub(crate) fn drop_session(&mut self, env: &mut Env<'_>) {
        self.abandon_task(env);
        self.reset_session(env);
    }

    fn keep_alive(&mut self, env: &mut Env<'_>) {
        if let Some(call) = self.heartbeat.take_if(|call| env.now >= call.until)
            && let Some(lease) = &mut self.lease
        {
            lease.record_failure(call.sent);
        }
        if self.heartbeat.is_some() {
            return;
        }
        let Some(lease) = &self.lease else {
            self.heartbeat = Some(env.call(self.open_command(), self.ttl / 3));
            return;
        };
        if env.now >= lease.next_heartbeat() {
            let timeout = lease.heartbeat_timeout(env.now);
            let command = Command::Heartbeat {
                session: self.session,
                seen: self.revocations_seen,
                tenant: None,
            };
            self.heartbeat = Some(env.call(command, timeout));
        }
    }

    fn open_command(&self) -> Command {
        Command::Open {
            session: self.session,
            tenant: self.tenant(),
            name: format!("h{}", self.index).into(),
            ttl_ms: u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Most workers serve all tenants.
    pub(crate) fn tenant(&self) -> Text {
        if self.index % 3 == 2 { "t".into() } else { "*".into() }
    }

    /// Returns whether a reply answers the heartbeat in flight.
    #[must_use]
    pub fn awaits_heartbeat(&self, reply: &Reply) -> bool {
        self.heartbeat.is_some_and(|call| call.id == reply.call)
    }

    /// Handles a reply or a hint.
    pub fn receive(&mut self, message: HolderMessage, env: &mut Env<'_>) {
        match message {
            HolderMessage::RetryHint(request) => self.retry_hinted(request, env),
            HolderMessage::JobsReady => self.jobs_ready(env),
            HolderMessage::Reply(reply) => {
                if let Some(call) = self.heartbeat.take_if(|call| call.id == reply.call) {
                    self.heartbeat_answered(call, &reply.outcome, env);
                } else {
                    self.reply_received(&reply, env);
                }
            }
        }
    }

    fn heartbeat_answered(&mut self, call: Call, outcome: &Outcome, env: &mut Env<'_>) {
        match (outcome, &mut self.lease) {
            (Outcome::Alive { revoked, .. }, Some(lease)) => {
                lease.confirm(call.sent, env.now);
                for revoked in revoked {
                    self.revocations_seen = self.revocations_seen.max(revoked.n);
                    match revoked.cancel {
                        true => self.request_cancel(&revoked.key, revoked.token, env),
                        false => drop(self.revoked.insert((revoked.key.clone(), revoked.token))),
                    }
                }
                self.stop_revoked_work(env);
            }
            (Outcome::Alive { .. }, None) => self.lease = Some(Lease::new(self.ttl, call.sent)),
            (Outcome::Refused(Refusal::SessionExpired), Some(lease)) => lease.mark_lost(),
            (_, _) => self.drop_session(env),
        }
    }

    fn stop_revoked_work(&mut self, env: &mut Env<'_>) {
        let Task::Working(work) = &self.task else { return };
        if self.revoked.contains(&(work.held.key.clone(), work.held.token)) {
            env.notes.push(format!("learns that token {} was revoked", work.held.token));
            self.task = Task::idle(env);
        }
    }

    fn reply_received(&mut self, reply: &Reply, env: &mut Env<'_>) {
        if !self.reply_to_outbox(reply, env) {
            self.task_answered(reply, env);
        }
    }

    fn jobs_ready(&mut self, env: &Env<'_>) {
        if let Task::Claiming(claiming) = &mut self.task {
            claiming.retry_at = env.now;
        }
    }

    fn retry_hinted(&mut self, request: RequestId, env: &Env<'_>) {
        if let Task::Acquiring(acquiring) = &mut self.task
            && acquiring.lock_request.request == request
        {
            acquiring.retry_at = env.now;
        }
    }
}
