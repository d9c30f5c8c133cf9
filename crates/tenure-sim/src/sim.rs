//! The scheduler: one queue of events in true time, and what each of them does.
//!
//! Next: `serving` and `turns` for the two sides, [`crate::faults`] for the events that hurt,
//! [`crate::liveness`] for how a run ends.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use tenure_core::{Command, RequestId};

use crate::answers::holder_of;
use crate::faults::Fault;
use crate::guard::Guard;
use crate::holder::Holder;
use crate::lanes::Pending;
use crate::message::{Effect, Mail, Peer, Reply, Request};
use crate::oracle::{Oracle, Verdict};
use crate::plan::{Mood, Plan};
use crate::rng::Rng;
use crate::server::Server;
use crate::skew::MS;
use crate::stats::Stats;
use crate::trace::Trace;

/// Something that happens at an instant of true time.
#[derive(Debug)]
pub(crate) enum Event {
    /// A request reaches the server.
    Arrive(Request),
    /// An answer or a hint reaches a life of a holder.
    Deliver(usize, u64, Mail),
    /// An effect reaches its guard.
    Land(Effect),
    /// A holder wanted to be woken.
    Alarm(usize, u64),
    /// A life of the server has its batch on disk.
    Flushed(u64),
    /// A life of the server looks for what has lapsed.
    Sweep(u64),
    /// Something goes wrong, or right again.
    Fault(Fault),
    /// Nothing goes wrong from now on.
    Heal,
    /// Nothing new begins from now on.
    Drain,
    /// The oracle looks for what takes too long.
    Inspect,
}

/// A property that broke, with the story that led to it.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The seed that shows it.
    pub seed: u64,
    /// What broke.
    pub what: String,
    /// The last lines of the trace.
    pub tail: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tail.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        write!(f, "replay: cargo run -p tenure-sim --bin sim -- --seed {} --trace", self.seed)
    }
}

/// Runs one seed to its end; `loud` prints every line of the trace.
pub fn run(seed: u64, loud: bool) -> Result<Stats, Box<Violation>> {
    let mut sim = Sim::new(seed, loud);
    match sim.play() {
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
    pub(crate) mood: Mood,
    pub(crate) server: Server,
    pub(crate) holders: Vec<Holder>,
    pub(crate) guard: Guard,
    pub(crate) oracle: Oracle,
    pub(crate) stats: Stats,
    pub(crate) trace: Trace,
    pub(crate) healed_us: u64,
    /// Everything has come to rest.
    pub(crate) rested: bool,
    pub(crate) asking: BTreeMap<usize, (RequestId, u64)>,
    /// Jobs that are ready or running, and since when the oracle has seen that.
    pub(crate) pending: BTreeMap<Pending, u64>,
}

impl Sim {
    fn new(seed: u64, loud: bool) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng);
        let holders = (0..plan.holders).map(|at| Holder::new(at, &mut rng)).collect();
        Self {
            now_us: 0,
            queue: BTreeMap::new(),
            scheduled: 0,
            rng,
            plan,
            mood: Mood::Faulty,
            server: Server::new(),
            holders,
            guard: Guard::default(),
            oracle: Oracle::default(),
            stats: Stats::default(),
            trace: Trace::new(loud),
            healed_us: u64::MAX,
            rested: false,
            asking: BTreeMap::new(),
            pending: BTreeMap::new(),
        }
    }

    pub(crate) fn at(&mut self, after_us: u64, event: Event) {
        self.scheduled += 1;
        self.queue.insert((self.now_us + after_us, self.scheduled), event);
    }

    pub(crate) fn say(&mut self, what: fmt::Arguments<'_>) {
        self.trace.line(self.now_us, what);
    }

    fn play(&mut self) -> Verdict {
        self.start_server()?;
        for at in 0..self.holders.len() {
            self.start_holder(at)?;
        }
        self.schedule_phases();
        while let Some(((now_us, _), event)) = self.queue.pop_first() {
            self.now_us = now_us;
            if self.is_over() {
                break;
            }
            self.happen(event)?;
        }
        self.at_rest()
    }

    fn happen(&mut self, event: Event) -> Verdict {
        match event {
            Event::Arrive(request) => self.arrive(request),
            Event::Deliver(at, life, mail) => self.deliver(at, life, mail),
            Event::Land(effect) => self.land(&effect),
            Event::Alarm(at, alarm) if self.holders[at].alarm == alarm => self.wake(at),
            Event::Alarm(..) => Ok(()),
            Event::Flushed(life) => self.flushed(life),
            Event::Sweep(life) => self.sweep(life),
            Event::Fault(fault) => self.fault(fault),
            Event::Heal => self.heal(),
            Event::Drain => {
                self.mood = Mood::Draining;
                Ok(())
            }
            Event::Inspect => self.inspect(),
        }
    }

    // ----- the network -----

    /// How long a message takes; nothing when it is lost.
    pub(crate) fn travel(&mut self) -> Option<u64> {
        if self.mood != Mood::Faulty {
            return Some(self.rng.within(MS, 20 * MS));
        }
        if self.rng.chance(self.plan.loss) {
            self.stats.dropped += 1;
            return None;
        }
        let slow = self.rng.chance(self.plan.slow);
        let longest_ms = self.plan.lag_ms + if slow { 3_000 } else { 30 };
        Some(self.rng.within(MS, longest_ms * MS))
    }

    /// Whether a message is doubled, and when the second one comes: perhaps much later.
    pub(crate) fn double(&mut self) -> Option<u64> {
        let doubled = self.mood == Mood::Faulty && self.rng.chance(self.plan.doubles);
        self.stats.doubled += u64::from(doubled);
        let longest_us = 1 << self.rng.within(15, 24);
        doubled.then(|| self.rng.within(MS, longest_us))
    }

    pub(crate) fn cut(&self, peer: Peer) -> bool {
        matches!(peer, Peer::Holder { at, .. } if self.holders[at].cut_until > self.now_us)
    }

    pub(crate) fn send(&mut self, from: Peer, call: u64, command: Command) {
        let books = &self.oracle.books;
        let left_at_ends = books.remembered(command.key());
        // A claim is not doubled: it waits for its answer on a connection of its own.
        let single = matches!(command, Command::Claim(_));
        let (command, left_in_life) = (Rc::new(command), books.life);
        let request = Request { from, call, command, left_at_ends, left_in_life };
        if self.cut(from) {
            return;
        }
        let twice = if single { None } else { self.double() };
        for after_us in [self.travel(), twice].into_iter().flatten() {
            self.at(after_us, Event::Arrive(request.clone()));
        }
    }

    pub(crate) fn answer(&mut self, replies: Vec<Reply>) {
        for reply in replies {
            if self.cut(reply.to) {
                continue;
            }
            let Some((at, life)) = holder_of(&reply) else { continue };
            for after_us in [self.travel(), self.double()].into_iter().flatten() {
                self.at(after_us, Event::Deliver(at, life, Mail::Reply(Box::new(reply.clone()))));
            }
        }
    }
}
