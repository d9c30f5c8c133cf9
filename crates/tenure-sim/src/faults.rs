//! What befalls the server, the holders and the network, and how they get up again.

use tenure_core::canary::{Canary, planted};
use tenure_core::{Command, LockAction};

use crate::message::Peer;
use crate::oracle::Verdict;
use crate::plan::Mood;
use crate::sim::{Event, Sim};
use crate::skew::MS;

/// Something goes wrong, or right again. A life says to which life it belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Time for something to happen to the server.
    Server,
    /// It starts again.
    ServerStarts,
    /// It goes on after a stall.
    ServerResumes(u64),
    /// Time for something to happen to a holder.
    Holder(usize),
    /// It starts again.
    HolderStarts(usize),
    /// It goes on; the time at which it was frozen says which freeze is meant.
    HolderThaws(usize, u64),
    /// An operator breaks a lock.
    Break,
}

impl Sim {
    pub(crate) fn fault(&mut self, fault: Fault) -> Verdict {
        match fault {
            Fault::Server => self.hurt_server(),
            Fault::ServerStarts => self.start_server(),
            Fault::ServerResumes(life) if life == self.server.life => self.resume_server(),
            Fault::ServerResumes(_) => Ok(()),
            Fault::Holder(at) => self.hurt_holder(at),
            Fault::HolderStarts(at) => self.start_holder(at),
            Fault::HolderThaws(at, since) => {
                let same = self.holders[at].frozen.is_some_and(|(when, _)| when == since);
                if same { self.thaw(at) } else { Ok(()) }
            }
            Fault::Break => self.break_something(),
        }
    }

    // ----- the server -----

    fn hurt_server(&mut self) -> Verdict {
        if self.mood != Mood::Faulty {
            return Ok(());
        }
        let mean = self.plan.server_fault_ms;
        let next_us = self.rng.within(mean / 4, mean * 2) * MS;
        self.at(next_us, Event::Fault(Fault::Server));
        let Some(running) = &self.server.running else { return Ok(()) };
        if running.paused {
            return Ok(());
        }
        if self.rng.chance(600) { self.crash_server() } else { self.stall_server() }
    }

    pub(crate) fn crash_server(&mut self) -> Verdict {
        let flight = self.server.crash(self.now_us);
        self.stats.crashes += 1;
        self.stats.unflushed += u64::from(flight.is_some());
        self.oracle.crashed();
        let long = self.rng.chance(150);
        let down_us = self.rng.within(20, if long { 15_000 } else { 3_000 }) * MS;
        self.say(format_args!("server crashes for {} ms", down_us / MS));
        self.at(down_us, Event::Fault(Fault::ServerStarts));
        Ok(())
    }

    pub(crate) fn start_server(&mut self) -> Verdict {
        if self.server.running.is_some() {
            return Ok(());
        }
        // The wall clock may have been set while the server was down; rarely by minutes.
        let step_ms = match self.rng.chance(300) {
            true => self.rng.within(0, 480_000),
            false => 240_000,
        };
        self.server.start(self.now_us, step_ms, &mut self.rng)?;
        let life = self.server.life;
        if let Some(running) = &self.server.running {
            let now = running.now(self.now_us);
            self.oracle.restarted(running.ledger.world(), now);
            self.say(format_args!("server starts at store time {}", now.0));
        }
        self.at(100 * MS, Event::Sweep(life));
        Ok(())
    }

    fn stall_server(&mut self) -> Verdict {
        let long = self.rng.chance(400);
        let stall_us = self.rng.within(100, if long { 12_000 } else { 2_100 }) * MS;
        self.say(format_args!("server stalls for {} ms", stall_us / MS));
        self.stats.stalls += 1;
        self.server.pause(self.now_us, true);
        self.at(stall_us, Event::Fault(Fault::ServerResumes(self.server.life)));
        Ok(())
    }

    pub(crate) fn resume_server(&mut self) -> Verdict {
        if !self.server.running.as_ref().is_some_and(|running| running.paused) {
            return Ok(());
        }
        self.say(format_args!("server resumes"));
        self.server.pause(self.now_us, false);
        if self.rng.chance(500) {
            self.sweep_now()?;
        }
        self.serve()
    }

    // ----- holders -----

    fn hurt_holder(&mut self, at: usize) -> Verdict {
        if self.mood != Mood::Faulty {
            return Ok(());
        }
        let mean = self.plan.holder_fault_ms;
        let next_us = self.rng.within(mean / 4, mean * 2) * MS;
        self.at(next_us, Event::Fault(Fault::Holder(at)));
        let holder = &self.holders[at];
        if holder.process.is_none() || holder.frozen.is_some() {
            return Ok(());
        }
        let long = self.rng.chance(500);
        let for_us = self.rng.within(50, if long { 20_000 } else { 2_000 }) * MS;
        match self.rng.below(4) {
            0 => self.crash_holder(at, for_us),
            1 => self.freeze(at, for_us, false),
            2 => self.freeze(at, for_us, true),
            _ => self.partition(at, for_us),
        }
        Ok(())
    }

    fn crash_holder(&mut self, at: usize, down_us: u64) {
        self.stats.holder_crashes += 1;
        self.say(format_args!("h{at} crashes"));
        let holder = &mut self.holders[at];
        (holder.process, holder.frozen, holder.hurt_us) = (None, None, self.now_us);
        holder.mailbox.clear();
        self.asking.remove(&at);
        self.at(down_us, Event::Fault(Fault::HolderStarts(at)));
    }

    pub(crate) fn start_holder(&mut self, at: usize) -> Verdict {
        if self.holders[at].process.is_some() {
            return Ok(());
        }
        self.holders[at].life += 1;
        self.say(format_args!("h{at} starts"));
        self.start_process(at)
    }

    /// The process stands still; when its machine sleeps, an honest clock goes on all the same.
    pub(crate) fn freeze(&mut self, at: usize, for_us: u64, suspend: bool) {
        if self.holders[at].frozen.is_some() {
            return;
        }
        let word = if suspend { "is suspended" } else { "freezes" };
        self.say(format_args!("h{at} {word} for {} ms", for_us / MS));
        self.stats.freezes += 1;
        self.holders[at].frozen = Some((self.now_us, suspend));
        // Until it thaws, and then from that moment on.
        self.holders[at].hurt_us = u64::MAX;
        self.at(for_us, Event::Fault(Fault::HolderThaws(at, self.now_us)));
    }

    pub(crate) fn thaw(&mut self, at: usize) -> Verdict {
        let Some((since, suspend)) = self.holders[at].frozen.take() else { return Ok(()) };
        if suspend && planted(Canary::ClockStopsInSuspend) {
            self.holders[at].clock.stand_still(self.now_us - since);
        }
        self.holders[at].hurt_us = self.now_us;
        self.say(format_args!("h{at} goes on"));
        self.oracle.belief(&self.holders[at], &self.holders, self.now_us)?;
        if self.rng.chance(500) {
            self.wake(at)?;
        }
        for mail in std::mem::take(&mut self.holders[at].mailbox) {
            self.read_mail(at, mail)?;
        }
        self.wake(at)
    }

    fn partition(&mut self, at: usize, for_us: u64) {
        self.stats.partitions += 1;
        self.say(format_args!("h{at} is cut off for {} ms", for_us / MS));
        self.holders[at].cut_until = self.now_us + for_us;
        self.holders[at].hurt_us = self.now_us + for_us;
    }

    // ----- an operator -----

    fn break_something(&mut self) -> Verdict {
        if self.mood != Mood::Faulty {
            return Ok(());
        }
        let mean = self.plan.break_ms;
        let next_us = self.rng.within(mean / 4, mean * 2) * MS;
        self.at(next_us, Event::Fault(Fault::Break));
        let key = self.plan.any_resource(&mut self.rng);
        let Some(record) = self.server.disk.record(&key)? else { return Ok(()) };
        if let Some(tenure) = record.tenures.first() {
            let (by, reason) = ("ann".into(), "stuck".into());
            let action = LockAction::Break { token: tenure.token, locks: None, by, reason };
            self.send(Peer::Operator, 0, Command::Lock { key, action });
        }
        Ok(())
    }
}
