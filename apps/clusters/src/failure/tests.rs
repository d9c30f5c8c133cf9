//! Tests of the classification of failures.

mod combined;
mod decisions;
mod files;
mod samples;
mod traps;

use super::*;

/// A failed create, which has started resources.
fn evidence(exit_code: i32, console: &str) -> Evidence<'_> {
    Evidence {
        exit_code: Some(exit_code),
        console,
        step: Step::Create,
        infra_started: true,
        source: Source::Installer,
        timed_out: false,
    }
}

fn built_in() -> Rules {
    let (rules, problems) = Rules::load(None);
    assert!(problems.is_empty(), "{problems:?}");
    rules
}

/// Returns the reason and the class of a failed create.
fn classify(exit_code: i32, console: &str) -> (String, Class) {
    let classified = built_in().classify(&evidence(exit_code, console));
    (classified.reason, classified.class)
}

#[track_caller]
fn expect(exit_code: i32, console: &str, reason: &str, class: Class) {
    assert_eq!(classify(exit_code, console), (reason.to_owned(), class), "{console}");
}
