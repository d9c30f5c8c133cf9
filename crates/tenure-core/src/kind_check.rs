//! Checks of declared kinds. All problems are reported at once, each with its location and remedy.
//!
//! See [`crate::kind`] for what is declared.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::key::{LockName, ResourceKey, Text};
use crate::kind::{Kind, Operation, OperationOverride};
use crate::limits;
use crate::retry::Retry;

impl Kind {
    pub(crate) fn check(&self, problems: &mut Problems) {
        problems.set_place(&format!("kinds.{}", self.name));
        problems.name("kind", &self.name, limits::KIND_BYTES_MAX);
        problems.bound("states", self.states.len(), limits::STATES_MAX);
        problems.bound("operations", self.operations.len(), limits::OPERATIONS_MAX);
        for (at, state) in self.states.iter().enumerate() {
            problems.name("state", state, limits::STATE_BYTES_MAX);
            if self.states[..at].contains(state) {
                problems.add(format!("the state {state} is declared twice"));
            }
        }
        self.check_declared("initial", &self.initial, problems);
        if self.running_max == Some(0) || self.tenant_running_max == Some(0) {
            problems.add("a cap of 0 lets nothing run: leave it out, or pause the resources");
        }
        if self.lock_max_age_ms.is_some_and(|ms| ms == 0 || ms > limits::LOCK_MAX_AGE_MS_MAX) {
            problems.add("lock_max_age must be above 0 and at most 366d; leave it out for none");
        }
        let range = limits::RECENT_TTL_MS..=limits::LOCK_MAX_AGE_MS_MAX;
        if self.ephemeral_ms.is_some_and(|ms| !range.contains(&ms)) {
            problems.add("ephemeral must be at least 10m, for which requests are answered again");
        }
        if self.stale_margin_ms > limits::STALE_MARGIN_MS_MAX {
            problems.add("stale_margin must be at most 24h");
        }
        if let Some(name) = &self.reconcile
            && !self.operations.contains_key(name)
        {
            problems.add(format!("reconcile names the operation {name}, which is not declared"));
        }
        for operation in self.operations.values() {
            problems.set_place(&format!("kinds.{}.operations.{}", self.name, operation.name));
            self.check_operation(operation, problems);
        }
        for (key, own) in &self.overrides {
            problems.set_place(&format!("kinds.{}.overrides.{key}", self.name));
            self.check_overrides(key, own, problems);
        }
        problems.set_place(&format!("kinds.{}", self.name));
        self.check_reachability(problems);
    }

    fn check_overrides(
        &self,
        key: &ResourceKey,
        own: &BTreeMap<Text, OperationOverride>,
        problems: &mut Problems,
    ) {
        if *key.kind() != *self.name {
            problems.add("it is a resource of another kind");
        }
        for (name, own) in own {
            if !self.operations.contains_key(name) {
                problems.add(format!("it names the operation {name}, which is not declared"));
            }
            check_limit(own.limit_ms, problems);
            check_retry(&own.retry, problems);
        }
    }

    fn check_operation(&self, operation: &Operation, problems: &mut Problems) {
        problems.name("operation", &operation.name, limits::OPERATION_BYTES_MAX);
        for state in &operation.from {
            self.check_declared("from", state, problems);
        }
        for (what, state) in [
            ("during", &operation.during),
            ("ok", &operation.ok),
            ("failed", &operation.failed),
            ("cancelled", &operation.cancelled),
        ] {
            if let Some(state) = state {
                self.check_declared(what, state, problems);
            }
        }
        for state in &operation.ends {
            self.check_declared("ends", state, problems);
        }
        if let Some(during) = &operation.during {
            self.check_during(operation, during, problems);
        }
        if operation.changes_state() && !operation.locks.contains(&LockName::main()) {
            problems.add("it changes the state without the lock main: two could change it at once");
        }
        for present in operation.meets.keys() {
            if !self.operations.contains_key(present) {
                problems.add(format!("meets names the operation {present}, which is not declared"));
            }
        }
        if operation.run.first().is_some_and(String::is_empty) {
            problems.add("run begins with an empty word: it must name a program");
        }
        for problem in operation.run_options.problems(!operation.run.is_empty()) {
            problems.add(problem);
        }
        check_limit(operation.limit_ms, problems);
        let range = 1..=limits::RUN_AHEAD_MS_MAX;
        if operation.start_deadline_ms.is_some_and(|ms| !range.contains(&ms)) {
            problems.add("start_deadline must be above 0 and at most 366d; leave it out for none");
        }
        check_retry(&operation.retry, problems);
    }

    fn check_during(&self, operation: &Operation, during: &Text, problems: &mut Problems) {
        if operation.ok.is_none() || operation.failed.is_none() {
            problems.add("with a state during, the states ok and failed must be given too");
        }
        if operation.end_states().any(|end| end == during) {
            problems.add(format!(
                "it ends in {during}, its own state during: a running job would look finished"
            ));
        }
        if operation.from.contains(during) {
            problems.add(format!("it may start from {during}, its own state during"));
        }
        let other = self.operations.values().find(|other| {
            other.name != operation.name && other.end_states().any(|end| end == during)
        });
        if let Some(other) = other {
            let other = &other.name;
            problems.add(format!("{during} is its state during, and {other} ends in it"));
        }
    }

    fn check_declared(&self, what: &str, state: &Text, problems: &mut Problems) {
        if !self.states.contains(state) {
            let states = self.states.join(", ");
            problems.add(format!("{what} names the state {state}, which is not among {states}"));
        }
    }

    /// Checks that every state is reachable from the initial one; an unreachable one is usually
    /// misspelt.
    fn check_reachability(&self, problems: &mut Problems) {
        let can_start = |operation: &Operation, reached: &BTreeSet<&Text>| {
            operation.from.is_empty() || operation.from.iter().any(|from| reached.contains(from))
        };
        let mut reached = BTreeSet::from([&self.initial]);
        loop {
            let before = reached.len();
            for operation in self.operations.values() {
                if can_start(operation, &reached) {
                    reached.extend(operation.during.iter().chain(operation.end_states()));
                }
            }
            if reached.len() == before {
                break;
            }
        }
        for state in self.states.iter().filter(|state| !reached.contains(state)) {
            problems.add(format!("no operation leads to the state {state}"));
        }
        for operation in self.operations.values().filter(|each| !can_start(each, &reached)) {
            let name = &operation.name;
            let why = "no state of its from is ever reached";
            problems.add(format!("the operation {name} can never start: {why}"));
        }
    }
}

fn check_limit(limit_ms: Option<u64>, problems: &mut Problems) {
    if limit_ms == Some(0) {
        problems.add("a limit of 0 lets no attempt run: leave it out for none");
    }
}

fn check_retry(retry: &Retry, problems: &mut Problems) {
    for problem in retry.problems() {
        problems.add(format!("retry{problem}"));
    }
}

/// The problems of a declaration, each with its location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct InvalidKinds(pub Vec<String>);

#[derive(Default)]
pub(crate) struct Problems {
    place: String,
    pub(crate) found: Vec<String>,
}

impl Problems {
    pub(crate) fn set_place(&mut self, place: &str) {
        self.place = place.to_owned();
    }

    pub(crate) fn add(&mut self, what: impl fmt::Display) {
        self.found.push(format!("{}: {what}", self.place));
    }

    fn name(&mut self, what: &str, name: &str, bytes_max: usize) {
        if let Err(why) = crate::key::check_name(what, name, bytes_max) {
            self.add(why);
        }
    }

    pub(crate) fn bound(&mut self, what: &str, have: usize, max: usize) {
        if have > max {
            self.add(format!("{have} {what}; at most {max} are allowed"));
        }
    }
}
