//! The scheduler: an event queue in true time, and the simulated network.
//!
//! `server_events` and `holder_events` handle the two sides, [`crate::faults`] injects faults,
//! [`crate::liveness`] ends a run.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use tenure_core::{Command, Millis, RequestId};

use crate::faults::Fault;
use crate::guard::Guard;
use crate::holder::Holder;
use crate::job_checks::JobProgress;
use crate::message::{Effect, HolderMessage, Peer, Reply, Request};
use crate::oracle::{CheckResult, Oracle};
use crate::plan::{Phase, Plan};
use crate::reply_checks::holder_of;
use crate::rng::Rng;
use crate::server::Server;
use crate::skewed_clock::MS;
use crate::stats::Stats;
use crate::trace::Trace;

/// An event of the simulation.
#[derive(Debug)]
pub(crate) enum Event {
    /// A request reaches the server.
    Request(Request),
    /// A reply or a hint reaches an epoch of a holder.
    Deliver(usize, u64, HolderMessage),
    /// An effect reaches its guard.
    Effect(Effect),
    /// A wakeup that a holder scheduled; only its latest counts.
    Wakeup(usize, u64),
    /// The flush of a server epoch completes.
    Flushed(u64),
    /// A server epoch sweeps expired sessions.
    Sweep(u64),
    /// A fault starts or ends.
    Fault(Fault),
    /// Faults stop.
    Heal,
    /// No new work starts.
    Drain,
    /// Checks for work that makes no progress.
    CheckProgress,
}

/// A violated property and the trace that led to it.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Seed that reproduces it.
    pub seed: u64,
    /// Description of the violated property.
    pub what: String,
    /// Last lines of the trace.
    pub tail: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tail.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        write!(f, "replay: cargo run -p tenure-sim --bin sim -- --seed {} --trace", self.seed)
    }
}

/// Runs one seed to its end; `verbose` prints the whole trace.
pub fn run(seed: u64, verbose: bool) -> Result<Stats, Box<Violation>> {
    let mut sim = Sim::new(seed, verbose);
    match sim.run_to_end() {
        Ok(()) => Ok(sim.stats),
        Err(what) => Err(Box::new(Violation { seed, what, tail: sim.trace.tail() })),
    }
}

/// One run.
pub(crate) struct Sim {
    pub(crate) now_us: u64,
    queue: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    pub(crate) rng: Rng,
    pub(crate) plan: Plan,
    pub(crate) phase: Phase,
    pub(crate) server: Server,
    pub(crate) holders: Vec<Holder>,
    pub(crate) guard: Guard,
    pub(crate) oracle: Oracle,
    pub(crate) stats: Stats,
    pub(crate) trace: Trace,
    pub(crate) healed_us: u64,
    /// True time by which everything must have drained.
    pub(crate) drained_by_us: u64,
    /// All processes have finished and nothing is in flight.
    pub(crate) quiescent: bool,
    /// Open lock request of each holder, and the true time it was first sent.
    pub(crate) acquiring: BTreeMap<usize, (RequestId, u64)>,
    /// Server epoch since whose start requests are remembered: before, the store clock leapt.
    pub(crate) remembered_since: u64,
    /// Latest store time of all servers that have crashed.
    pub(crate) latest_store_time: Millis,
    /// Farthest step of the server's wall clock so far.
    pub(crate) wall_step_ms: u64,
    /// Ready and running jobs, and the true time of the first check that saw them so.
    pub(crate) job_progress_since: BTreeMap<JobProgress, u64>,
}

impl Sim {
    fn new(seed: u64, verbose: bool) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng);
        let holders = (0..plan.holders).map(|index| Holder::new(index, &mut rng)).collect();
        Self {
            now_us: 0,
            queue: BTreeMap::new(),
            scheduled: 0,
            rng,
            plan,
            phase: Phase::Faulty,
            server: Server::new(),
            holders,
            guard: Guard::default(),
            oracle: Oracle::default(),
            stats: Stats::default(),
            trace: Trace::new(verbose),
            healed_us: u64::MAX,
            drained_by_us: u64::MAX,
            quiescent: false,
            acquiring: BTreeMap::new(),
            remembered_since: 0,
            latest_store_time: Millis::default(),
            wall_step_ms: 0,
            job_progress_since: BTreeMap::new(),
        }
    }

    pub(crate) fn schedule(&mut self, after_us: u64, event: Event) {
        self.scheduled += 1;
        self.queue.insert((self.now_us + after_us, self.scheduled), event);
    }

    pub(crate) fn log(&mut self, what: fmt::Arguments<'_>) {
        self.trace.push(self.now_us, what);
    }

    fn run_to_end(&mut self) -> CheckResult {
        self.start_server()?;
        for index in 0..self.holders.len() {
            self.start_holder(index)?;
        }
        self.schedule_phases();
        while let Some(((now_us, _), event)) = self.queue.pop_first() {
            self.now_us = now_us;
            if self.is_finished() {
                break;
            }
            self.dispatch(event)?;
        }
        self.check_final_state()
    }

    fn dispatch(&mut self, event: Event) -> CheckResult {
        match event {
            Event::Request(request) => self.receive_request(request),
            Event::Deliver(index, epoch, message) => self.deliver(index, epoch, message),
            Event::Effect(effect) => self.apply_effect(&effect),
            Event::Wakeup(index, number) if self.holders[index].wakeup == number => {
                self.wake(index)
            }
            Event::Wakeup(..) => Ok(()),
            Event::Flushed(epoch) => self.batch_flushed(epoch),
            Event::Sweep(epoch) => self.sweep(epoch),
            Event::Fault(fault) => self.fault(fault),
            Event::Heal => self.heal(),
            Event::Drain => {
                self.drain();
                Ok(())
            }
            Event::CheckProgress => self.check_progress(),
        }
    }

    // ----- the network -----

    /// Draws the delay of a message; `None` if it is lost.
    pub(crate) fn network_delay(&mut self) -> Option<u64> {
        if self.phase != Phase::Faulty {
            return Some(self.rng.within(MS, 20 * MS));
        }
        if self.rng.chance(self.plan.loss_per_mille) {
            self.stats.dropped += 1;
            return None;
        }
        let slow = self.rng.chance(self.plan.slow_per_mille);
        let longest_ms = self.plan.extra_latency_ms + if slow { 3_000 } else { 30 };
        Some(self.rng.within(MS, longest_ms * MS))
    }

    /// Draws the delay of a duplicate, which may arrive much later; `None` if there is none.
    pub(crate) fn duplicate_delay(&mut self) -> Option<u64> {
        let duplicated =
            self.phase == Phase::Faulty && self.rng.chance(self.plan.duplicate_per_mille);
        self.stats.duplicated += u64::from(duplicated);
        let longest_us = 1 << self.rng.within(15, 24);
        duplicated.then(|| self.rng.within(MS, longest_us))
    }

    pub(crate) fn is_partitioned(&self, peer: Peer) -> bool {
        let Peer::Holder { index, .. } = peer else { return false };
        self.holders[index].partitioned_until > self.now_us
    }

    pub(crate) fn send(&mut self, from: Peer, call: u64, command: Command) {
        let history = &self.oracle.history;
        let sent_at_ends = history.ends_of(command.key());
        // A claim is not duplicated: it waits for its reply on a dedicated connection.
        let single = matches!(command, Command::Claim(_));
        let (command, sent_in_epoch) = (Rc::new(command), history.epoch);
        let request = Request { from, call, command, sent_at_ends, sent_in_epoch };
        if self.is_partitioned(from) {
            return;
        }
        let duplicate = if single { None } else { self.duplicate_delay() };
        for after_us in [self.network_delay(), duplicate].into_iter().flatten() {
            self.schedule(after_us, Event::Request(request.clone()));
        }
    }

    pub(crate) fn send_replies(&mut self, replies: Vec<Reply>) {
        for reply in replies {
            if self.is_partitioned(reply.to) {
                continue;
            }
            let Some((index, epoch)) = holder_of(&reply) else { continue };
            for after_us in [self.network_delay(), self.duplicate_delay()].into_iter().flatten() {
                self.schedule(
                    after_us,
                    Event::Deliver(index, epoch, HolderMessage::Reply(Box::new(reply.clone()))),
                );
            }
        }
    }
}
