//! What the history says, kept apart from the code that wrote it.
//!
//! Facts of a batch that is not flushed yet are pending: a crash of the server takes them away, and
//! nobody may have been told of them. Next: [`crate::oracle`], which compares answers with these.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_core::history::{Entry, Event, Sealed};
use tenure_core::job::AttemptOutcome;
use tenure_core::record::How;
use tenure_core::{Kinds, LockName, LockSet, RequestId, ResourceKey, SessionId, Token, limits};

use crate::kinds::kinds;
use crate::told::{Lanes, Stage};

/// A tenure as history tells it.
#[derive(Clone, Debug)]
pub struct Told {
    /// Who got it.
    pub session: SessionId,
    /// By which request.
    pub request: RequestId,
    /// The locks that it still has.
    pub left: BTreeSet<LockName>,
    /// The last end of it: how, and in which batch.
    pub end: Option<(How, u64)>,
    /// How much its resource had remembered by then.
    remembered: u64,
}

impl Told {
    /// Whether it still has a lock.
    #[must_use]
    pub fn lasts(&self) -> bool {
        !self.left.is_empty()
    }

    /// Whether somebody broke it.
    #[must_use]
    pub fn broken(&self) -> bool {
        matches!(self.end, Some((How::Broken { .. }, _)))
    }
}

/// When an event was: in which batch, and how much its resource had remembered by then.
#[derive(Clone, Copy, Debug)]
struct When {
    batch: u64,
    remembered: u64,
    /// In which life of the server.
    life: u64,
}

/// A claim that got something.
#[derive(Clone, Debug)]
struct ToldClaim {
    batch: u64,
    life: u64,
    got: Vec<(ResourceKey, Token)>,
}

/// After so many more ends a request may be forgotten. A few less than the bound, because what a
/// batch withdraws is counted after what it ends.
const FORGOTTEN: u64 = limits::RECENT_MAX as u64 - 3;

/// The tenures of all resources.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    tenures: BTreeMap<(ResourceKey, Token), Told>,
    by_request: BTreeMap<(ResourceKey, RequestId), Token>,
    claims: BTreeMap<RequestId, ToldClaim>,
    /// The batches in which jobs were asked to stop, by the tenures they ran with.
    stops: BTreeMap<(ResourceKey, Token), u64>,
    /// What it says of jobs.
    pub lanes: Lanes,
}

impl Facts {
    /// One tenure.
    #[must_use]
    pub fn tenure(&self, key: &ResourceKey, token: Token) -> Option<&Told> {
        self.tenures.get(&(key.clone(), token))
    }

    /// The tenure that a request got.
    #[must_use]
    pub fn of_request(&self, key: &ResourceKey, request: RequestId) -> Option<Token> {
        self.by_request.get(&(key.clone(), request)).copied()
    }

    fn take_in(
        &mut self,
        key: &ResourceKey,
        event: &Event,
        when: When,
        kinds: &Kinds,
    ) -> Result<(), String> {
        match event {
            Event::Granted { locks, token, session, request, job, .. } => {
                match job {
                    Some(_) => self.claimed(key, *request, *token, when)?,
                    None => self.never_granted(key, *request, *token, when)?,
                }
                self.granted(key, locks, *token, *session, *request)?;
            }
            Event::Ended { locks, token, how, job } => {
                self.ended(key, locks, *token, how, when)?;
                if job.as_ref().is_some_and(|ran| ran.outcome == AttemptOutcome::HandedBack) {
                    self.handed_back(key, *token);
                }
            }
            Event::Cancelled { id, .. } => {
                if let Some(Stage::Running(token)) = self.lanes.jobs.get(id).map(|job| job.stage) {
                    self.stops.insert((key.clone(), token), when.batch);
                }
            }
            _ => {}
        }
        self.lanes.take_in(key, event, kinds)
    }

    /// A claim whose job was given back may have another.
    fn handed_back(&mut self, key: &ResourceKey, token: Token) {
        if let Some(request) = self.tenure(key, token).map(|told| told.request) {
            self.claims.remove(&request);
        }
    }

    /// The batch in which the job of a tenure was asked to stop, if it was.
    #[must_use]
    pub fn stop(&self, key: &ResourceKey, token: Token) -> Option<u64> {
        self.stops.get(&(key.clone(), token)).copied()
    }

    /// A claim takes jobs once. Only when all of them are over and the server was started anew
    /// since, which is a stated limit, may it be taken for a new one.
    fn claimed(
        &mut self,
        key: &ResourceKey,
        request: RequestId,
        token: Token,
        When { batch, life, .. }: When,
    ) -> Result<(), String> {
        let told = self.claims.get(&request).filter(|told| told.batch != batch);
        if let Some(told) = told {
            let lasts = |(key, token): &(ResourceKey, Token)| {
                self.tenure(key, *token).is_some_and(Told::lasts)
            };
            if told.life == life || told.got.iter().any(lasts) {
                return Err(format!(
                    "the claim {request} took jobs twice, now token {token} of {key}"
                ));
            }
        }
        let fresh = ToldClaim { batch, life, got: Vec::new() };
        let told = self.claims.entry(request).or_insert_with(|| fresh.clone());
        if told.batch != batch {
            *told = fresh;
        }
        told.got.push((key.clone(), token));
        Ok(())
    }

    /// A request gets one tenure. Only when its resource has had more to remember since than it
    /// can, which is a stated limit, may somebody who still asks be taken for new.
    fn never_granted(
        &self,
        key: &ResourceKey,
        request: RequestId,
        token: Token,
        when: When,
    ) -> Result<(), String> {
        let Some(first) = self.of_request(key, request) else { return Ok(()) };
        let told = self.tenure(key, first).filter(|told| !told.lasts());
        let forgotten = told.is_some_and(|told| when.remembered >= told.remembered + FORGOTTEN);
        match forgotten {
            true => Ok(()),
            false => Err(format!("request {request} on {key} got token {first}, then {token}")),
        }
    }

    fn granted(
        &mut self,
        key: &ResourceKey,
        locks: &LockSet,
        token: Token,
        session: SessionId,
        request: RequestId,
    ) -> Result<(), String> {
        self.by_request.insert((key.clone(), request), token);
        let left = locks.iter().cloned().collect();
        let told = Told { session, request, left, end: None, remembered: 0 };
        match self.tenures.insert((key.clone(), token), told) {
            Some(_) => Err(format!("token {token} of {key} was given out twice")),
            None => Ok(()),
        }
    }

    fn ended(
        &mut self,
        key: &ResourceKey,
        locks: &LockSet,
        token: Token,
        how: &How,
        when: When,
    ) -> Result<(), String> {
        let told = self.tenures.get_mut(&(key.clone(), token));
        let told = told.ok_or_else(|| format!("token {token} of {key} ends but never began"))?;
        told.left.retain(|lock| !locks.contains(lock));
        told.end = Some((how.clone(), when.batch));
        told.remembered = when.remembered;
        Ok(())
    }
}

/// What is durable, and what is not yet.
#[derive(Clone, Debug)]
pub struct Books {
    /// As of the last flush.
    pub durable: Facts,
    /// As the server sees it.
    pub now: Facts,
    pending: Vec<(ResourceKey, Event, When)>,
    /// Ends of each resource, for the bound on what a resource remembers.
    ends: BTreeMap<ResourceKey, u64>,
    /// What can be done to the resources.
    pub kinds: Arc<Kinds>,
    /// Counts the lives of the server.
    pub life: u64,
}

impl Default for Books {
    fn default() -> Self {
        let (durable, now, pending) = (Facts::default(), Facts::default(), Vec::new());
        Self { durable, now, pending, ends: BTreeMap::new(), kinds: kinds(), life: 0 }
    }
}

impl Books {
    /// Takes in the history of a batch that was applied; gives the events, in the order of keys.
    pub fn applied(
        &mut self,
        history: &[(ResourceKey, Sealed)],
        batch: u64,
    ) -> Result<Vec<(ResourceKey, Event)>, String> {
        let mut events = Vec::new();
        for (key, sealed) in history {
            let entry = Entry::parse(&sealed.line).map_err(|error| format!("history: {error}"))?;
            events.push((key.clone(), entry.event));
        }
        // The order among resources is no promise of the ledger's, and it differs from run to run.
        events.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (key, event) in &events {
            if matches!(event, Event::Ended { .. }) {
                self.remembers(key);
            }
            let when = When { batch, remembered: self.remembered(Some(key)), life: self.life };
            self.now.take_in(key, event, when, &self.kinds)?;
            self.pending.push((key.clone(), event.clone(), when));
        }
        for (key, _) in &events {
            self.now.lanes.no_change_is_lost(key, &self.kinds)?;
            self.now.lanes.within_caps(key, &self.kinds)?;
        }
        Ok(events)
    }

    /// What was pending is durable.
    pub fn flushed(&mut self) -> Result<(), String> {
        for (key, event, when) in std::mem::take(&mut self.pending) {
            self.durable.take_in(&key, &event, when, &self.kinds)?;
        }
        Ok(())
    }

    /// What was pending never happened.
    pub fn crashed(&mut self) {
        self.life += 1;
        self.pending.clear();
        self.now = self.durable.clone();
    }

    /// How many entries the memory of a resource for ended requests has taken so far.
    #[must_use]
    pub fn remembered(&self, key: Option<&ResourceKey>) -> u64 {
        key.and_then(|key| self.ends.get(key)).copied().unwrap_or(0)
    }

    /// A resource has something more to remember.
    pub fn remembers(&mut self, key: &ResourceKey) {
        *self.ends.entry(key.clone()).or_default() += 1;
    }
}
