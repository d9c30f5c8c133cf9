//! The scheduler: one queue of events in true time, and what each of them does.
//!
//! Next: [`crate::faults`] for the events that hurt, [`crate::liveness`] for how a run ends.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use tenure_core::{Command, LockAction, RequestId, limits};

use crate::answers::holder_of;
use crate::faults::Fault;
use crate::guard::Guard;
use crate::holder::{Env, Holder, Process};
use crate::message::{Effect, Mail, Peer, Reply, Request};
use crate::oracle::{Oracle, Verdict};
use crate::plan::{Mood, Plan};
use crate::rng::Rng;
use crate::server::{Applied, Server};
use crate::skew::MS;
use crate::stats::Stats;
use crate::trace::Trace;

/// The server sweeps this often.
const SWEEP_US: u64 = 100 * MS;

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
    pub(crate) asking: BTreeMap<usize, (RequestId, u64)>,
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
            asking: BTreeMap::new(),
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
    fn travel(&mut self) -> Option<u64> {
        if self.mood != Mood::Faulty {
            return Some(self.rng.within(MS, 20 * MS));
        }
        if self.rng.chance(self.plan.loss) {
            self.stats.dropped += 1;
            return None;
        }
        let slow = self.rng.chance(self.plan.slow);
        Some(self.rng.within(MS, if slow { 3_000 * MS } else { 30 * MS }))
    }

    /// Whether a message is doubled, and when the second one comes: perhaps much later.
    fn double(&mut self) -> Option<u64> {
        let doubled = self.mood == Mood::Faulty && self.rng.chance(self.plan.doubles);
        self.stats.doubled += u64::from(doubled);
        let longest_us = 1 << self.rng.within(15, 24);
        doubled.then(|| self.rng.within(MS, longest_us))
    }

    fn cut(&self, peer: Peer) -> bool {
        matches!(peer, Peer::Holder { at, .. } if self.holders[at].cut_until > self.now_us)
    }

    pub(crate) fn send(&mut self, from: Peer, call: u64, command: Command) {
        let left_at_ends = self.oracle.books.remembered(command.key());
        let request = Request { from, call, command: Rc::new(command), left_at_ends };
        if self.cut(from) {
            return;
        }
        for after_us in [self.travel(), self.double()].into_iter().flatten() {
            self.at(after_us, Event::Arrive(request.clone()));
        }
    }

    fn answer(&mut self, replies: Vec<Reply>) {
        for reply in replies {
            if self.cut(reply.to) {
                continue;
            }
            let Some((at, life)) = holder_of(&reply) else { continue };
            for after_us in [self.travel(), self.double()].into_iter().flatten() {
                self.at(after_us, Event::Deliver(at, life, Mail::Reply(reply.clone())));
            }
        }
    }

    // ----- the server -----

    /// A resource remembers only the latest of its ended requests. A request that comes after more
    /// ends than that would be taken for a new one: this is a stated limit, not exercised here.
    fn too_late(&self, request: &Request) -> bool {
        let acquire =
            matches!(&*request.command, Command::Lock { action: LockAction::Acquire(_), .. });
        let ends = self.oracle.books.remembered(request.command.key()) - request.left_at_ends;
        acquire && ends + 4 >= limits::RECENT_MAX as u64
    }

    fn arrive(&mut self, request: Request) -> Verdict {
        if self.cut(request.from) || self.too_late(&request) {
            self.stats.dropped += 1;
            return Ok(());
        }
        let Some(running) = &mut self.server.running else { return Ok(()) };
        running.inbox.push_back(request);
        self.serve()
    }

    pub(crate) fn serve(&mut self) -> Verdict {
        while self.server.free() {
            self.look_before();
            let Some(applied) = self.server.apply(self.now_us)? else { return Ok(()) };
            self.conclude(applied)?;
        }
        Ok(())
    }

    fn sweep(&mut self, life: u64) -> Verdict {
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

    fn look_before(&mut self) {
        if let Some(running) = &self.server.running {
            self.oracle.before(running.ledger.world(), running.now(self.now_us));
        }
    }

    /// A batch was applied: judged, sent to the disk, answered when it is there.
    fn conclude(&mut self, applied: Applied) -> Verdict {
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

    fn flushed(&mut self, life: u64) -> Verdict {
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

    fn hint(&mut self, applied: &Applied) {
        // Sorted: the order among resources is no promise of the ledger's.
        let mut granted = applied.batch.granted.clone();
        granted.sort_unstable();
        for request in granted {
            let asks = |asking: &(&usize, &(RequestId, u64))| asking.1.0 == request;
            let Some((&at, _)) = self.asking.iter().find(asks) else { continue };
            let life = self.holders[at].life;
            if let Some(after_us) = self.travel() {
                self.at(after_us, Event::Deliver(at, life, Mail::Hint(request)));
            }
        }
    }

    fn evict(&mut self, applied: &Applied) {
        // Only what is on disk already may be dropped, and what changed now is not.
        if applied.batch.is_clean() && self.rng.chance(50) {
            let resource = self.rng.below(self.plan.resources.len());
            let key = self.plan.resources[resource].0.clone();
            self.stats.evictions += u64::from(self.server.evict(&key));
        }
    }

    fn tell(&mut self, applied: &Applied) {
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

    // ----- holders -----

    fn deliver(&mut self, at: usize, life: u64, mail: Mail) -> Verdict {
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
            Mail::Reply(_) | Mail::Hint(_) => 0,
        };
        self.with_process(at, |process, env| {
            process.receive(mail, env);
            process.turn(env);
        })?;
        self.oracle.knows_of_breaks(&self.holders[at], batch, self.now_us)
    }

    fn awaits_beat(&self, at: usize, reply: &Reply) -> bool {
        self.holders[at].process.as_ref().is_some_and(|process| process.awaits_beat(reply))
    }

    pub(crate) fn wake(&mut self, at: usize) -> Verdict {
        if self.holders[at].frozen.is_some() {
            return Ok(());
        }
        self.with_process(at, Process::turn)
    }

    /// Lets a process do something, then does what it wants.
    fn with_process(
        &mut self,
        at: usize,
        act: impl FnOnce(&mut Process, &mut Env<'_>),
    ) -> Verdict {
        let now = self.holders[at].clock.show(self.now_us);
        let mut env = Env {
            now,
            mood: self.mood,
            plan: &self.plan,
            rng: &mut self.rng,
            stats: &mut self.stats,
            calls: Vec::new(),
            effects: Vec::new(),
            notes: Vec::new(),
        };
        let Some(process) = &mut self.holders[at].process else { return Ok(()) };
        act(process, &mut env);
        let (calls, effects, notes) = (env.calls, env.effects, env.notes);
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

    pub(crate) fn start_process(&mut self, at: usize) -> Verdict {
        let now = self.holders[at].clock.show(self.now_us);
        let mut env = Env {
            now,
            mood: self.mood,
            plan: &self.plan,
            rng: &mut self.rng,
            stats: &mut self.stats,
            calls: Vec::new(),
            effects: Vec::new(),
            notes: Vec::new(),
        };
        let process = Process::new(at, &mut env);
        self.holders[at].process = Some(process);
        self.with_process(at, Process::turn)
    }

    fn set_alarm(&mut self, at: usize) {
        let holder = &mut self.holders[at];
        holder.alarm += 1;
        let Some(next) = holder.process.as_ref().and_then(Process::next_turn) else { return };
        let (when, alarm) = (holder.clock.when(next).max(self.now_us + 1), holder.alarm);
        self.at(when - self.now_us, Event::Alarm(at, alarm));
    }

    /// An effect that has passed its check leaves; its process may freeze right then.
    fn act(&mut self, effect: Effect) {
        let at = effect.holder;
        let mut after_us = self.rng.within(0, 10 * MS);
        if self.mood == Mood::Faulty && self.rng.chance(15) {
            let frozen_us = self.rng.within(100 * MS, 15_000 * MS);
            self.freeze(at, frozen_us, false);
            after_us += frozen_us;
        }
        self.at(after_us, Event::Land(effect));
    }

    fn land(&mut self, effect: &Effect) -> Verdict {
        let Effect { holder, key, token, .. } = effect;
        let before = self.stats.fenced_writes;
        let verdict = self.guard.land(effect, &self.oracle.books.now, &mut self.stats);
        if self.stats.fenced_writes > before {
            self.trace.line(self.now_us, format_args!("h{holder} {key} {token} is fenced off"));
        }
        verdict
    }
}

/// Commands and outcomes in few words.
mod story {
    use tenure_core::{Command, LockAction, Outcome};

    pub(super) fn of(command: &Command, outcome: &Outcome) -> String {
        format!("{} -> {}", asked(command), answered(outcome))
    }

    fn asked(command: &Command) -> String {
        let Command::Lock { key, action } = command else { return format!("{command:?}") };
        match action {
            LockAction::Acquire(ask) => {
                let locks: Vec<_> = ask.locks.iter().map(|lock| lock.as_str()).collect();
                format!("acquire {key}#{} request {}", locks.join(","), ask.request)
            }
            other => format!("{key} {other:?}"),
        }
    }

    fn answered(outcome: &Outcome) -> String {
        match outcome {
            Outcome::Granted(view) => format!("granted token {}", view.token),
            Outcome::Renewed(view) => format!("renewed token {}", view.token),
            Outcome::Waiting { position, .. } => format!("waiting at {position}"),
            Outcome::Refused(refusal) => format!("refused: {refusal}"),
            other => format!("{other:?}"),
        }
    }
}
