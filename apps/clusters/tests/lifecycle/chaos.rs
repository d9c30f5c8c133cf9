//! Many clusters, several workers, random kills: no overlap, nothing left, every job settled.
//! `TENURE_TEST_CLUSTERS` is the number of clusters; `cargo xtask soak clusters` runs a hundred.

use serde_json::Value;

use crate::bed::{Bed, StoreKind};
use crate::common::until;

/// Number of clusters without the variable.
const CLUSTERS: usize = 8;
/// Number of workers.
const WORKERS: usize = 4;

#[test]
fn random_kills_leave_nothing_behind() {
    let count = std::env::var("TENURE_TEST_CLUSTERS").ok().and_then(|count| count.parse().ok());
    let count = count.unwrap_or(CLUSTERS);
    let seed = std::env::var("TENURE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut random = Random(seed.unwrap_or(4_711));
    println!("seed {}", random.0);
    let bed = Bed::with(StoreKind::Postgres, "attempts = 20");
    let mut workers: Vec<_> = (0..WORKERS).map(|n| bed.worker(&format!("w{n}"))).collect();
    let names: Vec<String> = (0..count).map(|n| format!("c{n}")).collect();
    for name in &names {
        bed.create(name);
    }
    let mut kills = 0;
    let is_idle = |name: &str| bed.show(name)["operation"].is_null();
    // Each cluster is destroyed as soon as it runs, some of them twice and some while they are
    // created; a worker is killed after every few changes.
    let mut pending: Vec<String> = names.clone();
    while !pending.is_empty() {
        let at = random.below(pending.len());
        let name = pending[at].clone();
        if random.below(3) == 0 || is_idle(&name) {
            bed.destroy(&name);
            pending.swap_remove(at);
        }
        if random.below(3) == 0 {
            let n = random.below(WORKERS);
            workers[n].kill();
            kills += 1;
            workers[n] = bed.worker(&format!("w{n}-{kills}"));
        }
    }
    for name in &names {
        until_settled(&bed, name);
    }
    bed.check(&[]);
    let (code, text) = bed.run(&["verify"]);
    assert_eq!(code, Some(0), "{text}");
    let page = bed.api("GET", "/v1/jobs?kind=cluster&limit=1000", &Value::Null).1;
    let jobs = page["items"].as_array().expect("a list");
    let open = jobs.iter().filter(|job| job["ended_at"].is_null()).count();
    assert_eq!(open, 0, "every job is settled");
    println!("{count} clusters, {} jobs, {kills} kills", jobs.len());
}

/// Waits until a cluster is destroyed, however long the others take.
fn until_settled(bed: &Bed, name: &str) {
    let mut journal = 0;
    loop {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(|| bed.state(name) == "DESTROYED");
        }));
        // As long as something happens, it is not stuck.
        let now = bed.journal().len();
        if done.is_ok() {
            return;
        }
        assert!(now > journal, "{name} is stuck: {:#}", bed.show(name));
        journal = now;
    }
}

/// A generator that repeats its numbers for a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }
}
