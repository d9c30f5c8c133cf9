//! The record of one resource: the unit of atomicity.
//!
//! Everything Tenure promises is a statement about one record. It changes by events only, in
//! [`Record::apply`]: what a step decides and what is made up from history after a crash go through
//! the same code. Exceptions are few and named there. Heartbeats never touch it.

use std::collections::VecDeque;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::canary::{Canary, planted};
use crate::history::{Chain, Entry, Hash};
use crate::id::{JobId, RequestId, SessionId};
use crate::job::Job;
use crate::key::{LockName, LockSet, ResourceKey, Text};
use crate::limits;
use crate::outcome::TenureView;
use crate::resource::Resource;
use crate::session::Sessions;
use crate::time::Millis;
use crate::token::Token;

/// One holding of one lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tenure {
    /// The lock.
    pub lock: LockName,
    /// The fencing number; the same for all locks of one grant.
    pub token: Token,
    /// Who holds it.
    pub session: SessionId,
    /// The request that got it.
    pub request: RequestId,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<Text>,
    /// Since when.
    pub since: Millis,
    /// The job whose attempt it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
}

/// A request that waits in the queue of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Waiter {
    /// What it wants: all or none.
    pub locks: LockSet,
    /// Who wants it.
    pub session: SessionId,
    /// The request; repeating it asks how things stand.
    pub request: RequestId,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<Text>,
    /// Since when it waits.
    pub since: Millis,
    /// When it gives up.
    pub until: Millis,
}

/// How a tenure ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum How {
    /// By its holder.
    Released,
    /// By the worker of its job, with a result.
    Finished,
    /// Its session lapsed.
    Expired,
    /// Its session was closed while it was held.
    Closed,
    /// By a person who gave a reason.
    Broken {
        /// Who did it.
        by: Text,
        /// Why.
        reason: Text,
    },
}

impl How {
    /// The same without its particulars.
    #[must_use]
    pub fn ending(&self) -> Ending {
        match self {
            Self::Released => Ending::Released,
            Self::Finished => Ending::Finished,
            Self::Expired => Ending::Expired,
            Self::Closed => Ending::Closed,
            Self::Broken { .. } => Ending::Broken,
        }
    }

    /// The word for it, as history and people say it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        self.ending().word()
    }
}

/// How a request ended, without the particulars that only history keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// By its holder.
    Released,
    /// By the worker of its job, with a result.
    Finished,
    /// Its session lapsed.
    Expired,
    /// Its session was closed while it was held.
    Closed,
    /// By a person.
    Broken,
    /// Before anything was granted.
    Withdrawn,
}

impl Ending {
    const ALL: [Self; 6] = [
        Self::Released,
        Self::Finished,
        Self::Expired,
        Self::Closed,
        Self::Broken,
        Self::Withdrawn,
    ];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
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

impl FromStr for Ending {
    type Err = String;
    fn from_str(word: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|ending| ending.word() == word);
        known.ok_or_else(|| format!("{word:?} is no way to end"))
    }
}

/// What became of a request, kept for a while for those who repeat it. Every grant writes some, so
/// they are kept in one short text each.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Recent {
    /// The request.
    pub request: RequestId,
    /// The token it had got; zero when it was withdrawn before.
    pub token: Token,
    /// How that ended.
    pub how: Ending,
    /// When.
    pub at: Millis,
}

impl From<Recent> for String {
    fn from(Recent { request, token, how, at }: Recent) -> Self {
        format!("{request} {token} {} {}", how.word(), at.0)
    }
}

impl TryFrom<String> for Recent {
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
        parse().ok_or_else(|| format!("{text:?} says nothing about a request"))
    }
}

/// All that is known of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Record {
    /// The last token given out.
    pub token: Token,
    /// Who holds what now: at most one tenure for each lock.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenures: Vec<Tenure>,
    /// Who waits, first come first.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub queue: VecDeque<Waiter>,
    /// What became of the latest requests.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub recent: VecDeque<Recent>,
    /// The stale token that history last recorded a refused write of.
    #[serde(default)]
    pub fenced: Token,
    /// Its state and its jobs, once it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<Box<Resource>>,
    /// The end of the resource's history.
    pub chain: Chain,
}

impl Record {
    /// The record of a resource that nothing ever happened to.
    #[must_use]
    pub fn new(key: &ResourceKey) -> Self {
        Self {
            token: Token::default(),
            tenures: Vec::new(),
            queue: VecDeque::new(),
            recent: VecDeque::new(),
            fenced: Token::default(),
            resource: None,
            chain: Chain::genesis(key),
        }
    }

    /// Whether somebody holds or waits, or a job is not over: such a record must be at hand.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.tenures.is_empty() || !self.queue.is_empty() || !self.lane().is_empty()
    }

    /// Who holds or wants something, once for each grant and each place in the queue.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionId> {
        let mut holders: Vec<_> = self.tenures.iter().map(|t| (t.session, t.token)).collect();
        holders.sort_unstable();
        holders.dedup();
        let holders = holders.into_iter().map(|(session, _)| session);
        holders.chain(self.queue.iter().map(|waiter| waiter.session)).collect()
    }

    /// The jobs that are not over.
    #[must_use]
    pub fn lane(&self) -> &VecDeque<Box<Job>> {
        static NONE: VecDeque<Box<Job>> = VecDeque::new();
        self.resource.as_ref().map_or(&NONE, |resource| &resource.lane)
    }

    /// The job of that id, unless it is over.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.resource.as_ref()?.job(id)
    }

    /// Whether locks are free and nobody in the queue wants them.
    #[must_use]
    pub fn obtainable(&self, locks: &LockSet) -> bool {
        let wanted = |lock: &LockName| self.queue.iter().any(|waiter| waiter.locks.contains(lock));
        let wanted = |lock: &LockName| !planted(Canary::WideStarves) && wanted(lock);
        let free = |lock: &LockName| self.tenure(lock).is_none() && !wanted(lock);
        if planted(Canary::SetTakenInPart) {
            return locks.iter().any(free);
        }
        locks.iter().all(free)
    }

    /// The tenure of a lock.
    #[must_use]
    pub fn tenure(&self, lock: &LockName) -> Option<&Tenure> {
        self.tenures.iter().find(|tenure| tenure.lock == *lock)
    }

    /// What became of the tenure with `token`, as far as it is remembered.
    #[must_use]
    pub fn ended(&self, token: Token) -> Option<&Recent> {
        self.recent.iter().rev().find(|recent| recent.token == token)
    }

    /// Makes the change that a line of history tells, as the step that wrote it did. Lines that the
    /// record already knows are passed over.
    ///
    /// A store that keeps history need not write the record as well each time: what history tells
    /// can be made up for. What it does not tell are the queue, requests that were withdrawn, and
    /// how far the attempts of jobs have come.
    ///
    /// Gives back the job that was over with it.
    pub fn replay(&mut self, entry: &Entry, hash: Hash) -> Option<Box<Job>> {
        if entry.n <= self.chain.n {
            return None;
        }
        self.chain = Chain { n: entry.n, head: hash };
        self.apply(&entry.event, entry.at)
    }

    /// Remembers what became of a request, forgetting what is too old or too much.
    pub(crate) fn remember(&mut self, recent: Recent) {
        let now = recent.at;
        let stale = |r: &Recent| now.since(r.at) > limits::RECENT_MS;
        while self.recent.len() >= limits::RECENT_MAX || self.recent.front().is_some_and(stale) {
            self.recent.pop_front();
        }
        self.recent.push_back(recent);
    }
}

impl Record {
    /// The tenures of one grant, as their readers see them.
    #[must_use]
    pub fn view(
        &self,
        key: &ResourceKey,
        token: Token,
        sessions: &Sessions,
        now: Millis,
    ) -> Option<TenureView> {
        let first = self.tenures.iter().find(|tenure| tenure.token == token)?;
        let of_grant = self.tenures.iter().filter(|tenure| tenure.token == token);
        let names = of_grant.map(|tenure| tenure.lock.clone()).collect();
        let session = sessions.get(first.session);
        Some(TenureView {
            key: key.clone(),
            locks: LockSet::new(names).ok()?,
            token,
            session: first.session,
            holder: session.map_or_else(|| "unknown".into(), |session| session.name.clone()),
            purpose: first.purpose.clone(),
            request: first.request,
            job: first.job,
            since: first.since,
            age_ms: now.since(first.since),
            expires_in_ms: session.map_or(0, |session| session.expires_at.since(now)),
            waiters: self.queue.len(),
        })
    }
}
