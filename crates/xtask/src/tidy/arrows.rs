//! Rules about dependencies: allowed directions between crates, and banned crates.
//!
//! A new crate needs a row here. A new direction changes the architecture and must be documented in
//! ARCHITECTURE.md. `deny.toml` has the licence rules and the same bans.

use super::Finding;
use crate::metadata::{Dependency, Package};

/// Each crate with the workspace crates that it may depend on outside of its tests.
const ARROWS: [(&str, &[&str]); 17] = [
    ("tenure-core", &[]),
    ("tenure-wire", &["tenure-core"]),
    ("tenure-config", &["tenure-core"]),
    ("tenure-store", &["tenure-core"]),
    ("tenure", &["tenure-wire", "tenure-store", "tenure-core"]),
    ("tenure-cli-kit", CLI_KIT_USES),
    ("tenure-app", APP_USES),
    ("tenure-server", SERVER_USES),
    ("tenure-bench", BENCH_USES),
    ("tenure-builds", APPS_USE),
    ("tenure-pipelines", APPS_USE),
    ("tenure-kube", &["tenure-core"]),
    ("tenure-cli", CLI_USES),
    ("tenure-sim", &["tenure", "tenure-store", "tenure-core"]),
    ("tenure-testbed", &[]),
    ("xtask", &[]),
    ("tenure-example-app", APPS_USE),
];

const CLI_KIT_USES: &[&str] =
    &["tenure", "tenure-wire", "tenure-config", "tenure-store", "tenure-core"];
const APP_USES: &[&str] =
    &["tenure-cli-kit", "tenure", "tenure-wire", "tenure-config", "tenure-store", "tenure-core"];
/// No app: the server gets its apps from the binary.
const SERVER_USES: &[&str] =
    &["tenure-app", "tenure", "tenure-wire", "tenure-config", "tenure-store", "tenure-core"];
const BENCH_USES: &[&str] = &[
    "tenure-server",
    "tenure-app",
    "tenure-cli-kit",
    "tenure",
    "tenure-wire",
    "tenure-store",
    "tenure-core",
];
/// What every app may use: not the server, and no other app.
const APPS_USE: &[&str] = &[
    "tenure-app",
    "tenure-kube",
    "tenure-bench",
    "tenure-cli-kit",
    "tenure",
    "tenure-wire",
    "tenure-config",
    "tenure-store",
    "tenure-core",
];
const CLI_USES: &[&str] = &[
    "tenure-builds",
    "tenure-pipelines",
    "tenure-bench",
    "tenure-server",
    "tenure-app",
    "tenure-cli-kit",
    "tenure",
    "tenure-wire",
    "tenure-config",
    "tenure-store",
    "tenure-core",
];

/// This crate is pure: no runtime, no I/O, no randomness, not even in its tests.
const PURE: &str = "tenure-core";
const IMPURE: [&str; 6] = ["tokio", "async-trait", "reqwest", "rusqlite", "rustix", "getrandom"];

/// Crates that only one of ours may name, in its tests as well, so that a new major version of them
/// changes one crate.
const WRAPPED: [(&str, &str); 2] = [("kube", "tenure-kube"), ("k8s-openapi", "tenure-kube")];

/// Crates that are banned, also as transitive dependencies, with the reason.
const BANNED: [(&str, &str); 5] = [
    ("chrono", "jiff is our only calendar"),
    ("time", "jiff is our only calendar"),
    ("openssl", "TLS is rustls, nothing links the system's OpenSSL"),
    ("native-tls", "TLS is rustls, nothing links the system's OpenSSL"),
    ("serde_yaml", "archived by its author"),
];

/// Checks the declared dependencies.
pub(super) fn check(packages: &[Package]) -> Vec<Finding> {
    packages.iter().flat_map(|package| check_package(package, packages)).collect()
}

fn check_package(package: &Package, all: &[Package]) -> Vec<Finding> {
    let Some((name, allowed)) = ARROWS.iter().find(|(name, _)| *name == package.name) else {
        let message = format!("crate {} has no row in xtask's table of arrows", package.name);
        return vec![Finding::new(&package.manifest, 1, message)];
    };
    let check = |used: &Dependency| {
        let ours = all.iter().any(|one| one.name == used.name);
        let upwards = ours && !used.dev && !allowed.contains(&used.name.as_str());
        let impure = *name == PURE && IMPURE.contains(&used.name.as_str());
        let owner = WRAPPED.iter().find(|(wrapped, _)| *wrapped == used.name);
        let wrapped = owner.is_some_and(|(_, owner)| owner != name);
        (upwards || impure || wrapped).then(|| refused(package, used))
    };
    package.dependencies.iter().filter_map(check).collect()
}

fn refused(package: &Package, used: &Dependency) -> Finding {
    let message = format!("{} may not depend on {}", package.name, used.name);
    Finding::new(&package.manifest, 1, message)
}

/// Checks the resolved dependencies in Cargo.lock.
pub(super) fn lock_file(path: &str, text: &str) -> Vec<Finding> {
    if path != "Cargo.lock" {
        return Vec::new();
    }
    text.lines().zip(1..).filter_map(|(line, at)| banned(path, line, at)).collect()
}

fn banned(path: &str, line: &str, at: usize) -> Option<Finding> {
    let name = line.strip_prefix("name = \"")?.strip_suffix('"')?;
    let (_, reason) = BANNED.iter().find(|(banned, _)| *banned == name)?;
    let message = format!("{name} is banned ({reason}); `cargo tree -i {name}` shows who pulls it");
    Some(Finding::new(path, at, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, uses: &[(&str, bool)]) -> Package {
        let dependencies =
            uses.iter().map(|&(name, dev)| Dependency { name: name.into(), dev }).collect();
        Package {
            name: name.into(),
            manifest: "Cargo.toml".into(),
            dependencies,
            ..Package::default()
        }
    }

    /// Returns the messages for `package` in a workspace with all crates of the table.
    fn messages_for(package: Package) -> Vec<String> {
        let others = ARROWS.iter().filter(|(name, _)| *name != package.name);
        let mut all: Vec<_> = others.map(|(name, _)| self::package(name, &[])).collect();
        all.push(package);
        check(&all).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn arrow_upwards_is_found() {
        let found = messages_for(package("tenure-core", &[("tenure-store", false)]));
        assert_eq!(found, ["tenure-core may not depend on tenure-store"]);
    }

    #[test]
    fn a_server_that_imports_an_app_is_found() {
        let found = messages_for(package("tenure-server", &[("tenure-pipelines", false)]));
        assert_eq!(found, ["tenure-server may not depend on tenure-pipelines"]);
    }

    #[test]
    fn arrow_downwards_passes() {
        assert!(messages_for(package("tenure-store", &[("tenure-core", false)])).is_empty());
        assert!(messages_for(package("tenure-core", &[("serde", false)])).is_empty());
    }

    #[test]
    fn dev_dependencies_may_point_upwards() {
        assert!(messages_for(package("tenure-store", &[("tenure-sim", true)])).is_empty());
    }

    #[test]
    fn every_row_of_the_table_passes() {
        for (name, allowed) in ARROWS {
            let uses: Vec<_> = allowed.iter().map(|&name| (name, false)).collect();
            assert!(messages_for(package(name, &uses)).is_empty(), "{name}");
            assert!(!allowed.contains(&name), "{name}");
        }
    }

    #[test]
    fn impure_crates_are_found_in_the_core_including_its_tests() {
        for impure in IMPURE {
            let expected = [format!("tenure-core may not depend on {impure}")];
            assert_eq!(messages_for(package("tenure-core", &[(impure, false)])), expected);
            assert_eq!(messages_for(package("tenure-core", &[(impure, true)])), expected);
            assert!(messages_for(package("tenure-store", &[(impure, false)])).is_empty());
        }
    }

    #[test]
    fn wrapped_crates_are_named_by_their_owners_only() {
        for (wrapped, owner) in WRAPPED {
            assert!(messages_for(package(owner, &[(wrapped, false)])).is_empty());
            for dev in [false, true] {
                let found = messages_for(package("tenure-testbed", &[(wrapped, dev)]));
                assert_eq!(found, [format!("tenure-testbed may not depend on {wrapped}")]);
            }
        }
    }

    #[test]
    fn crate_without_a_row_is_found() {
        let found = messages_for(package("tenure-new", &[]));
        assert_eq!(found, ["crate tenure-new has no row in xtask's table of arrows"]);
    }

    #[test]
    fn banned_crates_are_found_in_the_lock_file() {
        for (name, _) in BANNED {
            let text = format!("[[package]]\nname = \"{name}\"\nversion = \"1.0.0\"\n");
            let lines: Vec<_> = lock_file("Cargo.lock", &text).iter().map(|one| one.line).collect();
            assert_eq!(lines, [2], "{name}");
            assert_eq!(lock_file("docs/example.md", &text), []);
        }
    }

    #[test]
    fn crates_with_similar_names_pass() {
        assert_eq!(lock_file("Cargo.lock", "name = \"timeout\"\nname = \"chrono-tz\"\n"), []);
    }
}
