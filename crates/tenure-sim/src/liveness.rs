//! Phases of a run: faults stop, every request must be served, then everything must drain.

use tenure_core::invariants;

use crate::faults::Fault;
use crate::holder::Holder;
use crate::oracle::CheckResult;
use crate::plan::{DRAINING_JOB_US, DRAINING_US, FAULTY_US, GRANT_WAIT_MAX_US, HEALING_US, Phase};
use crate::sim::{Event, Sim};
use crate::skewed_clock::SECOND;
use crate::task::Task;

impl Sim {
    pub(crate) fn schedule_phases(&mut self) {
        self.schedule(SECOND, Event::Fault(Fault::Server));
        self.schedule(SECOND, Event::Fault(Fault::Break));
        for index in 0..self.holders.len() {
            self.schedule(SECOND, Event::Fault(Fault::Holder(index)));
        }
        self.schedule(FAULTY_US, Event::Heal);
        self.schedule(FAULTY_US + HEALING_US, Event::Drain);
        self.schedule(SECOND, Event::CheckProgress);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.quiescent || self.now_us > self.drained_by_us
    }

    /// Ends the submission of work.
    pub(crate) fn drain(&mut self) {
        self.phase = Phase::Draining;
        let jobs = self.oracle.history.now.job_model.unfinished(None) as u64;
        self.drained_by_us = self.now_us + DRAINING_US + jobs * DRAINING_JOB_US;
    }

    /// Returns whether all processes have closed their sessions and nothing is being flushed.
    fn is_quiescent(&self) -> bool {
        let finished = |holder: &Holder| holder.process.as_ref().is_some_and(|p| p.finished);
        let idle = self.server.is_idle() && self.server.disk.session_count() == 0;
        self.phase == Phase::Draining && idle && self.holders.iter().all(finished)
    }

    /// Ends all faults and restarts whatever is down.
    pub(crate) fn heal(&mut self) -> CheckResult {
        self.log(format_args!("faults stop"));
        self.phase = Phase::Healing;
        self.healed_us = self.now_us;
        self.start_server()?;
        self.resume_server()?;
        for index in 0..self.holders.len() {
            self.holders[index].partitioned_until = 0;
            self.thaw(index)?;
            self.start_holder(index)?;
        }
        Ok(())
    }

    pub(crate) fn track_acquire(&mut self, index: usize) {
        let task = self.holders[index].process.as_ref().map(|process| &process.task);
        let Some(Task::Acquiring(acquiring)) = task else {
            self.acquiring.remove(&index);
            return;
        };
        let (request, now_us) = (acquiring.lock_request.request, self.now_us);
        let entry = self.acquiring.entry(index).or_insert((request, now_us));
        if entry.0 != request {
            *entry = (request, now_us);
        }
    }

    /// Checks that, once faults stop, no lock request waits too long.
    pub(crate) fn check_progress(&mut self) -> CheckResult {
        self.schedule(SECOND, Event::CheckProgress);
        self.check_job_progress()?;
        self.quiescent = self.is_quiescent();
        for (index, (request, since_us)) in &self.acquiring {
            let waited_us = self.now_us.saturating_sub(self.healed_us.max(*since_us));
            if waited_us > GRANT_WAIT_MAX_US {
                let seconds = waited_us / SECOND;
                return Err(format!("h{index} was not granted request {request} in {seconds} s"));
            }
        }
        Ok(())
    }

    /// Checks that everything has drained, and verifies the stored history.
    pub(crate) fn check_final_state(&mut self) -> CheckResult {
        for holder in &self.holders {
            if !holder.process.as_ref().is_some_and(|process| process.finished) {
                return Err(format!("h{} has not finished: {:?}", holder.index, holder.process));
            }
        }
        let Some(running) = &self.server.running else {
            return Err("the server is down at the end".to_owned());
        };
        let (world, now) = (running.ledger.world(), running.now(self.now_us));
        invariants::check_all(world)?;
        invariants::check_swept(world, now)?;
        self.check_all_jobs_ended()?;
        for key in self.plan.resources.iter().map(|(key, _)| key).chain(&self.plan.lanes) {
            if self.server.disk.record(key)?.is_some_and(|record| record.is_live()) {
                return Err(format!("{key} still has a holder or a waiter at the end"));
            }
        }
        if self.server.disk.session_count() > 0 {
            return Err(format!("{} sessions remain at the end", self.server.disk.session_count()));
        }
        self.server.disk.verify()
    }
}
