//! Kinds: classes of resources, with their states, operations and policies, as validated data.
//!
//! A kind is declared in Rust with the builders here, or in `tenure.toml`. [`Kinds::new`] is the
//! only door: it names every problem of every kind at once, and what has passed it is never checked
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::key::{LockName, LockSet, ResourceKey, Text};
use crate::limits;
pub use crate::policy::Policy;
use crate::retry::Retry;

/// What a lane does while its first job rests between two attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backoff {
    /// Everything behind it waits, so that order is kept.
    #[default]
    Hold,
    /// Others may pass.
    Pass,
}

/// A verb of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Its name.
    pub name: Text,
    /// The states it may start from; empty for any.
    pub from: Vec<Text>,
    /// The state of the resource while it runs; none to leave it as it is.
    pub during: Option<Text>,
    /// The state after success.
    pub ok: Option<Text>,
    /// The state after the last failure.
    pub failed: Option<Text>,
    /// The state after it was cancelled while it ran; that after a failure when there is none.
    pub cancelled: Option<Text>,
    /// Further states that a worker may choose to end in.
    pub ends: Vec<Text>,
    /// The locks that it holds while it runs.
    pub locks: LockSet,
    /// The longest one attempt may take; its worker stops it then.
    pub limit_ms: Option<u64>,
    /// When to try again.
    pub retry: Retry,
    /// What happens when it meets a present operation of this name.
    pub meets: BTreeMap<Text, Policy>,
    /// The command that does it; none when a worker with a handler claims it.
    pub run: Vec<String>,
}

impl Operation {
    /// An operation that may start from any state and leaves it as it is.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            from: Vec::new(),
            during: None,
            ok: None,
            failed: None,
            cancelled: None,
            ends: Vec::new(),
            locks: LockName::main().into(),
            limit_ms: None,
            retry: Retry::default(),
            meets: BTreeMap::new(),
            run: Vec::new(),
        }
    }

    /// The way of a resource through it: the states it starts from, is in, and ends in.
    #[must_use]
    pub fn path(mut self, from: &[&str], during: &str, ok: &str, failed: &str) -> Self {
        self.from = from.iter().map(|state| (*state).into()).collect();
        (self.during, self.ok) = (Some(during.into()), Some(ok.into()));
        self.failed = Some(failed.into());
        self
    }

    /// What happens when it meets a present operation.
    #[must_use]
    pub fn meets(mut self, present: &str, policy: Policy) -> Self {
        self.meets.insert(present.into(), policy);
        self
    }

    /// When to try again.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// The longest one attempt may take.
    #[must_use]
    pub fn limit_ms(mut self, limit_ms: u64) -> Self {
        self.limit_ms = Some(limit_ms);
        self
    }

    /// What happens when it meets a present operation.
    #[must_use]
    pub fn policy(&self, present: &str) -> Policy {
        self.meets.get(present).copied().unwrap_or_default()
    }

    /// Whether it may start in a state.
    #[must_use]
    pub fn allows(&self, state: &str) -> bool {
        self.from.is_empty() || self.from.iter().any(|from| **from == *state)
    }

    /// The states that a worker may choose to end in.
    pub fn choices(&self) -> impl Iterator<Item = &Text> {
        self.ok.iter().chain(&self.failed).chain(&self.cancelled).chain(&self.ends)
    }

    fn moves(&self) -> bool {
        self.during.is_some() || self.choices().next().is_some()
    }
}

/// What holds for an operation on one resource, in place of what the operation says of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Own {
    /// The longest one attempt may take.
    pub limit_ms: Option<u64>,
    /// When to try again.
    pub retry: Retry,
}

/// A class of resources.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// Its name.
    pub name: Text,
    /// Its states.
    pub states: Vec<Text>,
    /// The state of a new resource.
    pub initial: Text,
    /// Its operations, by name.
    pub operations: BTreeMap<Text, Operation>,
    /// The operation that runs while desired and observed generation differ.
    pub reconcile: Option<Text>,
    /// What a lane does while its first job rests.
    pub backoff: Backoff,
    /// Most jobs that run at once, of all tenants.
    pub running_max: Option<usize>,
    /// Most jobs that run at once for one tenant.
    pub tenant_running_max: Option<usize>,
    /// Resources that have limits and retry rules of their own, by operation.
    pub own: BTreeMap<ResourceKey, BTreeMap<Text, Own>>,
}

/// The state of resources whose kind declares none.
pub const STATELESS: &str = "READY";

impl Kind {
    /// A kind without states of its own.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            states: vec![STATELESS.into()],
            initial: STATELESS.into(),
            operations: BTreeMap::new(),
            reconcile: None,
            backoff: Backoff::default(),
            running_max: None,
            tenant_running_max: None,
            own: BTreeMap::new(),
        }
    }

    /// Whether no operation does without this lock.
    #[must_use]
    pub(crate) fn all_need(&self, lock: &LockName) -> bool {
        self.operations.values().all(|operation| operation.locks.contains(lock))
    }

    /// Its states; a new resource is in the first.
    #[must_use]
    pub fn states(mut self, states: &[&str]) -> Self {
        self.states = states.iter().map(|state| (*state).into()).collect();
        self.initial = self.states.first().cloned().unwrap_or_else(|| STATELESS.into());
        self
    }

    /// One more operation.
    #[must_use]
    pub fn operation(mut self, operation: Operation) -> Self {
        self.operations.insert(operation.name.clone(), operation);
        self
    }

    /// The operation that runs while desired and observed generation differ.
    #[must_use]
    pub fn reconcile(mut self, operation: &str) -> Self {
        self.reconcile = Some(operation.into());
        self
    }

    /// What a lane does while its first job rests.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Most jobs that run at once, of all tenants and of one.
    #[must_use]
    pub fn running_max(mut self, all: Option<usize>, tenant: Option<usize>) -> Self {
        (self.running_max, self.tenant_running_max) = (all, tenant);
        self
    }

    /// What holds for an operation on one resource, in place of what the operation says of it.
    #[must_use]
    pub fn own(mut self, key: ResourceKey, operation: &str, own: Own) -> Self {
        self.own.entry(key).or_default().insert(operation.into(), own);
        self
    }

    /// The longest that one attempt at an operation on a resource may take.
    #[must_use]
    pub fn limit_ms(&self, key: &ResourceKey, operation: &Operation) -> Option<u64> {
        self.own_of(key, operation).map_or(operation.limit_ms, |own| own.limit_ms)
    }

    /// When to try an operation on a resource again.
    #[must_use]
    pub fn retry<'k>(&'k self, key: &ResourceKey, operation: &'k Operation) -> &'k Retry {
        self.own_of(key, operation).map_or(&operation.retry, |own| &own.retry)
    }

    fn own_of(&self, key: &ResourceKey, operation: &Operation) -> Option<&Own> {
        self.own.get(key)?.get(&operation.name)
    }

    fn check(&self, problems: &mut Problems) {
        problems.at(&format!("kinds.{}", self.name));
        problems.name("kind", &self.name, limits::KIND_BYTES_MAX);
        problems.bound("states", self.states.len(), limits::STATES_MAX);
        problems.bound("operations", self.operations.len(), limits::OPERATIONS_MAX);
        for (at, state) in self.states.iter().enumerate() {
            problems.name("state", state, limits::STATE_BYTES_MAX);
            if self.states[..at].contains(state) {
                problems.say(format!("the state {state} is declared twice"));
            }
        }
        self.declared("initial", &self.initial, problems);
        if self.running_max == Some(0) || self.tenant_running_max == Some(0) {
            problems.say("a cap of 0 lets nothing run: leave it out, or pause the resources");
        }
        if let Some(name) = &self.reconcile
            && !self.operations.contains_key(name)
        {
            problems.say(format!("reconcile names the operation {name}, which is not declared"));
        }
        for operation in self.operations.values() {
            problems.at(&format!("kinds.{}.operations.{}", self.name, operation.name));
            self.check_operation(operation, problems);
        }
        for (key, own) in &self.own {
            problems.at(&format!("kinds.{}.own.{key}", self.name));
            self.check_own(key, own, problems);
        }
        problems.at(&format!("kinds.{}", self.name));
        self.check_reach(problems);
    }

    fn check_own(&self, key: &ResourceKey, own: &BTreeMap<Text, Own>, problems: &mut Problems) {
        if *key.kind() != *self.name {
            problems.say("it is a resource of another kind");
        }
        for (name, own) in own {
            if !self.operations.contains_key(name) {
                problems.say(format!("it names the operation {name}, which is not declared"));
            }
            check_limit(own.limit_ms, problems);
            check_retry(&own.retry, problems);
        }
    }

    fn check_operation(&self, operation: &Operation, problems: &mut Problems) {
        problems.name("operation", &operation.name, limits::OPERATION_BYTES_MAX);
        for state in &operation.from {
            self.declared("from", state, problems);
        }
        for (what, state) in [
            ("during", &operation.during),
            ("ok", &operation.ok),
            ("failed", &operation.failed),
            ("cancelled", &operation.cancelled),
        ] {
            if let Some(state) = state {
                self.declared(what, state, problems);
            }
        }
        for state in &operation.ends {
            self.declared("ends", state, problems);
        }
        if let Some(during) = &operation.during {
            self.check_during(operation, during, problems);
        }
        if operation.moves() && !operation.locks.contains(&LockName::main()) {
            problems.say("it changes the state without the lock main: two could change it at once");
        }
        for present in operation.meets.keys() {
            if !self.operations.contains_key(present) {
                problems.say(format!("meets names the operation {present}, which is not declared"));
            }
        }
        if operation.run.first().is_some_and(String::is_empty) {
            problems.say("run begins with an empty word: it must name a program");
        }
        check_limit(operation.limit_ms, problems);
        check_retry(&operation.retry, problems);
    }

    fn check_during(&self, operation: &Operation, during: &Text, problems: &mut Problems) {
        if operation.ok.is_none() || operation.failed.is_none() {
            problems.say("with a state during, the states ok and failed must be given too");
        }
        if operation.choices().any(|end| end == during) {
            problems.say(format!("it ends in {during}, its own state during: nobody could tell"));
        }
        if operation.from.contains(during) {
            problems.say(format!("it may start from {during}, its own state during"));
        }
        let other = self
            .operations
            .values()
            .find(|other| other.name != operation.name && other.choices().any(|end| end == during));
        if let Some(other) = other {
            let other = &other.name;
            problems.say(format!("{during} is its state during, and {other} ends in it"));
        }
    }

    fn declared(&self, what: &str, state: &Text, problems: &mut Problems) {
        if !self.states.contains(state) {
            let known = self.states.join(", ");
            problems.say(format!("{what} names the state {state}, which is not among {known}"));
        }
    }

    /// Every state must be reachable from the initial one, or it was misspelt somewhere.
    fn check_reach(&self, problems: &mut Problems) {
        let mut reached = BTreeSet::from([&self.initial]);
        loop {
            let before = reached.len();
            for operation in self.operations.values() {
                let starts = operation.from.is_empty()
                    || operation.from.iter().any(|from| reached.contains(from));
                if starts {
                    reached.extend(operation.during.iter().chain(operation.choices()));
                }
            }
            if reached.len() == before {
                break;
            }
        }
        for state in self.states.iter().filter(|state| !reached.contains(state)) {
            problems.say(format!("no operation leads to the state {state}"));
        }
        for operation in self.operations.values() {
            let starts = operation.from.is_empty()
                || operation.from.iter().any(|from| reached.contains(from));
            if !starts {
                let name = &operation.name;
                problems.say(format!(
                    "the operation {name} can never start: no state of its from \
                                      is ever reached"
                ));
            }
        }
    }
}

fn check_limit(limit_ms: Option<u64>, problems: &mut Problems) {
    if limit_ms == Some(0) {
        problems.say("a limit of 0 lets no attempt run: leave it out for none");
    }
}

fn check_retry(retry: &Retry, problems: &mut Problems) {
    for problem in retry.problems() {
        problems.say(format!("retry{problem}"));
    }
}

/// What is wrong with a declaration, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct BadKinds(pub Vec<String>);

#[derive(Default)]
struct Problems {
    place: String,
    found: Vec<String>,
}

impl Problems {
    fn at(&mut self, place: &str) {
        self.place = place.to_owned();
    }

    fn say(&mut self, what: impl fmt::Display) {
        self.found.push(format!("{}: {what}", self.place));
    }

    fn name(&mut self, what: &str, name: &str, bytes_max: usize) {
        if let Err(why) = crate::key::check_name(what, name, bytes_max) {
            self.say(why);
        }
    }

    fn bound(&mut self, what: &str, have: usize, max: usize) {
        if have > max {
            self.say(format!("{have} {what}; at most {max} are allowed"));
        }
    }
}

/// The kinds that are declared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kinds(BTreeMap<Text, Arc<Kind>>);

impl Kinds {
    /// Takes kinds that make sense, or says everything that does not.
    pub fn new(kinds: impl IntoIterator<Item = Kind>) -> Result<Self, BadKinds> {
        let mut problems = Problems::default();
        let mut checked = BTreeMap::new();
        for kind in kinds {
            kind.check(&mut problems);
            if let Some(twin) = checked.insert(kind.name.clone(), Arc::new(kind)) {
                problems.at(&format!("kinds.{}", twin.name));
                problems.say("it is declared twice");
            }
        }
        problems.at("kinds");
        problems.bound("kinds", checked.len(), limits::KINDS_MAX);
        if problems.found.is_empty() { Ok(Self(checked)) } else { Err(BadKinds(problems.found)) }
    }

    /// The same kinds and one more, or everything that does not make sense.
    pub fn with(&self, kind: Kind) -> Result<Self, BadKinds> {
        Self::new(self.0.values().map(|kind| (**kind).clone()).chain([kind]))
    }

    /// The kind of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Kind>> {
        self.0.get(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.0.values()
    }
}
