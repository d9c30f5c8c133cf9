//! The rules engine of Tenure: a pure state machine.
//!
//! Every command is decided by one call of [`step`], which applies a [`Command`] to the rows of a
//! [`World`] at an instant of store time and returns an [`Outcome`]. Stores load rows, call `step`
//! and persist the resulting [`Changes`]; they contain no rules.
//!
//! This crate must not read a clock, perform I/O or make a random decision, so that the simulator
//! tests exactly the code that runs in production. The one source of randomness is the hash seed of
//! [`map`], which affects iteration order only.
//!
//! Start at [`engine`], then read [`lock`], [`session`] and [`job`]. [`invariants`] lists what must
//! always hold.

mod apply;
mod attempt;
pub mod canary;
mod claim_scope;
pub mod command;
pub mod engine;
pub mod history;
pub mod id;
pub mod invariants;
pub mod job;
pub mod key;
pub mod kind;
mod kind_check;
pub mod lane;
pub mod limits;
pub mod liveness;
pub mod lock;
mod manage;
pub mod map;
pub mod metric_event;
pub mod outcome;
pub mod policy;
pub mod ready;
pub mod recent_answers;
pub mod recent_claim;
pub mod recent_submits;
pub mod record;
pub mod refusal;
pub mod resource;
pub mod retry;
pub mod role;
pub mod run;
pub mod session;
mod settle;
pub mod status;
mod step_context;
mod submit;
pub mod time;
pub mod timers;
pub mod token;
pub mod token_floors;
pub mod verify;
pub mod why;
pub mod world;

pub use command::{
    Acquire, Claim, ClaimScope, Claimant, Command, Finish, JobAction, LockAction, Precondition,
    Put, ResourceAction, StatusUpdate, Submit, TimerChange, TimerSetting,
};
pub use engine::step;
pub use id::{JobId, RequestId, SessionId};
pub use job::{Job, JobState, Verdict};
pub use key::{LockName, LockPath, LockSet, ResourceKey, Text};
pub use kind::{Kind, Kinds, Operation, Policy};
pub use metric_event::MetricEvent;
pub use outcome::{Assignment, Outcome, TenureView};
pub use record::Record;
pub use refusal::{Code, JobRequirement, Refusal};
pub use role::Role;
pub use run::RunOptions;
pub use session::Session;
pub use time::Millis;
pub use token::{Incarnation, Token};
pub use token_floors::TokenFloors;
pub use world::{Changes, World};
