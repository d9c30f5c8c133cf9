//! What travels: requests to the server, replies and hints to holders, effects to guards.

use std::rc::Rc;

use tenure_core::{Command, LockSet, Outcome, RequestId, ResourceKey, Token};

/// One life of one process, or the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A holder's process; a later life of the same holder is another peer.
    Holder {
        /// Which holder.
        at: usize,
        /// Which of its lives.
        life: u64,
    },
    /// Somebody who breaks locks by hand.
    Operator,
}

/// A request on its way to the server.
#[derive(Clone, Debug)]
pub struct Request {
    /// Who asks.
    pub from: Peer,
    /// Which of its calls this is.
    pub call: u64,
    /// What it asks.
    pub command: Rc<Command>,
    /// How many requests of its resource had been settled for good when it left.
    pub left_at_ends: u64,
    /// In which life of the server it left.
    pub left_in_life: u64,
}

/// An answer on its way back.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Who had asked.
    pub to: Peer,
    /// Which of its calls this answers.
    pub call: u64,
    /// What it had asked.
    pub command: Rc<Command>,
    /// The answer.
    pub outcome: Outcome,
    /// The batch that decided it.
    pub batch: u64,
}

/// What a holder's mailbox gets.
#[derive(Clone, Debug)]
pub enum Mail {
    /// An answer.
    Reply(Box<Reply>),
    /// "Ask again": may be lost without harm.
    Hint(RequestId),
    /// "There is work": likewise.
    Ready,
}

/// A guarded effect on its way to the thing that the lock protects.
#[derive(Clone, Debug)]
pub struct Effect {
    /// Whose it is.
    pub holder: usize,
    /// On which resource.
    pub key: ResourceKey,
    /// Under which locks.
    pub locks: LockSet,
    /// With which fencing number.
    pub token: Token,
}
