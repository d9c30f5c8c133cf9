//! The simulated server: the real ledger in front of the simulated disk.
//!
//! One batch at a time: applied, flushed, answered, like the writer of the embedded store. A crash
//! forgets everything but the disk. Its store clock starts at the wall clock or at the latest
//! instant in its history, whichever is later, and never goes back while it runs.

use std::collections::VecDeque;

use tenure_core::canary::{Canary, planted};
use tenure_core::{Command, Millis, ResourceKey};
use tenure_store::ledger::{Batch, Ledger};

use crate::disk::{Disk, Staged};
use crate::message::{Reply, Request};
use crate::rng::Rng;
use crate::skew::Skewed;

/// Requests that one batch takes at most.
const BATCH_MAX: usize = 16;
/// The wall clock at the true time zero.
const WALL_MS: u64 = 1_800_000_000_000;

/// The server and what it leaves behind when it is down.
#[derive(Debug)]
pub struct Server {
    /// Survives.
    pub disk: Disk,
    /// What a running server has; none while it is down.
    pub running: Option<Running>,
    /// Counts its lives.
    pub life: u64,
    /// Counts batches over all lives.
    pub batches: u64,
    /// True time that it spent listening, over all lives.
    listened_us: u64,
    listening_since: Option<u64>,
}

/// The memory of a running server.
#[derive(Debug)]
pub struct Running {
    /// The real thing.
    pub ledger: Ledger,
    /// Requests that arrived.
    pub inbox: VecDeque<Request>,
    /// The batch that is on its way to the disk.
    pub flight: Option<Flight>,
    /// It stands still.
    pub paused: bool,
    clock: Skewed,
    started_us: u64,
    base: Millis,
}

/// A batch between being applied and being answered.
#[derive(Debug)]
pub struct Flight {
    staged: Staged,
    /// The answers that wait for the flush.
    pub replies: Vec<Reply>,
}

/// A batch that was just applied.
#[derive(Debug)]
pub struct Applied {
    /// What was decided, command by command.
    pub replies: Vec<Reply>,
    /// What changed.
    pub batch: Batch,
    /// Its number.
    pub n: u64,
    /// At which store time.
    pub now: Millis,
}

impl Server {
    /// A server with an empty disk that is down.
    #[must_use]
    pub fn new() -> Self {
        Self {
            disk: Disk::default(),
            running: None,
            life: 0,
            batches: 0,
            listened_us: 0,
            listening_since: None,
        }
    }

    /// Starts it. The wall may have been set anew by `wall_step_ms`.
    pub fn start(&mut self, now_us: u64, wall_step_ms: u64, rng: &mut Rng) -> Result<(), String> {
        let wall = Millis(WALL_MS + wall_step_ms + now_us / 1_000);
        let base = wall.max(self.disk.latest());
        let ledger = self.disk.load(base)?;
        let clock = Skewed::new(0, rng.skew());
        let (inbox, flight) = (VecDeque::new(), None);
        let paused = false;
        let running = Running { ledger, inbox, flight, paused, clock, started_us: now_us, base };
        self.running = Some(running);
        self.life += 1;
        self.listen(now_us, true);
        Ok(())
    }

    /// Stops it at once; gives the batch that was on its way.
    pub fn crash(&mut self, now_us: u64) -> Option<Flight> {
        self.listen(now_us, false);
        self.running.take().and_then(|running| running.flight)
    }

    /// Stands still, or goes on.
    pub fn pause(&mut self, now_us: u64, paused: bool) {
        if let Some(running) = &mut self.running {
            running.paused = paused;
        }
        self.listen(now_us, !paused);
    }

    /// Notes that it listens from now on, or no more.
    pub fn listen(&mut self, now_us: u64, on: bool) {
        if let Some(since) = self.listening_since.take() {
            self.listened_us += now_us - since;
        }
        self.listening_since = on.then_some(now_us);
    }

    /// For how long it has listened, over all its lives.
    #[must_use]
    pub fn listened_us(&self, now_us: u64) -> u64 {
        self.listened_us + self.listening_since.map_or(0, |since| now_us - since)
    }

    /// Whether it can decide something now.
    #[must_use]
    pub fn free(&self) -> bool {
        self.running.as_ref().is_some_and(|r| !r.paused && r.flight.is_none())
    }

    /// Whether something has arrived.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        self.running.as_ref().is_some_and(|running| !running.inbox.is_empty())
    }

    /// Decides what has arrived.
    pub fn apply(&mut self, now_us: u64) -> Result<Option<Applied>, String> {
        let Some(running) = self.running.as_mut().filter(|r| !r.inbox.is_empty()) else {
            return Ok(None);
        };
        let size = running.inbox.len().min(BATCH_MAX);
        let requests: Vec<Request> = running.inbox.drain(..size).collect();
        let commands: Vec<Command> = requests.iter().map(|r| (*r.command).clone()).collect();
        let now = running.now(now_us);
        for key in commands.iter().filter_map(Command::key) {
            self.disk.admit(&mut running.ledger, key, now)?;
        }
        for id in commands.iter().filter_map(Command::job) {
            self.disk.recall(&mut running.ledger, id, now)?;
        }
        let (outcomes, batch) = running.ledger.apply(&commands, now);
        self.batches += 1;
        let n = self.batches;
        let reply = |(request, outcome): (Request, _)| {
            let Request { from: to, call, command, .. } = request;
            Reply { to, call, command, outcome, batch: n }
        };
        let replies = requests.into_iter().zip(outcomes).map(reply).collect();
        Ok(Some(Applied { replies, batch, n, now }))
    }

    /// Looks for what has lapsed.
    pub fn sweep(&mut self, now_us: u64) -> Option<Applied> {
        let running = self.running.as_mut()?;
        let now = running.now(now_us);
        let (_, batch) = running.ledger.sweep(now);
        self.batches += 1;
        Some(Applied { replies: Vec::new(), batch, n: self.batches, now })
    }

    /// Sends a batch to the disk; gives the answers that need not wait for it.
    pub fn stage(&mut self, applied: Applied) -> Vec<Reply> {
        let Some(running) = &mut self.running else { return Vec::new() };
        if applied.batch.is_clean() {
            return applied.replies;
        }
        let staged = Staged::of(&running.ledger, &applied.batch, &self.disk);
        let early = planted(Canary::AnswerBeforeDurable);
        let (now, later) =
            if early { (applied.replies, vec![]) } else { (vec![], applied.replies) };
        running.flight = Some(Flight { staged, replies: later });
        now
    }

    /// The disk has the batch; gives the answers that waited for it.
    pub fn flushed(&mut self) -> Vec<Reply> {
        let flight = self.running.as_mut().and_then(|running| running.flight.take());
        let Some(flight) = flight else { return Vec::new() };
        self.disk.flush(flight.staged);
        flight.replies
    }

    /// Drops a record from memory, if nobody holds or wants it.
    pub fn evict(&mut self, key: &ResourceKey) -> bool {
        self.running.as_mut().is_some_and(|running| running.ledger.evict(key))
    }
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Running {
    /// Store time.
    #[must_use]
    pub fn now(&self, now_us: u64) -> Millis {
        self.base.plus(self.clock.elapsed_ms(self.started_us, now_us))
    }
}
