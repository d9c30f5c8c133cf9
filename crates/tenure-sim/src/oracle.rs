//! The oracle: checks the properties that must hold under any fault, in true time.
//!
//! It reads history, replies and holders' beliefs, and changes nothing. A delivered reply is
//! binding; a request without a reply may have been applied or not. Every check returns a
//! description of the violated property.

use std::collections::BTreeMap;

use tenure_core::history::Event;
use tenure_core::limits::STALL_MS;
use tenure_core::record::TenureEnd;
use tenure_core::session::SessionEnd;
use tenure_core::{
    Claimant, Command, LockAction, LockSet, Millis, Outcome, Record, RequestId, ResourceKey,
    SessionId, Token, World, invariants,
};

use crate::answers::Answers;
use crate::claim_order::{ClaimBatch, ClaimOrder};
use crate::count::{count_event, count_reply};
use crate::fairness;
use crate::history_model::{HistoryModel, ModelTenure};
use crate::holder::Holder;
use crate::message::Reply;
use crate::resource_checks::check_transfers;
use crate::server::{Applied, Server};
use crate::stats::Stats;
use crate::task::Held;

/// Ok, or a description of the violated property.
pub type CheckResult = Result<(), String>;

/// A session before the current batch.
#[derive(Clone, Debug)]
struct SessionBefore {
    ended: Option<SessionEnd>,
    expires_at: Millis,
    ttl_ms: u64,
}

/// An instant, in true time and in accumulated listening time of the server.
#[derive(Clone, Copy, Debug, Default)]
struct Contact {
    true_us: u64,
    listened_us: u64,
}

/// State of the oracle.
#[derive(Debug, Default)]
pub struct Oracle {
    /// Model rebuilt from history.
    pub history: HistoryModel,
    /// Records after the previous batch.
    records: BTreeMap<ResourceKey, Record>,
    /// Sessions before the current batch.
    sessions: BTreeMap<SessionId, SessionBefore>,
    last_batch_at: Option<Millis>,
    stalled: bool,
    /// Last accepted heartbeat, renewal or open of each session.
    last_contact: BTreeMap<SessionId, Contact>,
    /// Store time of the last renewal of each session, at most that of the last restart.
    pub(crate) renewed_at: BTreeMap<SessionId, Millis>,
    /// Answers to the requests that are executed once.
    pub(crate) answers: Answers,
    /// Order in which claims start jobs.
    pub(crate) claim_order: ClaimOrder,
}

impl Oracle {
    /// Records the sessions before a batch.
    pub fn before_batch(&mut self, world: &World, now: Millis) {
        self.stalled = self.last_batch_at.is_none_or(|at| now.since(at) > STALL_MS);
        self.last_batch_at = Some(now);
        let row = |session: &tenure_core::Session| {
            let (ended, expires_at) = (session.ended, session.expires_at);
            (session.id, SessionBefore { ended, expires_at, ttl_ms: session.ttl_ms })
        };
        self.sessions = world.sessions.iter().map(row).collect();
    }

    /// Checks an applied batch.
    pub fn check_batch(
        &mut self,
        applied: &Applied,
        server: &Server,
        holders: &[Holder],
        now_us: u64,
        stats: &mut Stats,
    ) -> CheckResult {
        let Some(running) = &server.running else { return Ok(()) };
        let world = running.ledger.world();
        let contact = Contact { true_us: now_us, listened_us: server.listened_us(now_us) };
        let mut forgotten = self.history.now.forgotten.clone();
        let events = self.history.apply_batch(applied)?;
        for (key, _) in &applied.batch.forgotten {
            stats.forgotten += 1;
            self.records.remove(key);
        }
        for reply in &applied.replies {
            self.check_reply(reply, applied)?;
            self.check_resource_reply(reply, applied.now)?;
            self.record_contact(reply, contact);
            self.record_renewal(reply, applied.now);
            count_reply(reply, stats);
            let key = self.history.now.resource_of(&reply.command);
            let record = key.and_then(|key| world.records.get(key)).map(|record| &**record);
            stats.repeated_answers += u64::from(self.answers.record(reply, record));
            let released = matches!(reply.outcome, Outcome::Withdrawn { released: Some(_) });
            stats.withdrawn_grants += u64::from(released);
        }
        self.check_ended_jobs(&applied.batch.finished)?;
        let transferred = check_transfers(&applied.replies, &events)?;
        stats.transfers += transferred.len() as u64;
        for (key, event) in &events {
            count_event(event, stats);
            let used_again = matches!(event, Event::Granted { .. }) && forgotten.remove(key);
            stats.names_used_again += u64::from(used_again);
            self.check_event(key, event, applied, contact, stats)?;
            self.check_expiry_justified(key, event, contact, holders)?;
            self.check_margin(key, event, applied.now, stats)?;
            self.check_no_stale_belief(key, event, holders, now_us)?;
            self.check_order(key, event, &transferred, world, applied.now)?;
        }
        let (before, kinds) = (&self.records, &*self.history.kinds);
        let batch = ClaimBatch { applied, events: &events, before, world, kinds };
        self.claim_order.check_batch(&batch, stats)?;
        self.check_records(&applied.batch.records, world, applied.now)
    }

    /// Checks that a grant overtook nothing, unless it is a planned transfer.
    fn check_order(
        &self,
        key: &ResourceKey,
        event: &Event,
        transferred: &[RequestId],
        world: &World,
        now: Millis,
    ) -> CheckResult {
        let Event::Granted { request, locks, job, .. } = event else { return Ok(()) };
        let states = self.records.get(key).zip(world.records.get(key));
        let Some((before, after)) = states.filter(|_| !transferred.contains(request)) else {
            return Ok(());
        };
        fairness::check_fifo(key, before, after, *request, locks)?;
        match (job, self.history.kinds.get(key.kind())) {
            (Some(started), Some(kind)) => {
                let started = (started.id, locks);
                fairness::check_backoff_order(key, (before, after), kind, started, now)
            }
            _ => Ok(()),
        }
    }

    fn check_records(&mut self, keys: &[ResourceKey], world: &World, now: Millis) -> CheckResult {
        for key in keys {
            let Some(record) = world.records.get(key) else { continue };
            invariants::check_record(key, record, world)?;
            self.check_lane(key, record, now)?;
            if let Some(before) = self.records.get(key) {
                invariants::check_forward(key, before, record)?;
            }
            self.records.insert(key.clone(), (**record).clone());
        }
        Ok(())
    }

    /// Discards what the server had not flushed.
    pub fn server_crashed(&mut self) {
        self.history.crash();
        self.last_batch_at = None;
    }

    /// Reads the records that the server loaded on start.
    pub fn server_started(&mut self, world: &World, now: Millis) {
        self.claim_order.server_started();
        self.records.clear();
        let records = world.records.iter();
        self.records.extend(records.map(|(key, record)| (key.clone(), (**record).clone())));
        self.last_batch_at = Some(now);
        // The clock may have been set back, and a restart renews every session.
        self.renewed_at.values_mut().for_each(|at| *at = now.min(*at));
    }

    // ----- replies and history -----

    /// Returns the time to live of a session before the current batch.
    pub(crate) fn ttl_ms(&self, session: SessionId) -> Option<u64> {
        self.sessions.get(&session).map(|session| session.ttl_ms)
    }

    /// Records that a reply tells a holder that its session was renewed.
    fn record_renewal(&mut self, reply: &Reply, now: Millis) {
        let renews = matches!(
            reply.outcome,
            Outcome::Alive { .. } | Outcome::Renewed(_) | Outcome::Waiting { .. }
        );
        let session = session_kept_alive_by(&reply.command, &self.history);
        if let Some(session) = session.filter(|_| renews) {
            self.renewed_at.insert(session, now);
        }
    }

    fn record_contact(&mut self, reply: &Reply, contact: Contact) {
        if matches!(reply.outcome, Outcome::Refused(_)) {
            return;
        }
        if let Some(session) = session_kept_alive_by(&reply.command, &self.history) {
            self.last_contact.insert(session, contact);
        }
    }

    fn check_event(
        &mut self,
        key: &ResourceKey,
        event: &Event,
        applied: &Applied,
        contact: Contact,
        stats: &mut Stats,
    ) -> CheckResult {
        match event {
            Event::Granted { session, token, waited_ms, request, .. } => {
                stats.grants += 1;
                stats.handovers += u64::from(*waited_ms > 0);
                if session.0 == request.0 {
                    stats.solo_grants += 1;
                    self.last_contact.insert(*session, contact);
                    self.renewed_at.insert(*session, applied.now);
                }
                self.check_grantee_alive(key, *token, *session, applied)
            }
            Event::Ended { how, .. } => {
                match how.as_str() {
                    "expired" => stats.expiries += 1,
                    "closed" => stats.closes += 1,
                    "broken" => stats.breaks += 1,
                    _ => {}
                }
                Ok(())
            }
            Event::Fenced { .. } => {
                stats.fenced_events += 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Checks that the session of a grant had not ended.
    fn check_grantee_alive(
        &self,
        key: &ResourceKey,
        token: Token,
        session: SessionId,
        applied: &Applied,
    ) -> CheckResult {
        // A waiter whose solo session expired may repeat its request, which opens a new session.
        let reopens = |reply: &Reply| acquires_solo(&reply.command, session);
        let alive =
            self.check_was_alive(session, applied).is_ok() || applied.replies.iter().any(reopens);
        match alive {
            true => Ok(()),
            false => Err(format!("ended session {session} was granted {key} with token {token}")),
        }
    }

    fn was_alive_at(&self, before: &SessionBefore, now: Millis) -> bool {
        before.ended.is_none() && (self.stalled || before.expires_at > now)
    }

    /// Checks that a healthy holder does not lose a tenure because the store was unavailable: its
    /// session must have been silent for at least half of its TTL while the store was listening.
    fn check_expiry_justified(
        &self,
        key: &ResourceKey,
        event: &Event,
        now: Contact,
        holders: &[Holder],
    ) -> CheckResult {
        let Event::Ended { token, how: TenureEnd::Expired, .. } = event else { return Ok(()) };
        let Some(tenure) = self.history.now.tenure(key, *token) else { return Ok(()) };
        let Some(before) = self.sessions.get(&tenure.session) else { return Ok(()) };
        let contact = self.last_contact.get(&tenure.session).copied().unwrap_or_default();
        let silent_us = now.listened_us - contact.listened_us;
        let owner = holders.iter().find(|holder| holder.owns_session(tenure.session));
        let healthy = owner.is_some_and(|holder| holder.last_fault_us < contact.true_us);
        if !healthy || silent_us >= before.ttl_ms * 1_000 / 2 {
            return Ok(());
        }
        let (silent_ms, ttl_ms) = (silent_us / 1_000, before.ttl_ms);
        Err(format!(
            "token {token} of {key} expired after {silent_ms} ms without a heartbeat while the \
             store listened (ttl {ttl_ms} ms): it was lost because the store was unavailable"
        ))
    }

    // ----- beliefs, in true time -----

    /// Checks that no holder believes to hold locks that are granted or ended in the store.
    fn check_no_stale_belief(
        &self,
        key: &ResourceKey,
        event: &Event,
        holders: &[Holder],
        now_us: u64,
    ) -> CheckResult {
        let (Event::Granted { locks, token, .. } | Event::Ended { locks, token, .. }) = event
        else {
            return Ok(());
        };
        if self.history.now.tenure(key, *token).is_some_and(ModelTenure::is_broken) {
            return Ok(());
        }
        for holder in holders {
            let Some(held) =
                holder.believed_tenure(now_us).filter(|held| overlaps(held, key, locks))
            else {
                continue;
            };
            if !self.is_broken(held) {
                let (n, word) = (holder.index, event.as_str());
                return Err(format!(
                    "{key} token {token} is {word} while h{n} believes to hold it with token {}",
                    held.token
                ));
            }
        }
        Ok(())
    }

    fn is_broken(&self, held: &Held) -> bool {
        self.history.now.tenure(&held.key, held.token).is_some_and(ModelTenure::is_broken)
    }

    /// Checks that a holder's belief is true at this instant, and that no other holder shares it.
    pub fn check_belief(&self, holder: &Holder, holders: &[Holder], now_us: u64) -> CheckResult {
        let Some(held) = holder.believed_tenure(now_us).filter(|held| !self.is_broken(held)) else {
            return Ok(());
        };
        let Held { key, locks, token, .. } = held;
        let tenure = self.history.now.tenure(key, *token);
        if !tenure.is_some_and(|tenure| locks.iter().all(|lock| tenure.active_locks.contains(lock)))
        {
            let n = holder.index;
            return Err(format!("h{n} believes to hold {key} with token {token}, which has ended"));
        }
        for other in holders.iter().filter(|other| other.index != holder.index) {
            let also = other.believed_tenure(now_us).filter(|also| overlaps(also, key, locks));
            if let Some(also) = also.filter(|also| !self.is_broken(also)) {
                let (a, b) = (holder.index, other.index);
                return Err(format!(
                    "h{a} (token {token}) and h{b} (token {}) both believe to hold {key}",
                    also.token
                ));
            }
        }
        Ok(())
    }

    /// Checks that a heartbeat reply delivered every break and cancel that preceded it.
    pub fn check_break_delivered(&self, holder: &Holder, batch: u64, now_us: u64) -> CheckResult {
        let Some(held) = holder.believed_tenure(now_us) else { return Ok(()) };
        self.check_cancel_delivered(holder, held, batch)?;
        let tenure = self.history.durable.tenure(&held.key, held.token);
        // A solo tenure learns of its break at its next renewal.
        let tenure = tenure.filter(|tenure| tenure.session.0 != tenure.request.0);
        match tenure.and_then(|tenure| tenure.end.as_ref()) {
            Some((how, when)) if how.as_str() == "broken" && *when < batch => Err(format!(
                "h{} did not learn that token {} of {} was broken",
                holder.index, held.token, held.key
            )),
            _ => Ok(()),
        }
    }

    /// Checks that a session whose heartbeat is answered `Alive` was alive.
    pub(crate) fn check_was_alive(&self, session: SessionId, applied: &Applied) -> CheckResult {
        let alive = match self.sessions.get(&session) {
            Some(before) => self.was_alive_at(before, applied.now),
            None => applied.replies.iter().any(|reply| opens(&reply.command, session)),
        };
        if alive { Ok(()) } else { Err(format!("a heartbeat revived the ended session {session}")) }
    }
}

fn overlaps(held: &Held, key: &ResourceKey, locks: &LockSet) -> bool {
    held.key == *key && held.locks.iter().any(|lock| locks.contains(lock))
}

/// Returns whether a command may have opened a session.
fn opens(command: &Command, id: SessionId) -> bool {
    let open = matches!(command, Command::Open { session, .. } if *session == id);
    open || acquires_solo(command, id)
}

/// Returns whether a command acquires locks with `id` as its solo session.
fn acquires_solo(command: &Command, id: SessionId) -> bool {
    let Command::Lock { action: LockAction::Acquire(acquire), .. } = command else { return false };
    matches!(acquire.claimant, Claimant::Solo { .. }) && acquire.request.0 == id.0
}

/// Returns the session that a command keeps alive.
fn session_kept_alive_by(command: &Command, history: &HistoryModel) -> Option<SessionId> {
    match command {
        Command::Open { session, .. } | Command::Heartbeat { session, .. } => Some(*session),
        Command::Lock { key, action: LockAction::Renew { token, .. } } => {
            history.now.tenure(key, *token).map(|tenure| tenure.session)
        }
        Command::Lock { action: LockAction::Acquire(acquire), .. } => match acquire.claimant {
            Claimant::Solo { .. } => Some(SessionId(acquire.request.0)),
            Claimant::Session(_) => None,
        },
        _ => None,
    }
}
