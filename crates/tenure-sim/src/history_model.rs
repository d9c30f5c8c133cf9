//! A model of the store, rebuilt from history events alone, independently of the engine that
//! wrote them.
//!
//! Events of a batch that is not flushed yet are pending: a server crash discards them, and no
//! client may have observed them. [`crate::oracle`] compares replies with this model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_core::history::{Entry, Event, SealedEntry};
use tenure_core::job::AttemptOutcome;
use tenure_core::record::TenureEnd;
use tenure_core::{Kinds, LockName, LockSet, RequestId, ResourceKey, SessionId, Token, limits};

use crate::job_model::{JobModel, Stage};
use crate::kinds::kinds;

/// A tenure according to history.
#[derive(Clone, Debug)]
pub struct ModelTenure {
    /// Session of the holder.
    pub session: SessionId,
    /// Request that was granted.
    pub request: RequestId,
    /// Locks that have not ended.
    pub active_locks: BTreeSet<LockName>,
    /// The most recent end: the reason, and the batch.
    pub end: Option<(TenureEnd, u64)>,
    /// Number of ends on the resource at that point.
    ends: u64,
}

impl ModelTenure {
    /// Returns whether any lock of the tenure is still held.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.active_locks.is_empty()
    }

    /// Returns whether an operator broke the tenure.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        matches!(self.end, Some((TenureEnd::Broken { .. }, _)))
    }
}

/// Where an event occurred.
#[derive(Clone, Copy, Debug)]
struct EventContext {
    batch: u64,
    /// Number of ends on the resource so far.
    ends: u64,
    /// Server epoch.
    epoch: u64,
}

/// A claim that was assigned jobs.
#[derive(Clone, Debug)]
struct ModelClaim {
    batch: u64,
    epoch: u64,
    tenures: Vec<(ResourceKey, Token)>,
}

/// Number of later ends on a resource after which it may have forgotten a request. Slightly below
/// the engine's limit, because withdrawals of a batch are counted after its ends.
const REQUEST_MEMORY_ENDS: u64 = limits::RECENT_REQUESTS_MAX as u64 - 3;

/// State of all resources at one point of history.
#[derive(Clone, Debug, Default)]
pub struct ModelState {
    tenures: BTreeMap<(ResourceKey, Token), ModelTenure>,
    by_request: BTreeMap<(ResourceKey, RequestId), Token>,
    claims: BTreeMap<RequestId, ModelClaim>,
    /// Batch in which the job of a tenure was asked to cancel.
    cancel_batches: BTreeMap<(ResourceKey, Token), u64>,
    /// Jobs and resource states.
    pub job_model: JobModel,
}

impl ModelState {
    /// Returns the tenure of `key` with `token`.
    #[must_use]
    pub fn tenure(&self, key: &ResourceKey, token: Token) -> Option<&ModelTenure> {
        self.tenures.get(&(key.clone(), token))
    }

    /// Returns the token that was granted to a request.
    #[must_use]
    pub fn token_of_request(&self, key: &ResourceKey, request: RequestId) -> Option<Token> {
        self.by_request.get(&(key.clone(), request)).copied()
    }

    fn apply(
        &mut self,
        key: &ResourceKey,
        event: &Event,
        context: EventContext,
        kinds: &Kinds,
    ) -> Result<(), String> {
        match event {
            Event::Granted { locks, token, session, request, job, .. } => {
                match job {
                    Some(_) => self.apply_claim(key, *request, *token, context)?,
                    None => self.check_first_grant(key, *request, *token, context)?,
                }
                self.apply_grant(key, locks, *token, *session, *request)?;
            }
            Event::Ended { locks, token, how, job } => {
                self.apply_end(key, locks, *token, how, context)?;
                if job.as_ref().is_some_and(|ran| ran.outcome == AttemptOutcome::HandedBack) {
                    self.forget_claim(key, *token);
                }
            }
            Event::Cancelled { id, .. } => {
                let stage = self.job_model.jobs.get(id).map(|job| job.stage);
                if let Some(Stage::Running(token)) = stage {
                    self.cancel_batches.insert((key.clone(), token), context.batch);
                }
            }
            _ => {}
        }
        self.job_model.apply(key, event, kinds)
    }

    /// A claim whose job was handed back may be assigned another job.
    fn forget_claim(&mut self, key: &ResourceKey, token: Token) {
        if let Some(request) = self.tenure(key, token).map(|tenure| tenure.request) {
            self.claims.remove(&request);
        }
    }

    /// Returns the batch in which the job of a tenure was asked to cancel.
    #[must_use]
    pub fn cancel_batch(&self, key: &ResourceKey, token: Token) -> Option<u64> {
        self.cancel_batches.get(&(key.clone(), token)).copied()
    }

    /// Checks that a claim is assigned jobs once. A repeated claim may count as new only if all its
    /// jobs have ended and the server has restarted since, which is a documented limit.
    fn apply_claim(
        &mut self,
        key: &ResourceKey,
        request: RequestId,
        token: Token,
        EventContext { batch, epoch, .. }: EventContext,
    ) -> Result<(), String> {
        let earlier = self.claims.get(&request).filter(|claim| claim.batch != batch);
        if let Some(earlier) = earlier {
            let is_active = |(key, token): &(ResourceKey, Token)| {
                self.tenure(key, *token).is_some_and(ModelTenure::is_active)
            };
            if earlier.epoch == epoch || earlier.tenures.iter().any(is_active) {
                return Err(format!(
                    "claim {request} was assigned jobs twice, now token {token} of {key}"
                ));
            }
        }
        let new = ModelClaim { batch, epoch, tenures: Vec::new() };
        let claim = self.claims.entry(request).or_insert_with(|| new.clone());
        if claim.batch != batch {
            *claim = new;
        }
        claim.tenures.push((key.clone(), token));
        Ok(())
    }

    /// Checks that a request is granted one tenure. A repeated request may count as new only after
    /// more ends on its resource than the resource remembers, which is a documented limit.
    fn check_first_grant(
        &self,
        key: &ResourceKey,
        request: RequestId,
        token: Token,
        context: EventContext,
    ) -> Result<(), String> {
        let Some(first) = self.token_of_request(key, request) else { return Ok(()) };
        let ended = self.tenure(key, first).filter(|tenure| !tenure.is_active());
        let forgotten =
            ended.is_some_and(|tenure| context.ends >= tenure.ends + REQUEST_MEMORY_ENDS);
        match forgotten {
            true => Ok(()),
            false => Err(format!("request {request} on {key} got token {first}, then {token}")),
        }
    }

    fn apply_grant(
        &mut self,
        key: &ResourceKey,
        locks: &LockSet,
        token: Token,
        session: SessionId,
        request: RequestId,
    ) -> Result<(), String> {
        self.by_request.insert((key.clone(), request), token);
        let active_locks = locks.iter().cloned().collect();
        let tenure = ModelTenure { session, request, active_locks, end: None, ends: 0 };
        match self.tenures.insert((key.clone(), token), tenure) {
            Some(_) => Err(format!("token {token} of {key} was granted twice")),
            None => Ok(()),
        }
    }

    fn apply_end(
        &mut self,
        key: &ResourceKey,
        locks: &LockSet,
        token: Token,
        how: &TenureEnd,
        context: EventContext,
    ) -> Result<(), String> {
        let tenure = self.tenures.get_mut(&(key.clone(), token));
        let tenure =
            tenure.ok_or_else(|| format!("token {token} of {key} ended without a grant"))?;
        tenure.active_locks.retain(|lock| !locks.contains(lock));
        tenure.end = Some((how.clone(), context.batch));
        tenure.ends = context.ends;
        Ok(())
    }
}

/// The model as of the last flush, and as of the last applied batch.
#[derive(Clone, Debug)]
pub struct HistoryModel {
    /// State as of the last flush.
    pub durable: ModelState,
    /// State as of the last applied batch.
    pub now: ModelState,
    pending: Vec<(ResourceKey, Event, EventContext)>,
    /// Number of ends per resource, for the limit on remembered requests.
    ends: BTreeMap<ResourceKey, u64>,
    /// Kinds of the simulated resources.
    pub kinds: Arc<Kinds>,
    /// Number of server crashes.
    pub epoch: u64,
}

impl Default for HistoryModel {
    fn default() -> Self {
        let (durable, now, pending) = (ModelState::default(), ModelState::default(), Vec::new());
        Self { durable, now, pending, ends: BTreeMap::new(), kinds: kinds(), epoch: 0 }
    }
}

impl HistoryModel {
    /// Applies the history of a batch and returns its events, ordered by key.
    pub fn apply_batch(
        &mut self,
        history: &[(ResourceKey, SealedEntry)],
        batch: u64,
    ) -> Result<Vec<(ResourceKey, Event)>, String> {
        let mut events = Vec::new();
        for (key, sealed) in history {
            let entry = Entry::parse(&sealed.line).map_err(|error| format!("history: {error}"))?;
            events.push((key.clone(), entry.event));
        }
        // The ledger does not define an order among resources, and it differs from run to run.
        events.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (key, event) in &events {
            if matches!(event, Event::Ended { .. }) {
                self.record_end(key);
            }
            let context = EventContext { batch, ends: self.ends_of(Some(key)), epoch: self.epoch };
            self.now.apply(key, event, context, &self.kinds)?;
            self.pending.push((key.clone(), event.clone(), context));
        }
        for (key, _) in &events {
            self.now.job_model.check_no_change_lost(key, &self.kinds)?;
            self.now.job_model.check_running_caps(key, &self.kinds)?;
        }
        Ok(events)
    }

    /// Makes pending events durable.
    pub fn flush(&mut self) -> Result<(), String> {
        for (key, event, context) in std::mem::take(&mut self.pending) {
            self.durable.apply(&key, &event, context, &self.kinds)?;
        }
        Ok(())
    }

    /// Discards pending events.
    pub fn crash(&mut self) {
        self.epoch += 1;
        self.pending.clear();
        self.now = self.durable.clone();
    }

    /// Returns the number of ends that a resource has recorded.
    #[must_use]
    pub fn ends_of(&self, key: Option<&ResourceKey>) -> u64 {
        key.and_then(|key| self.ends.get(key)).copied().unwrap_or(0)
    }

    /// Counts one more end on a resource.
    pub fn record_end(&mut self, key: &ResourceKey) {
        *self.ends.entry(key.clone()).or_default() += 1;
    }
}
