//! Server side of the event loop: requests, flushes, sweeps and hints.

use tenure_core::{Command, JobAction, LockAction, RequestId, ResourceAction, limits};

use crate::describe;
use crate::message::{HolderMessage, Peer, Reply, Request};
use crate::oracle::CheckResult;
use crate::plan::Phase;
use crate::server::Applied;
use crate::sim::{Event, Sim};
use crate::skewed_clock::MS;

/// Interval between sweeps.
const SWEEP_INTERVAL_US: u64 = 100 * MS;

impl Sim {
    /// Returns whether a request was delayed past the request memory of its resource. It would
    /// count as a new request, which is a documented limit and not exercised here.
    pub(crate) fn exceeds_request_memory(&self, request: &Request) -> bool {
        let history = &self.oracle.history;
        if request.sent_in_epoch < self.remembered_since {
            return is_remembered_for_a_time(&request.command);
        }
        let acquire =
            matches!(&*request.command, Command::Lock { action: LockAction::Acquire(_), .. });
        let ends = history.ends_of(request.command.key()) - request.sent_at_ends;
        acquire && ends + 3 >= limits::RECENT_REQUESTS_MAX as u64
    }

    /// Returns whether the connection of a claim is closed: its worker timed out, or the server
    /// restarted since it was sent. Serving it would assign a job to no worker.
    fn is_abandoned(&self, request: &Request) -> bool {
        let Peer::Holder { index, epoch } = request.from else { return false };
        if !matches!(&*request.command, Command::Claim(_)) {
            return false;
        }
        let holder = &self.holders[index];
        let process = holder.process.as_ref().filter(|_| holder.epoch == epoch);
        let waits = process.is_none_or(|process| process.awaits_claim(request.call));
        !waits || request.sent_in_epoch != self.oracle.history.epoch
    }

    pub(crate) fn receive_request(&mut self, request: Request) -> CheckResult {
        if self.is_partitioned(request.from)
            || self.exceeds_request_memory(&request)
            || self.is_abandoned(&request)
        {
            self.stats.dropped += 1;
            return Ok(());
        }
        let Some(running) = &mut self.server.running else { return Ok(()) };
        running.inbox.push_back(request);
        self.serve()
    }

    pub(crate) fn serve(&mut self) -> CheckResult {
        // The oracle reads the clock when the ledger does, so that both see the same stalls.
        while self.server.is_idle() && self.server.has_requests() {
            self.snapshot_before_batch();
            let Some(applied) = self.server.apply(self.now_us)? else { return Ok(()) };
            self.finish_batch(applied)?;
        }
        Ok(())
    }

    pub(crate) fn sweep(&mut self, epoch: u64) -> CheckResult {
        if epoch != self.server.epoch || self.server.running.is_none() {
            return Ok(());
        }
        let busy = self.server.running.as_ref().is_some_and(|r| r.in_flight.is_some());
        self.schedule(if busy { 5 * MS } else { SWEEP_INTERVAL_US }, Event::Sweep(epoch));
        self.sweep_now()
    }

    pub(crate) fn sweep_now(&mut self) -> CheckResult {
        if !self.server.is_idle() {
            return Ok(());
        }
        self.snapshot_before_batch();
        match self.server.sweep(self.now_us) {
            Some(applied) => self.finish_batch(applied),
            None => Ok(()),
        }
    }

    pub(crate) fn snapshot_before_batch(&mut self) {
        if let Some(running) = &self.server.running {
            self.oracle.before_batch(running.ledger.world(), running.now(self.now_us));
        }
    }

    /// Checks an applied batch, starts its flush and sends the replies that need not wait.
    pub(crate) fn finish_batch(&mut self, applied: Applied) -> CheckResult {
        self.stats.commands += applied.replies.len() as u64;
        self.trace_batch(&applied);
        let (server, holders) = (&self.server, &self.holders);
        self.oracle.check_batch(&applied, server, holders, self.now_us, &mut self.stats)?;
        self.send_hints(&applied);
        self.evict(&applied);
        let replies = self.server.stage(applied);
        self.send_replies(replies);
        let epoch = self.server.epoch;
        if self.server.running.as_ref().is_some_and(|r| r.in_flight.is_some()) {
            self.server.set_listening(self.now_us, false);
            let slow =
                self.phase == Phase::Faulty && self.rng.chance(self.plan.slow_flush_per_mille);
            let after_us = self.rng.within(MS, if slow { 1_500 * MS } else { 25 * MS });
            self.schedule(after_us, Event::Flushed(epoch));
        }
        Ok(())
    }

    pub(crate) fn batch_flushed(&mut self, epoch: u64) -> CheckResult {
        if epoch != self.server.epoch || self.server.running.is_none() {
            return Ok(());
        }
        if self.server.running.as_ref().is_some_and(|running| running.paused) {
            self.schedule(10 * MS, Event::Flushed(epoch));
            return Ok(());
        }
        let replies = self.server.complete_flush();
        self.oracle.history.flush()?;
        self.server.set_listening(self.now_us, true);
        if self.phase == Phase::Faulty && self.rng.chance(4) {
            self.stats.crashes_before_reply += 1;
            return self.crash_server();
        }
        self.send_replies(replies);
        self.serve()
    }

    pub(crate) fn send_hints(&mut self, applied: &Applied) {
        // Sorted: the ledger does not define an order among resources.
        let granted = applied.batch.granted.iter().map(|tenure| tenure.request);
        let mut granted: Vec<RequestId> = granted.collect();
        granted.sort_unstable();
        for request in granted {
            let waits = |acquiring: &(&usize, &(RequestId, u64))| acquiring.1.0 == request;
            let Some((&index, _)) = self.acquiring.iter().find(waits) else { continue };
            let epoch = self.holders[index].epoch;
            if let Some(after_us) = self.network_delay() {
                self.schedule(
                    after_us,
                    Event::Deliver(index, epoch, HolderMessage::RetryHint(request)),
                );
            }
        }
        if !applied.batch.ready.is_empty() {
            self.hint_one_worker();
        }
    }

    /// Hints one random holder that jobs are ready; the others find out by polling.
    fn hint_one_worker(&mut self) {
        let index = self.rng.below(self.holders.len());
        let epoch = self.holders[index].epoch;
        if let Some(after_us) = self.network_delay() {
            self.schedule(after_us, Event::Deliver(index, epoch, HolderMessage::JobsReady));
        }
    }

    pub(crate) fn evict(&mut self, applied: &Applied) {
        // Only flushed records may be evicted, and a batch with changes is not flushed yet.
        if applied.batch.is_clean() && self.rng.chance(50) {
            let key = self.plan.any_resource(&mut self.rng);
            self.stats.evictions += u64::from(self.server.evict(&key));
        }
    }

    pub(crate) fn trace_batch(&mut self, applied: &Applied) {
        for Reply { to, command, outcome, .. } in &applied.replies {
            let now = applied.now.0;
            self.trace.push(
                self.now_us,
                format_args!("server@{now} {to:?} {}", describe::exchange(command, outcome)),
            );
        }
        for (_, sealed) in &applied.batch.history {
            self.trace.push(self.now_us, format_args!("history {}", sealed.line));
        }
    }
}

/// Returns whether a late copy of a command counts as new once its request is forgotten.
fn is_remembered_for_a_time(command: &Command) -> bool {
    matches!(
        command,
        Command::Claim(_)
            | Command::Once { .. }
            | Command::Lock { action: LockAction::Acquire(_), .. }
            | Command::Resource { action: ResourceAction::Submit(_), .. }
            | Command::Job { action: JobAction::Retry { .. }, .. }
    )
}
