//! What the server does with what arrives: decides, flushes, answers, sweeps.

use tenure_core::{Command, LockAction, RequestId, limits};

use crate::message::{Mail, Peer, Reply, Request};
use crate::oracle::Verdict;
use crate::plan::Mood;
use crate::server::Applied;
use crate::sim::{Event, Sim};
use crate::skew::MS;
use crate::story;

/// The server sweeps this often.
const SWEEP_US: u64 = 100 * MS;

impl Sim {
    /// A resource remembers only the latest of its ended requests. A request that comes after more
    /// ends than that would be taken for a new one: this is a stated limit, not exercised here.
    pub(crate) fn too_late(&self, request: &Request) -> bool {
        let books = &self.oracle.books;
        let acquire =
            matches!(&*request.command, Command::Lock { action: LockAction::Acquire(_), .. });
        let ends = books.remembered(request.command.key()) - request.left_at_ends;
        acquire && ends + 3 >= limits::RECENT_MAX as u64
    }

    /// A claim whose connection is closed is not served: one that its worker has given up waiting
    /// for, or that left before the server went down. Whoever served it would give a job to nobody.
    fn hung_up(&self, request: &Request) -> bool {
        let Peer::Holder { at, life } = request.from else { return false };
        if !matches!(&*request.command, Command::Claim(_)) {
            return false;
        }
        let holder = &self.holders[at];
        let process = holder.process.as_ref().filter(|_| holder.life == life);
        let waits = process.is_none_or(|process| process.awaits_jobs(request.call));
        !waits || request.left_in_life != self.oracle.books.life
    }

    pub(crate) fn arrive(&mut self, request: Request) -> Verdict {
        if self.cut(request.from) || self.too_late(&request) || self.hung_up(&request) {
            self.stats.dropped += 1;
            return Ok(());
        }
        let Some(running) = &mut self.server.running else { return Ok(()) };
        running.inbox.push_back(request);
        self.serve()
    }

    pub(crate) fn serve(&mut self) -> Verdict {
        // The oracle looks when the ledger does, so that both see the same stalls.
        while self.server.free() && self.server.has_requests() {
            self.look_before();
            let Some(applied) = self.server.apply(self.now_us)? else { return Ok(()) };
            self.conclude(applied)?;
        }
        Ok(())
    }

    pub(crate) fn sweep(&mut self, life: u64) -> Verdict {
        if life != self.server.life || self.server.running.is_none() {
            return Ok(());
        }
        let busy = self.server.running.as_ref().is_some_and(|r| r.flight.is_some());
        self.at(if busy { 5 * MS } else { SWEEP_US }, Event::Sweep(life));
        self.sweep_now()
    }

    pub(crate) fn sweep_now(&mut self) -> Verdict {
        if !self.server.free() {
            return Ok(());
        }
        self.look_before();
        match self.server.sweep(self.now_us) {
            Some(applied) => self.conclude(applied),
            None => Ok(()),
        }
    }

    pub(crate) fn look_before(&mut self) {
        if let Some(running) = &self.server.running {
            self.oracle.before(running.ledger.world(), running.now(self.now_us));
        }
    }

    /// A batch was applied: judged, sent to the disk, answered when it is there.
    pub(crate) fn conclude(&mut self, applied: Applied) -> Verdict {
        self.stats.commands += applied.replies.len() as u64;
        self.tell(&applied);
        let (server, holders) = (&self.server, &self.holders);
        self.oracle.applied(&applied, server, holders, self.now_us, &mut self.stats)?;
        self.hint(&applied);
        self.evict(&applied);
        let replies = self.server.stage(applied);
        self.answer(replies);
        let life = self.server.life;
        if self.server.running.as_ref().is_some_and(|r| r.flight.is_some()) {
            self.server.listen(self.now_us, false);
            let slow = self.mood == Mood::Faulty && self.rng.chance(self.plan.slow_flush);
            let after_us = self.rng.within(MS, if slow { 1_500 * MS } else { 25 * MS });
            self.at(after_us, Event::Flushed(life));
        }
        Ok(())
    }

    pub(crate) fn flushed(&mut self, life: u64) -> Verdict {
        if life != self.server.life || self.server.running.is_none() {
            return Ok(());
        }
        if self.server.running.as_ref().is_some_and(|running| running.paused) {
            self.at(10 * MS, Event::Flushed(life));
            return Ok(());
        }
        let replies = self.server.flushed();
        self.oracle.books.flushed()?;
        self.server.listen(self.now_us, true);
        if self.mood == Mood::Faulty && self.rng.chance(4) {
            self.stats.unanswered += 1;
            return self.crash_server();
        }
        self.answer(replies);
        self.serve()
    }

    pub(crate) fn hint(&mut self, applied: &Applied) {
        // Sorted: the order among resources is no promise of the ledger's.
        let granted = applied.batch.granted.iter().map(|tenure| tenure.request);
        let mut granted: Vec<RequestId> = granted.collect();
        granted.sort_unstable();
        for request in granted {
            let asks = |asking: &(&usize, &(RequestId, u64))| asking.1.0 == request;
            let Some((&at, _)) = self.asking.iter().find(asks) else { continue };
            let life = self.holders[at].life;
            if let Some(after_us) = self.travel() {
                self.at(after_us, Event::Deliver(at, life, Mail::Hint(request)));
            }
        }
        if !applied.batch.ready.is_empty() {
            self.hint_one_worker();
        }
    }

    /// One of those who look for jobs is told that there are some; the others find out by asking.
    fn hint_one_worker(&mut self) {
        let at = self.rng.below(self.holders.len());
        let life = self.holders[at].life;
        if let Some(after_us) = self.travel() {
            self.at(after_us, Event::Deliver(at, life, Mail::Ready));
        }
    }

    pub(crate) fn evict(&mut self, applied: &Applied) {
        // Only what is on disk already may be dropped, and what changed now is not.
        if applied.batch.is_clean() && self.rng.chance(50) {
            let key = self.plan.any_resource(&mut self.rng);
            self.stats.evictions += u64::from(self.server.evict(&key));
        }
    }

    pub(crate) fn tell(&mut self, applied: &Applied) {
        for Reply { to, command, outcome, .. } in &applied.replies {
            let now = applied.now.0;
            self.trace.line(
                self.now_us,
                format_args!("server@{now} {to:?} {}", story::of(command, outcome)),
            );
        }
        for (_, sealed) in &applied.batch.history {
            self.trace.line(self.now_us, format_args!("history {}", sealed.line));
        }
    }
}
