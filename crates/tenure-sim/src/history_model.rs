//! A model of the store, rebuilt from history events alone, independently of the engine that
//! wrote them.
//!
//! Events of a batch that is not flushed yet are pending: a server crash discards them, and no
//! client may have observed them. [`crate::oracle`] compares replies with this model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_core::history::{Entry, Event};
use tenure_core::job::AttemptOutcome;
use tenure_core::record::TenureEnd;
use tenure_core::{
    Command, JobId, Kinds, LockAction, LockName, LockSet, Millis, Outcome, RequestId, ResourceKey,
    SessionId, Token, limits,
};

use crate::job_model::{JobModel, Stage};
use crate::kinds::kinds;
use crate::server::Applied;

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
    /// Store time of that end.
    ended_at: Millis,
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
    /// Number of the history entry.
    n: u64,
    /// Store time.
    at: Millis,
}

/// A change of one resource.
#[derive(Clone, Debug)]
enum Change {
    /// An event of its history.
    Event(Event, EventContext),
    /// It was forgotten.
    Forgotten,
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
    /// Last token of each resource, also of forgotten ones.
    last_tokens: BTreeMap<ResourceKey, Token>,
    /// Number of history entries of each resource.
    entries: BTreeMap<ResourceKey, u64>,
    /// Resources that were forgotten and not locked since.
    pub forgotten: BTreeSet<ResourceKey>,
    /// Jobs and resource states.
    pub job_model: JobModel,
}

impl ModelState {
    /// Returns the resource that a command is about.
    pub(crate) fn resource_of<'a>(&'a self, command: &'a Command) -> Option<&'a ResourceKey> {
        let of_job = |id: JobId| self.job_model.jobs.get(&id).map(|job| &job.key);
        command.key().or_else(|| of_job(command.job()?))
    }

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

    /// Returns the number of history entries of a resource.
    #[must_use]
    pub fn entries(&self, key: &ResourceKey) -> u64 {
        self.entries.get(key).copied().unwrap_or(0)
    }

    /// Forgets a resource. Its tokens stay, because they must never repeat.
    fn forget(&mut self, key: &ResourceKey) -> Result<(), String> {
        let of_key = (key.clone(), Token::default())..=(key.clone(), Token(u64::MAX));
        if let Some(((_, token), _)) = self.tenures.range(of_key).find(|(_, t)| t.is_active()) {
            return Err(format!("{key} was forgotten while token {token} holds it"));
        }
        self.entries.remove(key);
        self.forgotten.insert(key.clone());
        self.job_model.forget(key)
    }

    fn change(&mut self, key: &ResourceKey, change: &Change, kinds: &Kinds) -> Result<(), String> {
        match change {
            Change::Event(event, context) => self.apply(key, event, *context, kinds),
            Change::Forgotten => self.forget(key),
        }
    }

    fn apply(
        &mut self,
        key: &ResourceKey,
        event: &Event,
        context: EventContext,
        kinds: &Kinds,
    ) -> Result<(), String> {
        let entries = self.entries.entry(key.clone()).or_default();
        *entries += 1;
        if context.n != *entries {
            return Err(format!("entry {} of {key} is its number {entries}", context.n));
        }
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
        self.job_model.apply(key, event, context.at, kinds)
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
    /// more ends on its resource, or after more time, than the resource remembers, which is a
    /// documented limit.
    fn check_first_grant(
        &self,
        key: &ResourceKey,
        request: RequestId,
        token: Token,
        context: EventContext,
    ) -> Result<(), String> {
        let Some(first) = self.token_of_request(key, request) else { return Ok(()) };
        let ended = self.tenure(key, first).filter(|tenure| !tenure.is_active());
        let forgotten = ended.is_some_and(|tenure| {
            context.ends >= tenure.ends + REQUEST_MEMORY_ENDS
                || context.at.since(tenure.ended_at) > limits::RECENT_TTL_MS
        });
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
        self.forgotten.remove(key);
        self.by_request.insert((key.clone(), request), token);
        let active_locks = locks.iter().cloned().collect();
        let last = self.last_tokens.insert(key.clone(), token).unwrap_or_default();
        if token < last {
            return Err(format!("token {token} of {key} was granted after token {last}"));
        }
        let ended_at = Millis::default();
        let tenure = ModelTenure { session, request, active_locks, end: None, ends: 0, ended_at };
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
        (tenure.ends, tenure.ended_at) = (context.ends, context.at);
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
    pending: Vec<(ResourceKey, Change)>,
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
    pub fn apply_batch(&mut self, applied: &Applied) -> Result<Vec<(ResourceKey, Event)>, String> {
        self.forget(applied)?;
        let mut entries = Vec::new();
        for (key, sealed) in &applied.batch.history {
            let entry = Entry::parse(&sealed.line).map_err(|error| format!("history: {error}"))?;
            entries.push((key.clone(), entry));
        }
        // The ledger does not define an order among resources, and it differs from run to run.
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (key, Entry { n, at, event }) in &entries {
            if matches!(event, Event::Ended { .. }) {
                self.record_end(key);
            }
            let (batch, ends, epoch) = (applied.number, self.ends_of(Some(key)), self.epoch);
            let context = EventContext { batch, ends, epoch, n: *n, at: *at };
            self.change(key, Change::Event(event.clone(), context))?;
        }
        for (key, _) in &entries {
            self.now.job_model.check_no_change_lost(key, &self.kinds)?;
            self.now.job_model.check_running_caps(key, &self.kinds)?;
            self.now.job_model.check_timers_fired_once(key)?;
        }
        Ok(entries.into_iter().map(|(key, entry)| (key, entry.event)).collect())
    }

    fn change(&mut self, key: &ResourceKey, change: Change) -> Result<(), String> {
        self.now.change(key, &change, &self.kinds)?;
        self.pending.push((key.clone(), change));
        Ok(())
    }

    /// Applies what a batch forgets: only resources of which every history entry was known.
    fn forget(&mut self, applied: &Applied) -> Result<(), String> {
        let forgets = applied.replies.iter().filter(|reply| reply.outcome == Outcome::Forgotten);
        let mut forgotten = applied.batch.forgotten.iter();
        for reply in forgets {
            let Command::Lock { key, action: LockAction::Forget { n } } = &*reply.command else {
                return Err(format!("{:?} was answered as forgotten", reply.command));
            };
            let known = self.now.entries(key);
            if known != *n {
                return Err(format!("{key} was forgotten at entry {n} and has {known} entries"));
            }
            let last = self.now.last_tokens.get(key).copied().unwrap_or_default();
            if !forgotten.next().is_some_and(|(of, token)| of == key && *token >= last) {
                return Err(format!("{key} was forgotten without its last token {last}"));
            }
            self.change(key, Change::Forgotten)?;
        }
        forgotten.next().map_or(Ok(()), |(key, _)| Err(format!("{key} was forgotten unasked")))
    }

    /// Makes pending events durable.
    pub fn flush(&mut self) -> Result<(), String> {
        for (key, change) in std::mem::take(&mut self.pending) {
            self.durable.change(&key, &change, &self.kinds)?;
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
