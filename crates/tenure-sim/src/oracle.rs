//! The oracle: what must hold whatever goes wrong, judged in true time.
//!
//! It reads histories, answers and beliefs, and it changes nothing. An answer that was delivered is
//! binding; a request without an answer may have been done or not. Every question gives the name of
//! the property that broke.

use std::collections::BTreeMap;

use tenure_core::history::Event;
use tenure_core::record::How;
use tenure_core::session::Over;
use tenure_core::{
    Claimant, Command, LockAction, LockSet, Millis, Outcome, Record, ResourceKey, SessionId, Token,
    World, invariants,
};
use tenure_store::ledger::STALL_MS;

use crate::books::{Books, Told};
use crate::fair;
use crate::holder::Holder;
use crate::lanes::count;
use crate::message::Reply;
use crate::server::{Applied, Server};
use crate::stats::Stats;
use crate::task::Held;

/// What broke.
pub type Verdict = Result<(), String>;

/// A session just before a batch.
#[derive(Clone, Debug)]
struct Before {
    over: Option<Over>,
    expires_at: Millis,
    ttl_ms: u64,
}

/// An instant, in true time and in time that the server had listened.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    true_us: u64,
    listened_us: u64,
}

/// What the oracle remembers.
#[derive(Debug, Default)]
pub struct Oracle {
    /// What the history says.
    pub books: Books,
    /// The records after the batch before.
    records: BTreeMap<ResourceKey, Record>,
    /// The sessions before the present batch.
    sessions: BTreeMap<SessionId, Before>,
    looked: Option<Millis>,
    stalled: bool,
    /// When the server last heard of a session, in true time and in time that it had listened.
    heard: BTreeMap<SessionId, Heard>,
}

impl Oracle {
    /// Looks at the world before a batch.
    pub fn before(&mut self, world: &World, now: Millis) {
        self.stalled = self.looked.is_none_or(|looked| now.since(looked) > STALL_MS);
        self.looked = Some(now);
        let row = |session: &tenure_core::Session| {
            let (over, expires_at) = (session.over, session.expires_at);
            (session.id, Before { over, expires_at, ttl_ms: session.ttl_ms })
        };
        self.sessions = world.sessions.iter().map(row).collect();
    }

    /// Judges a batch that was applied.
    pub fn applied(
        &mut self,
        applied: &Applied,
        server: &Server,
        holders: &[Holder],
        now_us: u64,
        stats: &mut Stats,
    ) -> Verdict {
        let Some(running) = &server.running else { return Ok(()) };
        let world = running.ledger.world();
        let heard = Heard { true_us: now_us, listened_us: server.listened_us(now_us) };
        let events = self.books.applied(&applied.batch.history, applied.n)?;
        for reply in &applied.replies {
            self.answer_fits(reply, applied)?;
            self.hear(reply, heard);
            let given_back = matches!(reply.outcome, Outcome::Withdrawn { released: Some(_) });
            stats.withdrawn_grants += u64::from(given_back);
        }
        self.finished_fit(&applied.batch.finished)?;
        for (key, event) in &events {
            count(event, stats);
            self.event_fits(key, event, applied, heard, stats)?;
            self.silence_was_real(key, event, heard, holders)?;
            self.nobody_else_believes(key, event, holders, now_us)?;
            self.nobody_overtaken(key, event, world)?;
        }
        self.records_fit(&applied.batch.records, world)
    }

    fn nobody_overtaken(&self, key: &ResourceKey, event: &Event, world: &World) -> Verdict {
        let Event::Granted { request, locks, .. } = event else { return Ok(()) };
        match (self.records.get(key), world.records.get(key)) {
            (Some(before), Some(after)) => {
                fair::nobody_overtaken(key, before, after, *request, locks)
            }
            _ => Ok(()),
        }
    }

    fn records_fit(&mut self, keys: &[ResourceKey], world: &World) -> Verdict {
        for key in keys {
            let Some(record) = world.records.get(key) else { continue };
            invariants::of_record(key, record, world)?;
            self.lane_fits(key, record)?;
            if let Some(before) = self.records.get(key) {
                invariants::forward(key, before, record)?;
            }
            self.records.insert(key.clone(), (**record).clone());
        }
        Ok(())
    }

    /// The server has crashed: what was not flushed is gone.
    pub fn crashed(&mut self) {
        self.books.crashed();
        self.looked = None;
    }

    /// The server has started with these rows.
    pub fn restarted(&mut self, world: &World, now: Millis) {
        self.records.clear();
        let records = world.records.iter();
        self.records.extend(records.map(|(key, record)| (key.clone(), (**record).clone())));
        self.looked = Some(now);
    }

    // ----- answers and history -----

    fn hear(&mut self, reply: &Reply, heard: Heard) {
        let heeded = !matches!(reply.outcome, Outcome::Refused(_));
        if let Some(session) = life_sign(&reply.command, &self.books).filter(|_| heeded) {
            self.heard.insert(session, heard);
        }
    }

    fn event_fits(
        &mut self,
        key: &ResourceKey,
        event: &Event,
        applied: &Applied,
        heard: Heard,
        stats: &mut Stats,
    ) -> Verdict {
        match event {
            Event::Granted { session, token, waited_ms, request, .. } => {
                stats.grants += 1;
                stats.handovers += u64::from(*waited_ms > 0);
                if session.0 == request.0 {
                    stats.solos += 1;
                    self.heard.insert(*session, heard);
                }
                self.grantee_lives(key, *token, *session, applied)
            }
            Event::Ended { how, .. } => {
                match how.word() {
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

    /// Nobody is granted anything after its session ended.
    fn grantee_lives(
        &self,
        key: &ResourceKey,
        token: Token,
        session: SessionId,
        applied: &Applied,
    ) -> Verdict {
        // Who waited with a session of its own and let it lapse may ask again, and begins anew.
        let anew = |reply: &Reply| asks_solo(&reply.command, session);
        let lives = self.was_alive(session, applied).is_ok() || applied.replies.iter().any(anew);
        match lives {
            true => Ok(()),
            false => Err(format!("dead session {session} was granted {key} with token {token}")),
        }
    }

    fn lived(&self, before: &Before, now: Millis) -> bool {
        before.over.is_none() && (self.stalled || before.expires_at > now)
    }

    /// Nobody who is well loses anything because the store was away: its session was silent for at
    /// least half of its time while the store was listening.
    fn silence_was_real(
        &self,
        key: &ResourceKey,
        event: &Event,
        now: Heard,
        holders: &[Holder],
    ) -> Verdict {
        let Event::Ended { token, how: How::Expired, .. } = event else { return Ok(()) };
        let Some(told) = self.books.now.tenure(key, *token) else { return Ok(()) };
        let Some(before) = self.sessions.get(&told.session) else { return Ok(()) };
        let heard = self.heard.get(&told.session).copied().unwrap_or_default();
        let silent_us = now.listened_us - heard.listened_us;
        let owner = holders.iter().find(|holder| holder.owns(told.session));
        let well = owner.is_some_and(|holder| holder.hurt_us < heard.true_us);
        if !well || silent_us >= before.ttl_ms * 1_000 / 2 {
            return Ok(());
        }
        let (silent_ms, ttl_ms) = (silent_us / 1_000, before.ttl_ms);
        Err(format!(
            "token {token} of {key} expired after {silent_ms} ms of silence that the store could \
             have heard (ttl {ttl_ms} ms): it was lost because the store was away"
        ))
    }

    // ----- beliefs, in true time -----

    /// What begins or ends in the store is believed by nobody who has no right to it.
    fn nobody_else_believes(
        &self,
        key: &ResourceKey,
        event: &Event,
        holders: &[Holder],
        now_us: u64,
    ) -> Verdict {
        let (Event::Granted { locks, token, .. } | Event::Ended { locks, token, .. }) = event
        else {
            return Ok(());
        };
        if self.books.now.tenure(key, *token).is_some_and(Told::broken) {
            return Ok(());
        }
        for holder in holders {
            let Some(held) = holder.belief(now_us).filter(|held| overlaps(held, key, locks)) else {
                continue;
            };
            if !self.broken(held) {
                let (n, word) = (holder.at, event.word());
                return Err(format!(
                    "{key} token {token} is {word} while h{n} believes to hold it with token {}",
                    held.token
                ));
            }
        }
        Ok(())
    }

    fn broken(&self, held: &Held) -> bool {
        self.books.now.tenure(&held.key, held.token).is_some_and(Told::broken)
    }

    /// What a holder believes at this instant is true, and nobody else believes it.
    pub fn belief(&self, holder: &Holder, holders: &[Holder], now_us: u64) -> Verdict {
        let Some(held) = holder.belief(now_us).filter(|held| !self.broken(held)) else {
            return Ok(());
        };
        let Held { key, locks, token, .. } = held;
        let told = self.books.now.tenure(key, *token);
        if !told.is_some_and(|told| locks.iter().all(|lock| told.left.contains(lock))) {
            let n = holder.at;
            return Err(format!("h{n} believes to hold {key} with token {token}, which is over"));
        }
        for other in holders.iter().filter(|other| other.at != holder.at) {
            let also = other.belief(now_us).filter(|also| overlaps(also, key, locks));
            if let Some(also) = also.filter(|also| !self.broken(also)) {
                let (a, b) = (holder.at, other.at);
                return Err(format!(
                    "h{a} (token {token}) and h{b} (token {}) both believe to hold {key}",
                    also.token
                ));
            }
        }
        Ok(())
    }

    /// After an answered heartbeat nobody goes on with what was broken or asked to stop before it.
    pub fn knows_of_breaks(&self, holder: &Holder, batch: u64, now_us: u64) -> Verdict {
        let Some(held) = holder.belief(now_us) else { return Ok(()) };
        self.knows_of_stop(holder, held, batch)?;
        let told = self.books.durable.tenure(&held.key, held.token);
        // One with a session of its own hears of it at its renewal.
        let told = told.filter(|told| told.session.0 != told.request.0);
        match told.and_then(|told| told.end.as_ref()) {
            Some((how, when)) if how.word() == "broken" && *when < batch => Err(format!(
                "h{} was not told that token {} of {} was broken",
                holder.at, held.token, held.key
            )),
            _ => Ok(()),
        }
    }

    /// A session of a beat that is answered "alive" was alive.
    pub(crate) fn was_alive(&self, session: SessionId, applied: &Applied) -> Verdict {
        let alive = match self.sessions.get(&session) {
            Some(before) => self.lived(before, applied.now),
            None => applied.replies.iter().any(|reply| opens(&reply.command, session)),
        };
        if alive { Ok(()) } else { Err(format!("a heartbeat revived the ended session {session}")) }
    }
}

fn overlaps(held: &Held, key: &ResourceKey, locks: &LockSet) -> bool {
    held.key == *key && held.locks.iter().any(|lock| locks.contains(lock))
}

/// Whether a command may have made a session.
fn opens(command: &Command, id: SessionId) -> bool {
    let open = matches!(command, Command::Open { session, .. } if *session == id);
    open || asks_solo(command, id)
}

/// Whether a command asks for locks with that session as its own.
fn asks_solo(command: &Command, id: SessionId) -> bool {
    let Command::Lock { action: LockAction::Acquire(ask), .. } = command else { return false };
    matches!(ask.claimant, Claimant::Solo { .. }) && ask.request.0 == id.0
}

/// The session that shows by a command that it lives.
fn life_sign(command: &Command, books: &Books) -> Option<SessionId> {
    match command {
        Command::Open { session, .. } | Command::Beat { session, .. } => Some(*session),
        Command::Lock { key, action: LockAction::Renew { token, .. } } => {
            books.now.tenure(key, *token).map(|told| told.session)
        }
        Command::Lock { action: LockAction::Acquire(ask), .. } => match ask.claimant {
            Claimant::Solo { .. } => Some(SessionId(ask.request.0)),
            Claimant::Session(_) => None,
        },
        _ => None,
    }
}
