//! The status of a deployment, summarized from the census of its store.
//!
//! Servers answer `GET /v1/status` with it, and [`Client::status`](crate::Client::status) of a
//! store in this process returns it.

use std::collections::BTreeMap;

use tenure_core::JobState;
use tenure_core::session::ALL_TENANTS;
use tenure_core::why::HumanDuration;
use tenure_store::census::{Census, Group};
use tenure_store::store::{Status, WorkerView};

use crate::client::{SYSTEM_TENANT, tenant_option};
use crate::wire::{AttentionInfo, JobCountsInfo, LockCountsInfo, StatusResponse, WorkerCountsInfo};

/// Maximum number of kinds that are listed for each condition.
const KINDS_MAX: usize = 10;

/// Returns the status of one tenant, or of all tenants if `tenant` is `*`. The locks that Tenure
/// keeps for itself are counted only for [`SYSTEM_TENANT`].
#[must_use]
pub fn summarize(
    tenant: &str,
    status: &Status,
    census: &Census,
    workers: &[WorkerView],
) -> StatusResponse {
    let is_visible =
        |owner: &str| owner == tenant || (tenant == ALL_TENANTS && owner != SYSTEM_TENANT);
    let groups: Vec<_> = census.groups().filter(|(owner, _, _)| is_visible(owner)).collect();
    let mut total = Group::default();
    groups.iter().for_each(|(_, _, group)| total.merge(group));
    // A worker of all tenants also works for this one.
    let works = |worker: &&WorkerView| *worker.tenant == *ALL_TENANTS || is_visible(&worker.tenant);
    let workers: Vec<&WorkerView> = workers.iter().filter(works).collect();
    let runs = |worker: &&&WorkerView| worker.jobs.iter().any(|(key, _)| is_visible(key.tenant()));
    let mut attention: Vec<_> = lost_work(&total).into_iter().flatten().collect();
    attention.extend(overdue(&groups));
    attention.extend(old_locks(&groups));
    attention.extend(without_worker(&groups, &workers));
    let option = tenant_option(tenant);
    attention.iter_mut().for_each(|condition| condition.command.push_str(&option));
    StatusResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_ms: None,
        store: status.store.to_owned(),
        safety: status.safety.as_str().to_owned(),
        incarnation: status.incarnation.0,
        tenant: tenant.to_owned(),
        locks: LockCountsInfo { held: total.locks, stale: total.stale, waiters: total.waiters },
        jobs: JobCountsInfo {
            running: total.jobs(JobState::Running) + total.jobs(JobState::Cancelling),
            queued: total.jobs(JobState::Queued),
            backoff: total.jobs(JobState::Backoff),
            dead: total.jobs(JobState::Dead),
            queue_oldest_ms: total.queue_oldest_ms,
        },
        workers: WorkerCountsInfo {
            sessions: workers.len(),
            busy: workers.iter().filter(runs).count(),
        },
        attention,
    }
}

/// Returns the dead letters and the stale locks.
fn lost_work(total: &Group) -> [Option<AttentionInfo>; 2] {
    let dead = total.jobs(JobState::Dead);
    let oldest = HumanDuration(total.dead_oldest_ms);
    let letters = if dead == 1 { "dead letter" } else { "dead letters" };
    let dead_letters = (dead > 0).then(|| {
        let text = format!("{dead} {letters}, the oldest since {oldest}");
        attention("dead_letters", text, "tenure dead ls".to_owned())
    });
    let stale = total.stale;
    let locks = if stale == 1 { "lock is" } else { "locks are" };
    let stale_locks = (stale > 0).then(|| {
        let text = format!("{stale} {locks} held by an expired session that was not ended yet");
        attention("stale_locks", text, "tenure lock ls".to_owned())
    });
    [dead_letters, stale_locks]
}

/// Returns the kinds with attempts that exceed the time limit of their operation.
fn overdue(groups: &[(&str, &str, &Group)]) -> impl Iterator<Item = AttentionInfo> {
    let exceeded = groups.iter().filter(|(_, _, group)| group.age_ratio.is_some_and(|r| r > 1.0));
    let kinds: BTreeMap<&str, ()> = exceeded.map(|(_, kind, _)| (*kind, ())).collect();
    kinds.into_keys().take(KINDS_MAX).map(|kind| {
        let text = format!("an attempt of kind {kind} has exceeded its time limit");
        attention("overdue", text, format!("tenure job ls --kind {kind} --state running"))
    })
}

/// Returns the kinds with locks that are held for longer than their maximum age.
fn old_locks(groups: &[(&str, &str, &Group)]) -> impl Iterator<Item = AttentionInfo> {
    let old = |group: &Group| group.lock_max_age_ratio.is_some_and(|ratio| ratio > 1.0);
    let exceeded = groups.iter().filter(|(_, _, group)| old(group));
    let kinds: BTreeMap<&str, ()> = exceeded.map(|(_, kind, _)| (*kind, ())).collect();
    kinds.into_keys().take(KINDS_MAX).map(|kind| {
        let text = format!("a lock of kind {kind} is held for longer than its maximum age");
        attention("old_locks", text, format!("tenure lock ls --kind {kind}"))
    })
}

/// Returns the kinds with queued jobs of a tenant for which no worker claims them.
fn without_worker(
    groups: &[(&str, &str, &Group)],
    workers: &[&WorkerView],
) -> impl Iterator<Item = AttentionInfo> {
    let claims = |tenant: &str, kind: &str, worker: &WorkerView| {
        (*worker.tenant == *ALL_TENANTS || *worker.tenant == *tenant)
            && worker.kinds.iter().any(|claimed| **claimed == *kind)
    };
    let mut kinds: BTreeMap<&str, Group> = BTreeMap::new();
    for (tenant, kind, group) in groups {
        let is_claimed = workers.iter().any(|worker| claims(tenant, kind, worker));
        if group.jobs(JobState::Queued) > 0 && !is_claimed {
            kinds.entry(kind).or_default().merge(group);
        }
    }
    kinds.into_iter().take(KINDS_MAX).map(|(kind, group)| {
        let queued = group.jobs(JobState::Queued);
        let jobs = if queued == 1 { "queued job" } else { "queued jobs" };
        let oldest = HumanDuration(group.queue_oldest_ms);
        let text = format!(
            "{queued} {jobs} of kind {kind}, the oldest due for {oldest}, and no worker claims them"
        );
        attention("no_worker", text, format!("tenure job ls --kind {kind} --state queued"))
    })
}

fn attention(code: &str, text: String, command: String) -> AttentionInfo {
    AttentionInfo { code: code.to_owned(), text, command }
}

#[cfg(test)]
mod tests {
    use tenure_core::{
        Acquire, Claim, Claimant, Command, LockAction, LockName, RequestId, ResourceAction,
        ResourceKey, SessionId, Submit,
    };
    use tenure_store::clock::ManualClock;
    use tenure_store::{Memory, Store, scenario};

    use super::*;

    fn submit(name: &str, request: u128) -> Command {
        let submit = Submit {
            request: RequestId(request),
            operation: "create".into(),
            args: None,
            priority: 0,
            run_at: None,
            by: "ann".into(),
            precondition: None,
        };
        let key = ResourceKey::new("acme", "cluster", name).expect("a valid name");
        Command::Resource { key, action: ResourceAction::Submit(submit) }
    }

    /// Runs one job in a session that expires before the time limit of the job, and queues another.
    async fn store_with_jobs(clock: &ManualClock) -> Memory {
        let store = Memory::with_clock(clock.clone());
        store.declare(scenario::kinds()).await.expect("in memory");
        let session = SessionId(1);
        let (tenant, name) = ("acme".into(), "w1".into());
        let (kinds, request) = (vec!["cluster".into()], RequestId(2));
        let commands = vec![
            Command::Open { session, tenant, name, ttl_ms: 30_000 },
            submit("c1", 1),
            Command::Claim(Claim { session, request, kinds, max: 1, tenant: None, only: None }),
            submit("c2", 3),
        ];
        store.apply(commands).await.expect("in memory");
        store
    }

    async fn status_of(store: &Memory, tenant: &str) -> StatusResponse {
        let status = store.status().await.expect("in memory");
        let census = store.reads().census().await.expect("in memory");
        let workers = store.reads().workers().await.expect("in memory");
        summarize(tenant, &status, &census, &workers)
    }

    fn codes(status: &StatusResponse) -> Vec<&str> {
        status.attention.iter().map(|condition| &*condition.code).collect()
    }

    #[tokio::test]
    async fn stale_locks_overdue_attempts_and_jobs_without_a_worker_need_attention() {
        let clock = ManualClock::default();
        let store = store_with_jobs(&clock).await;
        let status = status_of(&store, "acme").await;
        assert_eq!(codes(&status), Vec::<&str>::new());
        assert_eq!((status.jobs.running, status.jobs.queued), (1, 1));
        assert_eq!((status.workers.sessions, status.workers.busy), (1, 1));
        // The time limit is a minute. Nothing sweeps the expired session.
        clock.advance(90_000);
        let status = status_of(&store, "*").await;
        assert_eq!(codes(&status), ["stale_locks", "overdue", "no_worker"]);
        assert_eq!((status.locks.held, status.locks.stale, status.workers.sessions), (1, 1, 0));
        let texts: Vec<_> = status.attention.iter().map(|condition| &*condition.text).collect();
        assert_eq!(texts[1], "an attempt of kind cluster has exceeded its time limit");
        assert_eq!(
            texts[2],
            "1 queued job of kind cluster, the oldest due for 1 min 30 s, and no worker claims them"
        );
        let commands = |status: &StatusResponse| {
            status.attention.iter().map(|one| one.command.clone()).collect::<Vec<_>>()
        };
        let expected = |option: &str| {
            let jobs = "tenure job ls --kind cluster --state";
            [
                format!("tenure lock ls{option}"),
                format!("{jobs} running{option}"),
                format!("{jobs} queued{option}"),
            ]
        };
        assert_eq!(commands(&status), expected(" --tenant '*'"));
        assert_eq!(commands(&status_of(&store, "acme").await), expected(" --tenant acme"));
        assert_eq!(tenant_option("default"), "");
    }

    #[tokio::test]
    async fn locks_past_their_maximum_age_need_attention() {
        let clock = ManualClock::default();
        let store = Memory::with_clock(clock.clone());
        let acquire = |name: &str, request, max_age_ms| {
            let acquire = Acquire {
                locks: LockName::main().into(),
                claimant: Claimant::Solo { name: "ann".into(), ttl_ms: 600_000 },
                request: RequestId(request),
                wait_ms: 0,
                purpose: None,
                max_age_ms,
                tenant: None,
            };
            let key = ResourceKey::new("acme", "backup", name).expect("a valid name");
            Command::Lock { key, action: LockAction::Acquire(acquire) }
        };
        let commands = vec![acquire("b1", 1, Some(60_000)), acquire("b2", 2, None)];
        store.apply(commands).await.expect("in memory");
        clock.advance(60_000);
        assert_eq!(codes(&status_of(&store, "acme").await), Vec::<&str>::new());
        clock.advance(1);
        let status = status_of(&store, "acme").await;
        assert_eq!(codes(&status), ["old_locks"]);
        assert_eq!(status.attention[0].command, "tenure lock ls --kind backup --tenant acme");
        assert_eq!(codes(&status_of(&store, "other").await), Vec::<&str>::new());
    }

    #[tokio::test]
    async fn a_tenant_sees_only_its_own_counts() {
        let clock = ManualClock::default();
        let store = store_with_jobs(&clock).await;
        clock.advance(90_000);
        let status = status_of(&store, "other").await;
        assert_eq!(codes(&status), Vec::<&str>::new());
        assert_eq!(status.locks, LockCountsInfo::default());
        assert_eq!(status.jobs, JobCountsInfo::default());
        assert_eq!(status.workers, WorkerCountsInfo::default());
    }
}
