//! Where the answer to a command goes: to whoever sent it, or to whoever sent many in one call and
//! is woken once, when all of them are answered.

use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::Outcome;
use tokio::sync::oneshot;

use crate::store::Result;

/// Where the answer to one command goes.
pub(super) enum Answer {
    /// To whoever sent it alone.
    Alone(oneshot::Sender<Result<Outcome>>),
    /// To whoever sent it with others, with its place among them.
    Among(Arc<Call>, usize),
}

/// Commands that were sent in one call.
pub(super) struct Call(Mutex<Answers>);

struct Answers {
    /// What was answered so far, in the order of the commands.
    outcomes: Vec<Option<Result<Outcome>>>,
    left: usize,
    /// Taken when all are answered. When the call is dropped before that, so is this one, and its
    /// receiver knows.
    all: Option<oneshot::Sender<Vec<Result<Outcome>>>>,
}

impl Call {
    /// A call of so many commands, and where its answers come out.
    pub(super) fn of(commands: usize) -> (Arc<Self>, oneshot::Receiver<Vec<Result<Outcome>>>) {
        let (all, out) = oneshot::channel();
        let outcomes = (0..commands).map(|_| None).collect();
        let answers = Answers { outcomes, left: commands, all: Some(all) };
        (Arc::new(Self(Mutex::new(answers))), out)
    }

    /// Answers the command at a place.
    pub(super) fn answer(&self, place: usize, outcome: Result<Outcome>) {
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        answers.outcomes[place] = Some(outcome);
        answers.left -= 1;
        if answers.left == 0
            && let Some(all) = answers.all.take()
        {
            // Whoever has gone away will ask again: request ids make that harmless.
            all.send(answers.outcomes.drain(..).flatten().collect()).ok();
        }
    }
}

impl Answer {
    /// Whether nobody waits for it any more. Whoever sent many is waited for.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self, Self::Alone(answer) if answer.is_closed())
    }

    /// Answers; gives the outcome back if nobody was there to take it.
    pub(super) fn send(self, outcome: Result<Outcome>) -> std::result::Result<(), Result<Outcome>> {
        match self {
            Self::Alone(answer) => answer.send(outcome),
            Self::Among(call, place) => {
                call.answer(place, outcome);
                Ok(())
            }
        }
    }
}
