//! Holder side of the event loop: messages, wakeups and effects.

use tenure_core::Millis;

use crate::holder::{Env, Process};
use crate::message::{Effect, HolderMessage, Peer, Reply};
use crate::oracle::CheckResult;
use crate::plan::Phase;
use crate::sim::{Event, Sim};
use crate::skewed_clock::MS;

impl Sim {
    pub(crate) fn deliver(
        &mut self,
        index: usize,
        epoch: u64,
        message: HolderMessage,
    ) -> CheckResult {
        if self.is_partitioned(Peer::Holder { index, epoch }) {
            return Ok(());
        }
        if let HolderMessage::Reply(reply) = &message {
            self.oracle.check_acknowledged(reply)?;
        }
        let holder = &mut self.holders[index];
        if holder.epoch != epoch || holder.process.is_none() {
            return Ok(());
        }
        if holder.frozen.is_some() {
            holder.inbox.push(message);
            return Ok(());
        }
        self.process_message(index, message)
    }

    pub(crate) fn process_message(&mut self, index: usize, message: HolderMessage) -> CheckResult {
        let batch = match &message {
            HolderMessage::Reply(reply) if self.awaits_heartbeat(index, reply) => reply.batch,
            HolderMessage::Reply(_) | HolderMessage::RetryHint(_) | HolderMessage::JobsReady => 0,
        };
        self.with_process(index, |process, env| {
            process.receive(message, env);
            process.poll(env);
        })?;
        self.oracle.check_break_delivered(&self.holders[index], batch, self.now_us)
    }

    pub(crate) fn awaits_heartbeat(&self, index: usize, reply: &Reply) -> bool {
        self.holders[index].process.as_ref().is_some_and(|process| process.awaits_heartbeat(reply))
    }

    pub(crate) fn wake(&mut self, index: usize) -> CheckResult {
        if self.holders[index].frozen.is_some() {
            return Ok(());
        }
        self.with_process(index, Process::poll)
    }

    /// Runs `act` on a process, then sends the calls and effects it produced.
    pub(crate) fn with_process(
        &mut self,
        index: usize,
        act: impl FnOnce(&mut Process, &mut Env<'_>),
    ) -> CheckResult {
        // Taken out meanwhile, because its environment borrows the rest of the simulation.
        let Some(mut process) = self.holders[index].process.take() else { return Ok(()) };
        let mut env = self.env(index);
        act(&mut process, &mut env);
        let (calls, effects, notes) = (env.calls, env.effects, env.notes);
        self.holders[index].process = Some(process);
        notes.iter().for_each(|note| self.log(format_args!("h{index} {note}")));
        self.oracle.check_belief(&self.holders[index], &self.holders, self.now_us)?;
        let epoch = self.holders[index].epoch;
        for (call, command) in calls {
            self.send(Peer::Holder { index, epoch }, call, command);
        }
        for effect in effects {
            self.send_effect(effect);
        }
        self.track_acquire(index);
        self.schedule_wakeup(index);
        Ok(())
    }

    fn env(&mut self, index: usize) -> Env<'_> {
        let running = self.server.running.as_ref();
        Env {
            now: self.holders[index].clock.read(self.now_us),
            phase: self.phase,
            plan: &self.plan,
            kinds: &self.oracle.history.kinds,
            store_now: running.map_or(Millis::default(), |running| running.now(self.now_us)),
            job_model: &self.oracle.history.now.job_model,
            rng: &mut self.rng,
            stats: &mut self.stats,
            calls: Vec::new(),
            effects: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub(crate) fn start_process(&mut self, index: usize) -> CheckResult {
        let process = Process::new(index, &mut self.env(index));
        self.holders[index].process = Some(process);
        self.with_process(index, Process::poll)
    }

    pub(crate) fn schedule_wakeup(&mut self, index: usize) {
        let holder = &mut self.holders[index];
        holder.wakeup += 1;
        let Some(next) = holder.process.as_ref().and_then(Process::next_wakeup) else { return };
        let (when, number) = (holder.clock.true_time_of(next).max(self.now_us + 1), holder.wakeup);
        self.schedule(when - self.now_us, Event::Wakeup(index, number));
    }

    /// Sends an effect that passed its lease check; the process may freeze right after the check.
    pub(crate) fn send_effect(&mut self, effect: Effect) {
        let index = effect.holder;
        let mut after_us = self.rng.within(0, 10 * MS);
        if self.phase == Phase::Faulty && self.rng.chance(15) {
            let frozen_us = self.rng.within(100 * MS, 15_000 * MS);
            self.freeze(index, frozen_us, false);
            after_us += frozen_us;
        }
        self.schedule(after_us, Event::Effect(effect));
    }

    pub(crate) fn apply_effect(&mut self, effect: &Effect) -> CheckResult {
        let Effect { holder, key, token, .. } = effect;
        let before = self.stats.fenced_writes;
        let verdict = self.guard.apply(effect, &self.oracle.history.now, &mut self.stats);
        if self.stats.fenced_writes > before {
            self.trace.push(self.now_us, format_args!("h{holder} {key} {token} is fenced"));
        }
        verdict
    }
}
