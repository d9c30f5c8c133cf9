//! Groups of calls whose commands are enqueued together, and in order on each resource.
//!
//! A [`CommandGroup`] holds back the commands of its calls until every call has been polled once,
//! so that they share as few store batches as possible. Calls of one lane, usually one resource,
//! are applied in the order in which they were added: a call enqueues its command when those before
//! it are in the same queue, and otherwise waits until they are answered. Nothing else is ordered.
//!
//! The position of a call travels in a task-local variable, so whatever runs within a call uses the
//! [`Committer`] as usual.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::Committer;
use super::queues::{CommandSender, QueuedCommand};
use crate::store::Result;

tokio::task_local! {
    static CALL: Call;
}

/// Number of commands that are held back before they are enqueued, so that the store applies the
/// first ones of a large group while the others are being prepared.
const HELD_BACK_MAX: usize = 1_024;

/// Calls whose commands are enqueued together.
pub struct CommandGroup {
    holdback: Arc<Holdback>,
    lanes: HashMap<String, Arc<Lane>>,
}

/// What a call knows while it runs.
#[derive(Clone)]
struct Call {
    holdback: Arc<Holdback>,
    position: Option<Position>,
}

/// Position of a call in its lane.
#[derive(Clone)]
struct Position {
    lane: Arc<Lane>,
    index: usize,
}

/// How far a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Nothing was enqueued yet.
    Pending,
    /// Its command is in the queue of new work, or in that of holders.
    Enqueued { new_work: bool },
    /// The call has ended; `enqueued` unless it ended without a command.
    Ended { enqueued: bool },
}

/// Calls that are applied in order.
#[derive(Default)]
struct Lane(Mutex<Vec<watch::Sender<Progress>>>);

/// Commands that are held back until all calls have started.
struct Holdback {
    queues: CommandSender,
    held: Mutex<Held>,
}

struct Held {
    commands: Vec<QueuedCommand>,
    /// Calls that have not been polled yet.
    not_started: usize,
}

impl CommandGroup {
    /// Creates a group of `calls` calls to a committer. All of them have to be polled or dropped:
    /// commands are held back until then.
    #[must_use]
    pub fn new(committer: &Committer, calls: usize) -> Self {
        let held = Mutex::new(Held { commands: Vec::new(), not_started: calls });
        let holdback = Arc::new(Holdback { queues: committer.queues.clone(), held });
        Self { holdback, lanes: HashMap::new() }
    }

    /// Adds a call, which may send one command or none. Calls of one lane are applied in the order
    /// of these calls. `exclusive` calls run alone in their lane: those that read, or that send
    /// several commands.
    pub fn call<F: Future>(
        &mut self,
        lane: Option<&str>,
        exclusive: bool,
        call: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let position = lane.map(|name| match self.lanes.get(name) {
            Some(lane) => lane.add(),
            None => self.lanes.entry(name.to_owned()).or_default().add(),
        });
        let started = StartGuard(Some(Arc::clone(&self.holdback)));
        let end = EndGuard(position.clone());
        let scope = Call { holdback: Arc::clone(&self.holdback), position: position.clone() };
        let running = CALL.scope(scope, async move {
            let _end = end;
            if let Some(position) = position.filter(|_| exclusive) {
                position.wait(|_| false).await;
            }
            call.await
        });
        poll_started(started, running)
    }
}

/// Runs a call and reports when it has been polled for the first time.
async fn poll_started<F: Future>(mut started: StartGuard, call: F) -> F::Output {
    let mut call = pin!(call);
    std::future::poll_fn(|cx| {
        let polled = call.as_mut().poll(cx);
        started.report();
        polled
    })
    .await
}

/// Reports once that a call has been polled or dropped.
struct StartGuard(Option<Arc<Holdback>>);

impl StartGuard {
    fn report(&mut self) {
        if let Some(holdback) = self.0.take() {
            holdback.count_started();
        }
    }
}

impl Drop for StartGuard {
    fn drop(&mut self) {
        self.report();
    }
}

/// Reports the end of a call.
struct EndGuard(Option<Position>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if let Some(position) = &self.0 {
            position
                .update(|progress| Progress::Ended { enqueued: *progress != Progress::Pending });
        }
    }
}

impl Lane {
    fn add(self: &Arc<Self>) -> Position {
        let mut calls = self.calls();
        calls.push(watch::Sender::new(Progress::Pending));
        Position { lane: Arc::clone(self), index: calls.len() - 1 }
    }

    fn calls(&self) -> MutexGuard<'_, Vec<watch::Sender<Progress>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Position {
    fn update(&self, next: impl FnOnce(&Progress) -> Progress) {
        let calls = self.lane.calls();
        calls[self.index].send_modify(|progress| *progress = next(progress));
    }

    /// Waits until all calls before this one have ended, or are in a queue that `same_queue`
    /// accepts.
    async fn wait(&self, same_queue: impl Fn(bool) -> bool) {
        let may_follow = |progress: &Progress| match progress {
            Progress::Pending => false,
            Progress::Enqueued { new_work } => same_queue(*new_work),
            Progress::Ended { .. } => true,
        };
        for index in (0..self.index).rev() {
            let mut before = self.lane.calls()[index].subscribe();
            let mut progress = *before.borrow();
            // Not awaited without need, which would exhaust the budget of a task with many calls.
            if !may_follow(&progress) {
                let Ok(next) = before.wait_for(may_follow).await else { return };
                progress = *next;
            }
            // A call that enqueued its command did so after those before it.
            if progress != (Progress::Ended { enqueued: false }) {
                return;
            }
        }
    }
}

impl Holdback {
    fn count_started(&self) {
        let mut held = self.held();
        held.not_started -= 1;
        if held.not_started == 0 {
            self.enqueue(&mut held);
        }
    }

    fn enqueue(&self, held: &mut Held) {
        self.queues.push_all(held.commands.drain(..));
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until the current call may enqueue a command. `in_order` says that the commands of a queue
/// are applied in its order; otherwise the calls before have to be answered.
pub(super) async fn wait_for_turn(new_work: bool, in_order: bool) {
    let position = CALL.try_with(|call| call.position.clone()).ok().flatten();
    if let Some(position) = position {
        position.wait(|queue| in_order && queue == new_work).await;
    }
}

/// Enqueues a command, or holds it back if it belongs to a group whose calls have not all started.
pub(super) fn push(queues: &CommandSender, queued: QueuedCommand) -> Result<()> {
    let Ok(call) = CALL.try_with(Clone::clone) else { return queues.push(queued) };
    let new_work = queued.is_new_work();
    let mut held = call.holdback.held();
    if held.not_started > 0 {
        held.commands.push(queued);
        if held.commands.len() >= HELD_BACK_MAX {
            call.holdback.enqueue(&mut held);
        }
    } else {
        drop(held);
        queues.push(queued)?;
    }
    if let Some(position) = &call.position {
        position.update(|_| Progress::Enqueued { new_work });
    }
    Ok(())
}
