//! Fault injection for the server, the holders and the network, and recovery from it.

use tenure_core::canary::{Canary, planted};
use tenure_core::record::Tenure;
use tenure_core::{Acquire, Claim, Claimant, Command, LockAction, ResourceKey, Text, limits};

use crate::message::Peer;
use crate::oracle::CheckResult;
use crate::plan::Phase;
use crate::sim::{Event, Sim};
use crate::skewed_clock::MS;

/// A tenant that has no sessions.
pub(crate) const OTHER_TENANT: &str = "other";

/// A fault event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Injects a fault into the server.
    Server,
    /// Restarts the server.
    ServerStart,
    /// Resumes the server after a stall, if it is still in this epoch.
    ServerResume(u64),
    /// Injects a fault into a holder.
    Holder(usize),
    /// Restarts a holder.
    HolderStart(usize),
    /// Thaws a holder, if it has been frozen since this true time.
    HolderThaw(usize, u64),
    /// Breaks a lock as an operator.
    Break,
    /// Forgets what is idle, as a pruning store.
    Forget,
}

impl Sim {
    pub(crate) fn fault(&mut self, fault: Fault) -> CheckResult {
        match fault {
            Fault::Server => self.inject_server_fault(),
            Fault::ServerStart => self.start_server(),
            Fault::ServerResume(epoch) if epoch == self.server.epoch => self.resume_server(),
            Fault::ServerResume(_) => Ok(()),
            Fault::Holder(index) => self.inject_holder_fault(index),
            Fault::HolderStart(index) => self.start_holder(index),
            Fault::HolderThaw(index, since) => {
                let same = self.holders[index].frozen.is_some_and(|(when, _)| when == since);
                if same { self.thaw(index) } else { Ok(()) }
            }
            Fault::Break => self.break_random_lock(),
            Fault::Forget => self.forget_idle_resources(),
        }
    }

    // ----- the server -----

    fn inject_server_fault(&mut self) -> CheckResult {
        if self.phase != Phase::Faulty {
            return Ok(());
        }
        let mean = self.plan.server_fault_ms;
        let next_us = self.rng.within(mean / 4, mean * 2) * MS;
        self.schedule(next_us, Event::Fault(Fault::Server));
        let Some(running) = &self.server.running else { return Ok(()) };
        if running.paused {
            return Ok(());
        }
        if self.rng.chance(600) { self.crash_server() } else { self.stall_server() }
    }

    pub(crate) fn crash_server(&mut self) -> CheckResult {
        if let Some(running) = &self.server.running {
            self.latest_store_time = self.latest_store_time.max(running.now(self.now_us));
        }
        let in_flight = self.server.crash(self.now_us);
        self.stats.crashes += 1;
        self.stats.crashes_before_flush += u64::from(in_flight.is_some());
        self.oracle.server_crashed();
        let long = self.rng.chance(150);
        let down_us = self.rng.within(20, if long { 15_000 } else { 3_000 }) * MS;
        self.log(format_args!("server crashes for {} ms", down_us / MS));
        self.schedule(down_us, Event::Fault(Fault::ServerStart));
        Ok(())
    }

    pub(crate) fn start_server(&mut self) -> CheckResult {
        if self.server.running.is_some() {
            return Ok(());
        }
        // The wall clock may be stepped by minutes while the server is down.
        let step_ms = match self.rng.within(0, 9) {
            0..3 => self.rng.within(0, 480_000),
            3 => self.wall_step_ms + limits::RECENT_TTL_MS + self.rng.within(1, 120_000),
            _ => self.wall_step_ms.max(240_000),
        };
        self.wall_step_ms = self.wall_step_ms.max(step_ms);
        let before = self.server.disk.latest();
        self.server.start(self.now_us, step_ms, &mut self.rng)?;
        let epoch = self.server.epoch;
        if let Some(running) = &self.server.running {
            let now = running.now(self.now_us);
            self.oracle.server_started(running.ledger.world(), now);
            if now.since(before) > limits::RECENT_TTL_MS {
                self.stats.leaps += 1;
                self.remembered_since = self.oracle.history.epoch;
                self.schedule(MS, Event::Fault(Fault::Forget));
            }
            self.log(format_args!("server starts at store time {}", now.0));
        }
        self.schedule(100 * MS, Event::Sweep(epoch));
        Ok(())
    }

    /// Asks the server to forget all resources that look idle, some with a number of entries that
    /// is not the last one.
    fn forget_idle_resources(&mut self) -> CheckResult {
        let locks = self.plan.resources.iter().map(|(key, _)| key);
        let keys: Vec<_> = locks.chain(&self.plan.lanes).cloned().collect();
        for key in keys {
            let Some(record) = self.server.disk.record(&key)? else { continue };
            if record.resource.is_some() || record.is_live() {
                continue;
            }
            let n = match self.rng.chance(200) {
                true => record.chain.n.saturating_sub(1),
                false => record.chain.n,
            };
            let action = LockAction::Forget { n };
            self.send(Peer::Operator, 0, Command::Lock { key, action });
        }
        Ok(())
    }

    fn stall_server(&mut self) -> CheckResult {
        let long = self.rng.chance(400);
        let stall_us = self.rng.within(100, if long { 12_000 } else { 2_100 }) * MS;
        self.log(format_args!("server stalls for {} ms", stall_us / MS));
        self.stats.stalls += 1;
        self.server.pause(self.now_us, true);
        self.schedule(stall_us, Event::Fault(Fault::ServerResume(self.server.epoch)));
        Ok(())
    }

    pub(crate) fn resume_server(&mut self) -> CheckResult {
        if !self.server.running.as_ref().is_some_and(|running| running.paused) {
            return Ok(());
        }
        self.log(format_args!("server resumes"));
        self.server.pause(self.now_us, false);
        if self.rng.chance(500) {
            self.sweep_now()?;
        }
        self.serve()
    }

    // ----- holders -----

    fn inject_holder_fault(&mut self, index: usize) -> CheckResult {
        if self.phase != Phase::Faulty {
            return Ok(());
        }
        let mean = self.plan.holder_fault_ms;
        let next_us = self.rng.within(mean / 4, mean * 2) * MS;
        self.schedule(next_us, Event::Fault(Fault::Holder(index)));
        let holder = &self.holders[index];
        if holder.process.is_none() || holder.frozen.is_some() {
            return Ok(());
        }
        let long = self.rng.chance(500);
        let for_us = self.rng.within(50, if long { 20_000 } else { 2_000 }) * MS;
        match self.rng.below(4) {
            0 => self.crash_holder(index, for_us),
            1 => self.freeze(index, for_us, false),
            2 => self.freeze(index, for_us, true),
            _ => self.partition(index, for_us),
        }
        Ok(())
    }

    fn crash_holder(&mut self, index: usize, down_us: u64) {
        self.stats.holder_crashes += 1;
        self.log(format_args!("h{index} crashes"));
        let holder = &mut self.holders[index];
        (holder.process, holder.frozen, holder.last_fault_us) = (None, None, self.now_us);
        holder.inbox.clear();
        self.acquiring.remove(&index);
        self.schedule(down_us, Event::Fault(Fault::HolderStart(index)));
    }

    pub(crate) fn start_holder(&mut self, index: usize) -> CheckResult {
        if self.holders[index].process.is_some() {
            return Ok(());
        }
        self.holders[index].epoch += 1;
        self.log(format_args!("h{index} starts"));
        self.start_process(index)
    }

    /// Freezes a process. The boot clock keeps running, even when the machine is suspended.
    pub(crate) fn freeze(&mut self, index: usize, for_us: u64, suspend: bool) {
        if self.holders[index].frozen.is_some() {
            return;
        }
        let word = if suspend { "is suspended" } else { "freezes" };
        self.log(format_args!("h{index} {word} for {} ms", for_us / MS));
        self.stats.freezes += 1;
        self.holders[index].frozen = Some((self.now_us, suspend));
        // Set to the true time when it thaws.
        self.holders[index].last_fault_us = u64::MAX;
        self.schedule(for_us, Event::Fault(Fault::HolderThaw(index, self.now_us)));
    }

    pub(crate) fn thaw(&mut self, index: usize) -> CheckResult {
        let Some((since, suspend)) = self.holders[index].frozen.take() else { return Ok(()) };
        if suspend && planted(Canary::ClockStopsInSuspend) {
            self.holders[index].clock.stop_for(self.now_us - since);
        }
        self.holders[index].last_fault_us = self.now_us;
        self.log(format_args!("h{index} resumes"));
        self.oracle.check_belief(&self.holders[index], &self.holders, self.now_us)?;
        if self.rng.chance(500) {
            self.wake(index)?;
        }
        for message in std::mem::take(&mut self.holders[index].inbox) {
            self.process_message(index, message)?;
        }
        self.wake(index)
    }

    fn partition(&mut self, index: usize, for_us: u64) {
        self.stats.partitions += 1;
        self.log(format_args!("h{index} is partitioned for {} ms", for_us / MS));
        self.holders[index].partitioned_until = self.now_us + for_us;
        self.holders[index].last_fault_us = self.now_us + for_us;
    }

    // ----- an operator -----

    fn break_random_lock(&mut self) -> CheckResult {
        if self.phase != Phase::Faulty {
            return Ok(());
        }
        let mean = self.plan.break_ms;
        let next_us = self.rng.within(mean / 4, mean * 2) * MS;
        self.schedule(next_us, Event::Fault(Fault::Break));
        let key = self.plan.any_resource(&mut self.rng);
        let Some(record) = self.server.disk.record(&key)? else { return Ok(()) };
        if let Some(tenure) = record.tenures.first() {
            self.send_as_stranger(&key, tenure);
            let (by, reason) = ("ann".into(), "stuck".into());
            let action =
                LockAction::Break { token: tenure.token, locks: None, by, reason, end_job: false };
            self.send(Peer::Operator, 0, Command::Lock { key, action });
        }
        Ok(())
    }

    /// Sends commands for the session of a tenure as a caller of another tenant that knows its ids.
    /// All must be refused.
    fn send_as_stranger(&mut self, key: &ResourceKey, tenure: &Tenure) {
        let (session, request) = (tenure.session, tenure.request);
        let tenant = || Some(Text::from(OTHER_TENANT));
        let acquire = Acquire {
            locks: tenure.lock.clone().into(),
            claimant: Claimant::Session(session),
            request,
            wait_ms: 0,
            purpose: None,
            max_age_ms: None,
            tenant: tenant(),
        };
        let kinds = vec![key.kind().into()];
        let claim = Claim { session, request, kinds, max: 1, tenant: tenant(), only: None };
        let commands = [
            Command::Heartbeat { session, seen: 0, tenant: tenant() },
            Command::Close { session, tenant: tenant() },
            Command::Lock { key: key.clone(), action: LockAction::Acquire(acquire) },
            Command::Claim(claim),
        ];
        for command in commands {
            self.send(Peer::Operator, 0, command);
        }
    }
}
