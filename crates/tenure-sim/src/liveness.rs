//! How a run ends: faults stop, everybody gets what it wants, and everything comes to rest.

use tenure_core::invariants;

use crate::faults::Fault;
use crate::holder::Holder;
use crate::oracle::Verdict;
use crate::plan::{DRAINING_US, FAULTY_US, GRANTED_WITHIN_US, HEALING_US, Mood};
use crate::sim::{Event, Sim};
use crate::skew::SECOND;
use crate::task::Task;

impl Sim {
    pub(crate) fn schedule_phases(&mut self) {
        self.at(SECOND, Event::Fault(Fault::Server));
        self.at(SECOND, Event::Fault(Fault::Break));
        for at in 0..self.holders.len() {
            self.at(SECOND, Event::Fault(Fault::Holder(at)));
        }
        self.at(FAULTY_US, Event::Heal);
        self.at(FAULTY_US + HEALING_US, Event::Drain);
        self.at(SECOND, Event::Inspect);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.rested || self.now_us > FAULTY_US + HEALING_US + DRAINING_US
    }

    /// Whether everybody has said goodbye and nothing is on its way to the disk.
    fn rests(&self) -> bool {
        let gone = |holder: &Holder| holder.process.as_ref().is_some_and(|p| p.finished);
        let idle = self.server.free() && self.server.disk.sessions() == 0;
        self.mood == Mood::Draining && idle && self.holders.iter().all(gone)
    }

    /// Nothing goes wrong from now on; whoever is down gets up.
    pub(crate) fn heal(&mut self) -> Verdict {
        self.say(format_args!("healing begins"));
        self.mood = Mood::Healing;
        self.healed_us = self.now_us;
        self.start_server()?;
        self.resume_server()?;
        for at in 0..self.holders.len() {
            self.holders[at].cut_until = 0;
            self.thaw(at)?;
            self.start_holder(at)?;
        }
        Ok(())
    }

    pub(crate) fn note_asking(&mut self, at: usize) {
        let task = self.holders[at].process.as_ref().map(|process| &process.task);
        let Some(Task::Asking(asking)) = task else {
            self.asking.remove(&at);
            return;
        };
        let (request, now_us) = (asking.want.request, self.now_us);
        let entry = self.asking.entry(at).or_insert((request, now_us));
        if entry.0 != request {
            *entry = (request, now_us);
        }
    }

    /// Once nothing fails, nobody waits for ever.
    pub(crate) fn inspect(&mut self) -> Verdict {
        self.at(SECOND, Event::Inspect);
        self.inspect_lanes()?;
        self.rested = self.rests();
        for (at, (request, since_us)) in &self.asking {
            let waited_us = self.now_us.saturating_sub(self.healed_us.max(*since_us));
            if waited_us > GRANTED_WITHIN_US {
                let seconds = waited_us / SECOND;
                return Err(format!("h{at} waits for request {request} for {seconds} s in vain"));
            }
        }
        Ok(())
    }

    /// Everything has come to rest, and the history proves the rest.
    pub(crate) fn at_rest(&mut self) -> Verdict {
        for holder in &self.holders {
            if !holder.process.as_ref().is_some_and(|process| process.finished) {
                return Err(format!("h{} has not come to rest: {:?}", holder.at, holder.process));
            }
        }
        let Some(running) = &self.server.running else {
            return Err("the server is down at the end".to_owned());
        };
        let (world, now) = (running.ledger.world(), running.now(self.now_us));
        invariants::all(world)?;
        invariants::swept(world, now)?;
        self.lanes_at_rest()?;
        for key in self.plan.resources.iter().map(|(key, _)| key).chain(&self.plan.lanes) {
            if self.server.disk.record(key)?.is_some_and(|record| record.is_live()) {
                return Err(format!("{key} is still held or wanted at the end"));
            }
        }
        if self.server.disk.sessions() > 0 {
            return Err(format!("{} sessions are left at the end", self.server.disk.sessions()));
        }
        self.server.disk.verify()
    }
}
