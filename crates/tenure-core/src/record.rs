//! The record of one resource: the unit of atomicity.
//!
//! Every guarantee of Tenure is a statement about one record. What history contains changes in
//! [`Record::apply`], which both steps and replays use; `apply.rs` lists the changes that are
//! not events. Heartbeats never touch a record.

use std::collections::VecDeque;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::canary::{Canary, planted};
use crate::history::{Chain, Entry, Hash};
use crate::id::{JobId, RequestId, SessionId};
use crate::job::Job;
use crate::key::{LockName, LockSet, ResourceKey, Text};
use crate::kind::Kinds;
use crate::limits;
use crate::outcome::TenureView;
use crate::recent_answers::RecentAnswers;
use crate::resource::Resource;
use crate::session::Sessions;
use crate::time::Millis;
use crate::token::Token;

/// One holding of one lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tenure {
    /// Lock.
    pub lock: LockName,
    /// Fencing token, shared by all locks of one grant.
    pub token: Token,
    /// Session that holds it.
    pub session: SessionId,
    /// Request that acquired it.
    pub request: RequestId,
    /// Purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<Text>,
    /// Age above which it is reported, if the acquire gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_ms: Option<u64>,
    /// Time of the grant.
    pub since: Millis,
    /// Job whose attempt it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
}

/// An acquire request in the wait queue of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Waiter {
    /// Locks it waits for, all or none.
    pub locks: LockSet,
    /// Session it waits for.
    pub session: SessionId,
    /// Request id; repeating the request returns its current status.
    pub request: RequestId,
    /// Purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<Text>,
    /// Age above which the tenure is reported, if the acquire gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_ms: Option<u64>,
    /// Time at which it was queued.
    pub since: Millis,
    /// Time at which the wait expires.
    pub until: Millis,
}

/// How a tenure ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum TenureEnd {
    /// Released by its holder.
    Released,
    /// Finished by the worker of its job.
    Finished,
    /// Its session expired.
    Expired,
    /// Its session was closed.
    Closed,
    /// Broken by a principal.
    Broken {
        /// Principal.
        by: Text,
        /// Reason.
        reason: Text,
    },
}

impl TenureEnd {
    /// Returns the kind of end, without details.
    #[must_use]
    pub fn kind(&self) -> EndKind {
        match self {
            Self::Released => EndKind::Released,
            Self::Finished => EndKind::Finished,
            Self::Expired => EndKind::Expired,
            Self::Closed => EndKind::Closed,
            Self::Broken { .. } => EndKind::Broken,
        }
    }

    /// Returns the stored spelling.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        self.kind().as_str()
    }
}

/// How a request ended, without details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EndKind {
    /// Released by its holder.
    Released,
    /// Finished by the worker of its job.
    Finished,
    /// Its session expired.
    Expired,
    /// Its session was closed.
    Closed,
    /// Broken by a principal.
    Broken,
    /// Withdrawn before it was granted.
    Withdrawn,
}

impl EndKind {
    const ALL: [Self; 6] = [
        Self::Released,
        Self::Finished,
        Self::Expired,
        Self::Closed,
        Self::Broken,
        Self::Withdrawn,
    ];

    /// Returns the stored spelling.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Finished => "finished",
            Self::Expired => "expired",
            Self::Closed => "closed",
            Self::Broken => "broken",
            Self::Withdrawn => "withdrawn",
        }
    }
}

impl FromStr for EndKind {
    type Err = String;
    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == word);
        found.ok_or_else(|| format!("{word:?} is not a kind of end"))
    }
}

/// Result of an ended acquire or claim, kept for a limited time to answer retries. Serialized as
/// one short text because every grant adds one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RecentRequest {
    /// Request id.
    pub request: RequestId,
    /// Token it was granted; zero if it was withdrawn first.
    pub token: Token,
    /// How it ended.
    pub how: EndKind,
    /// Time of the end.
    pub at: Millis,
}

impl From<RecentRequest> for String {
    fn from(RecentRequest { request, token, how, at }: RecentRequest) -> Self {
        format!("{request} {token} {} {}", how.as_str(), at.0)
    }
}

impl TryFrom<String> for RecentRequest {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let parse = || -> Option<Self> {
            let mut words = text.split(' ');
            let request = words.next()?.parse().ok()?;
            let token = Token(words.next()?.parse().ok()?);
            let how = words.next()?.parse().ok()?;
            let at = Millis(words.next()?.parse().ok()?);
            Some(Self { request, token, how, at })
        };
        parse().ok_or_else(|| format!("{text:?} is not a recent request"))
    }
}

/// The complete state of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Record {
    /// Last token issued.
    pub token: Token,
    /// Current tenures, at most one per lock.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenures: Vec<Tenure>,
    /// Wait queue, first come, first served.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub queue: VecDeque<Waiter>,
    /// Recently ended requests, oldest first.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub recent: VecDeque<RecentRequest>,
    /// Answers to the latest requests that are executed at most once.
    #[serde(default, skip_serializing_if = "RecentAnswers::is_empty")]
    pub recent_answers: RecentAnswers,
    /// Stale token of the last fenced write that history recorded.
    #[serde(default)]
    pub fenced: Token,
    /// State and jobs, once the resource exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<Box<Resource>>,
    /// Head of the history chain.
    pub chain: Chain,
}

impl Record {
    /// Returns the record of a resource without history.
    #[must_use]
    pub fn new(key: &ResourceKey) -> Self {
        Self {
            token: Token::default(),
            tenures: Vec::new(),
            queue: VecDeque::new(),
            recent: VecDeque::new(),
            recent_answers: RecentAnswers::default(),
            fenced: Token::default(),
            resource: None,
            chain: Chain::genesis(key),
        }
    }

    /// Returns `true` if it has tenures, waiters, unfinished jobs or timers. Stores keep such
    /// records loaded.
    #[must_use]
    pub fn is_live(&self) -> bool {
        let has_timers = |resource: &Resource| !resource.timers.is_empty();
        !self.tenures.is_empty()
            || !self.queue.is_empty()
            || !self.lane().is_empty()
            || self.resource.as_deref().is_some_and(has_timers)
    }

    /// Returns the sessions that hold or wait, once per grant and per queue entry.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionId> {
        let mut holders: Vec<_> = self.tenures.iter().map(|t| (t.session, t.token)).collect();
        holders.sort_unstable();
        holders.dedup();
        let holders = holders.into_iter().map(|(session, _)| session);
        holders.chain(self.queue.iter().map(|waiter| waiter.session)).collect()
    }

    /// Returns the unfinished jobs.
    #[must_use]
    pub fn lane(&self) -> &VecDeque<Box<Job>> {
        static NONE: VecDeque<Box<Job>> = VecDeque::new();
        self.resource.as_ref().map_or(&NONE, |resource| &resource.lane)
    }

    /// Returns an unfinished job.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.resource.as_ref()?.job(id)
    }

    /// Returns `true` if `locks` are free and no waiter wants them.
    #[must_use]
    pub fn is_grantable(&self, locks: &LockSet) -> bool {
        let wanted = |lock: &LockName| self.queue.iter().any(|waiter| waiter.locks.contains(lock));
        let wanted = |lock: &LockName| !planted(Canary::WideStarves) && wanted(lock);
        let free = |lock: &LockName| self.tenure(lock).is_none() && !wanted(lock);
        if planted(Canary::SetTakenInPart) {
            return locks.iter().any(free);
        }
        locks.iter().all(free)
    }

    /// Returns the tenure of a lock.
    #[must_use]
    pub fn tenure(&self, lock: &LockName) -> Option<&Tenure> {
        self.tenures.iter().find(|tenure| tenure.lock == *lock)
    }

    /// Returns how the tenure with `token` ended, if that is still remembered.
    #[must_use]
    pub fn recent_end(&self, token: Token) -> Option<&RecentRequest> {
        self.recent.iter().rev().find(|recent| recent.token == token)
    }

    /// Applies a history entry as the step that wrote it did; entries that are already applied are
    /// ignored. Returns the job that it finished, if any.
    ///
    /// This lets a store persist history and write the record less often. A replay does not restore
    /// what is not an event: the wait queue, withdrawn requests, answers to requests that are
    /// executed once, progress and log size of attempts, and a backoff that was cut short.
    pub fn replay(&mut self, entry: &Entry, hash: Hash) -> Option<Box<Job>> {
        if entry.n <= self.chain.n {
            return None;
        }
        self.chain = Chain { n: entry.n, head: hash };
        self.apply(&entry.event, entry.at)
    }

    /// Remembers an ended request and evicts entries that are too old or exceed the limit.
    pub(crate) fn remember_request(&mut self, recent: RecentRequest) {
        let now = recent.at;
        let stale = |r: &RecentRequest| now.since(r.at) > limits::RECENT_TTL_MS;
        while self.recent.len() >= limits::RECENT_REQUESTS_MAX
            || self.recent.front().is_some_and(stale)
        {
            self.recent.pop_front();
        }
        self.recent.push_back(recent);
    }
}

impl Record {
    /// Returns the tenures of one grant as shown to clients.
    #[must_use]
    pub fn view(
        &self,
        key: &ResourceKey,
        token: Token,
        sessions: &Sessions,
        kinds: &Kinds,
        now: Millis,
    ) -> Option<TenureView> {
        let first = self.tenures.iter().find(|tenure| tenure.token == token)?;
        let of_grant = self.tenures.iter().filter(|tenure| tenure.token == token);
        let names = of_grant.map(|tenure| tenure.lock.clone()).collect();
        let session = sessions.get(first.session);
        let (expires_in_ms, heartbeat_age_ms) = session.map_or((0, 0), |s| s.lease_ms(now));
        Some(TenureView {
            key: key.clone(),
            locks: LockSet::new(names).ok()?,
            token,
            session: first.session,
            holder: session.map_or_else(|| "unknown".into(), |session| session.name.clone()),
            purpose: first.purpose.clone(),
            max_age_ms: kinds.lock_max_age_ms(key, first.max_age_ms),
            request: first.request,
            job: first.job,
            since: first.since,
            age_ms: now.since(first.since),
            expires_in_ms,
            heartbeat_age_ms,
            waiters: self.queue.len(),
        })
    }
}
