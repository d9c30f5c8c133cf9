//! Order of claims: a claim starts no job behind a ready one of the same tenant, and workers of all
//! tenants serve kinds in turn, and the tenants of a kind.
//!
//! The expected order is derived from records and history, never from the ready index. The commands
//! of a batch have no known order, so a claim is judged only by jobs that were ready during the
//! whole batch. [`crate::job_checks`] uses the ranks of started jobs to judge how long one waits.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use tenure_core::history::Event;
use tenure_core::lane::NextJob;
use tenure_core::session::ALL_TENANTS;
use tenure_core::{
    Claim, Command, Job, JobId, Kinds, Millis, Record, RequestId, ResourceKey, SessionId, Token,
    World,
};

use crate::oracle::CheckResult;
use crate::server::Applied;
use crate::stats::Stats;

/// Place of a job among the ready jobs of its kind and tenant: the lowest starts first.
pub(crate) type Rank = (Reverse<i32>, Millis);

/// Kind and tenant.
type Group = (String, String);

/// What is known of the order of claims since the server started.
#[derive(Debug, Default)]
pub(crate) struct ClaimOrder {
    /// Batch of the last start of each group.
    served: BTreeMap<Group, u64>,
    /// Last batch that wrote a record of each group. A claim that picks a resource on which nothing
    /// can start counts as service, and has no other trace.
    written: BTreeMap<Group, u64>,
    /// Batch of the last start of each kind by an unrestricted claim of a worker of all tenants.
    kind_served: BTreeMap<String, u64>,
    /// Ranks of the jobs that were started since the last check of progress.
    pub(crate) started: Vec<Rank>,
}

/// A batch, and the states around it.
pub(crate) struct ClaimBatch<'a> {
    pub(crate) applied: &'a Applied,
    pub(crate) events: &'a [(ResourceKey, Event)],
    pub(crate) before: &'a BTreeMap<ResourceKey, Record>,
    pub(crate) world: &'a World,
    pub(crate) kinds: &'a Kinds,
}

/// The start of a job.
struct Start<'a> {
    key: &'a ResourceKey,
    job: JobId,
    rank: Rank,
    /// Claim that started it, if it is not restricted.
    claim: Option<&'a Claim>,
}

/// A job that is ready during a whole batch.
struct Ready<'a> {
    key: &'a ResourceKey,
    job: JobId,
    rank: Rank,
}

impl ClaimOrder {
    /// Checks the jobs that a batch started.
    pub(crate) fn check_batch(&mut self, batch: &ClaimBatch<'_>, stats: &mut Stats) -> CheckResult {
        let starts = batch.starts();
        if !starts.is_empty() {
            let ready = batch.ready_jobs();
            for (start, claim) in starts.iter().filter_map(|start| Some((start, start.claim?))) {
                check_rank(start, &ready, stats)?;
                self.check_kind(start, claim, &ready, batch, stats)?;
                self.check_turn(start, claim, &ready, batch, stats)?;
            }
        }
        let number = batch.applied.number;
        self.written.extend(batch.applied.batch.records.iter().map(|key| (group(key), number)));
        self.served.extend(starts.iter().map(|start| (group(start.key), number)));
        self.started.extend(starts.iter().map(|start| start.rank));
        let chose_kind = |start: &&Start<'_>| start.claim.is_some_and(|it| batch.serves_all(it));
        let kinds = starts.iter().filter(chose_kind).map(|start| start.key.kind().to_owned());
        self.kind_served.extend(kinds.map(|kind| (kind, number)));
        Ok(())
    }

    /// Discards what a restarted server does not remember.
    pub(crate) fn server_started(&mut self) {
        self.served.clear();
        self.written.clear();
        self.kind_served.clear();
    }

    /// Checks that a claim of several kinds started no job behind one of the same tenant, and that
    /// a worker of all tenants served the kind that was served longest ago.
    fn check_kind(
        &self,
        start: &Start<'_>,
        claim: &Claim,
        ready: &[Ready<'_>],
        batch: &ClaimBatch<'_>,
        stats: &mut Stats,
    ) -> CheckResult {
        let serves_all = batch.serves_all(claim);
        let (kind, tenant) = group(start.key);
        let last_start = self.kind_served.get(&kind).copied().unwrap_or(0);
        let other = |ready: &&Ready<'_>| {
            let name = ready.key.kind();
            *name != *kind && claim.kinds.iter().any(|of| **of == *name) && batch.is_open(ready.key)
        };
        for waiting in ready.iter().filter(other) {
            let is_same_tenant = *waiting.key.tenant() == *tenant;
            let overtakes = if is_same_tenant {
                // If another tenant is ready as well, it may be the turn of that one.
                let is_its_turn = ready.iter().all(|ready| {
                    ready.key.kind() != waiting.key.kind() || *ready.key.tenant() == *tenant
                });
                stats.kind_priorities += u64::from(is_its_turn);
                (is_its_turn || !serves_all) && waiting.rank < start.rank
            } else {
                let is_judged = serves_all && !batch.may_be_passed_over(waiting.key, claim, ready);
                stats.kind_turns += u64::from(is_judged);
                is_judged && self.last_service(waiting.key.kind()) < last_start
            };
            if overtakes {
                let (started, key, overtaken) = (start.job, start.key, waiting.job);
                let why = if is_same_tenant { "overtook ready job" } else { "took the turn of" };
                return Err(format!(
                    "job {started} of {key} {why} {overtaken} of {}, of another kind",
                    waiting.key
                ));
            }
        }
        Ok(())
    }

    /// Returns the last batch in which a kind may have been served.
    fn last_service(&self, kind: &str) -> u64 {
        let of_kind = self.written.iter().filter(|((name, _), _)| *name == kind);
        of_kind.map(|(_, batch)| *batch).max().unwrap_or(0)
    }

    /// Checks that a worker of all tenants served the tenant with the fewest running jobs, or of
    /// those the one that was served longest ago.
    fn check_turn(
        &self,
        start: &Start<'_>,
        claim: &Claim,
        ready: &[Ready<'_>],
        batch: &ClaimBatch<'_>,
        stats: &mut Stats,
    ) -> CheckResult {
        if !batch.serves_all(claim) {
            return Ok(());
        }
        let (kind, served) = group(start.key);
        let other = |waiting: &&Ready<'_>| {
            *waiting.key.kind() == *kind
                && *waiting.key.tenant() != *served
                && !batch.wrote(waiting.key.tenant(), &kind)
                && !batch.may_be_passed_over(waiting.key, claim, ready)
        };
        // Attempts that end in the batch may have ended before the start.
        let running = batch.running(&kind, &served) - batch.ended(&kind, &served);
        let last_start = self.served.get(&(kind.clone(), served.clone())).copied().unwrap_or(0);
        for waiting in ready.iter().filter(other) {
            stats.tenant_turns += 1;
            let others = batch.running(&kind, waiting.key.tenant());
            let last_service = self.written.get(&group(waiting.key)).copied().unwrap_or(0);
            if running > others || running == others && last_start > last_service {
                let (started, key, overtaken) = (start.job, start.key, waiting.job);
                return Err(format!(
                    "job {started} of {key} was claimed out of turn: {overtaken} of {} is ready",
                    waiting.key
                ));
            }
        }
        Ok(())
    }
}

/// Checks that a start did not overtake a ready job of its kind and tenant.
fn check_rank(start: &Start<'_>, ready: &[Ready<'_>], stats: &mut Stats) -> CheckResult {
    let same_group = |ready: &&Ready<'_>| group(ready.key) == group(start.key);
    for waiting in ready.iter().filter(same_group) {
        stats.ordered_starts += 1;
        if waiting.rank < start.rank {
            let (started, key, overtaken) = (start.job, start.key, waiting.job);
            return Err(format!(
                "job {started} of {key} overtook ready job {overtaken} of {}",
                waiting.key
            ));
        }
    }
    Ok(())
}

impl<'a> ClaimBatch<'a> {
    /// Returns the jobs that were started, except those that a later command of the batch hides.
    fn starts(&self) -> Vec<Start<'a>> {
        let mut starts = Vec::new();
        for (key, event) in self.events {
            let Event::Granted { job: Some(started), token, session, request, .. } = event else {
                continue;
            };
            if let Some(rank) = self.rank_of_running(key, started.id, *token) {
                let claim = self.unrestricted_claim(*session, *request);
                starts.push(Start { key, job: started.id, rank, claim });
            }
        }
        starts
    }

    fn rank_of_running(&self, key: &ResourceKey, id: JobId, token: Token) -> Option<Rank> {
        let job = self.world.records.get(key)?.job(id)?;
        (job.token() == Some(token)).then(|| rank(job))
    }

    fn unrestricted_claim(&self, session: SessionId, request: RequestId) -> Option<&'a Claim> {
        self.applied.replies.iter().find_map(|reply| match &*reply.command {
            Command::Claim(claim) if claim.session == session && claim.request == request => {
                claim.only.is_none().then_some(claim)
            }
            _ => None,
        })
    }

    /// Returns whether a claim that is not restricted may take the jobs of all tenants.
    fn serves_all(&self, claim: &Claim) -> bool {
        let session = self.world.sessions.get(claim.session);
        session.is_some_and(|session| *session.tenant == *ALL_TENANTS)
    }

    /// Returns whether the batch wrote a record of a tenant and kind.
    fn wrote(&self, tenant: &str, kind: &str) -> bool {
        self.applied.batch.records.iter().any(|key| is_in(key, kind, tenant))
    }

    /// Returns whether the caps allow to start a job of a resource during the whole batch.
    fn is_open(&self, key: &ResourceKey) -> bool {
        let Some(kind) = self.kinds.get(key.kind()) else { return false };
        let names: BTreeSet<&str> = self.before.keys().map(ResourceKey::tenant).collect();
        let running: usize = names.iter().map(|tenant| self.running(key.kind(), tenant)).sum();
        self.applied.batch.records.iter().all(|written| written.kind() != key.kind())
            && kind.running_max.is_none_or(|max| running < max)
            && kind
                .tenant_running_max
                .is_none_or(|max| self.running(key.kind(), key.tenant()) < max)
    }

    /// Returns whether a claim may pass over the tenant of a ready resource in its kind, because
    /// the tenant has a job in another of the claimed kinds that has to start first.
    fn may_be_passed_over(&self, key: &ResourceKey, claim: &Claim, ready: &[Ready<'_>]) -> bool {
        let first = |kind: &str| {
            let of_kind = ready.iter().filter(|ready| is_in(ready.key, kind, key.tenant()));
            of_kind.map(|ready| ready.rank).min()
        };
        let Some(head) = first(key.kind()) else { return true };
        let others = claim.kinds.iter().filter(|kind| ***kind != *key.kind());
        others.into_iter().any(|kind| {
            self.wrote(key.tenant(), kind) || first(kind).is_some_and(|rank| rank <= head)
        })
    }

    /// Returns the next jobs of the resources that the batch did not change.
    fn ready_jobs(&self) -> Vec<Ready<'a>> {
        let written: BTreeSet<&ResourceKey> = self.applied.batch.records.iter().collect();
        let mut ready = Vec::new();
        for (key, record) in self.before.iter().filter(|(key, _)| !written.contains(key)) {
            let Some(kind) = self.kinds.get(key.kind()) else { continue };
            if let NextJob::Ready { job, priority, since, .. } =
                record.next_job(kind, self.applied.now)
            {
                ready.push(Ready { key, job, rank: (Reverse(priority), since) });
            }
        }
        ready
    }

    /// Returns the number of jobs of a group that ran before the batch.
    fn running(&self, kind: &str, tenant: &str) -> usize {
        let of_group = self.before.iter().filter(|(key, _)| is_in(key, kind, tenant));
        let resources = of_group.filter_map(|(_, record)| record.resource.as_ref());
        resources.map(|resource| resource.running_count()).sum()
    }

    /// Returns the number of those that ended in the batch.
    fn ended(&self, kind: &str, tenant: &str) -> usize {
        let ran = |key: &ResourceKey, id: JobId| {
            let job = self.before.get(key).and_then(|record| record.job(id));
            job.is_some_and(|job| job.state.is_running())
        };
        let ended = self.events.iter().filter_map(|(key, event)| match event {
            Event::Ended { job: Some(end), .. } if ran(key, end.id) => Some((key, end.id)),
            _ => None,
        });
        let ended: BTreeSet<_> = ended.filter(|(key, _)| is_in(key, kind, tenant)).collect();
        ended.len()
    }
}

fn rank(job: &Job) -> Rank {
    (Reverse(job.priority), job.due.max(job.submitted_at))
}

fn group(key: &ResourceKey) -> Group {
    (key.kind().to_owned(), key.tenant().to_owned())
}

fn is_in(key: &ResourceKey, kind: &str, tenant: &str) -> bool {
    key.kind() == kind && key.tenant() == tenant
}
