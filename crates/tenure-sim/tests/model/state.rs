//! States of a small world, and everything that can happen in one.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use tenure_core::history::{Chain, Sealed};
use tenure_core::{
    Acquire, Claimant, Command, Job, Kinds, LockAction, LockName, LockSet, Millis, Outcome, Record,
    RequestId, ResourceKey, Session, SessionId, Text, Token, World, step,
};
use tenure_sim::told::Lanes;

use crate::jobs::{Work, plain};

/// The time to live of every session.
pub(crate) const TTL_MS: u64 = 1_000;
/// Clock jumps: to just below an expiry that is one step away, onto it, and beyond it.
const JUMPS_MS: [u64; 3] = [499, 501, 1_000];

/// What a small world is made of.
#[derive(Default)]
pub(crate) struct Small {
    pub(crate) sessions: u128,
    pub(crate) acquires: Vec<Acquire>,
    /// Worlds that have given out more tokens are not followed further.
    pub(crate) tokens_max: u64,
    /// Also releases and breaks of `config` alone.
    pub(crate) locks_apart: bool,
    /// What it has of jobs.
    pub(crate) work: Work,
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Do(Command),
    Pass(u64),
}

/// History of the way that led here, newest first.
#[derive(Debug)]
pub(crate) struct Past {
    pub(crate) line: Sealed,
    pub(crate) before: Option<Rc<Self>>,
}

/// Everything that is so at one moment.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) now: Millis,
    pub(crate) sessions: Vec<Session>,
    pub(crate) record: Record,
    /// Every request that was ever granted something.
    pub(crate) granted: Vec<RequestId>,
    pub(crate) past: Option<Rc<Past>>,
    pub(crate) kinds: Arc<Kinds>,
    /// The jobs that are over.
    pub(crate) over: Vec<Job>,
    /// What history says of jobs.
    pub(crate) lanes: Rc<Lanes>,
}

/// What a step did.
pub(crate) struct Done {
    pub(crate) after: State,
    pub(crate) outcome: Outcome,
    pub(crate) events: Vec<tenure_core::history::Event>,
}

pub(crate) fn key() -> ResourceKey {
    "t/k/n".parse().expect("a plain key")
}

fn locks(names: &[&str]) -> LockSet {
    let names = names.iter().map(|name| name.parse().expect("a plain name"));
    LockSet::new(names.collect()).expect("a few locks")
}

/// A request of a session.
pub(crate) fn acquire(request: u128, session: u128, names: &[&str], wait_ms: u64) -> Acquire {
    Acquire {
        locks: locks(names),
        claimant: Claimant::Session(SessionId(session)),
        request: RequestId(request),
        wait_ms,
        purpose: None,
    }
}

/// A request with a session of its own.
pub(crate) fn solo(request: u128, names: &[&str], wait_ms: u64) -> Acquire {
    let claimant = Claimant::Solo { name: "solo".into(), ttl_ms: TTL_MS };
    Acquire { claimant, ..acquire(request, 0, names, wait_ms) }
}

fn lock(action: LockAction) -> Command {
    Command::Lock { key: key(), action }
}

impl State {
    pub(crate) fn first(small: &Small) -> Self {
        Self {
            now: Millis(1_000_000),
            sessions: Vec::new(),
            record: Record::new(&key()),
            granted: Vec::new(),
            past: None,
            kinds: Arc::clone(&small.work.kinds),
            over: Vec::new(),
            lanes: Rc::default(),
        }
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.iter().find(|session| session.id == id)
    }

    /// Whether somebody lives at this moment.
    pub(crate) fn alive(&self, id: SessionId) -> bool {
        self.session(id).is_some_and(|session| session.alive(self.now))
    }

    pub(crate) fn world(&self) -> World {
        let mut world = World { kinds: Arc::clone(&self.kinds), ..World::default() };
        self.sessions.iter().for_each(|session| world.sessions.insert(session.clone()));
        world.admit(&key(), Box::new(self.record.clone()), self.now);
        world
    }

    /// What a command does here.
    pub(crate) fn done(&self, command: &Command) -> Done {
        let mut world = self.world();
        if let Some(job) = self.over.iter().find(|job| Some(job.id) == command.job()) {
            world.past.insert(job.id, (key(), Box::new(job.clone())));
        }
        let outcome = step(&mut world, command, self.now);
        let changes = world.take_changes();
        let mut over = self.over.clone();
        for (_, job) in changes.finished {
            over.retain(|old| old.id != job.id);
            over.push(*job);
        }
        over.sort_unstable_by_key(|job| job.request);
        let events: Vec<_> = changes.events.iter().map(|(_, _, event)| event.clone()).collect();
        let mut past = self.past.clone();
        for (_, line) in world.seal(changes.events) {
            past = Some(Rc::new(Past { line, before: past }));
        }
        let mut sessions: Vec<Session> = world.sessions.iter().cloned().collect();
        sessions.sort_unstable_by_key(|session| session.id);
        let record = world.records.remove(&key());
        let record = record.map_or_else(|| Record::new(&key()), |record| *record);
        let (now, granted) = (self.now, self.granted.clone());
        let (kinds, lanes) = (Arc::clone(&self.kinds), Rc::clone(&self.lanes));
        let after = Self { now, sessions, record, granted, past, kinds, over, lanes };
        Done { after, outcome, events }
    }

    pub(crate) fn passed(&self, ms: u64) -> Self {
        Self { now: self.now.plus(ms), ..self.clone() }
    }

    /// Two states with the same fingerprint have the same future: instants count from now, and what
    /// only history or people read is left out.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut same = self.clone();
        let from_now = |at: Millis| Millis(at.since(self.now));
        for session in &mut same.sessions {
            session.opened_at = Millis(0);
            session.expires_at = from_now(session.expires_at);
            if let Some(worker) = &mut session.worker {
                worker.asked_at = Millis(0);
            }
        }
        plain(&mut same.record, &mut same.over, self.now);
        for tenure in &mut same.record.tenures {
            tenure.since = Millis(0);
        }
        for waiter in &mut same.record.queue {
            (waiter.since, waiter.until) = (Millis(0), from_now(waiter.until));
        }
        for recent in &mut same.record.recent {
            recent.at = Millis(0);
        }
        same.record.chain = Chain { n: 0, ..same.record.chain };
        same.record.chain.head = tenure_core::history::Hash([0; 32]);
        let mut hasher = DefaultHasher::new();
        (&same.sessions, &same.record, &same.granted, &same.over).hash(&mut hasher);
        hasher.finish()
    }

    /// Everything that can happen now.
    pub(crate) fn acts(&self, small: &Small) -> Vec<Act> {
        let mut acts: Vec<Act> = JUMPS_MS.into_iter().map(Act::Pass).collect();
        acts.extend(self.of_sessions(small).into_iter().map(Act::Do));
        acts.extend(Self::of_requests(small).into_iter().map(Act::Do));
        acts.extend(self.of_tokens(small).into_iter().map(Act::Do));
        acts.extend(self.of_jobs(small).into_iter().map(Act::Do));
        acts.push(Act::Do(lock(LockAction::Settle)));
        acts
    }

    fn of_sessions(&self, small: &Small) -> Vec<Command> {
        let mut commands = Vec::new();
        for session in (1..=small.sessions).map(SessionId) {
            let (tenant, name): (Text, Text) = ("t".into(), "s".into());
            commands.push(Command::Open { session, tenant, name, ttl_ms: TTL_MS });
            commands.push(Command::Beat { session, seen: 0 });
            commands.push(Command::Beat { session, seen: 9 });
            commands.push(Command::Close { session });
            commands.push(Command::Lapse { session });
            // A session that is made anew under its old id would not remember its claims; ids are
            // never used again.
            if !self.bonds(session) && small.work.claims.is_empty() {
                commands.push(Command::Forget { session });
            }
        }
        commands
    }

    fn bonds(&self, session: SessionId) -> bool {
        self.record.tenures.iter().any(|tenure| tenure.session == session)
            || self.record.queue.iter().any(|waiter| waiter.session == session)
    }

    fn of_requests(small: &Small) -> Vec<Command> {
        let ask = |ask: &Acquire| lock(LockAction::Acquire(ask.clone()));
        let withdraw = |ask: &Acquire| lock(LockAction::Withdraw { request: ask.request });
        small.acquires.iter().flat_map(|a| [ask(a), withdraw(a)]).collect()
    }

    fn of_tokens(&self, small: &Small) -> Vec<Command> {
        let mut commands = Vec::new();
        let config: LockName = "config".parse().expect("a plain name");
        let part = small.locks_apart.then(|| LockSet::from(config));
        for token in (1..=self.record.token.0).map(Token) {
            commands.push(lock(LockAction::Renew { token, ttl_ms: None }));
            for locks in [None, part.clone()].into_iter().take(1 + usize::from(part.is_some())) {
                let (by, reason): (Text, Text) = ("ann".into(), "stuck".into());
                commands.push(lock(LockAction::Release { token, locks: locks.clone() }));
                commands.push(lock(LockAction::Break { token, locks, by, reason }));
            }
        }
        commands
    }
}
