//! Cases about resources of which nothing remains but the token floor of their kind.

use tenure_core::{
    Acquire, Claimant, Command, Finish, JobAction, LockAction, LockName, Outcome, RequestId,
    ResourceAction, ResourceKey, Token, limits,
};

use super::jobs::{claim, claimed, key, prepare, submit};
use super::{Harness, apply_one, open};
use crate::store::{HistoryQuery, PAGE_MAX, Retention, Store};
use crate::verify::verify;

/// Keeps jobs and dead letters; history is past its retention as soon as it is a second old.
const SHORT_HISTORY: Retention =
    Retention { jobs_ms: u64::MAX, dead_ms: u64::MAX, history_ms: 1_000, rows_max: 7 };
/// Keeps everything but what is of ephemeral kinds.
const KEEP_ALL: Retention = Retention { history_ms: u64::MAX, ..SHORT_HISTORY };

fn acquire(key: &ResourceKey, request: u128) -> Command {
    let ttl_ms = limits::TTL_MS_MAX;
    let acquire = Acquire {
        locks: LockName::main().into(),
        claimant: Claimant::Solo { name: "A".into(), ttl_ms },
        request: RequestId(request),
        wait_ms: 0,
        purpose: None,
        max_age_ms: None,
        tenant: None,
    };
    Command::Lock { key: key.clone(), action: LockAction::Acquire(acquire) }
}

async fn granted(store: &dyn Store, key: &ResourceKey, request: u128) -> Token {
    match apply_one(store, acquire(key, request)).await {
        Outcome::Granted(view) => view.token,
        other => panic!("{other:?} is not a grant"),
    }
}

pub(super) async fn acquire_and_release(
    store: &dyn Store,
    key: &ResourceKey,
    request: u128,
) -> Token {
    let token = granted(store, key, request).await;
    let action = LockAction::Release { token, locks: None, to: None };
    apply_one(store, Command::Lock { key: key.clone(), action }).await;
    token
}

/// Prunes until nothing is left to prune, as the janitor does. Returns the number of resources.
pub(super) async fn prune_all(harness: &mut impl Harness, retention: Retention) -> usize {
    let store = harness.store();
    // A store may write rows back later than history; idle sweeps catch up.
    for _ in 0..3 {
        harness.clock().advance(1);
        store.sweep().await.expect("the store is available");
    }
    let (mut resources, mut idle_calls) = (0, 0);
    while idle_calls < 3 {
        let pruned = store.prune(retention).await.expect("the store is available");
        assert!(pruned.resources <= retention.rows_max, "{pruned:?} exceeds rows_max");
        resources += pruned.resources;
        let idle = pruned.resources + pruned.jobs + pruned.lines == 0;
        idle_calls = if idle { idle_calls + 1 } else { 0 };
    }
    resources
}

async fn keys(store: &dyn Store) -> Vec<String> {
    let keys = store.reads().keys(None, PAGE_MAX).await.expect("the store is available");
    keys.iter().map(|key| key.name().to_owned()).collect()
}

async fn history_len(store: &dyn Store, key: &ResourceKey) -> usize {
    let query = HistoryQuery::Of { key: key.clone(), before: None, limit: PAGE_MAX };
    store.reads().history(query).await.expect("the store is available").len()
}

/// Locks of random names leave no rows behind. Their tokens go on when a name is used again.
pub async fn a_forgotten_lock_leaves_no_row_and_its_tokens_go_on(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    for n in 0..20 {
        acquire_and_release(&*store, &key("free", &format!("n{n:02}")), 100 + n).await;
    }
    let used = key("free", "n00");
    for n in 0..3 {
        let request = 200 + u128::from(n);
        assert_eq!(acquire_and_release(&*store, &used, request).await, Token(2 + n));
    }
    let withdrawn = key("free", "withdrawn");
    let action = LockAction::Withdraw { request: RequestId(300) };
    apply_one(&*store, Command::Lock { key: withdrawn, action }).await;
    let held = key("free", "held");
    granted(&*store, &held, 301).await;

    // A request that may still be repeated keeps its row.
    harness.clock().advance(2_000);
    assert_eq!(prune_all(harness, SHORT_HISTORY).await, 0);
    assert_eq!(keys(&*store).await.len(), 22);

    harness.clock().advance(limits::RECENT_TTL_MS + 1);
    assert_eq!(prune_all(harness, SHORT_HISTORY).await, 21);
    assert_eq!(keys(&*store).await, ["held"]);
    assert_eq!(history_len(&*store, &used).await, 0);
    assert_eq!(granted(&*store, &used, 400).await, Token(5), "the floor is that of the kind");
    assert_eq!(granted(&*store, &key("free", "new"), 401).await, Token(5));
    assert_eq!(granted(&*store, &key("other", "new"), 402).await, Token(1));
    assert_eq!(verify(&*store).await.expect("the store is available").problems, []);
    assert_eq!(keys(&*store).await, ["held", "n00", "new", "new"]);
}

/// A deleted resource of an ephemeral kind leaves with its jobs and its history, others stay.
pub async fn an_ephemeral_resource_leaves_with_its_jobs_and_history(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    let run = |n: u128, key: ResourceKey, operation: &'static str| {
        let store = harness.store();
        async move {
            apply_one(&*store, submit(&key, operation, 1_000 + n)).await;
            let (id, token) = claimed(&*store, claim(key.kind(), 2_000 + n, 1)).await[0];
            let finish = Finish::Ok { state: None, result: None };
            let action = JobAction::Finish { token, finish, update: None };
            apply_one(&*store, Command::Job { id, action }).await;
            id
        }
    };
    let (gone, kept) = (key("check", "b1:gone"), key("check", "b1:kept"));
    let lasting = key("task", "deleted");
    let gone_job = run(1, gone.clone(), "run").await;
    run(2, kept.clone(), "run").await;
    let lasting_job = run(3, lasting.clone(), "work").await;
    for key in [&gone, &lasting] {
        let action = ResourceAction::Delete { by: "A".into(), precondition: None };
        let command = Command::Resource { key: key.clone(), action };
        assert_eq!(apply_one(&*store, command).await, Outcome::Deleted);
    }
    assert_eq!(prune_all(harness, KEEP_ALL).await, 0);
    harness.clock().advance(600_001);
    assert_eq!(prune_all(harness, KEEP_ALL).await, 1);
    assert_eq!(keys(&*store).await, ["b1:kept", "deleted"]);
    assert_eq!(history_len(&*store, &gone).await, 0);
    assert!(history_len(&*store, &lasting).await > 0);
    for (id, exists) in [(gone_job, false), (lasting_job, true)] {
        let job = store.reads().job(id).await.expect("the store is available");
        assert_eq!(job.is_some(), exists, "{job:?}");
    }
    // The name can be used again, and the new history verifies.
    apply_one(&*store, open(1, "W")).await;
    let session = tenure_core::SessionId(9);
    let (tenant, name) = ("t".into(), "V".into());
    apply_one(&*store, Command::Open { session, tenant, name, ttl_ms: 10_000 }).await;
    apply_one(&*store, submit(&gone, "run", 3_000)).await;
    let again = tenure_core::Claim { session, ..claim("check", 3_001, 1) };
    assert_eq!(claimed(&*store, again).await[0].1, Token(2));
    assert_eq!(verify(&*store).await.expect("the store is available").problems, []);
}

/// Token floors survive a restart.
pub async fn token_floors_survive_a_restart(harness: &mut impl Harness) {
    let lock = key("free", "n1");
    for n in 0..5 {
        acquire_and_release(&*harness.store(), &lock, 100 + n).await;
    }
    harness.clock().advance(limits::RECENT_TTL_MS + 1_001);
    assert_eq!(prune_all(harness, SHORT_HISTORY).await, 1);
    harness.restart().await;
    assert_eq!(keys(&*harness.store()).await, [""; 0]);
    assert_eq!(granted(&*harness.store(), &key("free", "n2"), 200).await, Token(6));
    harness.restart().await;
    assert_eq!(granted(&*harness.store(), &lock, 201).await, Token(6));
}
