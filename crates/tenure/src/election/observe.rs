//! What observers see of an election: the leader, the candidates, and earlier terms.
//!
//! Ages are measured by the store. Nothing may be decided by them: who leads is decided by the
//! store when it grants the lock.

use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;

use futures_util::stream::{self, TryStreamExt as _};
use serde::Serialize;
use tenure_core::history::{Entry, Event};
use tenure_core::record::EndKind;
use tenure_core::{LockName, SessionId, Token};

use super::Election;
use crate::error::Error;
use crate::items::Items;
use crate::resource::ResourceHandle;
use crate::transport::query_with_retries;
use crate::wire::{HistoryEntry, ResourceLocksResponse, TenureInfo, WaiterInfo};

/// State of an election.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct ElectionStatus {
    /// Leader, if there is one.
    pub leader: Option<Leader>,
    /// Term of the leader, or the last term if there is none.
    pub term: Token,
    /// Waiting candidates, in order.
    pub candidates: Vec<Candidate>,
}

/// Leader of an election.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Leader {
    /// Name of the candidate.
    pub name: String,
    /// Its session.
    pub session: SessionId,
    /// Its term.
    pub term: Token,
    /// Purpose of its leadership.
    pub purpose: Option<String>,
    /// Time at which its term began, in RFC 3339.
    pub since: String,
    /// Time since then.
    pub age_ms: u64,
    /// Time since its last heartbeat.
    pub heartbeat_age_ms: u64,
    /// Time after which it is replaced without a heartbeat.
    pub expires_in_ms: u64,
}

/// Candidate that waits for the leadership.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Candidate {
    /// Name.
    pub name: String,
    /// Session.
    pub session: SessionId,
    /// Time for which it has been waiting.
    pub waiting_ms: u64,
}

/// A term, from history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Term {
    /// Its number.
    pub term: Token,
    /// Name of the leader.
    pub leader: String,
    /// Time at which it began, in RFC 3339.
    pub since: String,
    /// Time at which it ended; `None` if it has not.
    pub until: Option<String>,
    /// How it ended: `released`, `expired`, `closed`, `broken`, ….
    pub ended: Option<String>,
}

impl Election {
    /// Returns the leader and the candidates.
    pub async fn status(&self) -> Result<ElectionStatus, Error> {
        let locks = self.transport.queries().locks(&self.key).await?;
        Ok(locks.map_or_else(ElectionStatus::default, |locks| self.to_status(locks)))
    }

    /// Streams the state of the election: at once, and whenever the leader or the candidates
    /// change. A change that is undone within the [poll interval](Election::poll_interval) may be
    /// missed. The stream outlives restarts of the server.
    #[must_use]
    pub fn observe(&self) -> Items<ElectionStatus> {
        let first: Option<ElectionStatus> = None;
        Items::new(stream::try_unfold((self.clone(), first), |(election, last)| async move {
            loop {
                let status = query_with_retries(|| election.status()).await?;
                if last.as_ref().is_none_or(|last| last.identities() != status.identities()) {
                    return Ok(Some((status.clone(), (election, Some(status)))));
                }
                tokio::time::sleep(election.poll_interval).await;
            }
        }))
    }

    /// Streams the terms that history still has, newest first.
    #[must_use]
    pub fn terms(&self) -> Items<Term> {
        let resource = ResourceHandle::new(Arc::clone(&self.transport), self.key.clone());
        let lock = self.path.lock.clone();
        let mut ends = HashMap::new();
        let terms = resource
            .history()
            .try_filter_map(move |entry| ready(read_term(&entry, &lock, &mut ends)));
        Items::new(terms)
    }

    fn to_status(&self, locks: ResourceLocksResponse) -> ElectionStatus {
        let path = self.path.to_string();
        let waits = |waiter: &WaiterInfo| waiter.locks.contains(&self.path.lock.to_string());
        let candidates = locks.queue.into_iter().filter(waits).map(Candidate::new).collect();
        let leader = locks.tenures.into_iter().find(|tenure| tenure.lock == path);
        ElectionStatus { leader: leader.map(Leader::new), term: locks.token, candidates }
    }
}

impl ElectionStatus {
    /// Returns what distinguishes this state from another: ages change all the time.
    fn identities(&self) -> (Option<Token>, Vec<SessionId>) {
        let candidates = self.candidates.iter().map(|candidate| candidate.session).collect();
        (self.leader.as_ref().map(|leader| leader.term), candidates)
    }
}

impl Leader {
    fn new(tenure: TenureInfo) -> Self {
        Self {
            name: tenure.holder.name,
            session: tenure.holder.session,
            term: tenure.token,
            purpose: tenure.holder.purpose,
            since: tenure.since,
            age_ms: tenure.age_ms,
            heartbeat_age_ms: tenure.heartbeat_age_ms,
            expires_in_ms: tenure.expires_in_ms,
        }
    }
}

impl Candidate {
    fn new(waiter: WaiterInfo) -> Self {
        let WaiterInfo { name, session, waiting_ms, .. } = waiter;
        Self { name, session, waiting_ms }
    }
}

/// Returns the term that the entry begins. `ends` has the ends of terms that were read before:
/// history is read backwards.
fn read_term(
    entry: &HistoryEntry,
    lock: &LockName,
    ends: &mut HashMap<Token, (EndKind, String)>,
) -> Result<Option<Term>, Error> {
    let (at, line) = (entry.at.clone(), Entry::parse(&entry.line));
    let line =
        line.map_err(|error| Error::Corrupt(format!("entry {}: {error}", entry.position)))?;
    match line.event {
        Event::Ended { locks, token, how, .. } if locks.contains(lock) => {
            ends.insert(token, (how.kind(), at));
            Ok(None)
        }
        Event::Granted { locks, token, holder, .. } if locks.contains(lock) => {
            let (ended, until) = ends.remove(&token).unzip();
            let ended = ended.map(|how| how.as_str().to_owned());
            Ok(Some(Term { term: token, leader: holder.to_string(), since: at, until, ended }))
        }
        _ => Ok(None),
    }
}
