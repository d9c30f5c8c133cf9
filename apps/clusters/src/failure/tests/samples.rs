//! Every rule is proven by its samples.

use super::*;

#[test]
fn every_rule_has_samples_and_classifies_them() {
    let rules = built_in();
    assert!(rules.iter().count() >= 45);
    for rule in rules.iter() {
        assert!(!rule.samples.is_empty(), "{} has no sample", rule.id);
        for sample in &rule.samples {
            for console in [
                format!("level=error msg={sample:?}\nlevel=info msg=\"Shutting down\"\n"),
                format!("level=fatal msg={sample:?}\n"),
                format!("ERROR {sample}\n"),
                format!("{sample}\n"),
            ] {
                let evidence = Evidence { source: rule.source, ..evidence(1, &console) };
                let classified = rules.classify(&evidence);
                let expected = (Some(rule.id.as_str()), rule.class);
                let got = (classified.rule.as_deref(), classified.class);
                assert_eq!(got, expected, "{console}");
                assert_eq!(classified.message, rule.message);
            }
        }
    }
}

#[test]
fn every_pattern_matches_a_sample() {
    for rule in built_in().iter() {
        for pattern in rule.any.iter().chain(&rule.all) {
            let is_covered = rule.samples.iter().any(|sample| pattern.is_match(sample));
            assert!(is_covered, "{}: no sample matches {pattern}", rule.id);
        }
    }
}

#[test]
fn case_and_white_space_do_not_matter() {
    for console in ["level=error msg=\"VPCLIMITEXCEEDED\"", "ERROR vpclimitexceeded: reached"] {
        expect(1, console, "VPCLimit", Class::Quota);
    }
    let wrapped = "level=fatal msg=\"Not enough\\n   IP space\\tavailable in subnet\"";
    expect(1, wrapped, "SubnetIPSpace", Class::InvalidConfig);
}

#[test]
fn messages_name_a_remedy() {
    for rule in built_in().iter() {
        let sentences = rule.message.matches(". ").count();
        assert!(sentences >= 1 && rule.message.ends_with('.'), "{}: {}", rule.id, rule.message);
    }
}

#[test]
fn fallbacks_are_at_the_end() {
    let rules = built_in();
    let kinds: Vec<bool> = rules.iter().map(|rule| rule.fallback).collect();
    assert!(kinds.is_sorted(), "a fallback is followed by a specific rule");
}

#[test]
fn every_class_of_the_installer_is_used() {
    let rules = built_in();
    for class in Class::ALL {
        // The other two come from the exit code.
        let is_decided_by_exit = matches!(class, Class::Interrupted | Class::Unknown);
        let is_used = rules.iter().any(|rule| rule.class == class);
        assert_eq!(is_used, !is_decided_by_exit, "{class}");
    }
}

#[test]
fn a_version_identifies_the_rules() {
    assert_eq!(built_in().version().len(), 12);
    assert_eq!(built_in().version(), built_in().version());
    let other = Rules::parse("disable = [\"SCP\"]\n").unwrap();
    assert_ne!(other.version(), built_in().version());
}
