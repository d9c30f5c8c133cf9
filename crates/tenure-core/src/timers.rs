//! Timers: instants at which the engine itself submits an operation of a resource.
//!
//! A timer is removed in the step that submits its operation, so it fires once. The submit follows
//! the policies of the kind like any other. If it is refused, the reason is recorded and the submit
//! is repeated before and after every step on the resource, and at least once a minute, until it is
//! accepted or the timer is moved or removed.

use serde::{Deserialize, Serialize};

use crate::canary::{Canary, planted};
use crate::command::{Precondition, Submit, TimerChange, TimerSetting};
use crate::engine::check_text;
use crate::history::Event;
use crate::id::RequestId;
use crate::job::Failure;
use crate::key::Text;
use crate::limits;
use crate::outcome::Outcome;
use crate::refusal::Refusal;
use crate::resource::Resource;
use crate::step_context::StepContext;
use crate::time::Millis;

/// A timer of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Timer {
    /// Operation that it submits.
    pub operation: Text,
    /// Instant at which it fires.
    pub due: Millis,
    /// Principal that set it.
    pub by: Text,
    /// Why its submit was refused, and since when, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<(Failure, Millis)>,
}

impl Timer {
    /// Returns the next instant at which it has to be examined.
    fn next_check(&self, now: Millis) -> Millis {
        match &self.refused {
            Some((_, since)) => {
                let retries = now.since(*since) / limits::TIMER_RETRY_MS;
                since.plus((retries + 1) * limits::TIMER_RETRY_MS)
            }
            None => self.due,
        }
    }
}

impl Resource {
    /// Returns the next instant at which a timer has to be examined.
    pub(crate) fn next_timer(&self, now: Millis) -> Option<Millis> {
        self.timers.iter().map(|timer| timer.next_check(now)).min()
    }

    /// Returns the timer of an operation.
    #[must_use]
    pub fn timer(&self, operation: &str) -> Option<&Timer> {
        self.timers.iter().find(|timer| *timer.operation == *operation)
    }

    /// Sets, moves or removes a timer.
    pub(crate) fn set_timer(&mut self, operation: &Text, due: Option<Millis>, by: &Text) {
        self.timers.retain(|timer| timer.operation != *operation);
        if let Some(due) = due {
            let (operation, by) = (operation.clone(), by.clone());
            self.timers.push(Timer { operation, due, by, refused: None });
        }
    }

    pub(crate) fn refuse_timer(&mut self, operation: &Text, error: &Failure, at: Millis) {
        if let Some(timer) = self.timers.iter_mut().find(|t| t.operation == *operation) {
            timer.refused = Some((error.clone(), at));
        }
    }
}

impl StepContext<'_> {
    /// Changes timers at the request of a principal.
    pub(crate) fn set_timers(
        &mut self,
        timers: &[TimerChange],
        by: &Text,
        precondition: Option<Precondition>,
    ) -> Result<Outcome, Refusal> {
        check_text("principal", by, limits::SESSION_NAME_BYTES_MAX)?;
        if self.record.resource.is_none() {
            return Err(Refusal::NoSuchResource);
        }
        self.check_precondition(precondition)?;
        self.check_timers(timers)?;
        self.write_timers(timers, by);
        self.fire_timers();
        Ok(Outcome::TimersSet { snapshot: self.record.resource.clone() })
    }

    /// Checks that all changes can be made.
    pub(crate) fn check_timers(&self, timers: &[TimerChange]) -> Result<(), Refusal> {
        for change in timers {
            let at = match change.setting {
                TimerSetting::Remove => continue,
                TimerSetting::At(at) => at,
                TimerSetting::After(ms) => self.now.plus(ms),
            };
            self.declared_operation(&change.operation)?;
            if at.since(self.now) > limits::RUN_AHEAD_MS_MAX {
                let why = "a timer is more than 366 days ahead; set it nearer to its time";
                return Err(Refusal::Invalid(why.to_owned()));
            }
        }
        let resource = self.record.resource.as_ref();
        let mut operations: Vec<&Text> =
            resource.map_or(&[][..], |r| &r.timers).iter().map(|t| &t.operation).collect();
        for change in timers {
            operations.retain(|operation| **operation != change.operation);
            if change.setting != TimerSetting::Remove {
                operations.push(&change.operation);
            }
        }
        if operations.len() > limits::TIMERS_MAX {
            let (got, max) = (operations.len(), limits::TIMERS_MAX);
            let why = format!("the resource would have {got} timers; at most {max} are allowed");
            return Err(Refusal::Invalid(why));
        }
        Ok(())
    }

    /// Makes checked changes. A change that changes nothing is not recorded.
    pub(crate) fn write_timers(&mut self, timers: &[TimerChange], by: &Text) {
        for TimerChange { operation, setting } in timers {
            let due = match *setting {
                TimerSetting::At(at) => Some(at),
                TimerSetting::After(ms) => Some(self.now.plus(ms)),
                TimerSetting::Remove => None,
            };
            let resource = self.record.resource.as_ref().expect("checked by the caller");
            if resource.timer(operation).map(|timer| timer.due) != due {
                let (operation, by) = (operation.clone(), by.clone());
                self.append_event(Event::TimerSet { operation, due, by });
            }
        }
    }

    /// Submits the operations of all timers that are due. A submit that is accepted may make way
    /// for one that was refused, so this repeats until nothing changes.
    pub(crate) fn fire_timers(&mut self) {
        for _ in 0..limits::TIMERS_MAX {
            if !self.fire_due_timers() {
                return;
            }
        }
    }

    /// Returns `true` if a timer fired.
    fn fire_due_timers(&mut self) -> bool {
        let Some(resource) = &self.record.resource else { return false };
        if resource.timers.iter().all(|timer| timer.due > self.now) {
            return false;
        }
        let mut due: Vec<Timer> =
            resource.timers.iter().filter(|timer| timer.due <= self.now).cloned().collect();
        due.sort_by(|a, b| (a.due, &a.operation).cmp(&(b.due, &b.operation)));
        let mut fired = false;
        for timer in due {
            fired |= self.fire_timer(&timer);
        }
        fired
    }

    fn fire_timer(&mut self, timer: &Timer) -> bool {
        let operation = timer.operation.clone();
        let request = RequestId(self.derive_id(&format!("timer {operation} {}", timer.due.0)));
        let submit = Submit::new(request, &operation, timer.by.clone());
        match self.submit(&submit, None) {
            Ok(Outcome::Submitted { job, .. }) => {
                if !planted(Canary::TimerFiresTwice) {
                    self.append_event(Event::TimerFired { operation, id: job });
                }
                true
            }
            Ok(_) => false,
            Err(refusal) => {
                let code = refusal.reason().unwrap_or_else(|| refusal.code().as_str());
                let known = timer.refused.as_ref().is_some_and(|(error, _)| *error.code == *code);
                if !known {
                    let error = Failure { code: code.into(), message: refusal.to_string().into() };
                    self.append_event(Event::TimerRefused { operation, error });
                }
                false
            }
        }
    }
}
