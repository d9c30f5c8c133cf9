//! A model of what is known about a resource apart from its jobs: generation, status, timers.
//!
//! It is rebuilt from history events alone. Principals carry what an event does not say: the
//! condition of a conditional write, and that a timer submitted the job. So each condition is
//! checked at the very event that it guards. The merge of status patches is written independently
//! of the engine's.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use tenure_core::history::Event;
use tenure_core::{
    JobId, Millis, Precondition, RequestId, ResourceKey, Text, TimerChange, TimerSetting, Token,
};

/// Ok, or a description of the violated property.
type CheckResult = Result<(), String>;

/// Start of the names of principals that set timers.
const TIMER_PRINCIPAL: &str = "timer ";

/// Returns the principal that sets timers on behalf of `by`.
#[must_use]
pub fn timer_principal(by: &str) -> Text {
    format!("{TIMER_PRINCIPAL}{by}").into()
}

/// Returns the principal that writes under a condition on behalf of `by`.
#[must_use]
pub fn conditional_principal(by: &Text, condition: Option<Precondition>) -> Text {
    match condition {
        None => by.clone(),
        Some(Precondition::Absent) => format!("{by} if absent").into(),
        Some(Precondition::Generation(n)) => format!("{by} if {n}").into(),
    }
}

/// Returns the condition that the name of a principal states.
fn condition_of(by: &str) -> Option<Precondition> {
    let (_, condition) = by.rsplit_once(" if ")?;
    match condition {
        "absent" => Some(Precondition::Absent),
        n => n.parse().ok().map(Precondition::Generation),
    }
}

/// A timer according to history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelTimer {
    /// Instant from which it fires.
    pub due: Millis,
    /// Whether its submit was refused.
    pub refused: bool,
}

/// A resource according to history.
#[derive(Clone, Debug, Default)]
pub struct ModelResource {
    /// Current state.
    pub state: Text,
    /// Generation of its spec.
    pub generation: u64,
    /// Generation that was last reconciled.
    pub observed: u64,
    /// Whether jobs may not start.
    pub paused: bool,
    /// Merge of all status patches.
    pub status: Option<Map<String, Value>>,
    /// Token and time of the latest status patch.
    pub patch: Option<(Token, Millis)>,
    /// Timers that have not fired, by operation.
    pub timers: BTreeMap<Text, ModelTimer>,
    /// Latest setting of each timer, and when it was made.
    settings: BTreeMap<Text, (Option<Millis>, Millis)>,
    /// Whether a reconcile job succeeded in this batch on an older generation.
    pub(crate) behind: bool,
    /// Job that each request created, and when.
    pub(crate) job_of_request: BTreeMap<RequestId, (JobId, Millis)>,
    /// Whether the latest event created it.
    is_new: bool,
    /// Job that a timer submitted or attached to with the latest event.
    timer_job: Option<JobId>,
}

impl ModelResource {
    /// Creates a resource in its initial state.
    #[must_use]
    pub fn new(state: Text) -> Self {
        Self { state, is_new: true, ..Self::default() }
    }

    /// Checks that an event may follow the ones before it, as far as principals and timers say.
    pub(crate) fn check_event(&mut self, key: &ResourceKey, event: &Event) -> CheckResult {
        if let Some(job) = self.timer_job.take()
            && !matches!(event, Event::TimerFired { id, .. } if *id == job)
        {
            return Err(left_after_firing(key, job));
        }
        self.check_condition(key, event)?;
        self.is_new = false;
        let (by, id) = match event {
            Event::Submitted { job, .. } => (&job.by, job.id),
            Event::Attached { by, id, .. } => (by, *id),
            _ => return Ok(()),
        };
        self.timer_job = by.starts_with(TIMER_PRINCIPAL).then_some(id);
        Ok(())
    }

    /// Checks after a batch that no timer submitted a job without being removed.
    pub(crate) fn check_batch_end(&self, key: &ResourceKey) -> CheckResult {
        self.timer_job.map_or(Ok(()), |job| Err(left_after_firing(key, job)))
    }

    /// Checks that the condition of a conditional write holds at the event that it caused.
    fn check_condition(&self, key: &ResourceKey, event: &Event) -> CheckResult {
        let (by, generations) = match event {
            // The generation before this change.
            Event::Specified { by, generation, .. } => (by, [generation - 1; 2]),
            Event::Submitted { job, .. } => (&job.by, [self.generation; 2]),
            Event::Attached { by, .. } | Event::Deleted { by } => (by, [self.generation; 2]),
            // Possibly of a put that changed the spec before.
            Event::TimerSet { by, .. } => {
                (by, [self.generation, self.generation.saturating_sub(1)])
            }
            _ => return Ok(()),
        };
        let of_timer = by.starts_with(TIMER_PRINCIPAL) && event.job().is_some();
        let Some(condition) = condition_of(by).filter(|_| !of_timer) else { return Ok(()) };
        let holds = match condition {
            Precondition::Generation(wanted) => generations.contains(&wanted),
            Precondition::Absent => self.is_new || matches!(event, Event::TimerSet { .. }),
        };
        match holds {
            true => Ok(()),
            false => Err(format!(
                "{by} changed {key} ({}) at generation {}, against its condition",
                event.as_str(),
                self.generation
            )),
        }
    }

    /// Merges a status patch.
    pub(crate) fn merge(&mut self, token: Token, patch: &Text, at: Millis) -> CheckResult {
        let parsed = serde_json::from_str(patch).map_err(|e| format!("patch {patch}: {e}"))?;
        let Value::Object(parsed) = parsed else { return Err(format!("patch {patch}")) };
        let status = self.status.take().unwrap_or_default();
        self.status = Some(merged(status, parsed));
        self.patch = Some((token, at));
        Ok(())
    }

    pub(crate) fn set_timer(
        &mut self,
        operation: &Text,
        due: Option<Millis>,
        at: Millis,
    ) -> CheckResult {
        self.settings.insert(operation.clone(), (due, at));
        let before = self.timers.remove(operation);
        if let Some(due) = due {
            self.timers.insert(operation.clone(), ModelTimer { due, refused: false });
        }
        match before.map(|timer| timer.due) == due {
            true => Err(format!("the timer of {operation} was set to what it was: {due:?}")),
            false => Ok(()),
        }
    }

    /// Fires a timer: once per setting, and not before its instant.
    pub(crate) fn fire_timer(
        &mut self,
        key: &ResourceKey,
        operation: &Text,
        at: Millis,
    ) -> CheckResult {
        match self.timers.remove(operation) {
            Some(timer) if timer.due <= at => Ok(()),
            Some(timer) => {
                let early_ms = timer.due.since(at);
                Err(format!("the timer of {operation} on {key} fires {early_ms} ms early"))
            }
            None => Err(format!("the timer of {operation} on {key} fires and is not set")),
        }
    }

    pub(crate) fn refuse_timer(
        &mut self,
        key: &ResourceKey,
        operation: &Text,
        at: Millis,
    ) -> CheckResult {
        match self.timers.get_mut(operation) {
            Some(timer) if timer.due <= at => {
                timer.refused = true;
                Ok(())
            }
            timer => Err(format!("the timer of {operation} on {key} is refused: {timer:?}")),
        }
    }

    /// Checks that acknowledged changes of timers, made at `now`, are what history says. A timer
    /// that another command of the batch changed is not compared.
    pub fn check_timers_set(&self, changes: &[TimerChange], now: Millis) -> CheckResult {
        for (n, change) in changes.iter().enumerate() {
            let operation = &change.operation;
            if changes[n + 1..].iter().any(|later| later.operation == *operation) {
                continue;
            }
            let wanted = match change.setting {
                TimerSetting::At(at) => Some(at),
                TimerSetting::After(ms) => Some(now.plus(ms)),
                TimerSetting::Remove => None,
            };
            let (due, at) = self.settings.get(operation).copied().unwrap_or_default();
            let removed = wanted.is_none() && !self.timers.contains_key(operation);
            if due != wanted && at != now && !removed {
                return Err(format!(
                    "the timer of {operation} was acknowledged as {wanted:?} and is {due:?}"
                ));
            }
        }
        Ok(())
    }

    /// Returns whether a document is the merge of all status patches.
    #[must_use]
    pub fn has_status(&self, document: Option<&str>) -> bool {
        match (document.map(serde_json::from_str), &self.status) {
            (None, None) => true,
            (Some(Ok(Value::Object(document))), Some(status)) => document == *status,
            _ => false,
        }
    }
}

fn left_after_firing(key: &ResourceKey, job: JobId) -> String {
    format!("a timer of {key} submitted job {job} and remains: it can fire twice")
}

/// Returns `document` after a merge patch (RFC 7396).
fn merged(mut document: Map<String, Value>, patch: Map<String, Value>) -> Map<String, Value> {
    let (removed, kept): (Vec<_>, Vec<_>) = patch.into_iter().partition(|(_, v)| v.is_null());
    document.retain(|name, _| removed.iter().all(|(gone, _)| gone != name));
    for (name, value) in kept {
        let value = match (value, document.remove(&name)) {
            (Value::Object(inner), Some(Value::Object(old))) => Value::Object(merged(old, inner)),
            (Value::Object(inner), _) => Value::Object(merged(Map::new(), inner)),
            (value, _) => value,
        };
        document.insert(name, value);
    }
    document
}
