//! The order of tests: a pure function of the tests and the seed.
//!
//! Every node can compute it, so a new leader publishes the queue that the old one would have
//! published. Clients in other languages compute the same: sort by
//! `sha256(seed + "\n" + test)`.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Orders tests by a shuffle that depends on the seed only. Tests with a known duration come
/// first, the slow ones before the fast ones.
#[must_use]
pub fn order(tests: &[String], seed: &str, durations_ms: &HashMap<String, u64>) -> Vec<String> {
    let key = |test: &String| {
        let duration = durations_ms.get(test).copied();
        (Reverse(duration), Sha256::digest(format!("{seed}\n{test}")))
    };
    let mut ordered = tests.to_vec();
    ordered.sort_by_cached_key(key);
    ordered
}

/// Returns a digest of a list of tests that does not depend on its order.
#[must_use]
pub fn digest(tests: &[String]) -> String {
    let mut sorted: Vec<&str> = tests.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    let mut hash = Sha256::new();
    for test in sorted {
        hash.update(test);
        hash.update("\n");
    }
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
        text
    })
}

/// Returns the first test that occurs twice.
#[must_use]
pub fn find_duplicate(tests: &[String]) -> Option<&str> {
    let mut seen = HashSet::new();
    tests.iter().find(|test| !seen.insert(test.as_str())).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(tests: &[&str]) -> Vec<String> {
        tests.iter().map(|test| (*test).to_owned()).collect()
    }

    #[test]
    fn order_depends_on_the_seed_and_not_on_the_order_of_the_list() {
        let names: Vec<String> = (0..100).map(|n| format!("test_{n}")).collect();
        let reversed: Vec<String> = names.iter().rev().cloned().collect();
        let none = HashMap::new();
        assert_eq!(order(&names, "1", &none), order(&reversed, "1", &none));
        assert_ne!(order(&names, "1", &none), order(&names, "2", &none));
        assert_ne!(order(&names, "1", &none), names);
    }

    #[test]
    fn order_is_the_same_in_every_version() {
        // Clients in other languages rely on it.
        let ordered = order(&list(&["a", "b", "c", "d"]), "42", &HashMap::new());
        let mut expected: Vec<(Vec<u8>, &str)> = ["a", "b", "c", "d"]
            .map(|test| (Sha256::digest(format!("42\n{test}")).to_vec(), test))
            .into();
        expected.sort();
        let expected: Vec<&str> = expected.into_iter().map(|(_, test)| test).collect();
        assert_eq!(ordered, expected);
    }

    #[test]
    fn slow_tests_come_first_and_unknown_ones_last() {
        let durations = HashMap::from([("a".to_owned(), 10), ("b".to_owned(), 5_000)]);
        assert_eq!(order(&list(&["new", "a", "b"]), "1", &durations), ["b", "a", "new"]);
    }

    #[test]
    fn digest_ignores_the_order_and_nothing_else() {
        assert_eq!(digest(&list(&["a", "b"])), digest(&list(&["b", "a"])));
        assert_ne!(digest(&list(&["a", "b"])), digest(&list(&["ab"])));
        assert_ne!(digest(&list(&["a"])), digest(&list(&["a", "a"])));
    }

    #[test]
    fn duplicates_are_found() {
        assert_eq!(find_duplicate(&list(&["a", "b", "a"])), Some("a"));
        assert_eq!(find_duplicate(&list(&["a", "b"])), None);
    }
}
