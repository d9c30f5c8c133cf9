//! The simulated server: the real ledger in front of the simulated disk.
//!
//! It applies, flushes and answers one batch at a time, like the writer of the embedded store. A
//! crash discards everything but the disk. The store clock starts at the wall clock or at the
//! latest instant in history, whichever is later, and is monotonic while the server runs.

use std::collections::VecDeque;

use tenure_core::canary::{Canary, planted};
use tenure_core::{Command, Millis, ResourceKey};
use tenure_store::ledger::{Batch, Ledger};

use crate::disk::{Disk, Staged};
use crate::message::{Reply, Request};
use crate::rng::Rng;
use crate::skewed_clock::SkewedClock;

/// Maximum number of requests in a batch.
const BATCH_MAX: usize = 16;
/// Wall clock at true time zero.
const WALL_MS: u64 = 1_800_000_000_000;

/// The server: its disk, and its memory while it runs.
#[derive(Debug)]
pub struct Server {
    /// Survives crashes.
    pub disk: Disk,
    /// Memory of the running server; none while it is down.
    pub running: Option<Running>,
    /// Number of starts.
    pub epoch: u64,
    /// Number of batches over all epochs.
    pub batches: u64,
    /// True time spent listening, over all epochs.
    listened_us: u64,
    listening_since: Option<u64>,
}

/// The memory of a running server.
#[derive(Debug)]
pub struct Running {
    /// The ledger under test.
    pub ledger: Ledger,
    /// Requests that have arrived.
    pub inbox: VecDeque<Request>,
    /// Batch that is being flushed.
    pub in_flight: Option<InFlightBatch>,
    /// Whether the process is stalled.
    pub paused: bool,
    clock: SkewedClock,
    started_us: u64,
    base: Millis,
}

/// A batch that is applied but not yet flushed.
#[derive(Debug)]
pub struct InFlightBatch {
    staged: Staged,
    /// Replies that wait for the flush.
    pub replies: Vec<Reply>,
}

/// A batch that was just applied.
#[derive(Debug)]
pub struct Applied {
    /// One reply per command.
    pub replies: Vec<Reply>,
    /// The changes.
    pub batch: Batch,
    /// Sequence number of the batch.
    pub number: u64,
    /// Store time of the batch.
    pub now: Millis,
}

impl Server {
    /// Creates a stopped server with an empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self {
            disk: Disk::default(),
            running: None,
            epoch: 0,
            batches: 0,
            listened_us: 0,
            listening_since: None,
        }
    }

    /// Starts the server with the wall clock shifted by `wall_step_ms`.
    pub fn start(&mut self, now_us: u64, wall_step_ms: u64, rng: &mut Rng) -> Result<(), String> {
        let wall = Millis(WALL_MS + wall_step_ms + now_us / 1_000);
        let base = wall.max(self.disk.latest());
        let ledger = self.disk.load(base)?;
        let clock = SkewedClock::new(0, rng.skew());
        let (inbox, in_flight) = (VecDeque::new(), None);
        let paused = false;
        let running = Running { ledger, inbox, in_flight, paused, clock, started_us: now_us, base };
        self.running = Some(running);
        self.epoch += 1;
        self.set_listening(now_us, true);
        Ok(())
    }

    /// Crashes the server and returns the batch that was in flight.
    pub fn crash(&mut self, now_us: u64) -> Option<InFlightBatch> {
        self.set_listening(now_us, false);
        self.running.take().and_then(|running| running.in_flight)
    }

    /// Stalls or resumes the server.
    pub fn pause(&mut self, now_us: u64, paused: bool) {
        if let Some(running) = &mut self.running {
            running.paused = paused;
        }
        self.set_listening(now_us, !paused);
    }

    /// Starts or stops the count of listening time.
    pub fn set_listening(&mut self, now_us: u64, on: bool) {
        if let Some(since) = self.listening_since.take() {
            self.listened_us += now_us - since;
        }
        self.listening_since = on.then_some(now_us);
    }

    /// Returns the true time spent listening, over all epochs.
    #[must_use]
    pub fn listened_us(&self, now_us: u64) -> u64 {
        self.listened_us + self.listening_since.map_or(0, |since| now_us - since)
    }

    /// Returns whether the server can apply a batch now.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.running.as_ref().is_some_and(|r| !r.paused && r.in_flight.is_none())
    }

    /// Returns whether requests are waiting.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        self.running.as_ref().is_some_and(|running| !running.inbox.is_empty())
    }

    /// Applies a batch of waiting requests.
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
            self.disk.load_job(&mut running.ledger, id, now)?;
        }
        let (outcomes, batch) = running.ledger.apply(&commands, now);
        self.batches += 1;
        let number = self.batches;
        let reply = |(request, outcome): (Request, _)| {
            let Request { from: to, call, command, .. } = request;
            Reply { to, call, command, outcome, batch: number }
        };
        let replies = requests.into_iter().zip(outcomes).map(reply).collect();
        Ok(Some(Applied { replies, batch, number, now }))
    }

    /// Expires sessions and settles their tenures.
    pub fn sweep(&mut self, now_us: u64) -> Option<Applied> {
        let running = self.running.as_mut()?;
        let now = running.now(now_us);
        let (_, batch) = running.ledger.sweep(now);
        self.batches += 1;
        Some(Applied { replies: Vec::new(), batch, number: self.batches, now })
    }

    /// Starts the flush of a batch and returns the replies that need not wait for it.
    pub fn stage(&mut self, applied: Applied) -> Vec<Reply> {
        let Some(running) = &mut self.running else { return Vec::new() };
        if applied.batch.is_clean() {
            return applied.replies;
        }
        let staged = Staged::from_batch(&running.ledger, &applied.batch, &self.disk);
        let early = planted(Canary::AnswerBeforeDurable);
        let (now, later) =
            if early { (applied.replies, vec![]) } else { (vec![], applied.replies) };
        running.in_flight = Some(InFlightBatch { staged, replies: later });
        now
    }

    /// Makes the batch in flight durable and returns the replies that waited for it.
    pub fn complete_flush(&mut self) -> Vec<Reply> {
        let in_flight = self.running.as_mut().and_then(|running| running.in_flight.take());
        let Some(in_flight) = in_flight else { return Vec::new() };
        self.disk.flush(in_flight.staged);
        in_flight.replies
    }

    /// Evicts a record from memory if it has no holder and no waiter.
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
    /// Returns the store time.
    #[must_use]
    pub fn now(&self, now_us: u64) -> Millis {
        self.base.plus(self.clock.elapsed_ms(self.started_us, now_us))
    }
}
