//! Line observers: user code that sees each line of a command as it arrives.
//!
//! An observer has a thread of its own for each run, so that it may block: neither the supervision
//! nor the log waits for it, and its panic ends nothing but itself. What it has not seen waits in a
//! queue, which is bounded: an observer that is too slow misses lines, and learns how many.
//!
//! See `streams.rs`, which reads the lines.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{io, thread};

use tenure_core::JobId;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::Span;

use super::output::OutputLine;

/// Maximum size of the lines that wait for an observer.
const QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Size of a line in the queue in addition to its text.
const LINE_OVERHEAD_BYTES: usize = size_of::<Line>();
/// Time that an observer has for the lines that are left when its command is dead.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Output stream of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Line of output, as a [line observer](super::Command::on_line) gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line {
    /// The job whose command printed it.
    pub job: JobId,
    /// Where it was printed.
    pub stream: Stream,
    /// Its text without control characters. Secrets are *not* redacted.
    pub text: String,
    /// Whether its end is missing because it is too long.
    pub truncated: bool,
    /// Number of lines right before it that the observer missed because it was too slow.
    pub missed: u64,
}

/// Function that observes the lines of a command.
#[derive(Clone)]
pub(super) struct Observer(Arc<dyn Fn(&Line) + Send + Sync>);

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

impl Observer {
    pub(super) fn new(observe: impl Fn(&Line) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    /// Starts the thread that observes one run.
    pub(super) fn start(&self, job: JobId) -> io::Result<RunningObserver> {
        let (lines, receiver) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        let queue = Arc::new(Queue::default());
        let (observe, shared, span) = (Arc::clone(&self.0), Arc::clone(&queue), Span::current());
        thread::Builder::new().name("tenure-observer".to_owned()).spawn(move || {
            span.in_scope(|| shared.observe_all(&receiver, &*observe));
            // Nobody waits for it if the run was dropped.
            end.send(()).ok();
        })?;
        Ok(RunningObserver { job, lines: Some(lines), ended, queue })
    }
}

/// State of the queue that both of its ends use.
#[derive(Default)]
struct Queue {
    bytes: AtomicUsize,
    /// Lines that were not queued since the last one that was.
    missed: AtomicU64,
    /// What is queued is dropped.
    is_abandoned: AtomicBool,
}

impl Queue {
    fn observe_all(&self, lines: &mpsc::Receiver<Line>, observe: &(dyn Fn(&Line) + Send + Sync)) {
        for line in lines.iter().take_while(|_| !self.is_abandoned.load(Ordering::Relaxed)) {
            self.bytes.fetch_sub(size(&line.text), Ordering::Relaxed);
            if catch_unwind(AssertUnwindSafe(|| observe(&line))).is_err() {
                tracing::error!("the line observer panicked; it gets no more lines of this run");
                return;
            }
        }
    }
}

fn size(text: &str) -> usize {
    text.len() + LINE_OVERHEAD_BYTES
}

/// Observer of one run. When dropped, it gets no more lines.
pub(super) struct RunningObserver {
    job: JobId,
    lines: Option<mpsc::Sender<Line>>,
    ended: oneshot::Receiver<()>,
    queue: Arc<Queue>,
}

impl RunningObserver {
    /// Queues a line, unless the queue is full.
    pub(super) fn observe(&self, stream: Stream, line: &OutputLine) {
        let (queue, size) = (&self.queue, size(&line.text));
        if queue.bytes.load(Ordering::Relaxed) + size > QUEUE_BYTES_MAX {
            queue.missed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let missed = queue.missed.swap(0, Ordering::Relaxed);
        let (job, text, truncated) = (self.job, line.text.clone(), line.truncated);
        let line = Line { job, stream, text, truncated, missed };
        queue.bytes.fetch_add(size, Ordering::Relaxed);
        if self.lines.as_ref().is_none_or(|lines| lines.send(line).is_err()) {
            // It has panicked.
            queue.bytes.fetch_sub(size, Ordering::Relaxed);
        }
    }

    /// Waits until the observer has seen all lines, for a limited time.
    pub(super) async fn finish(mut self) {
        drop(self.lines.take());
        let in_time = timeout(DRAIN_TIMEOUT, &mut self.ended).await.is_ok();
        let missed = self.queue.missed.load(Ordering::Relaxed);
        if !in_time || missed > 0 {
            tracing::warn!(job = %self.job, missed,
                "the line observer was too slow; it missed the last lines of the command");
        }
    }
}

impl Drop for RunningObserver {
    fn drop(&mut self) {
        self.queue.is_abandoned.store(true, Ordering::Relaxed);
    }
}
