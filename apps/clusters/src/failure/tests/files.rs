//! Files of operators.

use std::fs;
use std::path::Path;

use super::*;

const RULE: &str = r#"
[[rules]]
reason = "Maintenance"
class = "NETWORK"
any = ["VpcLimitExceeded"]
message = "The account is being maintained."
remedy = "Wait."
retries = 7
retry_delay = "1h"
"#;

const QUOTA: &str = "level=fatal msg=\"VpcLimitExceeded\"";

fn parse(text: &str) -> Result<Rules, String> {
    Rules::parse(text).map_err(|bad| bad.to_string())
}

#[track_caller]
fn refuses(text: &str, parts: &[&str]) {
    let problems = parse(text).unwrap_err();
    for part in parts {
        assert!(problems.contains(part), "{part}: {problems}");
    }
    assert_eq!(problems.lines().count(), 1, "{problems}");
}

#[test]
fn rules_of_operators_come_before_the_others() {
    let classified = parse(RULE).unwrap().classify(&evidence(1, QUOTA));
    assert_eq!(classified.rule.as_deref(), Some("operator/Maintenance"));
    assert_eq!(classified.message, "The account is being maintained. Wait.");
    assert_eq!(classified.policy.retries, 7);
    assert_eq!(classified.retry_delay_ms, Some(3_600_000));
    assert_eq!(classified.others[0].rule, "builtin/VPCLimit");
}

#[test]
fn rules_can_come_after_the_others() {
    let after = format!("{RULE}position = \"after\"\n");
    let classified = parse(&after).unwrap().classify(&evidence(1, QUOTA));
    assert_eq!(classified.rule.as_deref(), Some("builtin/VPCLimit"));
    assert_eq!(classified.others[0].rule, "operator/Maintenance");
}

#[test]
fn built_in_rules_can_be_left_out() {
    let rules = parse("disable = [\"VPCLimit\", \"FallbackLimit\"]\n").unwrap();
    assert_eq!(rules.classify(&evidence(1, QUOTA)).class, Class::Unknown);
    refuses("disable = [\"VPCLimt\"]\n", &["did you mean `VPCLimit`?"]);
}

#[test]
fn every_problem_is_reported_at_once_with_its_line() {
    let text = "disabled = []\n\
                [[rules]]\nreason = \"a b\"\nclass = \"QUOTE\"\nany = [\"ab\"]\nmessage = \"\"\n\
                [[rules]]\nmesage = \"x\"\n\
                [[rules]]\nreason = \"A\"\nclass = \"QUOTA\"\nany_regex = \"(\"\nmessage = \"x\"\n\
                source = \"other\"\nposition = \"first\"\nretries = 1001\nretry_delay = \"367d\"\n\
                [[rules]]\nreason = \"B\"\nclass = \"QUOTA\"\nall_regex = \"x*\"\n\
                message = \"x\"\n";
    let problems = parse(text).unwrap_err();
    for part in [
        "line 1: disabled: unknown key `disabled`; did you mean `disable`?",
        "line 3: rules[0].reason: \"a b\" is not a reason",
        "line 4: rules[0].class: unknown class `QUOTE`; did you mean `QUOTA`?",
        "line 5: rules[0].any: the token \"ab\" has less than 3 characters",
        "line 6: rules[0].message: ",
        "line 7: rules[1]: it has no pattern",
        "line 7: rules[1]: `reason` is missing",
        "line 7: rules[1]: `class` is missing",
        "line 7: rules[1]: `message` is missing",
        "line 8: rules[1].mesage: unknown key `mesage`; did you mean `message`?",
        "line 12: rules[2].any_regex: \"(\" is not a regular expression",
        "line 14: rules[2].source: \"other\" is neither",
        "line 15: rules[2].position: \"first\" is neither",
        "line 16: rules[2].retries: it must be between 0 and 1000",
        "line 17: rules[2].retry_delay: it must be at most 366d",
        "line 21: rules[3].all_regex: \"x*\" matches an empty text",
    ] {
        assert!(problems.contains(part), "{part}:\n{problems}");
    }
    assert_eq!(problems.lines().count(), 16, "{problems}");
}

#[test]
fn a_reason_has_one_rule() {
    refuses(&format!("{RULE}{RULE}"), &["rules[1].reason", "already a rule Maintenance"]);
    // One of an operator may have the reason of a built-in rule.
    parse(&RULE.replace("Maintenance", "VPCLimit")).unwrap();
}

#[test]
fn samples_of_operators_are_checked() {
    let with = |sample: &str| format!("{RULE}samples = [{sample:?}]\n");
    parse(&with("creating VPC: VpcLimitExceeded: reached")).unwrap();
    let expected = ["line 3: ", "is classified by no rule", "of Maintenance"];
    refuses(&with("something else"), &expected);
    let after = format!("{}position = \"after\"\n", with("VpcLimitExceeded"));
    refuses(&after, &["is classified by builtin/VPCLimit", "`position`"]);
}

#[test]
fn patterns_and_rules_have_bounds() {
    let with_any = |any: &str| RULE.replace("[\"VpcLimitExceeded\"]", any);
    let list = |n: usize| {
        let tokens: Vec<String> = (0..n).map(|n| format!("\"token{n}\"")).collect();
        with_any(&format!("[{}]", tokens.join(", ")))
    };
    parse(&list(32)).unwrap();
    refuses(&list(33), &["33 patterns", "32"]);
    parse(&with_any(&format!("\"{}\"", "x".repeat(1_000)))).unwrap();
    refuses(&with_any(&format!("\"{}\"", "x".repeat(1_001))), &["1001 bytes"]);
    let huge = RULE.replace("any = [\"VpcLimitExceeded\"]", "any_regex = '(\\w{1000}){1000}'");
    refuses(&huge, &["regular expression", "size limit"]);
    let rules = |n: usize| {
        let rule = |n| RULE.replace("Maintenance", &format!("R{n}"));
        (0..n).map(rule).collect::<String>()
    };
    assert_eq!(parse(&rules(RULES_MAX)).unwrap().iter().count() - built_in().iter().count(), 500);
    refuses(&rules(RULES_MAX + 1), &["501 rules"]);
    refuses(&RULE.replace("Wait.", &"x".repeat(500)), &["533 bytes"]);
}

#[test]
fn a_broken_file_leaves_the_built_in_rules() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.toml");
    fs::write(&file, RULE).unwrap();
    let (rules, problems) = Rules::load(Some(&file));
    assert_eq!((rules.classify(&evidence(1, QUOTA)).class, problems.len()), (Class::Network, 0));
    // The file is read each time, so it can be replaced while the process runs.
    fs::write(&file, "[[rules]]\n").unwrap();
    let (rules, problems) = Rules::load(Some(&file));
    assert_eq!(rules.classify(&evidence(1, QUOTA)).class, Class::Quota);
    assert_eq!(problems.len(), 4, "{problems:?}");
    assert!(problems.iter().all(|problem| problem.file.as_deref() == Some(&*file)));
    let (rules, problems) = Rules::load(Some(Path::new("/nonexistent")));
    assert!(problems[0].message.contains("check `failure_rules`"), "{problems:?}");
    assert_eq!(rules.version(), built_in().version());
}
