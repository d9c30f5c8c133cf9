//! Kinds: classes of resources with their states, operations and policies.
//!
//! A kind is declared in Rust with the builders here, or in `tenure.toml`. [`Kinds::new`] validates
//! all kinds, reports every problem at once, and is the only way to build a [`Kinds`], so its users
//! need not validate again.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::key::{LockName, LockSet, ResourceKey, Text};
pub use crate::kind_check::InvalidKinds;
use crate::kind_check::Problems;
use crate::limits;
pub use crate::policy::Policy;
use crate::retry::Retry;
use crate::run::RunOptions;

/// What happens to the rest of a lane while a job is in backoff.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backoff {
    /// Jobs behind it wait, so that order is kept.
    #[default]
    Hold,
    /// Jobs behind it that need none of its locks may start.
    Reserve,
    /// Jobs behind it may start.
    Pass,
}

/// An operation of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Name.
    pub name: Text,
    /// States it may start from; any if empty.
    pub from: Vec<Text>,
    /// State of the resource while it runs; unchanged if `None`.
    pub during: Option<Text>,
    /// State after success.
    pub ok: Option<Text>,
    /// State after the last failure.
    pub failed: Option<Text>,
    /// State after it was cancelled while running; defaults to `failed`.
    pub cancelled: Option<Text>,
    /// Further end states that a worker may choose.
    pub ends: Vec<Text>,
    /// Locks held while it runs.
    pub locks: LockSet,
    /// Time limit of one attempt, enforced by its worker.
    pub limit_ms: Option<u64>,
    /// Time after which a job that has not started fails, from when it could first start.
    pub start_deadline_ms: Option<u64>,
    /// Retry rule.
    pub retry: Retry,
    /// Policy for each operation that may already be queued or running, by name.
    pub meets: BTreeMap<Text, Policy>,
    /// Command that executes it; empty if a worker with a handler claims it.
    pub run: Vec<String>,
    /// Environment variables of the command.
    pub env: BTreeMap<String, String>,
    /// Options of the command.
    pub run_options: RunOptions,
}

impl Operation {
    /// Returns an operation that may start from any state and does not change it.
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
            start_deadline_ms: None,
            retry: Retry::default(),
            meets: BTreeMap::new(),
            run: Vec::new(),
            env: BTreeMap::new(),
            run_options: RunOptions::default(),
        }
    }

    /// Sets the states it starts from, runs in and ends in.
    #[must_use]
    pub fn path(mut self, from: &[&str], during: &str, ok: &str, failed: &str) -> Self {
        self.from = from.iter().map(|state| (*state).into()).collect();
        (self.during, self.ok) = (Some(during.into()), Some(ok.into()));
        self.failed = Some(failed.into());
        self
    }

    /// Sets the policy for a present operation.
    #[must_use]
    pub fn meets(mut self, present: &str, policy: Policy) -> Self {
        self.meets.insert(present.into(), policy);
        self
    }

    /// Sets the retry rule.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Sets the time limit of one attempt.
    #[must_use]
    pub fn limit_ms(mut self, limit_ms: u64) -> Self {
        self.limit_ms = Some(limit_ms);
        self
    }

    /// Sets the time after which a job that has not started fails.
    #[must_use]
    pub fn start_deadline_ms(mut self, start_deadline_ms: u64) -> Self {
        self.start_deadline_ms = Some(start_deadline_ms);
        self
    }

    /// Returns the policy for a present operation.
    #[must_use]
    pub fn policy(&self, present: &str) -> Policy {
        self.meets.get(present).copied().unwrap_or_default()
    }

    /// Returns `true` if it may start from `state`.
    #[must_use]
    pub fn allows(&self, state: &str) -> bool {
        self.from.is_empty() || self.from.iter().any(|from| **from == *state)
    }

    /// Returns the end states that a worker may choose.
    pub fn end_states(&self) -> impl Iterator<Item = &Text> {
        self.ok.iter().chain(&self.failed).chain(&self.cancelled).chain(&self.ends)
    }

    pub(crate) fn changes_state(&self) -> bool {
        self.during.is_some() || self.end_states().next().is_some()
    }
}

/// Settings of an operation for one resource that replace those of the operation.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationOverride {
    /// Time limit of one attempt.
    pub limit_ms: Option<u64>,
    /// Retry rule.
    pub retry: Retry,
}

/// A class of resources.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// Name.
    pub name: Text,
    /// States.
    pub states: Vec<Text>,
    /// State of a new resource.
    pub initial: Text,
    /// Operations, by name.
    pub operations: BTreeMap<Text, Operation>,
    /// Operation that runs while desired and observed generation differ.
    pub reconcile: Option<Text>,
    /// What happens to the rest of a lane while a job is in backoff.
    pub backoff: Backoff,
    /// Maximum number of jobs that run concurrently, over all tenants.
    pub running_max: Option<usize>,
    /// Maximum number of jobs that run concurrently per tenant.
    pub tenant_running_max: Option<usize>,
    /// Age above which a held lock is reported. It ends nothing.
    pub lock_max_age_ms: Option<u64>,
    /// Whether names have the form `GROUP:REST`, so that claims and lists can be restricted to a
    /// group.
    pub grouped: bool,
    /// Time after which a deleted resource is forgotten, with its jobs and history. That of other
    /// kinds is kept for as long as the history of the store.
    pub ephemeral_ms: Option<u64>,
    /// Time for which locks stay held after the session of their holder has expired.
    pub stale_margin_ms: u64,
    /// Overrides per resource and operation.
    pub overrides: BTreeMap<ResourceKey, BTreeMap<Text, OperationOverride>>,
}

/// State of resources whose kind declares none.
pub const STATELESS: &str = "READY";

impl Kind {
    /// Returns a kind without states of its own.
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
            lock_max_age_ms: None,
            grouped: false,
            ephemeral_ms: None,
            stale_margin_ms: 0,
            overrides: BTreeMap::new(),
        }
    }

    /// Returns `true` if every operation needs `lock`.
    #[must_use]
    pub(crate) fn is_required_by_all(&self, lock: &LockName) -> bool {
        self.operations.values().all(|operation| operation.locks.contains(lock))
    }

    /// Sets the states; the first one is initial.
    #[must_use]
    pub fn states(mut self, states: &[&str]) -> Self {
        self.states = states.iter().map(|state| (*state).into()).collect();
        self.initial = self.states.first().cloned().unwrap_or_else(|| STATELESS.into());
        self
    }

    /// Adds an operation.
    #[must_use]
    pub fn operation(mut self, operation: Operation) -> Self {
        self.operations.insert(operation.name.clone(), operation);
        self
    }

    /// Sets the operation that runs while desired and observed generation differ.
    #[must_use]
    pub fn reconcile(mut self, operation: &str) -> Self {
        self.reconcile = Some(operation.into());
        self
    }

    /// Sets what happens to the rest of a lane while a job is in backoff.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets the maximum number of concurrent jobs, over all tenants and per tenant.
    #[must_use]
    pub fn running_max(mut self, all: Option<usize>, tenant: Option<usize>) -> Self {
        (self.running_max, self.tenant_running_max) = (all, tenant);
        self
    }

    /// Sets the age above which a held lock is reported.
    #[must_use]
    pub fn lock_max_age_ms(mut self, max_age_ms: u64) -> Self {
        self.lock_max_age_ms = Some(max_age_ms);
        self
    }

    /// Declares that names have the form `GROUP:REST`.
    #[must_use]
    pub fn grouped(mut self) -> Self {
        self.grouped = true;
        self
    }

    /// Sets the time after which a deleted resource is forgotten.
    #[must_use]
    pub fn ephemeral_ms(mut self, ephemeral_ms: u64) -> Self {
        self.ephemeral_ms = Some(ephemeral_ms);
        self
    }

    /// Sets the time for which locks stay held after the session of their holder has expired.
    #[must_use]
    pub fn stale_margin_ms(mut self, stale_margin_ms: u64) -> Self {
        self.stale_margin_ms = stale_margin_ms;
        self
    }

    /// Returns `true` if jobs of an operation must start by a deadline.
    #[must_use]
    pub(crate) fn has_start_deadlines(&self) -> bool {
        self.operations.values().any(|operation| operation.start_deadline_ms.is_some())
    }

    /// Overrides the settings of an operation for one resource.
    #[must_use]
    pub fn with_override(
        mut self,
        key: ResourceKey,
        operation: &str,
        own: OperationOverride,
    ) -> Self {
        self.overrides.entry(key).or_default().insert(operation.into(), own);
        self
    }

    /// Returns the time limit of one attempt at `operation` on a resource.
    #[must_use]
    pub fn limit_ms(&self, key: &ResourceKey, operation: &Operation) -> Option<u64> {
        self.override_for(key, operation).map_or(operation.limit_ms, |own| own.limit_ms)
    }

    /// Returns the retry rule of `operation` on a resource.
    #[must_use]
    pub fn retry<'k>(&'k self, key: &ResourceKey, operation: &'k Operation) -> &'k Retry {
        self.override_for(key, operation).map_or(&operation.retry, |own| &own.retry)
    }

    fn override_for(&self, key: &ResourceKey, operation: &Operation) -> Option<&OperationOverride> {
        self.overrides.get(key)?.get(&operation.name)
    }
}

/// The declared kinds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kinds(BTreeMap<Text, Arc<Kind>>);

impl Kinds {
    /// Validates `kinds`; the error lists every problem.
    pub fn new(kinds: impl IntoIterator<Item = Kind>) -> Result<Self, InvalidKinds> {
        let mut problems = Problems::default();
        let mut checked = BTreeMap::new();
        for kind in kinds {
            kind.check(&mut problems);
            if let Some(duplicate) = checked.insert(kind.name.clone(), Arc::new(kind)) {
                problems.set_place(&format!("kinds.{}", duplicate.name));
                problems.add("it is declared twice");
            }
        }
        problems.set_place("kinds");
        problems.bound("kinds", checked.len(), limits::KINDS_MAX);
        if problems.found.is_empty() {
            Ok(Self(checked))
        } else {
            Err(InvalidKinds(problems.found))
        }
    }

    /// Returns these kinds and one more, validated.
    pub fn with(&self, kind: Kind) -> Result<Self, InvalidKinds> {
        Self::new(self.0.values().map(|kind| (**kind).clone()).chain([kind]))
    }

    /// Returns the kind with that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Kind>> {
        self.0.get(name)
    }

    /// Returns the age above which a held lock is reported: its own, else that of its kind.
    #[must_use]
    pub fn lock_max_age_ms(&self, key: &ResourceKey, own: Option<u64>) -> Option<u64> {
        own.or_else(|| self.get(key.kind())?.lock_max_age_ms)
    }

    /// Returns the time after which a deleted resource of an ephemeral kind is forgotten.
    #[must_use]
    pub fn ephemeral_ms(&self, key: &ResourceKey) -> Option<u64> {
        self.get(key.kind())?.ephemeral_ms
    }

    /// Iterates over the kinds, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.0.values()
    }
}
