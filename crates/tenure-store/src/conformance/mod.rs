//! The suite that every store passes, as named tests.
//!
//! A store brings a [`Harness`]; [`crate::store_conformance`] expands to one test for each
//! scenario and case, so that a failure names the store and the behaviour. Decorators pass it too.

mod jobs;
mod keys;
mod observed;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::history::Entry;
use tenure_core::resource::Resource;
use tenure_core::why;
use tenure_core::{
    Acquire, Claimant, Command, Job, JobId, LockAction, LockName, Millis, Outcome, RequestId,
    ResourceKey, SessionId, Token,
};

use crate::clock::{Clock, ManualClock};
use crate::committer::Committer;
use crate::scenario::{self, Driver};
use crate::store::{Hint, HistoryQuery, JobShown, ListQuery, PAGE_MAX, Store};
use crate::verify::verify;
pub use jobs::*;
pub use keys::*;
pub use observed::*;

/// A store under test, on a clock that the test moves.
#[async_trait]
pub trait Harness: Send + Sync {
    /// A fresh, empty store.
    async fn fresh() -> Self
    where
        Self: Sized;
    /// The store.
    fn store(&self) -> Arc<dyn Store>;
    /// Its clock.
    fn clock(&self) -> &ManualClock;
    /// Stops the store and starts it again, on the same rows. Only asked of durable stores.
    async fn restart(&mut self);
}

/// Expands to the tests of a store: `store_conformance!(memory, MemoryHarness)`, with `durable` as
/// a third word for stores that survive a restart, or `shared` for those that others may look after
/// meanwhile.
#[macro_export]
macro_rules! store_conformance {
    ($module:ident, $harness:ty) => {
        mod $module {
            use super::*;
            $crate::for_each_scenario!([$crate::conformance_tests] $harness, scenario:);
            $crate::conformance_tests!($harness, case:
                commands_of_a_batch_are_stepped_in_order,
                lists_come_in_pages_without_gaps,
                one_of_many_gets_the_lock_and_all_get_it_in_turn,
                resources_are_shown_with_their_queue,
                history_is_read_backwards_in_pages,
                the_sweep_hands_over_what_the_dead_held,
                verify_accepts_what_happened,
                keys_are_kept_used_and_revoked,
                servers_share_a_secret,
                the_tenant_of_a_session_is_known,
                a_thousand_submits_make_one_flight,
                a_blocked_lane_delays_nobody,
                a_claim_waits_for_work,
                jobs_come_in_pages_without_gaps,
                worked_resources_are_listed,
                logs_are_fenced_and_bounded,
                pruning_leaves_what_verify_needs,
                workers_are_shown_with_their_jobs,
                what_happened_is_told_once,
                a_census_counts_what_there_is,
                a_census_of_many_parts_is_whole,
                joining_is_told_and_limits_may_be_a_resources_own,
            );
        }
    };
    ($module:ident, $harness:ty, durable) => {
        $crate::store_conformance!($module, $harness, shared);
        mod alone {
            use super::*;
            $crate::conformance_tests!($harness, scenario:
                a_restart_gives_everybody_full_grace,
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
                everything_is_there_after_a_restart,
                keys_survive_a_restart,
            );
        }
    };
}

/// One test for each name.
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
    harness.store().declare(scenario::kinds()).await.expect("the store is there");
    scenario::run(scenario::text(name), &mut OnStore(harness)).await;
}

struct OnStore<'a, H>(&'a mut H);

/// How far a running store lets time pass between two sweeps.
const STEP_MS: u64 = 500;

#[async_trait]
impl<H: Harness> Driver for OnStore<'_, H> {
    async fn send(&mut self, command: Command) -> Outcome {
        one(&*self.0.store(), command).await
    }

    async fn advance(&mut self, ms: u64) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(STEP_MS);
            self.0.clock().advance(step);
            self.0.store().sweep().await.expect("the store is there");
            left -= step;
        }
    }

    async fn restart(&mut self) {
        self.0.restart().await;
        self.0.store().declare(scenario::kinds()).await.expect("the store is there");
    }

    async fn now(&mut self) -> Millis {
        self.0.clock().now()
    }

    async fn job(&mut self, id: JobId) -> Option<Job> {
        let shown = self.0.store().reads().job(id).await.expect("the store is there");
        shown.map(|shown| *shown.job)
    }

    async fn resource(&mut self, key: &ResourceKey) -> Option<Resource> {
        let shown = self.0.store().reads().show(key).await.expect("the store is there")?;
        shown.record.resource.map(|resource| *resource)
    }

    async fn why(&mut self, id: JobId) -> String {
        let store = self.0.store();
        let shown = store.reads().job(id).await.expect("the store is there");
        let JobShown { key, job } = shown.expect("a job");
        if job.state.is_finished() {
            return why::explain_finished_job(&job).as_str().to_owned();
        }
        let shown = store.reads().show(&key).await.expect("the store is there").expect("a record");
        let kinds = scenario::kinds();
        let kind = kinds.get(key.kind()).map(|kind| &**kind);
        why::explain_job(&shown.record, kind, id, &shown.around).as_str().to_owned()
    }

    async fn history(&mut self, key: &ResourceKey) -> Vec<Entry> {
        let query = HistoryQuery::Of { key: key.clone(), before: None, limit: PAGE_MAX };
        let lines = self.0.store().reads().history(query).await.expect("the store is there");
        lines.iter().rev().map(|line| Entry::parse(&line.text).expect("our own line")).collect()
    }

    async fn verify(&mut self) -> Vec<String> {
        let report = verify(&*self.0.store()).await.expect("the store is there");
        report.problems.iter().map(ToString::to_string).collect()
    }
}

// ----- helpers of the cases -----

async fn one(store: &dyn Store, command: Command) -> Outcome {
    store.apply(vec![command]).await.expect("the store is there").remove(0)
}

fn key(name: &str) -> ResourceKey {
    ResourceKey::new("t", "cluster", name).expect("a good name")
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
    };
    Command::Lock { key: key(name), action: LockAction::Acquire(acquire) }
}

fn release(name: &str, token: u64) -> Command {
    let action = LockAction::Release { token: Token(token), locks: None };
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
    let outcomes = store.apply(batch).await.expect("the store is there");
    assert!(outcomes[1..].iter().all(|outcome| matches!(outcome, Outcome::Granted(_))));
}

// ----- the cases -----

/// In one batch a command sees what the ones before it did.
pub async fn commands_of_a_batch_are_stepped_in_order(harness: &mut impl Harness) {
    let batch =
        vec![open(1, "A"), acquire("c1", 1, 11, 0), release("c1", 1), acquire("c1", 1, 12, 0)];
    let outcomes = harness.store().apply(batch).await.expect("the store is there");
    assert_eq!(token(&outcomes[1]), 1);
    assert_eq!(outcomes[2], Outcome::Released { already: false });
    assert_eq!(token(&outcomes[3]), 2);
}

/// Lists are ordered, filtered, and their pages add up to the whole.
pub async fn lists_come_in_pages_without_gaps(harness: &mut impl Harness) {
    let store = harness.store();
    hold_many(&*store, 25).await;
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let query =
            ListQuery { tenant: Some("t".into()), after, limit: 10, ..ListQuery::default() };
        let page = store.reads().list(query).await.expect("the store is there");
        names.extend(page.items.iter().map(|view| view.key.name().to_owned()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(names, (0..25).map(|n| format!("c{n:04}")).collect::<Vec<_>>());
    for query in [
        ListQuery { tenant: Some("u".into()), limit: 10, ..ListQuery::default() },
        ListQuery { kind: Some("shoot".into()), limit: 10, ..ListQuery::default() },
        ListQuery { holder: Some("B".into()), limit: 10, ..ListQuery::default() },
    ] {
        assert!(store.reads().list(query).await.expect("the store is there").items.is_empty());
    }
}

/// Through the committer, with wake-ups, a hundred at once pass the lock on one by one.
pub async fn one_of_many_gets_the_lock_and_all_get_it_in_turn(harness: &mut impl Harness) {
    let committer = Committer::start(harness.store());
    committer.submit(open(1, "A")).await.expect("the store is there");
    let one_by_one = (0..100u128).map(|n| {
        let committer = committer.clone();
        async move {
            let Command::Lock { key, action: LockAction::Acquire(ask) } =
                acquire("c1", 1, 100 + n, 60_000)
            else {
                unreachable!("acquire builds a lock command")
            };
            let patience = Duration::from_secs(60);
            let outcome = committer.acquire(&key, &ask, patience).await.expect("it is there");
            let token = token(&outcome);
            committer.submit(release("c1", token)).await.expect("the store is there");
            token
        }
    });
    let tasks: Vec<_> = one_by_one.map(tokio::spawn).collect();
    let mut tokens = Vec::new();
    for task in tasks {
        tokens.push(task.await.expect("no task panics"));
    }
    tokens.sort_unstable();
    assert_eq!(tokens, (1..=100).collect::<Vec<_>>());
}

/// A resource is shown with its holder and who waits, in order.
pub async fn resources_are_shown_with_their_queue(harness: &mut impl Harness) {
    let store = harness.store();
    assert!(store.reads().show(&key("c1")).await.expect("the store is there").is_none());
    for command in [
        open(1, "A"),
        open(2, "B"),
        acquire("c1", 1, 11, 0),
        acquire("c1", 2, 12, 5_000),
        acquire("c1", 1, 13, 5_000),
    ] {
        one(&*store, command).await;
    }
    let shown =
        store.reads().show(&key("c1")).await.expect("the store is there").expect("it was used");
    assert_eq!(&*shown.tenures[0].holder, "A");
    assert_eq!(shown.tenures[0].purpose.as_deref(), Some("conformance"));
    let names: Vec<_> = shown.queue.iter().map(|(_, name)| name.to_string()).collect();
    assert_eq!(names, ["B", "A"]);
}

/// One resource's history and everybody's, newest first, page by page; and all in order.
pub async fn history_is_read_backwards_in_pages(harness: &mut impl Harness) {
    let store = harness.store();
    one(&*store, open(1, "A")).await;
    for n in 0..10 {
        let granted = one(&*store, acquire("c1", 1, 100 + n, 0)).await;
        one(&*store, release("c1", token(&granted))).await;
        one(&*store, acquire(&format!("other{n}"), 1, 200 + n, 0)).await;
    }
    let (mut numbers, mut before) = (Vec::new(), None);
    loop {
        let query = HistoryQuery::Of { key: key("c1"), before, limit: 7 };
        let lines = store.reads().history(query).await.expect("the store is there");
        let Some(last) = lines.last() else { break };
        before = Some(last.position);
        numbers.extend(lines.iter().map(|line| Entry::parse(&line.text).expect("our line").n));
    }
    assert_eq!(numbers, (1..=20).rev().collect::<Vec<_>>());
    let newest = HistoryQuery::Newest { tenant: Some("t".into()), before: None, limit: 5 };
    let newest = store.reads().history(newest).await.expect("the store is there");
    assert_eq!(newest.iter().map(|line| line.position).collect::<Vec<_>>(), [30, 29, 28, 27, 26]);
    let foreign = HistoryQuery::Newest { tenant: Some("u".into()), before: None, limit: 5 };
    assert!(store.reads().history(foreign).await.expect("the store is there").is_empty());
    let scan = store.reads().history(HistoryQuery::Scan { after: 28, limit: 5 }).await;
    assert_eq!(scan.expect("the store is there").len(), 2);
}

/// Nobody asks, and still the waiter has the lock after the holder's session lapsed.
pub async fn the_sweep_hands_over_what_the_dead_held(harness: &mut impl Harness) {
    let store = harness.store();
    let mut hints = store.watch();
    one(&*store, open(1, "A")).await;
    one(&*store, acquire("c1", 1, 11, 0)).await;
    let ask = Command::Lock {
        key: key("c1"),
        action: LockAction::Acquire(Acquire {
            locks: LockName::main().into(),
            claimant: Claimant::Solo { name: "B".into(), ttl_ms: 60_000 },
            request: RequestId(12),
            wait_ms: 60_000,
            purpose: None,
        }),
    };
    one(&*store, ask).await;
    let mut swept = 0;
    for _ in 0..11 {
        harness.clock().advance(1_000);
        swept += store.sweep().await.expect("the store is there").sessions;
    }
    assert_eq!(swept, 1);
    let Hint::Granted(tenure) = hints.try_recv().expect("a hint") else { panic!("another hint") };
    assert_eq!(tenure.request, RequestId(12));
    let shown =
        store.reads().show(&key("c1")).await.expect("the store is there").expect("it was used");
    assert_eq!((&*shown.tenures[0].holder, shown.tenures[0].token), ("B", Token(2)));
}

/// The verifier reads more than a page, and finds nothing.
pub async fn verify_accepts_what_happened(harness: &mut impl Harness) {
    let store = harness.store();
    hold_many(&*store, 1_500).await;
    one(&*store, Command::Close { session: SessionId(1) }).await;
    store.sweep().await.expect("the store is there");
    let report = verify(&*store).await.expect("the store is there");
    assert_eq!(report.problems, []);
    assert_eq!((report.resources, report.grants, report.entries), (1_500, 1_500, 3_000));
}

/// Held, idle and waited-for resources, sessions and history survive, and tokens go on.
pub async fn everything_is_there_after_a_restart(harness: &mut impl Harness) {
    hold_many(&*harness.store(), 20).await;
    one(&*harness.store(), release("c0003", 1)).await;
    let before =
        harness.store().reads().history(HistoryQuery::Scan { after: 0, limit: PAGE_MAX }).await;
    harness.restart().await;
    let store = harness.store();
    let after = store.reads().history(HistoryQuery::Scan { after: 0, limit: PAGE_MAX }).await;
    assert_eq!(before.expect("the store is there"), after.expect("the store is there"));
    assert_eq!(store.status().await.expect("the store is there").live, 19);
    assert_eq!(token(&one(&*store, acquire("c0003", 1, 999, 0)).await), 2);
    let repeated = one(&*store, acquire("c0004", 1, 104, 0)).await;
    assert_eq!(token(&repeated), 1);
    assert_eq!(verify(&*store).await.expect("the store is there").problems, []);
}

/// Whose a session is can be asked, and nothing is said of one that never was.
pub async fn the_tenant_of_a_session_is_known(harness: &mut impl Harness) {
    let store = harness.store();
    let (session, tenant) = (SessionId(7), "acme".into());
    let open = Command::Open { session, tenant, name: "w".into(), ttl_ms: 10_000 };
    one(&*store, open).await;
    let tenant_of = async |id| store.reads().session(id).await.expect("the store is there");
    assert_eq!(tenant_of(session).await.as_deref(), Some("acme"));
    assert_eq!(tenant_of(SessionId(8)).await, None);
}
