//! Checks of each step about status, timers, conditions, start deadlines and forgetting.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tenure_core::history::Event;
use tenure_core::{
    Changes, Command, LockAction, Millis, Outcome, Precondition, Refusal, ResourceAction,
    ResourceKey, Text, Token, World,
};

use crate::run::{Checked, Run};

impl Run {
    pub(crate) fn check_resources(
        &mut self,
        before: &World,
        command: &Command,
        outcome: &Outcome,
        changes: &Changes,
    ) -> Checked {
        Self::check_condition(before, command, outcome)?;
        self.check_timers(before, changes)?;
        self.check_tokens(before, changes)?;
        Self::check_scope(command, outcome)?;
        self.check_forgotten(before, command, changes)
    }

    /// A conditional write is accepted only if its condition holds, and refused only if not.
    fn check_condition(before: &World, command: &Command, outcome: &Outcome) -> Checked {
        let Command::Resource { key, action } = command else { return Ok(()) };
        let (precondition, repeated) = match action {
            ResourceAction::Put(put) => {
                let resource = before.records.get(key).and_then(|r| r.resource.as_ref());
                (put.precondition, resource.is_some_and(|r| r.last_put == put.request))
            }
            ResourceAction::Delete { precondition, .. } => (*precondition, false),
            ResourceAction::Submit(submit) => {
                let resource = before.records.get(key).and_then(|r| r.resource.as_ref());
                let known = |resource: &tenure_core::resource::Resource| {
                    resource.lane.iter().any(|job| job.request == submit.request)
                        || resource.recent_submits.get(submit.request).is_some()
                };
                (submit.precondition, resource.is_some_and(|resource| known(resource)))
            }
            _ => return Ok(()),
        };
        let Some(precondition) = precondition.filter(|_| !repeated) else { return Ok(()) };
        let resource = before.records.get(key).and_then(|record| record.resource.as_ref());
        let generation = resource.map(|resource| resource.generation);
        let holds = match precondition {
            Precondition::Generation(wanted) => generation == Some(wanted),
            Precondition::Absent => generation.is_none(),
        };
        match outcome {
            Outcome::Refused(Refusal::PreconditionFailed { .. }) => {
                prop_assert!(!holds, "{command:?} was refused at {generation:?}");
            }
            Outcome::Refused(_) => {}
            _ => prop_assert!(holds, "{command:?} was accepted at {generation:?}"),
        }
        Ok(())
    }

    /// A timer fires once per setting and not before its instant, and none that is due stays.
    fn check_timers(&self, before: &World, changes: &Changes) -> Checked {
        let mut timers: BTreeMap<(ResourceKey, Text), Millis> = BTreeMap::new();
        for (key, record) in &before.records {
            for timer in record.resource.iter().flat_map(|resource| &resource.timers) {
                timers.insert((key.clone(), timer.operation.clone()), timer.due);
            }
        }
        for (key, _, event) in &changes.events {
            match event {
                Event::TimerSet { operation, due, .. } => {
                    timers.remove(&(key.clone(), operation.clone()));
                    due.map(|due| timers.insert((key.clone(), operation.clone()), due));
                }
                Event::TimerFired { operation, .. } => {
                    let due = timers.remove(&(key.clone(), operation.clone()));
                    prop_assert!(due.is_some_and(|due| due <= self.now), "{event:?} {due:?}");
                }
                Event::Deleted { .. } => timers.retain(|(of, _), _| of != key),
                _ => {}
            }
        }
        for key in &changes.records {
            let resource = self.world.records.get(key).and_then(|r| r.resource.as_ref());
            for timer in resource.iter().flat_map(|resource| &resource.timers) {
                let due = timers.get(&(key.clone(), timer.operation.clone()));
                prop_assert_eq!(due, Some(&timer.due), "of {} on {}", timer.operation, key);
                let late = timer.due <= self.now && timer.refused.is_none();
                prop_assert!(!late, "the timer of {} on {key} has not fired", timer.operation);
            }
        }
        Ok(())
    }

    /// Tokens rise for ever, jobs start before their deadline, and only the holder of a running
    /// job writes a status.
    fn check_tokens(&mut self, before: &World, changes: &Changes) -> Checked {
        for (key, _, event) in &changes.events {
            let record = before.records.get(key);
            match event {
                Event::Granted { token, job, .. } => {
                    let last = self.last_tokens.insert(key.clone(), *token).unwrap_or_default();
                    prop_assert!(*token > last, "token {token} of {key} follows {last}");
                    let started = job.as_ref().map(|started| started.id);
                    let waiting = started.and_then(|id| record?.job(id));
                    let Some(job) = waiting.filter(|job| job.attempts.is_empty()) else { continue };
                    let deadline = self.kind(key).operations[&job.operation].start_deadline_ms;
                    let by = deadline.map(|ms| job.due.max(job.submitted_at).plus(ms));
                    prop_assert!(by.is_none_or(|by| self.now < by), "job {} is late", job.id);
                }
                Event::Observed { token, .. } => {
                    let mut lane = record.into_iter().flat_map(|record| record.lane());
                    let runs = lane.any(|job| job.token() == Some(*token));
                    prop_assert!(runs, "token {token}, which runs no job, wrote a status");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A restricted claim gets only jobs of its group or resource.
    fn check_scope(command: &Command, outcome: &Outcome) -> Checked {
        let (Command::Claim(claim), Outcome::Claimed(jobs)) = (command, outcome) else {
            return Ok(());
        };
        for job in jobs {
            let key = &job.tenure.key;
            let inside = match &claim.only {
                None => true,
                Some(tenure_core::ClaimScope::Group { tenant, group }) => {
                    format!("{tenant}/{}/{group}:", key.kind())
                        == key.as_str()[..=key.as_str().rfind(':').unwrap_or(0)]
                }
                Some(tenure_core::ClaimScope::Resource { tenant, name }) => {
                    format!("{tenant}/{}/{name}", key.kind()) == key.as_str()
                }
            };
            prop_assert!(inside, "{claim:?} got a job of {key}");
        }
        Ok(())
    }

    /// Only an idle resource is forgotten, at its last entry and with its last token.
    fn check_forgotten(&self, before: &World, command: &Command, changes: &Changes) -> Checked {
        for (key, token) in &changes.forgotten {
            let Command::Lock { action: LockAction::Forget { n }, .. } = command else {
                return Err(TestCaseError::fail(format!("{command:?} forgot {key}")));
            };
            let record = before.records.get(key);
            prop_assert_eq!(record.map_or(0, |record| record.chain.n), *n);
            prop_assert!(record.is_none_or(|r| r.resource.is_none() && !r.is_live()));
            let last = self.last_tokens.get(key).copied().unwrap_or(Token(0));
            prop_assert!(*token >= last, "{key} was forgotten with {token} after {last}");
        }
        Ok(())
    }
}
