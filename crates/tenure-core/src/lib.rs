//! What is true: the rules of Tenure, and nothing else.
//!
//! Every change of the system is one call of [`step`]: a [`Command`] meets the rows in a [`World`]
//! at an instant of store time and gives an [`Outcome`]. Stores load rows, call `step`, and write
//! what changed; they hold no rule of their own.
//!
//! This crate must never read a clock, do I/O, or draw a random number: the code that the simulator
//! tortures is the code that runs in production.
//!
//! Start at [`engine`], then read [`lock`] and [`session`]; [`invariants`] says what may never
//! happen.

pub mod canary;
pub mod command;
pub mod engine;
pub mod history;
pub mod id;
pub mod invariants;
pub mod key;
pub mod limits;
pub mod lock;
pub mod outcome;
pub mod record;
pub mod refusal;
pub mod session;
mod settle;
pub mod time;
pub mod token;
pub mod verify;
pub mod world;

pub use command::{Acquire, Claimant, Command, LockAction};
pub use engine::step;
pub use id::{RequestId, SessionId};
pub use key::{LockName, LockPath, LockSet, ResourceKey, Text};
pub use outcome::{Outcome, TenureView};
pub use record::Record;
pub use refusal::{Code, Refusal};
pub use session::Session;
pub use time::Millis;
pub use token::{Incarnation, Token};
pub use world::{Changes, World};
