//! What holders do with what arrives, and what becomes of what they want done.

use tenure_core::Millis;

use crate::holder::{Env, Process};
use crate::message::{Effect, Mail, Peer, Reply};
use crate::oracle::Verdict;
use crate::plan::Mood;
use crate::sim::{Event, Sim};
use crate::skew::MS;

impl Sim {
    pub(crate) fn deliver(&mut self, at: usize, life: u64, mail: Mail) -> Verdict {
        if self.cut(Peer::Holder { at, life }) {
            return Ok(());
        }
        if let Mail::Reply(reply) = &mail {
            self.oracle.acknowledged(reply)?;
        }
        let holder = &mut self.holders[at];
        if holder.life != life || holder.process.is_none() {
            return Ok(());
        }
        if holder.frozen.is_some() {
            holder.mailbox.push(mail);
            return Ok(());
        }
        self.read_mail(at, mail)
    }

    pub(crate) fn read_mail(&mut self, at: usize, mail: Mail) -> Verdict {
        let batch = match &mail {
            Mail::Reply(reply) if self.awaits_beat(at, reply) => reply.batch,
            Mail::Reply(_) | Mail::Hint(_) | Mail::Ready => 0,
        };
        self.with_process(at, |process, env| {
            process.receive(mail, env);
            process.turn(env);
        })?;
        self.oracle.knows_of_breaks(&self.holders[at], batch, self.now_us)
    }

    pub(crate) fn awaits_beat(&self, at: usize, reply: &Reply) -> bool {
        self.holders[at].process.as_ref().is_some_and(|process| process.awaits_beat(reply))
    }

    pub(crate) fn wake(&mut self, at: usize) -> Verdict {
        if self.holders[at].frozen.is_some() {
            return Ok(());
        }
        self.with_process(at, Process::turn)
    }

    /// Lets a process do something, then does what it wants.
    pub(crate) fn with_process(
        &mut self,
        at: usize,
        act: impl FnOnce(&mut Process, &mut Env<'_>),
    ) -> Verdict {
        // Taken out for as long as it acts, because it acts on everything else.
        let Some(mut process) = self.holders[at].process.take() else { return Ok(()) };
        let mut env = self.env(at);
        act(&mut process, &mut env);
        let (calls, effects, notes) = (env.calls, env.effects, env.notes);
        self.holders[at].process = Some(process);
        notes.iter().for_each(|note| self.say(format_args!("h{at} {note}")));
        self.oracle.belief(&self.holders[at], &self.holders, self.now_us)?;
        let life = self.holders[at].life;
        for (call, command) in calls {
            self.send(Peer::Holder { at, life }, call, command);
        }
        for effect in effects {
            self.act(effect);
        }
        self.note_asking(at);
        self.set_alarm(at);
        Ok(())
    }

    fn env(&mut self, at: usize) -> Env<'_> {
        let running = self.server.running.as_ref();
        Env {
            now: self.holders[at].clock.show(self.now_us),
            mood: self.mood,
            plan: &self.plan,
            kinds: &self.oracle.books.kinds,
            store_now: running.map_or(Millis::default(), |running| running.now(self.now_us)),
            lanes: &self.oracle.books.now.lanes,
            rng: &mut self.rng,
            stats: &mut self.stats,
            calls: Vec::new(),
            effects: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub(crate) fn start_process(&mut self, at: usize) -> Verdict {
        let process = Process::new(at, &mut self.env(at));
        self.holders[at].process = Some(process);
        self.with_process(at, Process::turn)
    }

    pub(crate) fn set_alarm(&mut self, at: usize) {
        let holder = &mut self.holders[at];
        holder.alarm += 1;
        let Some(next) = holder.process.as_ref().and_then(Process::next_turn) else { return };
        let (when, alarm) = (holder.clock.when(next).max(self.now_us + 1), holder.alarm);
        self.at(when - self.now_us, Event::Alarm(at, alarm));
    }

    /// An effect that has passed its check leaves; its process may freeze right then.
    pub(crate) fn act(&mut self, effect: Effect) {
        let at = effect.holder;
        let mut after_us = self.rng.within(0, 10 * MS);
        if self.mood == Mood::Faulty && self.rng.chance(15) {
            let frozen_us = self.rng.within(100 * MS, 15_000 * MS);
            self.freeze(at, frozen_us, false);
            after_us += frozen_us;
        }
        self.at(after_us, Event::Land(effect));
    }

    pub(crate) fn land(&mut self, effect: &Effect) -> Verdict {
        let Effect { holder, key, token, .. } = effect;
        let before = self.stats.fenced_writes;
        let verdict = self.guard.land(effect, &self.oracle.books.now, &mut self.stats);
        if self.stats.fenced_writes > before {
            self.trace.line(self.now_us, format_args!("h{holder} {key} {token} is fenced off"));
        }
        verdict
    }
}
