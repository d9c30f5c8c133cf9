//! Sessions: the liveness of one process in the store.
//!
//! One heartbeat renews everything a session holds. A session ends once, by expiring or by being
//! closed, and is never revived: its row stays marked until all its tenures are settled, and an
//! unknown id counts as ended. See [`crate::lock`] for what a session holds.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::canary::{Canary, planted};
use crate::command::Claim;
use crate::id::{RequestId, SessionId};
use crate::key::{ResourceKey, Text};
use crate::limits;
use crate::map::Map;
use crate::recent_claim::RecentClaim;
use crate::refusal::Refusal;
use crate::time::Millis;
use crate::token::Token;

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionEnd {
    /// It expired without a heartbeat.
    #[serde(rename = "lapsed")]
    Expired,
    /// Its process closed it.
    Closed,
}

impl SessionEnd {
    /// Returns the stored spelling.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "lapsed",
            Self::Closed => "closed",
        }
    }
}

/// Notice to a live session that a tenure was taken from it or that its job must stop.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Revocation {
    /// Sequence number within the session; heartbeats acknowledge it.
    pub n: u64,
    /// Resource.
    pub key: ResourceKey,
    /// Token of the tenure.
    pub token: Token,
    /// Whether the tenure still exists and its job is requested to stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel: bool,
}

/// What a session reports when it claims jobs. Not durable: it is repeated with every claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Worker {
    /// Kinds it claims.
    pub kinds: Vec<Text>,
    /// Time of the last claim.
    pub polled_at: Millis,
    /// Claims that took jobs, so that a late retry takes no more.
    pub claims: VecDeque<RecentClaim>,
}

/// The liveness of one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Session {
    /// Random id, never reused.
    pub id: SessionId,
    /// Tenant that owns the session.
    pub tenant: Text,
    /// Display name of the process; not an identity.
    pub name: Text,
    /// Time after which it expires without a heartbeat.
    pub ttl_ms: u64,
    /// Time at which it was opened.
    pub opened_at: Millis,
    /// Time at which it expires without a further heartbeat.
    pub expires_at: Millis,
    /// Time by which it outlives its time to live, for locks of kinds with a stale margin.
    #[serde(rename = "margin", default, skip_serializing_if = "is_zero")]
    pub margin_ms: u64,
    /// Created by one acquire, and removed with what that acquire obtained.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub solo: bool,
    /// Set once, when it ends.
    #[serde(rename = "over", default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<SessionEnd>,
    /// Revocations that its process has not acknowledged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revoked: Vec<Revocation>,
    /// Number of revocations so far.
    #[serde(rename = "revoked_n", default)]
    pub revocation_count: u64,
    /// Set once it claims jobs.
    #[serde(skip)]
    pub worker: Option<Box<Worker>>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Tenant of a session that may act for any tenant.
pub const ALL_TENANTS: &str = "*";

impl Session {
    /// Returns `true` if it may hold anything at `now`.
    #[must_use]
    pub fn is_alive(&self, now: Millis) -> bool {
        self.ended.is_none() && self.expires_at > now
    }

    /// Returns when it expires if it is renewed at `now`.
    #[must_use]
    pub(crate) fn expiry_from(&self, now: Millis) -> Millis {
        now.plus(self.ttl_ms).plus(self.margin_ms)
    }

    /// Renews the full time to live from `now`. Never shortens it.
    pub fn extend(&mut self, now: Millis) {
        self.expires_at = self.expires_at.max(self.expiry_from(now));
    }

    /// Returns the time until its locks are lost from the view of its process, which does not count
    /// the stale margin, and the time since its last heartbeat.
    #[must_use]
    pub fn lease_ms(&self, now: Millis) -> (u64, u64) {
        let left = self.expires_at.since(now.plus(self.margin_ms));
        (left, self.expiry_from(now).since(self.expires_at))
    }

    /// Records that it polls for jobs.
    pub(crate) fn record_poll(&mut self, kinds: &[Text], now: Millis) {
        let worker = self.worker.get_or_insert_default();
        worker.polled_at = now;
        if worker.kinds != kinds {
            worker.kinds = kinds.to_vec();
        }
    }

    /// Records that a claim took jobs.
    pub(crate) fn record_claim(&mut self, claim: &Claim) {
        if self.find_claim(claim).is_some() {
            return;
        }
        let worker = self.worker.get_or_insert_default();
        if worker.claims.len() == limits::CLAIMS_KEPT {
            worker.claims.pop_front();
        }
        worker.claims.push_back(RecentClaim::new(claim));
    }

    /// Returns the claim with the id of `claim` that took jobs before, as far as that is
    /// remembered.
    pub(crate) fn find_claim(&self, claim: &Claim) -> Option<RecentClaim> {
        self.worker.as_ref()?.claims.iter().find(|recent| recent.has_id_of(claim)).copied()
    }

    /// Returns `true` if it may hold locks of `tenant`.
    #[must_use]
    pub fn acts_for(&self, tenant: &str) -> bool {
        *self.tenant == *tenant || *self.tenant == *ALL_TENANTS
    }

    /// Adds a revocation or a request to stop. Too many unacknowledged losses end the session,
    /// which reports all of them at once; requests to stop are bounded by the number of its jobs.
    pub(crate) fn revoke(&mut self, key: ResourceKey, token: Token, cancel: bool) {
        let losses = self.revoked.iter().filter(|revoked| !revoked.cancel).count();
        if !cancel && losses == limits::REVOCATIONS_MAX {
            self.ended = Some(SessionEnd::Expired);
            return;
        }
        self.revocation_count += 1;
        self.revoked.push(Revocation { n: self.revocation_count, key, token, cancel });
    }

    /// Removes pending requests to stop for a tenure that has ended. Returns `true` if there were
    /// any.
    pub(crate) fn clear_cancel_requests(&mut self, key: &ResourceKey, token: Token) -> bool {
        let before = self.revoked.len();
        self.revoked.retain(|r| !(r.cancel && r.token == token && r.key == *key));
        self.revoked.len() != before
    }

    /// Forgets a claim whose jobs were handed back, so that a retry may take others.
    pub(crate) fn forget_claim(&mut self, request: RequestId) {
        if let Some(worker) = &mut self.worker {
            worker.claims.retain(|claim| claim.request != request);
        }
    }

    /// Removes the revocations up to number `n`. Returns `true` if there were any.
    pub(crate) fn acknowledge_revocations(&mut self, n: u64) -> bool {
        let before = self.revoked.len();
        self.revoked.retain(|revoked| revoked.n > n);
        self.revoked.len() != before
    }
}

/// The loaded session rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions(Map<SessionId, Session>);

impl Sessions {
    /// Returns the liveness of a session at `now`, and ends it if it has expired. That guarded
    /// write happens in the step that relies on it; [`Liveness::JustExpired`] reports it.
    pub(crate) fn check(&mut self, id: SessionId, now: Millis) -> Liveness<'_> {
        let Some(session) = self.0.get_mut(&id) else {
            return Liveness::Ended(SessionEnd::Expired);
        };
        if let Some(end) = session.ended {
            return Liveness::Ended(end);
        }
        if session.expires_at <= now && !planted(Canary::ExpiredStillHolds) {
            session.ended = Some(SessionEnd::Expired);
            return Liveness::JustExpired;
        }
        Liveness::Alive(session)
    }

    /// Refuses a caller that is bound to `tenant` unless the session belongs to exactly that
    /// tenant; an unknown session belongs to none. A caller without a tenant is not restricted.
    /// Changes nothing.
    pub(crate) fn check_tenant(&self, id: SessionId, tenant: Option<&Text>) -> Result<(), Refusal> {
        let Some(tenant) = tenant else { return Ok(()) };
        match self.0.get(&id) {
            Some(session) if session.tenant == *tenant => Ok(()),
            _ => Err(Refusal::SessionExpired),
        }
    }

    /// Returns the row, whether or not the session has ended.
    #[must_use]
    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.0.get(&id)
    }

    /// Returns the row for modification.
    pub fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.0.get_mut(&id)
    }

    /// Inserts a row.
    pub fn insert(&mut self, session: Session) {
        self.0.insert(session.id, session);
    }

    /// Removes a row.
    pub fn remove(&mut self, id: SessionId) -> Option<Session> {
        self.0.remove(&id)
    }

    /// Iterates over all rows, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Session> {
        self.0.values()
    }

    /// Renews every live session from `now`. After a restart or a stall of the store, no session
    /// may expire because the store was unavailable.
    pub fn grant_grace(&mut self, now: Millis) {
        for session in self.0.values_mut().filter(|session| session.ended.is_none()) {
            session.extend(now);
        }
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Liveness of a session at an instant.
pub(crate) enum Liveness<'a> {
    /// Alive.
    Alive(&'a mut Session),
    /// It had expired, and this check ended it.
    JustExpired,
    /// It ended before, or is unknown.
    Ended(SessionEnd),
}

/// Index of the resources on which each session holds or waits, with reference counts. Keys are
/// ordered so that runs are reproducible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionIndex(Map<SessionId, BTreeMap<ResourceKey, u32>>);

impl SessionIndex {
    /// Adds one reference.
    pub fn add(&mut self, session: SessionId, key: &ResourceKey) {
        *self.0.entry(session).or_default().entry(key.clone()).or_default() += 1;
    }

    /// Removes one reference.
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

    /// Returns the resources on which a session holds or waits.
    pub fn resources_of(&self, session: SessionId) -> impl Iterator<Item = &ResourceKey> {
        self.0.get(&session).into_iter().flat_map(BTreeMap::keys)
    }

    /// Returns `true` if a session holds or waits on any resource.
    #[must_use]
    pub fn contains(&self, session: SessionId) -> bool {
        self.0.contains_key(&session)
    }
}
