//! Reply channels of commands: one command, or many commands of one call whose caller is woken
//! once, when all are answered.

use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::Outcome;
use tokio::sync::oneshot;

use crate::store::Result;

/// Destination of the reply to one command.
pub(super) enum ReplyTo {
    /// Caller that sent this command alone.
    Single(oneshot::Sender<Result<Outcome>>),
    /// Call that sent several commands, and the index of this one.
    Call(Arc<PendingCall>, usize),
}

/// Call that sent several commands.
pub(super) struct PendingCall(Mutex<Replies>);

struct Replies {
    /// Replies received so far, in the order of the commands.
    outcomes: Vec<Option<Result<Outcome>>>,
    remaining: usize,
    /// Taken when all commands are answered. If the call is dropped before, the receiver is closed.
    complete: Option<oneshot::Sender<Vec<Result<Outcome>>>>,
}

impl PendingCall {
    /// Creates a call of `commands` commands and the receiver of its replies.
    pub(super) fn new(commands: usize) -> (Arc<Self>, oneshot::Receiver<Vec<Result<Outcome>>>) {
        let (complete, receiver) = oneshot::channel();
        let outcomes = (0..commands).map(|_| None).collect();
        let replies = Replies { outcomes, remaining: commands, complete: Some(complete) };
        (Arc::new(Self(Mutex::new(replies))), receiver)
    }

    /// Replies to the command at `index`.
    pub(super) fn reply(&self, index: usize, outcome: Result<Outcome>) {
        let mut replies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        replies.outcomes[index] = Some(outcome);
        replies.remaining -= 1;
        if replies.remaining == 0
            && let Some(complete) = replies.complete.take()
        {
            // A caller that is gone retries with the same request ids, which is harmless.
            complete.send(replies.outcomes.drain(..).flatten().collect()).ok();
        }
    }
}

impl ReplyTo {
    /// Returns whether the caller of a single command is gone. Calls always count as present.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self, Self::Single(reply) if reply.is_closed())
    }

    /// Sends the reply. Returns the outcome if the caller is gone.
    pub(super) fn send(self, outcome: Result<Outcome>) -> std::result::Result<(), Result<Outcome>> {
        match self {
            Self::Single(reply) => reply.send(outcome),
            Self::Call(call, index) => {
                call.reply(index, outcome);
                Ok(())
            }
        }
    }
}
