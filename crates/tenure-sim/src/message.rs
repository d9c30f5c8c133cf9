//! Messages: requests to the server, replies and hints to holders, effects to guards.

use std::rc::Rc;

use tenure_core::{Command, LockSet, Outcome, RequestId, ResourceKey, Token};

/// Sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A holder's process; after a restart it is a different peer.
    Holder {
        /// Index of the holder.
        index: usize,
        /// Epoch of the process.
        epoch: u64,
    },
    /// An operator who breaks locks and resumes resources.
    Operator,
}

/// A request on its way to the server.
#[derive(Clone, Debug)]
pub struct Request {
    /// Sender.
    pub from: Peer,
    /// Call id of the sender.
    pub call: u64,
    /// Command to apply.
    pub command: Rc<Command>,
    /// Number of ends on its resource when it was sent.
    pub sent_at_ends: u64,
    /// Server epoch in which it was sent.
    pub sent_in_epoch: u64,
}

/// A reply on its way back.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Receiver.
    pub to: Peer,
    /// Call id that this answers.
    pub call: u64,
    /// The command.
    pub command: Rc<Command>,
    /// Its outcome.
    pub outcome: Outcome,
    /// Number of the batch that applied it.
    pub batch: u64,
}

/// A message to a holder.
#[derive(Clone, Debug)]
pub enum HolderMessage {
    /// A reply.
    Reply(Box<Reply>),
    /// Hint to repeat a lock request; may be lost.
    RetryHint(RequestId),
    /// Hint that jobs are ready; may be lost.
    JobsReady,
}

/// A guarded write to what a lock protects.
#[derive(Clone, Debug)]
pub struct Effect {
    /// Index of the holder.
    pub holder: usize,
    /// Resource it writes to.
    pub key: ResourceKey,
    /// Locks it is written under.
    pub locks: LockSet,
    /// Fencing token.
    pub token: Token,
}
