//! The outbox of a process: commands that are repeated until they are answered.

use std::time::Duration;

use tenure::clock::BootInstant;
use tenure_core::{Command, LockAction, LockSet, Outcome, Refusal, Text};

use crate::holder::{Call, Env, Process};
use crate::message::Reply;
use crate::task::Held;

/// A command that is repeated until it is answered.
#[derive(Debug)]
pub struct OutboxCommand {
    pub(crate) command: Command,
    call: Option<Call>,
    retry_at: BootInstant,
    sent_before: bool,
}

impl OutboxCommand {
    /// Creates a command that is first sent at `now`.
    #[must_use]
    pub fn new(command: Command, now: BootInstant) -> Self {
        Self { command, call: None, retry_at: now, sent_before: false }
    }

    /// Creates a planned transfer of a tenure to a session that may be waiting for it.
    #[must_use]
    pub fn transfer(held: &Held, to: Text, now: BootInstant) -> Self {
        let action = LockAction::Release { token: held.token, locks: None, to: Some(to) };
        Self::new(Command::Lock { key: held.key.clone(), action }, now)
    }

    /// Creates a release of a tenure, or of some of its locks.
    #[must_use]
    pub fn release(held: &Held, locks: Option<LockSet>, now: BootInstant) -> Self {
        let action = LockAction::Release { token: held.token, locks, to: None };
        Self::new(Command::Lock { key: held.key.clone(), action }, now)
    }

    pub(crate) fn next_wakeup(&self) -> BootInstant {
        self.call.map_or(self.retry_at, |call| call.until)
    }

    fn poll(&mut self, env: &mut Env<'_>) {
        if self.call.take_if(|call| env.now >= call.until).is_some() {
            self.retry_at = env.random_instant(0, 300);
        }
        if self.call.is_none() && env.now >= self.retry_at {
            env.stats.repeats += u64::from(self.sent_before);
            self.sent_before = true;
            self.call = Some(env.call(self.command.clone(), Duration::from_millis(800)));
        }
    }
}

impl Process {
    pub(crate) fn poll_outbox(&mut self, env: &mut Env<'_>) {
        self.outbox.iter_mut().for_each(|command| command.poll(env));
    }

    /// Removes the command that a reply answers; any outcome completes it. Returns whether there
    /// was one.
    pub(crate) fn reply_to_outbox(&mut self, reply: &Reply, env: &mut Env<'_>) -> bool {
        let answered =
            |command: &OutboxCommand| command.call.is_some_and(|call| call.id == reply.call);
        let Some(at) = self.outbox.iter().position(answered) else { return false };
        let command = self.outbox.remove(at);
        self.learn_jobs(&reply.outcome);
        if let Command::Lock { key, action: LockAction::Release { token, locks, to: Some(_) } } =
            &command.command
            && matches!(reply.outcome, Outcome::Refused(Refusal::NotWaiting { .. }))
        {
            let action = LockAction::Release { token: *token, locks: locks.clone(), to: None };
            let release = Command::Lock { key: key.clone(), action };
            self.outbox.push(OutboxCommand::new(release, env.now));
        }
        if matches!(command.command, Command::Close { session, .. } if session == self.session) {
            self.finished = true;
            env.notes.push("has finished".to_owned());
        }
        true
    }
}
