//! Sessions: the liveness of one process in the store.
//!
//! One heartbeat renews everything a session holds. A session ends once, by lapsing or by being
//! closed, and never comes back: its row stays marked until every tenure behind it is settled, and
//! an id that is not found is over. Go to [`crate::lock`] for what a session holds.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::canary::{Canary, planted};
use crate::id::{RequestId, SessionId};
use crate::key::{ResourceKey, Text};
use crate::limits;
use crate::map::Map;
use crate::time::Millis;
use crate::token::Token;

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// Its time ran out without a heartbeat.
    Lapsed,
    /// Its process said goodbye.
    Closed,
}

/// A tenure that was taken from a living session, or whose job is asked to stop: it must be told.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Revoked {
    /// Counts the revocations of a session; the process says how far it has seen.
    pub n: u64,
    /// The resource.
    pub key: ResourceKey,
    /// The token of the tenure.
    pub token: Token,
    /// The tenure is not over: its job is asked to stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel: bool,
}

/// What a session says of itself when it claims jobs. Not durable: it says it again and again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Worker {
    /// The kinds it works.
    pub kinds: Vec<Text>,
    /// When it last asked for jobs.
    pub asked_at: Millis,
    /// The claims that got something, so that a late repetition takes nothing more.
    pub claims: VecDeque<RequestId>,
}

/// The liveness of one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Session {
    /// Random, never reused: the identity.
    pub id: SessionId,
    /// Whose it is.
    pub tenant: Text,
    /// What people call the process; says nothing about identity.
    pub name: Text,
    /// How long it lives without a heartbeat.
    pub ttl_ms: u64,
    /// When it was opened.
    pub opened_at: Millis,
    /// When it lapses unless a heartbeat comes first.
    pub expires_at: Millis,
    /// It was made by one acquire and lives as long as what that acquire got.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub solo: bool,
    /// Set once, when it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<Over>,
    /// Tenures taken from it that its process has not confirmed to know of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revoked: Vec<Revoked>,
    /// How many revocations there were.
    #[serde(default)]
    pub revoked_n: u64,
    /// Set while it works jobs.
    #[serde(skip)]
    pub worker: Option<Box<Worker>>,
}

/// The tenant of a session that may hold what belongs to any tenant.
pub const ALL_TENANTS: &str = "*";

impl Session {
    /// Whether it may hold anything at `now`.
    #[must_use]
    pub fn alive(&self, now: Millis) -> bool {
        self.over.is_none() && self.expires_at > now
    }

    /// Grants a full time to live from `now`. Never shortens what it has.
    pub fn extend(&mut self, now: Millis) {
        self.expires_at = self.expires_at.max(now.plus(self.ttl_ms));
    }

    /// Notes that it asks for jobs.
    pub(crate) fn works(&mut self, kinds: &[Text], now: Millis) {
        let worker = self.worker.get_or_insert_default();
        worker.asked_at = now;
        if worker.kinds != kinds {
            worker.kinds = kinds.to_vec();
        }
    }

    /// Notes that a claim got something.
    pub(crate) fn claimed(&mut self, request: RequestId) {
        if self.has_claimed(request) {
            return;
        }
        let worker = self.worker.get_or_insert_default();
        if worker.claims.len() == limits::CLAIMS_KEPT {
            worker.claims.pop_front();
        }
        worker.claims.push_back(request);
    }

    /// Whether a claim got something before, as far as that is remembered.
    pub(crate) fn has_claimed(&self, request: RequestId) -> bool {
        self.worker.as_ref().is_some_and(|worker| worker.claims.contains(&request))
    }

    /// Whether it may hold what belongs to a tenant.
    #[must_use]
    pub fn acts_for(&self, tenant: &str) -> bool {
        *self.tenant == *tenant || *self.tenant == *ALL_TENANTS
    }

    /// Notes that a tenure was taken away, or that its job is asked to stop. Too many unseen losses
    /// end the whole session, loudly; of the others there are no more than it has jobs.
    pub(crate) fn revoke(&mut self, key: ResourceKey, token: Token, cancel: bool) {
        let losses = self.revoked.iter().filter(|revoked| !revoked.cancel).count();
        if !cancel && losses == limits::REVOKED_MAX {
            self.over = Some(Over::Lapsed);
            return;
        }
        self.revoked_n += 1;
        self.revoked.push(Revoked { n: self.revoked_n, key, token, cancel });
    }

    /// Nobody need be asked any more to stop under a tenure that is over. Says whether somebody
    /// was.
    pub(crate) fn ended(&mut self, key: &ResourceKey, token: Token) -> bool {
        let before = self.revoked.len();
        self.revoked.retain(|r| !(r.cancel && r.token == token && r.key == *key));
        self.revoked.len() != before
    }

    /// Forgets a claim whose jobs were handed back: sent again, it may have others.
    pub(crate) fn unclaim(&mut self, request: RequestId) {
        if let Some(worker) = &mut self.worker {
            worker.claims.retain(|claimed| *claimed != request);
        }
    }

    /// Forgets the revocations that its process has seen; says whether there were any.
    pub(crate) fn seen(&mut self, n: u64) -> bool {
        let before = self.revoked.len();
        self.revoked.retain(|revoked| revoked.n > n);
        self.revoked.len() != before
    }
}

/// The session rows that are at hand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions(Map<SessionId, Session>);

impl Sessions {
    /// The session, unless it is over, at `now`. Ending what has lapsed is the guarded write: it
    /// happens in the same step that relies on it. The flag says whether this call ended it.
    pub(crate) fn check(&mut self, id: SessionId, now: Millis) -> Standing<'_> {
        let Some(session) = self.0.get_mut(&id) else { return Standing::Over(Over::Lapsed) };
        if let Some(over) = session.over {
            return Standing::Over(over);
        }
        if session.expires_at <= now && !planted(Canary::LapsedStillHolds) {
            session.over = Some(Over::Lapsed);
            return Standing::JustLapsed;
        }
        Standing::Alive(session)
    }

    /// The row, whatever its standing.
    #[must_use]
    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.0.get(&id)
    }

    /// The row, to be changed.
    pub fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.0.get_mut(&id)
    }

    /// Puts a row in.
    pub fn insert(&mut self, session: Session) {
        self.0.insert(session.id, session);
    }

    /// Takes a row out.
    pub fn remove(&mut self, id: SessionId) -> Option<Session> {
        self.0.remove(&id)
    }

    /// All rows, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Session> {
        self.0.values()
    }

    /// Gives every living session a full time to live from `now`: after a restart or a stall of the
    /// store nobody may lose a lock because the store was away.
    pub fn grace(&mut self, now: Millis) {
        for session in self.0.values_mut().filter(|session| session.over.is_none()) {
            session.extend(now);
        }
    }

    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a session is worth at an instant.
pub(crate) enum Standing<'a> {
    /// It lives.
    Alive(&'a mut Session),
    /// It had run out, and this very check ended it.
    JustLapsed,
    /// It was over before, or was never there.
    Over(Over),
}

/// What each session holds or wants, and how often; in order, so that a run can be replayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bonds(Map<SessionId, BTreeMap<ResourceKey, u32>>);

impl Bonds {
    /// Something more of a resource.
    pub fn add(&mut self, session: SessionId, key: &ResourceKey) {
        *self.0.entry(session).or_default().entry(key.clone()).or_default() += 1;
    }

    /// Something less.
    pub fn remove(&mut self, session: SessionId, key: &ResourceKey) {
        let Some(keys) = self.0.get_mut(&session) else { return };
        if let Some(count) = keys.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                keys.remove(key);
            }
        }
        if keys.is_empty() {
            self.0.remove(&session);
        }
    }

    /// The resources that a session holds or wants something of.
    pub fn of(&self, session: SessionId) -> impl Iterator<Item = &ResourceKey> {
        self.0.get(&session).into_iter().flat_map(BTreeMap::keys)
    }

    /// Whether a session holds or wants anything.
    #[must_use]
    pub fn any(&self, session: SessionId) -> bool {
        self.0.contains_key(&session)
    }
}
