//! Names of builds, and of the resources that belong to them.
//!
//! A build `B` is the resource `build/B`. The tests that the leader of term `T` published are
//! `build-test/B:T:NNNNNN`, so that they form the group `B:T`. The nodes that work on the build
//! hold the locks `build-node/B:SESSION`, which form the group `B`.

use tenure_core::key::InvalidName;
use tenure_core::{ResourceKey, SessionId, Text, Token};

/// Kind of builds.
pub const BUILD: &str = "build";
/// Kind of tests.
pub const TEST: &str = "build-test";
/// Kind of the locks that nodes hold while they work on a build.
pub const NODE: &str = "build-node";
/// Operation of a build: the leader publishes the tests.
pub const SETUP: &str = "setup";
/// Operation of a test.
pub const RUN: &str = "run";

/// Maximum length of the id of a build, in bytes.
pub const BUILD_BYTES_MAX: usize = 150;
/// Maximum length of the id of a test, in bytes.
pub const TEST_BYTES_MAX: usize = 4_096;
/// Maximum length of the name of a node, in bytes.
pub const WORKER_BYTES_MAX: usize = tenure_core::limits::SESSION_NAME_BYTES_MAX;
/// Maximum number of tests of a build.
pub const TESTS_MAX: usize = 200_000;

/// Checks the id of a build.
///
/// # Errors
///
/// Fails with a sentence that names the problem and the remedy.
pub fn check_build(id: &str) -> Result<(), String> {
    let allowed =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '@' | '+' | '/');
    if id.is_empty() {
        return Err("the id of the build is empty".to_owned());
    }
    if id.len() > BUILD_BYTES_MAX {
        let length = id.len();
        return Err(format!(
            "the id of the build has {length} bytes; at most {BUILD_BYTES_MAX} are allowed"
        ));
    }
    if let Some(c) = id.chars().find(|c| !allowed(*c)) {
        return Err(format!(
            "the id of the build has the character {c:?}; allowed are ASCII letters, digits and \
             . _ - : @ + /"
        ));
    }
    if !id.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err("the id of a build starts with an ASCII letter or a digit".to_owned());
    }
    Ok(())
}

/// Returns whether a text can be the id of a test.
#[must_use]
pub fn is_test(text: &str) -> bool {
    (1..=TEST_BYTES_MAX).contains(&text.len()) && !text.contains(char::is_control)
}

/// Checks the name of a node.
///
/// # Errors
///
/// Fails with a sentence that names the limit.
pub fn check_worker(name: &str) -> Result<(), String> {
    if (1..=WORKER_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control) {
        return Ok(());
    }
    Err(format!("the name of a node is one line of 1 to {WORKER_BYTES_MAX} bytes"))
}

/// Returns the name of the resource of a build. Names of resources have no slash, and ids of builds
/// no equals sign.
#[must_use]
pub fn resource_name(build: &str) -> String {
    build.replace('/', "=")
}

/// Returns the id of the build with this resource name.
#[must_use]
pub fn build_id(resource: &str) -> String {
    resource.replace('=', "/")
}

/// Returns the group of the tests that were published in a term.
#[must_use]
pub fn test_group(build: &ResourceKey, term: Token) -> Text {
    format!("{}:{term}", build.name()).into()
}

/// Returns the key of a test.
pub fn test_key(
    build: &ResourceKey,
    term: Token,
    index: usize,
) -> Result<ResourceKey, InvalidName> {
    let name = format!("{}:{term}:{index:06}", build.name());
    ResourceKey::new(build.tenant(), TEST, &name)
}

/// Returns the index of a test, which ends its name.
#[must_use]
pub fn test_index(key: &ResourceKey) -> Option<usize> {
    key.name().rsplit_once(':')?.1.parse().ok()
}

/// Returns the name of the lock that a node holds while it works on a build.
#[must_use]
pub fn node_lock(build: &ResourceKey, session: SessionId) -> String {
    format!("{}:{session}", build.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_with_slashes_have_a_resource_name_and_return_from_it() {
        for id in ["4711", "acme/web/4711", "a.b_c-d:e@f+g"] {
            check_build(id).unwrap();
            let name = resource_name(id);
            ResourceKey::new("default", BUILD, &name).unwrap();
            assert_eq!(build_id(&name), id);
        }
    }

    #[test]
    fn ids_that_cannot_be_names_are_refused_with_the_character() {
        assert!(check_build("").unwrap_err().contains("empty"));
        assert!(check_build("a b").unwrap_err().contains("' '"));
        assert!(check_build("a=b").unwrap_err().contains("'='"));
        assert!(check_build("..").unwrap_err().contains("starts with"));
        check_build(&"a".repeat(BUILD_BYTES_MAX)).unwrap();
        assert!(check_build(&"a".repeat(BUILD_BYTES_MAX + 1)).unwrap_err().contains("151 bytes"));
    }

    #[test]
    fn the_longest_id_leaves_room_for_the_names_of_its_tests() {
        let build = ResourceKey::new("default", BUILD, &"a".repeat(BUILD_BYTES_MAX)).unwrap();
        let key = test_key(&build, Token(u64::MAX), TESTS_MAX).unwrap();
        assert_eq!(key.group(), Some(&*test_group(&build, Token(u64::MAX))));
        assert_eq!(test_index(&key), Some(TESTS_MAX));
    }
}
