//! Counts events and replies in the statistics.

use tenure_core::history::Event;
use tenure_core::job::AttemptOutcome;
use tenure_core::{
    Command, Finish, JobAction, JobState, LockAction, Outcome, Refusal, ResourceAction, Verdict,
};

use crate::message::Reply;
use crate::stats::Stats;

/// Counts an event.
pub(crate) fn count_event(event: &Event, stats: &mut Stats) {
    let counter = match event {
        Event::Submitted { verdict: Verdict::Replaced, .. } => &mut stats.replaced,
        Event::Submitted { .. } => &mut stats.submits,
        Event::Attached { .. } => &mut stats.attached,
        Event::Granted { job: Some(start), .. } if start.attempt > 1 => &mut stats.retries,
        Event::Granted { job: Some(_), .. } => &mut stats.starts,
        Event::Ended { job: Some(end), .. } => match (end.outcome, end.job_state) {
            (AttemptOutcome::Lost, JobState::Dead) => &mut stats.dead_after_loss,
            (AttemptOutcome::Lost, _) => &mut stats.lost_attempts,
            (AttemptOutcome::HandedBack, _) => &mut stats.handed_back,
            (AttemptOutcome::Deferred, JobState::Backoff) => &mut stats.deferred,
            (_, JobState::Succeeded) => &mut stats.successes,
            (_, JobState::Dead) => &mut stats.dead_jobs,
            (_, JobState::Failed) => &mut stats.failures,
            (_, JobState::Cancelled) => &mut stats.stopped,
            _ => return,
        },
        Event::NotStarted { .. } => &mut stats.not_started,
        Event::Cancelled { .. } => &mut stats.cancels,
        Event::Redriven { .. } => &mut stats.redriven,
        Event::Discarded { .. } => &mut stats.discarded,
        Event::Specified { .. } => &mut stats.spec_changes,
        Event::Observed { .. } => &mut stats.status_writes,
        Event::TimerSet { due: Some(_), .. } => &mut stats.timers_set,
        Event::TimerSet { due: None, .. } => &mut stats.timers_removed,
        Event::TimerFired { .. } => &mut stats.timers_fired,
        Event::TimerRefused { .. } => &mut stats.timers_refused,
        Event::Paused { .. } => &mut stats.pauses,
        Event::Deleted { .. } => &mut stats.deletes,
        _ => return,
    };
    *counter += 1;
}

/// Counts a reply whose command leaves no event of its own.
pub(crate) fn count_reply(reply: &Reply, stats: &mut Stats) {
    let counter = match (&*reply.command, &reply.outcome) {
        (_, Outcome::Refused(Refusal::PreconditionFailed { .. })) => &mut stats.conditions_failed,
        (Command::Resource { action, .. }, outcome) if !is_refused(outcome) => match action {
            ResourceAction::Put(put) if put.precondition.is_some() => &mut stats.conditional_puts,
            ResourceAction::Delete { precondition: Some(_), .. } => &mut stats.conditional_deletes,
            ResourceAction::Submit(submit) if submit.precondition.is_some() => {
                &mut stats.conditional_submits
            }
            _ => return,
        },
        (_, Outcome::Refused(Refusal::NotWaiting { .. })) => &mut stats.transfers_refused,
        (Command::Lock { action: LockAction::Forget { .. }, .. }, outcome)
            if is_refused(outcome) =>
        {
            &mut stats.forgets_refused
        }
        (Command::Claim(claim), Outcome::Claimed(jobs))
            if claim.only.is_some() && !jobs.is_empty() =>
        {
            &mut stats.restricted_claims
        }
        (
            Command::Job { action: JobAction::Finish { finish, update, .. }, .. },
            Outcome::Finished { already: false, state },
        ) => {
            stats.updates_in_finish += u64::from(update.is_some());
            match finish {
                Finish::Failed { delay_ms: Some(_), .. } if *state == JobState::Backoff => {
                    &mut stats.own_delays
                }
                _ => return,
            }
        }
        _ => return,
    };
    *counter += 1;
}

fn is_refused(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Refused(_))
}
