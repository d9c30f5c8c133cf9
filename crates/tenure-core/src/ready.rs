//! Index of resources with a startable job, and the order in which claims take them.
//!
//! Claims read this index only: idle resources, blocked lanes and finished jobs are not in it and
//! cost nothing. Workers of all tenants serve kinds in turn, and the tenants of a kind: fewest
//! running jobs of the kind first, then least recently served. Within a tenant the order is by
//! priority, then by waiting time. Concurrency caps use running counts derived from the records, so
//! a crash cannot leave a counter wrong. The rules: `docs/internals/lanes-and-claims.md`.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::canary::{Canary, planted};
use crate::command::{Claim, ClaimScope};
use crate::key::{ResourceKey, Text};
use crate::kind::{Kind, Kinds};
use crate::lane::NextJob;
use crate::limits;
use crate::map::Map;
use crate::record::Record;
use crate::resource::Resource;
use crate::session::ALL_TENANTS;
use crate::time::Millis;

/// Sort key of a tenant's ready resources.
type ReadyKey = (Reverse<i32>, Millis, ResourceKey);

/// The ready resources of all kinds.
#[derive(Clone, Debug, Default)]
pub struct ReadyIndex {
    kinds: Map<Text, KindQueue>,
    /// Index state per resource.
    entries: Map<ResourceKey, IndexEntry>,
    /// Resources to re-examine, by time.
    rechecks: BTreeSet<(Millis, ResourceKey)>,
    /// Number of picks so far, used to find the least recently served kind and tenant.
    picks: u64,
}

/// Maximum number of idle tenants per kind whose last service is remembered. When it is exceeded,
/// all are forgotten.
const IDLE_TENANTS_MAX: usize = 16_384;

/// Index state of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct IndexEntry {
    rank: Option<(Reverse<i32>, Millis)>,
    recheck_at: Option<Millis>,
    running: usize,
    /// Number of waiting jobs of a resource of a grouped kind.
    waiting: usize,
    /// Whether the kind is grouped.
    grouped: bool,
}

/// The ready resources of one kind.
#[derive(Clone, Debug, Default)]
struct KindQueue {
    running: usize,
    /// Last pick for a worker that may take any job of the kind. Other workers choose no kind to
    /// serve, and would delay the jobs that they cannot take.
    served: u64,
    tenants: Map<Text, TenantQueue>,
    /// Tenants with ready resources, by running jobs, then by last service.
    order: BTreeSet<(usize, u64, Text)>,
    /// Last service of tenants without ready resources or running jobs, so that a returning tenant
    /// does not overtake those that have waited.
    idle_served: Map<Text, u64>,
}

/// The ready resources of one tenant and kind.
#[derive(Clone, Debug, Default)]
struct TenantQueue {
    ready: BTreeSet<ReadyKey>,
    running: usize,
    served: u64,
    /// Groups with unfinished jobs, for grouped kinds.
    groups: Map<Text, GroupQueue>,
}

/// The resources of one group with unfinished jobs.
#[derive(Clone, Debug, Default)]
struct GroupQueue {
    ready: BTreeSet<ReadyKey>,
    counts: GroupCounts,
}

/// Numbers of unfinished jobs of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// Jobs with a running attempt.
    pub running: usize,
    /// Other unfinished jobs.
    pub waiting: usize,
    /// Resources of which a job can start now.
    pub ready: usize,
}

impl ReadyIndex {
    /// Updates the index after a change of `record`. Returns `true` if the resource became ready.
    pub(crate) fn update(
        &mut self,
        key: &ResourceKey,
        record: &Record,
        kinds: &Kinds,
        now: Millis,
    ) -> bool {
        let Some(resource) = &record.resource else {
            return self.replace(key, IndexEntry::default());
        };
        let mut entry = match kinds.get(key.kind()) {
            Some(kind) if !resource.lane.is_empty() => IndexEntry::new(record, resource, kind, now),
            _ => IndexEntry { running: resource.running_count(), ..IndexEntry::default() },
        };
        entry.recheck_at = earliest(entry.recheck_at, resource.next_timer(now));
        self.replace(key, entry)
    }

    fn replace(&mut self, key: &ResourceKey, entry: IndexEntry) -> bool {
        let before = self.entries.get(key).cloned().unwrap_or_default();
        if before == entry {
            return false;
        }
        if let Some(at) = before.recheck_at {
            self.rechecks.remove(&(at, key.clone()));
        }
        if let Some(at) = entry.recheck_at {
            self.rechecks.insert((at, key.clone()));
        }
        if !self.kinds.contains_key(key.kind()) {
            self.kinds.insert(key.kind().into(), KindQueue::default());
        }
        let queue = self.kinds.get_mut(key.kind()).expect("inserted above");
        queue.replace(key, &before, &entry);
        let became_ready = entry.rank.is_some() && before.rank.is_none();
        if entry == IndexEntry::default() {
            self.entries.remove(key);
        } else {
            self.entries.insert(key.clone(), entry);
        }
        became_ready
    }

    /// Picks the next resource for a claim of a worker of `tenant`, which may be [`ALL_TENANTS`].
    pub(crate) fn pick(
        &mut self,
        claim: &Claim,
        tenant: &str,
        kinds: &Kinds,
    ) -> Option<ResourceKey> {
        let scope = claim.only.as_ref().filter(|_| !planted(Canary::GroupIgnored));
        let any = tenant == ALL_TENANTS && scope.is_none();
        let (.., key) = match scope {
            None if any => self.first_in_turn(&claim.kinds, kinds),
            None => self.first_of_tenant(tenant, &claim.kinds, kinds),
            Some(scope) => self.first_in_scope(scope, &claim.kinds, kinds),
        }?;
        self.picks += 1;
        let queue = self.kinds.get_mut(key.kind()).expect("found above");
        if any && !planted(Canary::KindServedAgain) {
            queue.served = self.picks;
        }
        queue.mark_served(key.tenant(), self.picks);
        Some(key)
    }

    /// Returns the claimed kinds that have or had jobs.
    fn queues<'a>(
        &'a self,
        claimed: &'a [Text],
        kinds: &'a Kinds,
    ) -> impl Iterator<Item = (&'a KindQueue, &'a Kind)> {
        claimed.iter().filter_map(|name| Some((self.kinds.get(name)?, &**kinds.get(name)?)))
    }

    /// Returns the next resource for a worker of all tenants, which serves kinds in turn, and the
    /// tenants of a kind. A tenant whose turn it also is in another of the kinds, with a job that
    /// has to start first, is passed over: it will be served there, and holds nobody up here.
    fn first_in_turn(&self, claimed: &[Text], kinds: &Kinds) -> Option<ReadyKey> {
        let mut turns = Vec::with_capacity(claimed.len());
        for (queue, kind) in self.queues(claimed, kinds) {
            turns.extend(queue.heads(kind).next().map(|head| (queue.served, head, queue, kind)));
        }
        turns.sort_unstable_by_key(|(served, head, ..)| (*served, *head));
        let mut first: Map<&str, &ReadyKey> = Map::default();
        for (_, head, ..) in &turns {
            let first = first.entry(head.2.tenant()).or_insert(head);
            *first = (*first).min(head);
        }
        let is_passed_over = |head: &ReadyKey| {
            let first = first.get(head.2.tenant()).filter(|_| !planted(Canary::KindBeforePriority));
            first.is_some_and(|first| *first < head)
        };
        let heads = turns.iter().flat_map(|(.., queue, kind)| queue.heads(kind));
        let next = heads.take(limits::CLAIM_TENANTS_MAX).find(|head| !is_passed_over(head));
        next.or_else(|| turns.first().map(|(_, head, ..)| *head)).cloned()
    }

    /// Returns the next resource for a worker of one tenant.
    fn first_of_tenant(&self, tenant: &str, claimed: &[Text], kinds: &Kinds) -> Option<ReadyKey> {
        let first = |(queue, kind): (&KindQueue, &Kind)| {
            queue.tenant_with_capacity(tenant, kind)?.ready.first().cloned()
        };
        self.queues(claimed, kinds).filter_map(first).min()
    }

    /// Returns the next resource for a restricted claim.
    fn first_in_scope(
        &self,
        scope: &ClaimScope,
        claimed: &[Text],
        kinds: &Kinds,
    ) -> Option<ReadyKey> {
        let first = |(queue, kind): (&KindQueue, &Kind)| {
            let tenant = queue.tenant_with_capacity(scope.tenant(), kind)?;
            match scope {
                ClaimScope::Group { group, .. } => tenant.groups.get(group)?.ready.first().cloned(),
                ClaimScope::Resource { tenant, name } => {
                    let key = ResourceKey::new(tenant, &kind.name, name).ok()?;
                    let (priority, since) = self.entries.get(&key)?.rank?;
                    Some((priority, since, key))
                }
            }
        };
        self.queues(claimed, kinds).filter_map(first).min()
    }

    /// Removes and returns the resources that must be re-examined by now.
    pub(crate) fn take_due(&mut self, now: Millis) -> Vec<ResourceKey> {
        let mut due = Vec::new();
        while let Some((at, _)) = self.rechecks.first()
            && *at <= now
            && let Some((_, key)) = self.rechecks.pop_first()
        {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.recheck_at = None;
            }
            due.push(key);
        }
        due
    }

    /// Returns the next time at which a resource must be re-examined.
    #[must_use]
    pub fn next_due(&self) -> Option<Millis> {
        self.rechecks.first().map(|(at, _)| *at)
    }

    /// Returns the number of running jobs of a kind, over all tenants and of one.
    #[must_use]
    pub fn running_counts(&self, kind: &str, tenant: &str) -> (usize, usize) {
        let Some(queue) = self.kinds.get(kind) else { return (0, 0) };
        (queue.running, queue.tenants.get(tenant).map_or(0, |tenant| tenant.running))
    }

    /// Removes a resource from the index except for its running jobs, until its next update.
    pub(crate) fn exclude(&mut self, key: &ResourceKey) {
        if let Some(entry) = self.entries.get(key) {
            let running = entry.running;
            self.replace(key, IndexEntry { running, ..IndexEntry::default() });
        }
    }

    /// Returns `true` if a resource is ready.
    #[must_use]
    pub fn is_ready(&self, key: &ResourceKey) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.rank.is_some())
    }

    /// Returns the numbers of unfinished jobs of a group.
    #[must_use]
    pub fn group_counts(&self, tenant: &str, kind: &str, group: &str) -> GroupCounts {
        let queue = self.kinds.get(kind).and_then(|queue| queue.tenants.get(tenant));
        queue.and_then(|tenant| tenant.groups.get(group)).map_or_else(
            GroupCounts::default,
            |queue| GroupCounts { ready: queue.ready.len(), ..queue.counts },
        )
    }

    /// Returns the number of ready resources of a kind.
    #[must_use]
    pub fn ready_count(&self, kind: &str) -> usize {
        let Some(queue) = self.kinds.get(kind) else { return 0 };
        queue.tenants.values().map(|tenant| tenant.ready.len()).sum()
    }
}

impl IndexEntry {
    /// Returns the entry of a resource with unfinished jobs.
    fn new(record: &Record, resource: &Resource, kind: &Kind, now: Millis) -> Self {
        let (rank, recheck_at) = match record.next_job(kind, now) {
            NextJob::Ready { priority, since, recheck_at, .. } => {
                let newest_first = planted(Canary::NewestClaimedFirst);
                let since = if newest_first { Millis(u64::MAX - since.0) } else { since };
                (Some((Reverse(priority), since)), recheck_at)
            }
            NextJob::NotBefore(at) => (None, Some(at)),
            NextJob::None => (None, None),
        };
        let recheck_at = earliest(recheck_at, record.next_start_deadline(kind));
        let running = resource.running_count();
        let waiting = if kind.grouped { resource.lane.len() - running } else { 0 };
        Self { rank, recheck_at, running, waiting, grouped: kind.grouped }
    }

    /// Returns the group in which the entry is counted.
    fn group<'k>(&self, key: &'k ResourceKey) -> Option<&'k str> {
        key.group().filter(|_| self.grouped)
    }
}

fn earliest(a: Option<Millis>, b: Option<Millis>) -> Option<Millis> {
    a.into_iter().chain(b).min()
}

impl TenantQueue {
    /// Removes an entry from its group, or adds it.
    fn update_group(&mut self, key: &ResourceKey, entry: &IndexEntry, add: bool) {
        let Some(group) = entry.group(key) else { return };
        if !self.groups.contains_key(group) {
            self.groups.insert(group.into(), GroupQueue::default());
        }
        let queue = self.groups.get_mut(group).expect("inserted above");
        let counts = &mut queue.counts;
        if add {
            counts.running += entry.running;
            counts.waiting += entry.waiting;
        } else {
            counts.running -= entry.running;
            counts.waiting -= entry.waiting;
        }
        let ready = entry.rank.map(|(priority, since)| (priority, since, key.clone()));
        match ready {
            Some(ready) if add => {
                queue.ready.insert(ready);
            }
            Some(ready) => {
                queue.ready.remove(&ready);
            }
            None => {}
        }
        if queue.counts == GroupCounts::default() {
            self.groups.remove(group);
        }
    }

    /// Returns the sort key among tenants, if the tenant has ready resources.
    fn order_key(&self) -> Option<(usize, u64)> {
        (!self.ready.is_empty()).then_some((self.running, self.served))
    }
}

impl KindQueue {
    fn replace(&mut self, key: &ResourceKey, before: &IndexEntry, after: &IndexEntry) {
        self.running = self.running + after.running - before.running;
        self.update_tenant(key.tenant(), |tenant| {
            tenant.running = tenant.running + after.running - before.running;
            if let Some((priority, since)) = before.rank {
                tenant.ready.remove(&(priority, since, key.clone()));
            }
            if let Some((priority, since)) = after.rank {
                tenant.ready.insert((priority, since, key.clone()));
            }
            tenant.update_group(key, before, false);
            tenant.update_group(key, after, true);
        });
    }

    /// Changes the queue of one tenant and updates the order of tenants.
    fn update_tenant(&mut self, tenant: &str, change: impl FnOnce(&mut TenantQueue)) {
        let name: Text = match self.tenants.get_key_value(tenant) {
            Some((name, _)) => name.clone(),
            None => tenant.into(),
        };
        let tenant = self.tenants.entry(name.clone()).or_insert_with(|| {
            let served = self.idle_served.remove(&name).unwrap_or(0);
            TenantQueue { served, ..TenantQueue::default() }
        });
        let before = tenant.order_key();
        change(tenant);
        let after = tenant.order_key();
        if before != after {
            if let Some((running, served)) = before {
                self.order.remove(&(running, served, name.clone()));
            }
            if let Some((running, served)) = after {
                self.order.insert((running, served, name.clone()));
            }
        }
        if after.is_none() && tenant.running == 0 && tenant.groups.is_empty() {
            let served = tenant.served;
            self.tenants.remove(&name);
            if self.idle_served.len() >= IDLE_TENANTS_MAX {
                self.idle_served.clear();
            }
            if served > 0 {
                self.idle_served.insert(name, served);
            }
        }
    }

    fn mark_served(&mut self, tenant: &str, pick: u64) {
        if planted(Canary::TenantServedAgain) {
            return;
        }
        self.update_tenant(tenant, |tenant| tenant.served = pick);
    }

    /// Returns the first resource of each tenant that the caps allow to start one, in the order in
    /// which tenants are served.
    fn heads(&self, kind: &Kind) -> impl Iterator<Item = &ReadyKey> {
        // Tenants are ordered by running jobs: if one is at its cap, all behind it are.
        let tenants =
            self.order.iter().map_while(|(.., name)| self.tenant_with_capacity(name, kind));
        tenants.filter_map(|tenant| tenant.ready.first())
    }

    /// Returns the queue of a tenant, unless the caps of the kind let nothing of it start.
    fn tenant_with_capacity(&self, tenant: &str, kind: &Kind) -> Option<&TenantQueue> {
        if kind.running_max.is_some_and(|max| self.running >= max) {
            return None;
        }
        let within =
            |tenant: &&TenantQueue| kind.tenant_running_max.is_none_or(|max| tenant.running < max);
        self.tenants.get(tenant).filter(within)
    }
}
