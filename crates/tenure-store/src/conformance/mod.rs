//! Conformance suite of all stores and decorators.
//!
//! A store provides a [`Harness`]; [`crate::store_conformance`] expands to one test per scenario
//! and case, so that a failure names the store and the behaviour.

mod forget;
mod groups;
mod incremental;
mod jobs;
mod keys;
mod observability;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::history::Entry;
use tenure_core::resource::Resource;
use tenure_core::{
    Acquire, Claimant, Command, Job, JobId, LockAction, LockName, Millis, Outcome, RequestId,
    ResourceKey, SessionId, Token,
};

use crate::clock::{Clock, ManualClock};
use crate::committer::Committer;
use crate::scenario::{self, Driver};
use crate::store::{Hint, HistoryQuery, PAGE_MAX, Store, TenureQuery};
use crate::verify::verify;
pub use forget::*;
pub use groups::*;
pub use incremental::*;
pub use jobs::*;
pub use keys::*;
pub use observability::*;

/// Store under test with a manual clock.
#[async_trait]
pub trait Harness: Send + Sync {
    /// Creates an empty store.
    async fn fresh() -> Self
    where
        Self: Sized;
    /// Returns the store.
    fn store(&self) -> Arc<dyn Store>;
    /// Returns the clock of the store.
    fn clock(&self) -> &ManualClock;
    /// Restarts the store on the same rows. Called for durable stores only.
    async fn restart(&mut self);
}

/// Expands to the tests of a store: `store_conformance!(memory, MemoryHarness)`. A third argument
/// `durable` adds the tests of stores that survive a restart; `shared` those of durable stores that
/// other servers may use during the restart.
#[macro_export]
macro_rules! store_conformance {
    ($module:ident, $harness:ty) => {
        mod $module {
            use super::*;
            $crate::for_each_scenario!([$crate::conformance_tests] $harness, scenario:);
            $crate::conformance_tests!($harness, case:
                commands_of_a_batch_are_applied_in_order,
                tenures_are_listed_in_pages_without_gaps,
                concurrent_acquires_get_the_lock_one_after_another,
                resources_are_shown_with_their_queue,
                history_is_read_backwards_in_pages,
                the_sweep_hands_over_locks_of_expired_sessions,
                verify_accepts_a_valid_history,
                api_keys_are_stored_used_and_revoked,
                servers_share_a_secret,
                signed_out_cookies_are_kept_until_they_expire,
                a_thousand_concurrent_submits_make_one_job,
                a_submit_returns_the_job_that_a_read_returns,
                a_blocked_lane_delays_no_other_lane,
                a_claim_waits_for_work,
                jobs_are_listed_in_pages_without_gaps,
                resources_with_a_state_are_listed,
                lists_are_restricted_to_a_group,
                jobs_of_a_group_are_counted,
                logs_are_fenced_and_bounded,
                pruning_leaves_what_verify_needs,
                a_forgotten_lock_leaves_no_row_and_its_tokens_go_on,
                an_ephemeral_resource_leaves_with_its_jobs_and_history,
                a_growing_history_is_verified_while_it_is_pruned,
                a_forgotten_resource_that_is_used_again_verifies,
                workers_are_listed_with_their_jobs,
                every_fact_is_reported_once,
                a_census_counts_locks_waiters_and_jobs,
                a_census_of_several_pages_is_complete,
                the_age_of_every_held_lock_is_measured,
                attaching_is_reported_and_a_resource_can_override_limits,
            );
        }
    };
    ($module:ident, $harness:ty, durable) => {
        $crate::store_conformance!($module, $harness, shared);
        mod single_server {
            use super::*;
            $crate::conformance_tests!($harness, scenario:
                a_restart_renews_every_session,
            );
        }
    };
    ($module:ident, $harness:ty, shared) => {
        $crate::store_conformance!($module, $harness);
        mod durable {
            use super::*;
            $crate::conformance_tests!($harness, scenario:
                running_jobs_survive_a_restart,
            );
            $crate::conformance_tests!($harness, case:
                all_rows_survive_a_restart,
                api_keys_survive_a_restart,
                maximum_ages_of_locks_survive_a_restart,
                token_floors_survive_a_restart,
                groups_survive_a_restart,
            );
        }
    };
}

/// Expands to one test per name.
#[macro_export]
macro_rules! conformance_tests {
    ($harness:ty, scenario: $($name:ident),* $(,)?) => {$(
        #[tokio::test]
        async fn $name() {
            let mut harness = <$harness as $crate::conformance::Harness>::fresh().await;
            $crate::conformance::run_scenario(stringify!($name), &mut harness).await;
        }
    )*};
    ($harness:ty, case: $($name:ident),* $(,)?) => {$(
        #[tokio::test]
        async fn $name() {
            let mut harness = <$harness as $crate::conformance::Harness>::fresh().await;
            $crate::conformance::$name(&mut harness).await;
        }
    )*};
}

/// Runs one scenario on a store.
pub async fn run_scenario(name: &str, harness: &mut impl Harness) {
    harness.store().declare(scenario::kinds()).await.expect("the store is available");
    scenario::run(scenario::text(name), &mut OnStore(harness)).await;
}

struct OnStore<'a, H>(&'a mut H);

/// Time between two sweeps.
const STEP_MS: u64 = 500;

#[async_trait]
impl<H: Harness> Driver for OnStore<'_, H> {
    async fn send(&mut self, command: Command) -> Outcome {
        apply_one(&*self.0.store(), command).await
    }

    async fn advance(&mut self, ms: u64) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(STEP_MS);
            self.0.clock().advance(step);
            self.0.store().sweep().await.expect("the store is available");
            left -= step;
        }
    }

    async fn restart(&mut self) {
        self.0.restart().await;
        self.0.store().declare(scenario::kinds()).await.expect("the store is available");
    }

    async fn now(&mut self) -> Millis {
        self.0.clock().now()
    }

    async fn job(&mut self, id: JobId) -> Option<Job> {
        let view = self.0.store().reads().job(id).await.expect("the store is available");
        view.map(|view| *view.job)
    }

    async fn resource(&mut self, key: &ResourceKey) -> Option<Resource> {
        let detail = self.0.store().reads().show(key).await.expect("the store is available")?;
        detail.record.resource.map(|resource| *resource)
    }

    async fn why(&mut self, id: JobId) -> String {
        let store = self.0.store();
        let view = store.reads().job(id).await.expect("the store is available");
        let why = store.reads().explain_job(view.expect("a job")).await;
        why.expect("the store is available").as_str().to_owned()
    }

    async fn history(&mut self, key: &ResourceKey) -> Vec<Entry> {
        let query = HistoryQuery::Of { key: key.clone(), before: None, limit: PAGE_MAX };
        let lines = self.0.store().reads().history(query).await.expect("the store is available");
        lines.iter().rev().map(|line| Entry::parse(&line.text).expect("a valid line")).collect()
    }

    async fn verify(&mut self) -> Vec<String> {
        let report = verify(&*self.0.store()).await.expect("the store is available");
        report.problems.iter().map(ToString::to_string).collect()
    }
}

// ----- helpers -----

async fn apply_one(store: &dyn Store, command: Command) -> Outcome {
    store.apply(vec![command]).await.expect("the store is available").remove(0)
}

fn key(name: &str) -> ResourceKey {
    ResourceKey::new("t", "cluster", name).expect("a valid name")
}

fn open(session: u128, name: &str) -> Command {
    let (tenant, name) = ("t".into(), name.into());
    Command::Open { session: SessionId(session), tenant, name, ttl_ms: 10_000 }
}

fn acquire(name: &str, session: u128, request: u128, wait_ms: u64) -> Command {
    let acquire = Acquire {
        locks: LockName::main().into(),
        claimant: Claimant::Session(SessionId(session)),
        request: RequestId(request),
        wait_ms,
        purpose: Some("conformance".into()),
        max_age_ms: None,
        tenant: None,
    };
    Command::Lock { key: key(name), action: LockAction::Acquire(acquire) }
}

fn release(name: &str, token: u64) -> Command {
    let action = LockAction::Release { token: Token(token), locks: None, to: None };
    Command::Lock { key: key(name), action }
}

fn token(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Granted(view) => view.token.0,
        other => panic!("{other:?} is not a grant"),
    }
}

async fn hold_many(store: &dyn Store, count: u128) {
    let mut batch = vec![open(1, "A")];
    batch.extend((0..count).map(|n| acquire(&format!("c{n:04}"), 1, 100 + n, 0)));
    let outcomes = store.apply(batch).await.expect("the store is available");
    assert!(outcomes[1..].iter().all(|outcome| matches!(outcome, Outcome::Granted(_))));
}

// ----- cases -----

/// A command sees the effects of the earlier commands of its batch.
pub async fn commands_of_a_batch_are_applied_in_order(harness: &mut impl Harness) {
    let batch =
        vec![open(1, "A"), acquire("c1", 1, 11, 0), release("c1", 1), acquire("c1", 1, 12, 0)];
    let outcomes = harness.store().apply(batch).await.expect("the store is available");
    assert_eq!(token(&outcomes[1]), 1);
    assert_eq!(outcomes[2], Outcome::Released { already: false });
    assert_eq!(token(&outcomes[3]), 2);
}

/// Lists are ordered and filtered, and their pages add up to the whole.
pub async fn tenures_are_listed_in_pages_without_gaps(harness: &mut impl Harness) {
    let store = harness.store();
    hold_many(&*store, 25).await;
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let query =
            TenureQuery { tenant: Some("t".into()), after, limit: 10, ..TenureQuery::default() };
        let page = store.reads().tenures(query).await.expect("the store is available");
        names.extend(page.items.iter().map(|view| view.key.name().to_owned()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(names, (0..25).map(|n| format!("c{n:04}")).collect::<Vec<_>>());
    for query in [
        TenureQuery { tenant: Some("u".into()), limit: 10, ..TenureQuery::default() },
        TenureQuery { kind: Some("shoot".into()), limit: 10, ..TenureQuery::default() },
        TenureQuery { holder: Some("B".into()), limit: 10, ..TenureQuery::default() },
    ] {
        assert!(
            store.reads().tenures(query).await.expect("the store is available").items.is_empty()
        );
    }
}

/// A hundred concurrent acquires through the committer get the lock one after another.
pub async fn concurrent_acquires_get_the_lock_one_after_another(harness: &mut impl Harness) {
    let committer = Committer::start(harness.store());
    committer.submit(open(1, "A")).await.expect("the store is available");
    let holders = (0..100u128).map(|n| {
        let committer = committer.clone();
        async move {
            let Command::Lock { key, action: LockAction::Acquire(acquire) } =
                acquire("c1", 1, 100 + n, 60_000)
            else {
                unreachable!("acquire builds a lock command")
            };
            let outcome = committer.acquire(&key, &acquire, Duration::from_secs(60)).await;
            let token = token(&outcome.expect("the store is available"));
            committer.submit(release("c1", token)).await.expect("the store is available");
            token
        }
    });
    let tasks: Vec<_> = holders.map(tokio::spawn).collect();
    let mut tokens = Vec::new();
    for task in tasks {
        tokens.push(task.await.expect("no task panics"));
    }
    tokens.sort_unstable();
    assert_eq!(tokens, (1..=100).collect::<Vec<_>>());
}

/// A resource is shown with its holder and its queue in order.
pub async fn resources_are_shown_with_their_queue(harness: &mut impl Harness) {
    let store = harness.store();
    assert!(store.reads().show(&key("c1")).await.expect("the store is available").is_none());
    for command in [
        open(1, "A"),
        open(2, "B"),
        acquire("c1", 1, 11, 0),
        acquire("c1", 2, 12, 5_000),
        acquire("c1", 1, 13, 5_000),
    ] {
        apply_one(&*store, command).await;
    }
    let detail = store.reads().show(&key("c1")).await.expect("the store is available");
    let detail = detail.expect("a record");
    assert_eq!(&*detail.tenures[0].holder, "A");
    assert_eq!(detail.tenures[0].purpose.as_deref(), Some("conformance"));
    let names: Vec<_> = detail.queue.iter().map(|(_, name)| name.to_string()).collect();
    assert_eq!(names, ["B", "A"]);
}

/// History of one resource and of all is read newest first in pages, and scanned oldest first.
pub async fn history_is_read_backwards_in_pages(harness: &mut impl Harness) {
    let store = harness.store();
    apply_one(&*store, open(1, "A")).await;
    for n in 0..10 {
        let granted = apply_one(&*store, acquire("c1", 1, 100 + n, 0)).await;
        apply_one(&*store, release("c1", token(&granted))).await;
        apply_one(&*store, acquire(&format!("other{n}"), 1, 200 + n, 0)).await;
    }
    let (mut numbers, mut before) = (Vec::new(), None);
    loop {
        let query = HistoryQuery::Of { key: key("c1"), before, limit: 7 };
        let lines = store.reads().history(query).await.expect("the store is available");
        let Some(last) = lines.last() else { break };
        before = Some(last.position);
        numbers.extend(lines.iter().map(|line| Entry::parse(&line.text).expect("a valid line").n));
    }
    assert_eq!(numbers, (1..=20).rev().collect::<Vec<_>>());
    let newest = HistoryQuery::Newest { tenant: Some("t".into()), before: None, limit: 5 };
    let newest = store.reads().history(newest).await.expect("the store is available");
    assert_eq!(newest.iter().map(|line| line.position).collect::<Vec<_>>(), [30, 29, 28, 27, 26]);
    let foreign = HistoryQuery::Newest { tenant: Some("u".into()), before: None, limit: 5 };
    assert!(store.reads().history(foreign).await.expect("the store is available").is_empty());
    let scan = store.reads().history(HistoryQuery::Scan { after: 28, limit: 5 }).await;
    assert_eq!(scan.expect("the store is available").len(), 2);
}

/// Sweeping alone hands the lock of an expired session to the waiter.
pub async fn the_sweep_hands_over_locks_of_expired_sessions(harness: &mut impl Harness) {
    let store = harness.store();
    let mut hints = store.watch();
    apply_one(&*store, open(1, "A")).await;
    apply_one(&*store, acquire("c1", 1, 11, 0)).await;
    let waiter = Command::Lock {
        key: key("c1"),
        action: LockAction::Acquire(Acquire {
            locks: LockName::main().into(),
            claimant: Claimant::Solo { name: "B".into(), ttl_ms: 60_000 },
            request: RequestId(12),
            wait_ms: 60_000,
            purpose: None,
            max_age_ms: None,
            tenant: None,
        }),
    };
    apply_one(&*store, waiter).await;
    let mut swept = 0;
    for _ in 0..11 {
        harness.clock().advance(1_000);
        swept += store.sweep().await.expect("the store is available").sessions;
    }
    assert_eq!(swept, 1);
    let Hint::Granted(tenure) = hints.try_recv().expect("a hint") else { panic!("another hint") };
    assert_eq!(tenure.request, RequestId(12));
    let detail = store.reads().show(&key("c1")).await.expect("the store is available");
    let detail = detail.expect("a record");
    assert_eq!((&*detail.tenures[0].holder, detail.tenures[0].token), ("B", Token(2)));
}

/// The verifier reads several pages and finds no problem.
pub async fn verify_accepts_a_valid_history(harness: &mut impl Harness) {
    let store = harness.store();
    hold_many(&*store, 1_500).await;
    apply_one(&*store, Command::Close { session: SessionId(1), tenant: None }).await;
    store.sweep().await.expect("the store is available");
    let report = verify(&*store).await.expect("the store is available");
    assert_eq!(report.problems, []);
    assert_eq!((report.resources, report.grants, report.entries), (1_500, 1_500, 3_000));
}

/// Held and idle resources, sessions and history survive, and tokens continue to increase.
pub async fn all_rows_survive_a_restart(harness: &mut impl Harness) {
    hold_many(&*harness.store(), 20).await;
    apply_one(&*harness.store(), release("c0003", 1)).await;
    let before =
        harness.store().reads().history(HistoryQuery::Scan { after: 0, limit: PAGE_MAX }).await;
    harness.restart().await;
    let store = harness.store();
    let after = store.reads().history(HistoryQuery::Scan { after: 0, limit: PAGE_MAX }).await;
    assert_eq!(before.expect("the store is available"), after.expect("the store is available"));
    assert_eq!(store.status().await.expect("the store is available").live, 19);
    assert_eq!(token(&apply_one(&*store, acquire("c0003", 1, 999, 0)).await), 2);
    let repeated = apply_one(&*store, acquire("c0004", 1, 104, 0)).await;
    assert_eq!(token(&repeated), 1);
    assert_eq!(verify(&*store).await.expect("the store is available").problems, []);
}
