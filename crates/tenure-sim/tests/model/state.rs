//! States of a scenario, and the actions that are possible in each.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use tenure_core::history::{Chain, SealedEntry};
use tenure_core::recent_answers::RecentAnswer;
use tenure_core::{
    Acquire, Claimant, Command, Job, Kinds, LockAction, LockName, LockSet, Millis, Outcome, Record,
    RequestId, ResourceKey, Session, SessionId, Text, Token, TokenFloors, World, limits, step,
};
use tenure_sim::job_model::JobModel;

use crate::jobs::{JobScenario, normalize};

/// TTL of every session.
pub(crate) const TTL_MS: u64 = 1_000;
/// Clock jumps: combined they end just before a TTL, exactly on it, and after it.
const JUMPS_MS: [u64; 3] = [499, 501, 1_000];

/// A small configuration of the model check.
#[derive(Default)]
pub(crate) struct Scenario {
    pub(crate) sessions: u128,
    pub(crate) acquires: Vec<Acquire>,
    /// States with more granted tokens are not explored further.
    pub(crate) tokens_max: u64,
    /// Whether to also release and break `config` alone.
    pub(crate) partial_releases: bool,
    /// Sessions to which a tenure is transferred.
    pub(crate) transfers: Vec<Text>,
    /// Whether the resource is forgotten, and the clock jumps beyond the memory of requests.
    pub(crate) forgets: bool,
    /// Job part of the scenario.
    pub(crate) jobs: JobScenario,
}

/// A transition between states.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Command(Command),
    /// Advances the clock by milliseconds.
    Advance(u64),
}

/// Linked list of history entries, newest first.
#[derive(Debug)]
pub(crate) struct HistoryNode {
    pub(crate) line: SealedEntry,
    pub(crate) before: Option<Rc<Self>>,
}

/// A state of the search.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) now: Millis,
    pub(crate) sessions: Vec<Session>,
    pub(crate) record: Record,
    /// All requests that were granted a tenure and may be repeated.
    pub(crate) granted: Vec<RequestId>,
    /// Last token, also of the time before the resource was forgotten.
    pub(crate) last_token: Token,
    /// When each session was renewed.
    pub(crate) renewed_at: BTreeMap<SessionId, Millis>,
    floors: TokenFloors,
    pub(crate) history: Option<Rc<HistoryNode>>,
    pub(crate) kinds: Arc<Kinds>,
    /// Ended jobs.
    pub(crate) ended: Vec<Job>,
    /// Jobs according to history.
    pub(crate) job_model: Rc<JobModel>,
}

/// Result of applying a command.
pub(crate) struct StepResult {
    pub(crate) after: State,
    pub(crate) outcome: Outcome,
    pub(crate) events: Vec<tenure_core::history::Event>,
}

/// A tenant that has no sessions.
pub(crate) const OTHER_TENANT: &str = "u";

pub(crate) fn key() -> ResourceKey {
    "t/k/n".parse().expect("a plain key")
}

fn locks(names: &[&str]) -> LockSet {
    let names = names.iter().map(|name| name.parse().expect("a plain name"));
    LockSet::new(names.collect()).expect("a few locks")
}

/// Creates an acquire of a session.
pub(crate) fn acquire(request: u128, session: u128, names: &[&str], wait_ms: u64) -> Acquire {
    Acquire {
        locks: locks(names),
        claimant: Claimant::Session(SessionId(session)),
        request: RequestId(request),
        wait_ms,
        purpose: None,
        max_age_ms: None,
        tenant: None,
    }
}

/// Creates an acquire with a solo session.
pub(crate) fn solo(request: u128, names: &[&str], wait_ms: u64) -> Acquire {
    let claimant = Claimant::Solo { name: "solo".into(), ttl_ms: TTL_MS };
    Acquire { claimant, ..acquire(request, 0, names, wait_ms) }
}

fn lock(action: LockAction) -> Command {
    Command::Lock { key: key(), action }
}

impl State {
    pub(crate) fn first(scenario: &Scenario) -> Self {
        Self {
            now: Millis(1_000_000),
            sessions: Vec::new(),
            record: Record::new(&key()),
            granted: Vec::new(),
            last_token: Token::default(),
            renewed_at: BTreeMap::new(),
            floors: TokenFloors::default(),
            history: None,
            kinds: Arc::clone(&scenario.jobs.kinds),
            ended: Vec::new(),
            job_model: Rc::default(),
        }
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.iter().find(|session| session.id == id)
    }

    /// Returns whether a session is alive.
    pub(crate) fn alive(&self, id: SessionId) -> bool {
        self.session(id).is_some_and(|session| session.is_alive(self.now))
    }

    pub(crate) fn world(&self) -> World {
        let (kinds, floors) = (Arc::clone(&self.kinds), self.floors.clone());
        let mut world = World { kinds, floors, ..World::default() };
        self.sessions.iter().for_each(|session| world.sessions.insert(session.clone()));
        world.insert_record(&key(), Box::new(self.record.clone()), self.now);
        world
    }

    /// Applies a command to a copy of this state.
    pub(crate) fn step(&self, command: &Command) -> StepResult {
        let mut world = self.world();
        if let Some(job) = self.ended.iter().find(|job| Some(job.id) == command.job()) {
            world.finished_jobs.insert(job.id, (key(), Box::new(job.clone())));
        }
        let outcome = step(&mut world, command, self.now);
        let changes = world.take_changes();
        let mut ended = self.ended.clone();
        for (_, job) in changes.finished {
            ended.retain(|old| old.id != job.id);
            ended.push(*job);
        }
        ended.sort_unstable_by_key(|job| job.request);
        let events: Vec<_> = changes.events.iter().map(|(_, _, event)| event.clone()).collect();
        // Nothing remains of a forgotten resource but the token floor.
        let mut history = self.history.clone().filter(|_| changes.forgotten.is_empty());
        for (_, line) in world.seal(changes.events) {
            history = Some(Rc::new(HistoryNode { line, before: history }));
        }
        let mut sessions: Vec<Session> = world.sessions.iter().cloned().collect();
        sessions.sort_unstable_by_key(|session| session.id);
        let record = world.records.remove(&key());
        let record = *record.unwrap_or_else(|| world.floors.new_record(&key()));
        let job_model = Rc::clone(&self.job_model);
        let (floors, renewed_at) = (world.floors, self.renewed_at.clone());
        let (kinds, granted) = (Arc::clone(&self.kinds), self.granted.clone());
        let after = Self {
            now: self.now,
            sessions,
            record,
            granted,
            last_token: self.last_token,
            renewed_at,
            floors,
            history,
            kinds,
            ended,
            job_model,
        };
        StepResult { after, outcome, events }
    }

    pub(crate) fn advance(&self, ms: u64) -> Self {
        let mut after = Self { now: self.now.plus(ms), ..self.clone() };
        if ms > limits::RECENT_TTL_MS {
            // By then a request whose tenure has ended counts as new, which is a documented limit.
            let held = |request: &RequestId| {
                self.record.tenures.iter().any(|tenure| tenure.request == *request)
            };
            after.granted.retain(held);
        }
        after
    }

    /// Returns a fingerprint that is equal for states with the same future: instants are relative
    /// to now, and fields that affect no decision are cleared.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut canonical = self.clone();
        let from_now = |at: Millis| Millis(at.since(self.now));
        for session in &mut canonical.sessions {
            session.opened_at = Millis(0);
            session.expires_at = from_now(session.expires_at);
            if let Some(worker) = &mut session.worker {
                worker.polled_at = Millis(0);
            }
        }
        normalize(&mut canonical.record, &mut canonical.ended, &self.kinds, self.now);
        for tenure in &mut canonical.record.tenures {
            tenure.since = Millis(0);
        }
        for waiter in &mut canonical.record.queue {
            (waiter.since, waiter.until) = (Millis(0), from_now(waiter.until));
        }
        for recent in &mut canonical.record.recent {
            let old = self.now.since(recent.at) > limits::RECENT_TTL_MS;
            recent.at = Millis(u64::from(old));
        }
        let plain =
            |answer: &RecentAnswer| RecentAnswer { at: Millis(0), outcome: None, ..answer.clone() };
        canonical.record.recent_answers = self.record.recent_answers.iter().map(plain).collect();
        canonical.record.chain = Chain { n: 0, ..canonical.record.chain };
        canonical.record.chain.head = tenure_core::history::Hash([0; 32]);
        let mut hasher = DefaultHasher::new();
        (&canonical.sessions, &canonical.record, &canonical.granted, &canonical.ended)
            .hash(&mut hasher);
        canonical.floors.get(&key()).hash(&mut hasher);
        hasher.finish()
    }

    /// Returns all actions that are possible in this state.
    pub(crate) fn actions(&self, scenario: &Scenario) -> Vec<Action> {
        let mut actions: Vec<Action> = JUMPS_MS.into_iter().map(Action::Advance).collect();
        if scenario.forgets {
            actions.push(Action::Advance(limits::RECENT_TTL_MS + 1));
            // With the number of the last entry, and with an older one.
            let n = self.record.chain.n;
            let forgets = [n.saturating_sub(1), n].map(|n| lock(LockAction::Forget { n }));
            actions.extend(forgets.map(Action::Command));
        }
        actions.extend(self.session_commands(scenario).into_iter().map(Action::Command));
        actions.extend(Self::acquire_commands(scenario).into_iter().map(Action::Command));
        actions.extend(self.token_commands(scenario).into_iter().map(Action::Command));
        actions.extend(self.job_commands(scenario).into_iter().map(Action::Command));
        actions.push(Action::Command(lock(LockAction::Settle)));
        actions
    }

    fn session_commands(&self, scenario: &Scenario) -> Vec<Command> {
        let mut commands = Vec::new();
        for session in (1..=scenario.sessions).map(SessionId) {
            let (tenant, name): (Text, Text) = ("t".into(), "s".into());
            commands.push(Command::Open { session, tenant, name, ttl_ms: TTL_MS });
            commands.push(Command::Heartbeat { session, seen: 0, tenant: None });
            commands.push(Command::Heartbeat { session, seen: 9, tenant: None });
            commands.push(Command::Close { session, tenant: None });
            let tenant = || Some(Text::from(OTHER_TENANT));
            commands.push(Command::Heartbeat { session, seen: 0, tenant: tenant() });
            commands.push(Command::Close { session, tenant: tenant() });
            commands.push(Command::Expire { session });
            // A session reopened under its old id would have lost its claims; ids are never reused.
            if !self.has_tenure_or_waiter(session) && scenario.jobs.claims.is_empty() {
                commands.push(Command::Forget { session });
            }
        }
        commands
    }

    fn has_tenure_or_waiter(&self, session: SessionId) -> bool {
        self.record.tenures.iter().any(|tenure| tenure.session == session)
            || self.record.queue.iter().any(|waiter| waiter.session == session)
    }

    fn acquire_commands(scenario: &Scenario) -> Vec<Command> {
        let acquire = |request: &Acquire| lock(LockAction::Acquire(request.clone()));
        let withdraw = |acquire: &Acquire| lock(LockAction::Withdraw { request: acquire.request });
        let commands = scenario.acquires.iter().flat_map(|a| [acquire(a), withdraw(a)]);
        let of_session = |a: &&Acquire| matches!(a.claimant, Claimant::Session(_));
        // One suffices: a caller of another tenant is refused before anything else.
        let foreign =
            scenario.acquires.iter().find(of_session).map(|first| {
                acquire(&Acquire { tenant: Some(OTHER_TENANT.into()), ..first.clone() })
            });
        commands.chain(foreign).collect()
    }

    fn token_commands(&self, scenario: &Scenario) -> Vec<Command> {
        let mut commands = Vec::new();
        let config: LockName = "config".parse().expect("a plain name");
        let part = scenario.partial_releases.then(|| LockSet::from(config));
        for token in (1..=self.record.token.0).map(Token) {
            commands.push(lock(LockAction::Renew { token, ttl_ms: None }));
            let transfer =
                |to: &Text| LockAction::Release { token, locks: None, to: Some(to.clone()) };
            commands.extend(scenario.transfers.iter().map(transfer).map(lock));
            for locks in [None, part.clone()].into_iter().take(1 + usize::from(part.is_some())) {
                let (by, reason): (Text, Text) = ("ann".into(), "stuck".into());
                commands.push(lock(LockAction::Release { token, locks: locks.clone(), to: None }));
                commands.push(lock(LockAction::Break { token, locks, by, reason, end_job: false }));
            }
        }
        commands
    }
}
