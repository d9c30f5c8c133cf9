//! Order of claims: a claim starts no job behind a ready one of the same kind and tenant, and
//! workers of all tenants serve tenants in turn.
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
            for start in starts.iter().filter(|start| start.claim.is_some()) {
                check_rank(start, &ready, stats)?;
                self.check_turn(start, &ready, batch, stats)?;
            }
        }
        let number = batch.applied.number;
        self.written.extend(batch.applied.batch.records.iter().map(|key| (group(key), number)));
        self.served.extend(starts.iter().map(|start| (group(start.key), number)));
        self.started.extend(starts.iter().map(|start| start.rank));
        Ok(())
    }

    /// Discards what a restarted server does not remember.
    pub(crate) fn server_started(&mut self) {
        self.served.clear();
        self.written.clear();
    }

    /// Checks that a worker of all tenants served the tenant with the fewest running jobs, or of
    /// those the one that was served longest ago.
    fn check_turn(
        &self,
        start: &Start<'_>,
        ready: &[Ready<'_>],
        batch: &ClaimBatch<'_>,
        stats: &mut Stats,
    ) -> CheckResult {
        let session = start.claim.and_then(|claim| batch.world.sessions.get(claim.session));
        if session.is_none_or(|session| *session.tenant != *ALL_TENANTS) {
            return Ok(());
        }
        let written: BTreeSet<Group> = batch.applied.batch.records.iter().map(group).collect();
        let (kind, served) = group(start.key);
        let other = |ready: &&Ready<'_>| {
            *ready.key.kind() == *kind
                && *ready.key.tenant() != *served
                && !written.contains(&group(ready.key))
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
