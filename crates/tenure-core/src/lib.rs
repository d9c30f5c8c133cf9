//! What is true: the rules of Tenure, and nothing else.
//!
//! Every change of the system is one call of [`step`]: a [`Command`] meets the rows in a [`World`]
//! at an instant of store time and gives an [`Outcome`]. Stores load rows, call `step`, and write
//! what changed; they hold no rule of their own.
//!
//! This crate must never read a clock, do I/O, or draw a random number: the code that the simulator
//! tortures is the code that runs in production.
//!
//! Start at [`engine`], then read [`lock`], [`session`] and [`job`]; [`invariants`] says what may
//! never happen.

pub mod answers;
mod apply;
mod attempt;
pub mod canary;
pub mod command;
pub mod engine;
pub mod fact;
pub mod history;
pub mod id;
pub mod invariants;
pub mod job;
pub mod key;
pub mod kind;
pub mod lane;
pub mod limits;
pub mod lock;
mod manage;
pub mod map;
pub mod outcome;
pub mod policy;
pub mod ready;
pub mod record;
pub mod refusal;
pub mod resource;
pub mod retry;
pub mod role;
pub mod session;
mod settle;
mod submit;
pub mod time;
pub mod token;
mod turn;
pub mod verify;
pub mod why;
pub mod world;

pub use command::{
    Acquire, Claim, Claimant, Command, Finish, JobAction, LockAction, ResourceAction, Submit,
};
pub use engine::step;
pub use fact::Fact;
pub use id::{JobId, RequestId, SessionId};
pub use job::{Job, JobState, Verdict};
pub use key::{LockName, LockPath, LockSet, ResourceKey, Text};
pub use kind::{Kind, Kinds, Operation, Policy};
pub use outcome::{Assignment, Outcome, TenureView};
pub use record::Record;
pub use refusal::{Code, Refusal};
pub use role::Role;
pub use session::Session;
pub use time::Millis;
pub use token::{Incarnation, Token};
pub use world::{Changes, World};
