//! Decisions about retries.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::settings::Settings;

const MINUTE_MS: u64 = 60_000;

fn classified(class: Class) -> Classified {
    Classified {
        reason: "Test".to_owned(),
        class,
        message: String::new(),
        rule: None,
        rules_version: String::new(),
        excerpt: None,
        fingerprint: None,
        others: Vec::new(),
        policy: class.policy(),
        retry_delay_ms: None,
        cleanup: false,
    }
}

fn settings() -> Settings {
    Settings::new(Path::new("/"))
}

/// Runs a job that always fails in the same way, and returns the delays in minutes.
fn delays_of(classified: &Classified, settings: &Settings, leftovers_removed: bool) -> Vec<u64> {
    let (mut attempt, mut failures, mut delays) = (1, BTreeMap::new(), Vec::new());
    loop {
        let attempts = Attempts { attempt, failures: &failures, leftovers_removed };
        match decide(classified, &attempts, settings) {
            Decision::Final => return delays,
            Decision::Retry { delay_ms, counted } => {
                assert_eq!(counted, classified.policy.counted);
                delays.push(delay_ms / MINUTE_MS);
                attempt += u32::from(counted);
            }
        }
        *failures.entry(classified.class.as_str().to_owned()).or_insert(0) += 1;
        assert!(delays.len() < 1_000, "it never ends");
    }
}

#[test]
fn each_class_has_the_retries_and_delays_of_its_policy() {
    for (class, delays) in [
        (Class::Throttled, vec![5, 10, 20, 30, 30]),
        (Class::Network, vec![5, 10]),
        (Class::Capacity, vec![30, 30]),
        (Class::Timeout, vec![10, 20]),
        (Class::PlatformBug, vec![5, 10]),
        (Class::Interrupted, vec![0; 20]),
        (Class::Unknown, vec![10]),
        (Class::Conflict, vec![]),
        (Class::Credentials, vec![]),
        (Class::Permission, vec![]),
        (Class::Quota, vec![]),
        (Class::InvalidConfig, vec![]),
        (Class::Account, vec![]),
    ] {
        assert_eq!(delays_of(&classified(class), &settings(), false), delays, "{class}");
    }
}

#[test]
fn more_attempts_are_bounded_by_the_class() {
    let settings = Settings { attempts: 100, ..settings() };
    for (class, delays) in [
        (Class::Throttled, vec![5, 10, 20, 30, 30]),
        (Class::Network, vec![5, 10, 20]),
        (Class::Capacity, vec![30, 30, 30]),
        (Class::Timeout, vec![10, 20]),
        (Class::PlatformBug, vec![5, 10]),
        (Class::Unknown, vec![10]),
    ] {
        assert_eq!(delays_of(&classified(class), &settings, false), delays, "{class}");
    }
    let once = Settings { attempts: 1, ..settings };
    assert_eq!(delays_of(&classified(Class::Network), &once, false), [0; 0]);
    assert_eq!(delays_of(&classified(Class::Throttled), &once, false).len(), 5);
}

#[test]
fn a_conflict_with_own_leftovers_is_tried_once_more() {
    assert_eq!(delays_of(&classified(Class::Conflict), &settings(), true), [5]);
}

#[test]
fn the_backoff_of_a_job_grows_with_failures_of_other_classes() {
    let failures = BTreeMap::from([("NETWORK".to_owned(), 2)]);
    let attempts = Attempts { attempt: 3, failures: &failures, leftovers_removed: false };
    let settings = Settings { attempts: 9, ..settings() };
    let decision = decide(&classified(Class::PlatformBug), &attempts, &settings);
    assert_eq!(decision, Decision::Retry { delay_ms: 20 * MINUTE_MS, counted: true });
    // What is not counted does not depend on them.
    let decision = decide(&classified(Class::Throttled), &attempts, &settings);
    assert_eq!(decision, Decision::Retry { delay_ms: 5 * MINUTE_MS, counted: false });
}

#[test]
fn delays_follow_the_settings() {
    let settings = Settings {
        backoff_ms: MINUTE_MS,
        backoff_max_ms: 2 * MINUTE_MS,
        attempts: 9,
        ..settings()
    };
    assert_eq!(delays_of(&classified(Class::Network), &settings, false), [1, 2, 2]);
    assert_eq!(delays_of(&classified(Class::Capacity), &settings, false), [6, 6, 6]);
    let at_once = Settings { backoff_ms: 0, backoff_max_ms: 0, attempts: 9, ..settings };
    assert_eq!(delays_of(&classified(Class::Capacity), &at_once, false), [0, 0, 0]);
}

#[test]
fn large_numbers_do_not_overflow() {
    let failures = BTreeMap::from([("INTERRUPTED".to_owned(), u32::MAX)]);
    let attempts = Attempts { attempt: u32::MAX, failures: &failures, leftovers_removed: true };
    let settings = Settings { attempts: u32::MAX, backoff_ms: u64::MAX, ..settings() };
    for class in Class::ALL {
        let last = decide(&classified(class), &attempts, &settings);
        let is_counted = class.policy().counted;
        assert!(!is_counted || last == Decision::Final, "{class}");
        let earlier = Attempts { attempt: u32::MAX - 1, ..attempts };
        if let Decision::Retry { delay_ms, .. } = decide(&classified(class), &earlier, &settings) {
            assert!(delay_ms == u64::MAX || class == Class::Interrupted, "{class} {delay_ms}");
        }
    }
}

#[test]
fn a_pending_account_is_tried_again_after_hours_and_a_blocked_one_never() {
    let of = |text: &str| built_in().classify(&evidence(1, text));
    let pending = of("level=error msg=\"PendingVerification: Your request is being validated\"");
    assert_eq!(delays_of(&pending, &settings(), false), [240, 240]);
    let blocked = of("level=error msg=\"This account is currently blocked\"");
    assert_eq!(delays_of(&blocked, &settings(), false), [0; 0]);
}

#[test]
fn names_of_classes_can_be_parsed() {
    for class in Class::ALL {
        assert_eq!(Class::parse(class.as_str()), Some(class));
        assert_eq!(serde_json::to_value(class).unwrap(), class.as_str());
    }
    assert_eq!(Class::parse("OTHER"), None);
}
