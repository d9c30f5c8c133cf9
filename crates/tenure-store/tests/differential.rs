//! Differential tests: a durable store and the memory store give the same answers and the same
//! history across restarts and crashes. The durable store is the embedded one, or PostgreSQL,
//! directly or through a pooler.

#[path = "differential/backend.rs"]
mod backend;
#[path = "differential/jobs.rs"]
mod jobs;
#[path = "differential/locks.rs"]
mod locks;
#[path = "differential/pair.rs"]
mod pair;

use backend::Backend;
use pair::{Action, Pair};
use proptest::prelude::*;

/// Time after which an idle resource can be forgotten, and a deleted one of an ephemeral kind.
const FORGETTABLE_MS: u64 = tenure_core::limits::RECENT_TTL_MS + 1_501;

fn lock_actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => prop::collection::vec(locks::command(), 1..6).prop_map(Action::Apply),
        2 => (0..1_900u64).prop_map(Action::Advance),
        1 => Just(Action::Advance(FORGETTABLE_MS)),
        2 => Just(Action::Sweep),
        1 => Just(Action::Restart),
        1 => Just(Action::Crash),
        1 => Just(Action::Prune(0, 0, 1_500)),
    ]
}

fn job_actions() -> impl Strategy<Value = Action> {
    // Delete everything, keep recent rows, keep everything.
    let retention = || prop_oneof![Just(0), Just(1_500), Just(60_000)];
    prop_oneof![
        16 => prop::collection::vec(jobs::template(), 1..8).prop_map(Action::ApplyTemplates),
        4 => (0..1_900u64).prop_map(Action::Advance),
        1 => Just(Action::Advance(15_000)),
        1 => Just(Action::Advance(FORGETTABLE_MS)),
        3 => Just(Action::Sweep),
        1 => Just(Action::Restart),
        1 => Just(Action::Crash),
        1 => (retention(), retention(), retention())
            .prop_map(|(jobs, dead, history)| Action::Prune(jobs, dead, history)),
    ]
}

/// Applies all actions to both stores and compares the stores at the end.
fn check(backend: Backend, actions: Vec<Action>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut pair = Pair::new(backend).await;
        for action in actions {
            pair.apply_action(action).await;
        }
        pair.assert_equal().await;
    });
}

/// `cargo xtask soak differential` sets `PROPTEST_CASES`.
fn config(cases: u32) -> ProptestConfig {
    let wanted = std::env::var("PROPTEST_CASES").ok().and_then(|wanted| wanted.parse().ok());
    let cases = wanted.unwrap_or(cases);
    // On a real server, a shrinking step takes as long as a case.
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 100, ..Default::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 4_000, ..config(96) })]

    #[test]
    fn embedded_and_memory_agree_about_locks(
        actions in prop::collection::vec(lock_actions(), 1..60),
    ) {
        check(Backend::file(), actions);
    }

    #[test]
    fn embedded_and_memory_agree_about_jobs(
        actions in prop::collection::vec(job_actions(), 1..60),
    ) {
        check(Backend::file(), actions);
    }
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn postgres_and_memory_agree_about_locks(
        actions in prop::collection::vec(lock_actions(), 1..60),
    ) {
        check(Backend::database(false), actions);
    }

    #[test]
    fn postgres_and_memory_agree_about_jobs(
        actions in prop::collection::vec(job_actions(), 1..60),
    ) {
        check(Backend::database(false), actions);
    }

    #[test]
    fn pooled_postgres_and_memory_agree(
        locks in prop::collection::vec(lock_actions(), 1..30),
        jobs in prop::collection::vec(job_actions(), 1..30),
    ) {
        check(Backend::database(true), locks);
        check(Backend::database(true), jobs);
    }
}
