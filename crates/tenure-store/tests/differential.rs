//! A durable store and the memory store give the same answers and the same history, whatever
//! restarts and crashes come in between: the embedded one, and PostgreSQL, directly and through a
//! pooler.

#[path = "differential/jobs.rs"]
mod jobs;
#[path = "differential/locks.rs"]
mod locks;
#[path = "differential/pair.rs"]
mod pair;
#[path = "differential/place.rs"]
mod place;

use pair::{Act, Pair};
use place::Place;
use proptest::prelude::*;

fn on_locks() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => prop::collection::vec(locks::command(), 1..6).prop_map(Act::Apply),
        2 => (0..1_900u64).prop_map(Act::Pass),
        2 => Just(Act::Sweep),
        1 => Just(Act::Restart),
        1 => Just(Act::Crash),
    ]
}

fn on_jobs() -> impl Strategy<Value = Act> {
    // Nothing at all, a little, everything.
    let keep = || prop_oneof![Just(0), Just(1_500), Just(60_000)];
    prop_oneof![
        16 => prop::collection::vec(jobs::wish(), 1..8).prop_map(Act::Wish),
        4 => (0..1_900u64).prop_map(Act::Pass),
        1 => Just(Act::Pass(15_000)),
        3 => Just(Act::Sweep),
        1 => Just(Act::Restart),
        1 => Just(Act::Crash),
        1 => (keep(), keep(), keep()).prop_map(|(jobs, dead, lines)| Act::Prune(jobs, dead, lines)),
    ]
}

/// Does everything to both stores and compares them at the end.
fn agree(place: Place, acts: Vec<Act>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut pair = Pair::new(place).await;
        for act in acts {
            pair.act(act).await;
        }
        pair.all_agrees().await;
    });
}

fn config(cases: u32) -> ProptestConfig {
    // A step of shrinking on a real server takes as long as a case.
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 100, ..Default::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 4_000, ..config(96) })]

    #[test]
    fn embedded_and_memory_agree_about_locks(acts in prop::collection::vec(on_locks(), 1..60)) {
        agree(Place::file(), acts);
    }

    #[test]
    fn embedded_and_memory_agree_about_jobs(acts in prop::collection::vec(on_jobs(), 1..60)) {
        agree(Place::file(), acts);
    }
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn postgres_and_memory_agree_about_locks(acts in prop::collection::vec(on_locks(), 1..60)) {
        agree(Place::database(false), acts);
    }

    #[test]
    fn postgres_and_memory_agree_about_jobs(acts in prop::collection::vec(on_jobs(), 1..60)) {
        agree(Place::database(false), acts);
    }

    #[test]
    fn pooled_postgres_and_memory_agree(
        locks in prop::collection::vec(on_locks(), 1..30),
        jobs in prop::collection::vec(on_jobs(), 1..30),
    ) {
        agree(Place::database(true), locks);
        agree(Place::database(true), jobs);
    }
}
