//! What the history says, kept apart from the code that wrote it.
//!
//! Facts of a batch that is not flushed yet are pending: a crash of the server takes them away, and
//! nobody may have been told of them. Next: [`crate::oracle`], which compares answers with these.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::history::{Entry, Event, Sealed};
use tenure_core::record::How;
use tenure_core::{LockName, LockSet, RequestId, ResourceKey, SessionId, Token};

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

/// The tenures of all resources.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    tenures: BTreeMap<(ResourceKey, Token), Told>,
    by_request: BTreeMap<(ResourceKey, RequestId), Token>,
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

    fn take_in(&mut self, key: &ResourceKey, event: &Event, batch: u64) -> Result<(), String> {
        match event {
            Event::Granted { locks, token, session, request, .. } => {
                self.granted(key, locks, *token, *session, *request)
            }
            Event::Ended { locks, token, how } => self.ended(key, locks, *token, how, batch),
            Event::Fenced { .. } => Ok(()),
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
        if let Some(first) = self.by_request.insert((key.clone(), request), token) {
            return Err(format!("request {request} on {key} got token {first}, then {token}"));
        }
        let left = locks.iter().cloned().collect();
        let told = Told { session, request, left, end: None };
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
        batch: u64,
    ) -> Result<(), String> {
        let told = self.tenures.get_mut(&(key.clone(), token));
        let told = told.ok_or_else(|| format!("token {token} of {key} ends but never began"))?;
        told.left.retain(|lock| !locks.contains(lock));
        told.end = Some((how.clone(), batch));
        Ok(())
    }
}

/// What is durable, and what is not yet.
#[derive(Clone, Debug, Default)]
pub struct Books {
    /// As of the last flush.
    pub durable: Facts,
    /// As the server sees it.
    pub now: Facts,
    pending: Vec<(ResourceKey, Event, u64)>,
    /// Ends of each resource, for the bound on what a resource remembers.
    ends: BTreeMap<ResourceKey, u64>,
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
            self.now.take_in(key, event, batch)?;
            self.pending.push((key.clone(), event.clone(), batch));
        }
        Ok(events)
    }

    /// What was pending is durable.
    pub fn flushed(&mut self) -> Result<(), String> {
        for (key, event, batch) in std::mem::take(&mut self.pending) {
            self.durable.take_in(&key, &event, batch)?;
        }
        Ok(())
    }

    /// What was pending never happened.
    pub fn crashed(&mut self) {
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
