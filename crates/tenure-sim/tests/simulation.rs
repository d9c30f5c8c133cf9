//! The simulation itself: it finds no violation, exercises every kind of fault, and replays.

use tenure_sim::{Stats, run};

#[test]
fn two_hundred_seeds_find_no_violation() {
    for seed in 10_000..10_200 {
        if let Err(violation) = run(seed, false) {
            panic!("{violation}");
        }
    }
}

#[test]
fn fifty_seeds_increment_every_counter() {
    let mut total = Stats::default();
    for seed in 0..50 {
        total += run(seed, false).unwrap_or_else(|violation| panic!("{violation}"));
    }
    assert_eq!(total.missing(), Vec::<&str>::new(), "{total:?}");
}

#[test]
fn seed_replays_exactly() {
    for seed in 0..10 {
        assert_eq!(run(seed, false).unwrap(), run(seed, false).unwrap());
    }
}

#[test]
fn failing_seed_fails_again_with_the_same_trace() {
    let fail = || {
        tenure_core::canary::with(tenure_core::canary::Canary::RenewByName, || {
            (0..500).find_map(|seed| run(seed, false).err()).expect("the canary is caught")
        })
    };
    let (first, second) = (fail(), fail());
    assert_eq!((first.seed, &first.what, &first.tail), (second.seed, &second.what, &second.tail));
    assert!(first.to_string().contains(&format!("--seed {}", first.seed)));
}
