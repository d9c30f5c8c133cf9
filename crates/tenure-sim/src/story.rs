//! Commands and outcomes in few words, for the trace.

use tenure_core::{Command, LockAction, Outcome};

pub(crate) fn of(command: &Command, outcome: &Outcome) -> String {
    format!("{} -> {}", asked(command), answered(outcome))
}

fn asked(command: &Command) -> String {
    let Command::Lock { key, action } = command else { return format!("{command:?}") };
    match action {
        LockAction::Acquire(ask) => {
            let locks: Vec<_> = ask.locks.iter().map(|lock| lock.as_str()).collect();
            format!("acquire {key}#{} request {}", locks.join(","), ask.request)
        }
        other => format!("{key} {other:?}"),
    }
}

fn answered(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Granted(view) => format!("granted token {}", view.token),
        Outcome::Renewed(view) => format!("renewed token {}", view.token),
        Outcome::Waiting { position, .. } => format!("waiting at {position}"),
        Outcome::Refused(refusal) => format!("refused: {refusal}"),
        other => format!("{other:?}"),
    }
}
