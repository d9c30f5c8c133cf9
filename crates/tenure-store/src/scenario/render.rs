//! Outcomes and histories in the notation of the scenarios.

use std::collections::HashMap;

use tenure_core::history::{Entry, Event};
use tenure_core::{JobId, Outcome, Refusal};

/// Returns the name of a job: its number in order of appearance.
pub(super) fn job_name(id: JobId, jobs: &mut Vec<JobId>) -> String {
    let index = jobs.iter().position(|job| *job == id).unwrap_or_else(|| {
        jobs.push(id);
        jobs.len() - 1
    });
    format!("j{}", index + 1)
}

/// Renders an outcome.
pub(super) fn render(outcome: &Outcome, jobs: &mut Vec<JobId>) -> String {
    match outcome {
        Outcome::Alive { revoked, .. } if revoked.is_empty() => "alive".to_owned(),
        Outcome::Alive { revoked, .. } => {
            let word = |cancel| if cancel { "cancel" } else { "revoked" };
            let tokens =
                revoked.iter().map(|r| format!("{}={}:{}", word(r.cancel), r.key.name(), r.token));
            format!("alive {}", tokens.collect::<Vec<_>>().join(" "))
        }
        Outcome::Closed => "closed".to_owned(),
        Outcome::Granted(view) => format!("granted token={}", view.token),
        Outcome::Waiting { position, .. } => format!("waiting position={position}"),
        Outcome::Renewed(view) => format!("renewed token={}", view.token),
        Outcome::Released { already: false } => "released".to_owned(),
        Outcome::Released { already: true } => "already released".to_owned(),
        Outcome::Withdrawn { released: None } => "withdrawn".to_owned(),
        Outcome::Withdrawn { released: Some(token) } => format!("withdrawn token={token}"),
        Outcome::Broken => "broken".to_owned(),
        Outcome::Settled { ended } => format!("settled {ended}"),
        Outcome::Submitted { verdict, job, .. } => {
            format!("{} {}", verdict.as_str(), job_name(*job, jobs))
        }
        Outcome::Claimed(assigned) if assigned.is_empty() => "nothing".to_owned(),
        Outcome::Claimed(assigned) => {
            let one = |a: &tenure_core::Assignment| {
                let (id, operation) = (job_name(a.job.id, jobs), &a.job.operation);
                let (attempt, max, token) = (a.job.attempt, a.attempts_max, a.tenure.token);
                format!("{id} {operation} attempt={attempt}/{max} token={token}")
            };
            assigned.iter().map(one).collect::<Vec<_>>().join(", ")
        }
        Outcome::Finished { state, already: false } => state.as_str().to_owned(),
        Outcome::Finished { state, already: true } => format!("already {}", state.as_str()),
        Outcome::Noted { cancelling: false } => "noted".to_owned(),
        Outcome::Noted { cancelling: true } => "noted cancelling".to_owned(),
        Outcome::Cancelled { state } => state.as_str().to_owned(),
        Outcome::Discarded => "discarded".to_owned(),
        Outcome::Put { generation, job: None, .. } => format!("generation={generation}"),
        Outcome::Put { generation, job: Some(job), .. } => {
            format!("generation={generation} {}", job_name(*job, jobs))
        }
        Outcome::TimersSet { .. } => "timers".to_owned(),
        Outcome::Deleted => "deleted".to_owned(),
        Outcome::Forgotten => "forgotten".to_owned(),
        Outcome::Paused(true) => "paused".to_owned(),
        Outcome::Paused(false) => "resumed".to_owned(),
        Outcome::Refused(refusal) => render_refusal(refusal, jobs),
    }
}

fn render_refusal(refusal: &Refusal, jobs: &mut Vec<JobId>) -> String {
    let code = refusal.code();
    match refusal {
        Refusal::Held { by: Some(view), .. } => format!("held by={}", view.holder),
        Refusal::Held { by: None, .. } => "held by=queue".to_owned(),
        Refusal::Lost { how: Some(how), .. } => format!("lost how={}", how.as_str()),
        Refusal::Lost { how: None, .. } => "lost".to_owned(),
        Refusal::SessionExpired => "lost session".to_owned(),
        Refusal::RequestReused => format!("{code} request reused"),
        Refusal::AlreadyAnswered => format!("{code} already answered"),
        Refusal::NotCurrent { current: Some(view) } => format!("{code} current={}", view.token),
        Refusal::NotCurrent { current: None } => format!("{code} current=none"),
        Refusal::Rejected { present, .. } => format!("{code} {}", job_name(*present, jobs)),
        Refusal::BadTransition { state, .. } => format!("{code} {state}"),
        Refusal::WrongJobState { state, .. } => format!("{code} {}", state.as_str()),
        Refusal::InUse { job: Some(job) } => format!("{code} {}", job_name(*job, jobs)),
        Refusal::PreconditionFailed { generation: Some(is), .. } => {
            format!("{code} generation={is}")
        }
        Refusal::PreconditionFailed { generation: None, .. } => format!("{code} generation=none"),
        Refusal::NotWaiting { to } => format!("{code} not waiting {to}"),
        _ => code.to_string(),
    }
}

/// Renders a history: `granted(A,1) expired(A,1)`; for jobs `started(j1,1)`.
pub(super) fn render_history(entries: &[Entry], jobs: &mut Vec<JobId>) -> String {
    let mut holders = HashMap::new();
    let mut words = Vec::new();
    for entry in entries {
        if let Event::Granted { token, holder, .. } = &entry.event {
            holders.insert(*token, holder.clone());
        }
        let word = entry.event.as_str();
        words.push(match (entry.event.job(), entry.event.token()) {
            (Some(job), Some(token)) => format!("{word}({},{token})", job_name(job, jobs)),
            (Some(job), None) => format!("{word}({})", job_name(job, jobs)),
            (None, Some(token)) => {
                let holder = holders.get(&token).map_or("?", |holder| holder);
                format!("{word}({holder},{token})")
            }
            (None, None) => word.to_owned(),
        });
    }
    words.join(" ")
}
