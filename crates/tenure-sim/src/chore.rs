//! Chores: what a process must see confirmed, however often it has to ask.

use std::time::Duration;

use tenure::clock::BootInstant;
use tenure_core::{Command, LockAction, LockSet};

use crate::holder::{Call, Env, Process};
use crate::message::Reply;
use crate::task::Held;

/// Something that must be confirmed.
#[derive(Debug)]
pub struct Chore {
    pub(crate) command: Command,
    call: Option<Call>,
    retry_at: BootInstant,
    asked: bool,
}

impl Chore {
    /// To be done from now on.
    #[must_use]
    pub fn new(command: Command, now: BootInstant) -> Self {
        Self { command, call: None, retry_at: now, asked: false }
    }

    /// Gives a tenure back, or some of its locks.
    #[must_use]
    pub fn release(held: &Held, locks: Option<LockSet>, now: BootInstant) -> Self {
        let action = LockAction::Release { token: held.token, locks };
        Self::new(Command::Lock { key: held.key.clone(), action }, now)
    }

    pub(crate) fn next_turn(&self) -> BootInstant {
        self.call.map_or(self.retry_at, |call| call.until)
    }

    fn turn(&mut self, env: &mut Env<'_>) {
        if self.call.take_if(|call| env.now >= call.until).is_some() {
            self.retry_at = env.soon(0, 300);
        }
        if self.call.is_none() && env.now >= self.retry_at {
            env.stats.repeats += u64::from(self.asked);
            self.asked = true;
            self.call = Some(env.call(self.command.clone(), Duration::from_millis(800)));
        }
    }
}

impl Process {
    pub(crate) fn chores_turn(&mut self, env: &mut Env<'_>) {
        self.chores.iter_mut().for_each(|chore| chore.turn(env));
    }

    /// Whether the answer was for a chore. Any answer ends it: done, or nothing left to do.
    pub(crate) fn chore_answered(&mut self, reply: &Reply, env: &mut Env<'_>) -> bool {
        let mine = |chore: &Chore| chore.call.is_some_and(|call| call.id == reply.call);
        let Some(at) = self.chores.iter().position(mine) else { return false };
        let chore = self.chores.remove(at);
        self.wish_answered(&reply.outcome);
        if matches!(chore.command, Command::Close { session } if session == self.session) {
            self.finished = true;
            env.notes.push("has finished".to_owned());
        }
        true
    }
}
