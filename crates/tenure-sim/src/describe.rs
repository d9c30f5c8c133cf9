//! Short descriptions of commands and outcomes, for the trace.

use tenure_core::{Assignment, Command, LockAction, Outcome};

pub(crate) fn exchange(command: &Command, outcome: &Outcome) -> String {
    format!("{} -> {}", describe_command(command), describe_outcome(outcome))
}

fn describe_command(command: &Command) -> String {
    let (key, action) = match command {
        Command::Lock { key, action } => (key, action),
        Command::Resource { key, action } => return format!("{key} {action:?}"),
        Command::Job { id, action } => return format!("job {id} {action:?}"),
        Command::Claim(claim) => return format!("claim {} by {}", claim.request, claim.session),
        _ => return format!("{command:?}"),
    };
    match action {
        LockAction::Acquire(ask) => {
            let locks: Vec<_> = ask.locks.iter().map(|lock| lock.as_str()).collect();
            format!("acquire {key}#{} request {}", locks.join(","), ask.request)
        }
        other => format!("{key} {other:?}"),
    }
}

fn describe_outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Granted(view) => format!("granted token {}", view.token),
        Outcome::Renewed(view) => format!("renewed token {}", view.token),
        Outcome::Waiting { position, .. } => format!("waiting at {position}"),
        Outcome::Claimed(jobs) => {
            let job = |a: &Assignment| format!("job {} token {}", a.job.id, a.tenure.token);
            format!("claimed {}", jobs.iter().map(job).collect::<Vec<_>>().join(", "))
        }
        Outcome::Refused(refusal) => format!("refused: {refusal}"),
        other => format!("{other:?}"),
    }
}
