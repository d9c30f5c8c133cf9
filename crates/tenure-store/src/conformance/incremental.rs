//! Cases about the verification of a history that grows, is pruned and is forgotten meanwhile.

use tenure_core::limits;

use super::forget::{acquire_and_release, prune_all};
use super::jobs::{key, prepare};
use super::{Harness, apply_one, open};
use crate::store::{Retention, Store};
use crate::verify::incremental::IncrementalVerifier;

/// Keeps jobs and dead letters; history is past its retention as soon as it is a second old.
const SHORT_HISTORY: Retention =
    Retention { jobs_ms: u64::MAX, dead_ms: u64::MAX, history_ms: 1_000, rows_max: 7 };

/// Verifies all that is new, and compares all records. Returns the number of entries.
async fn catch_up(verifier: &mut IncrementalVerifier, store: &dyn Store) -> usize {
    let available = "the store is available";
    verifier.check_incarnation(store).await.expect(available);
    let mut entries = 0;
    loop {
        let step = verifier.check_page(store).await.expect(available);
        entries += step.entries;
        if !step.has_more {
            break;
        }
    }
    while verifier.compare_records(store, 3).await.expect(available).has_more {}
    assert_eq!(verifier.take_problems(), []);
    assert_eq!(verifier.unverified(store).await.expect(available), 0);
    entries
}

/// Each entry is verified once, whatever is pruned and forgotten between two rounds.
pub async fn a_growing_history_is_verified_while_it_is_pruned(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    // One that remembers all chains, one that has to read most of them again, and one that reads
    // the history after it was pruned.
    let mut verifiers = [100, 1].map(IncrementalVerifier::with_chains_max);
    let mut late = IncrementalVerifier::default();
    let names = ["n0", "n1", "n2"].map(|name| key("free", name));
    let mut request = 1_000;
    for round in 0..4 {
        for name in names.iter().chain(&names) {
            request += 1;
            acquire_and_release(&*store, name, request).await;
        }
        if round < 3 {
            for verifier in &mut verifiers {
                assert_eq!(catch_up(verifier, &*store).await, 2 * 2 * names.len());
            }
        }
        // Some of the entries of each resource are pruned.
        harness.clock().advance(2_000);
        store.sweep().await.expect("the store is available");
        store.prune(SHORT_HISTORY).await.expect("the store is available");
    }
    catch_up(&mut late, &*store).await;
    // All entries are pruned, those of the last round before they were verified.
    prune_all(harness, SHORT_HISTORY).await;
    for verifier in verifiers.iter_mut().chain([&mut late]) {
        assert_eq!(catch_up(verifier, &*store).await, 0);
    }
    for name in &names {
        request += 1;
        acquire_and_release(&*store, name, request).await;
    }
    for verifier in verifiers.iter_mut().chain([&mut late]) {
        assert_eq!(catch_up(verifier, &*store).await, 2 * names.len());
    }
}

/// A resource that was forgotten and is used again starts a new history.
pub async fn a_forgotten_resource_that_is_used_again_verifies(harness: &mut impl Harness) {
    let store = harness.store();
    prepare(&*store).await;
    let mut verifier = IncrementalVerifier::default();
    let lock = key("free", "again");
    for round in 0..3 {
        for n in 0..=round {
            acquire_and_release(&*store, &lock, 100 * (round + 1) + n).await;
        }
        let entries = usize::try_from(2 * (round + 1)).expect("a small number");
        assert_eq!(catch_up(&mut verifier, &*store).await, entries);
        harness.clock().advance(limits::RECENT_TTL_MS + 1_001);
        assert_eq!(prune_all(harness, SHORT_HISTORY).await, 1);
        apply_one(&*store, open(1, "W")).await;
    }
}
