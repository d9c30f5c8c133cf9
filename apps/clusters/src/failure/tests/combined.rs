//! The text and the exit code together.

use super::*;

const QUOTA: &str = "level=fatal msg=\"VpcLimitExceeded\"";

#[test]
fn without_a_rule_the_exit_code_decides() {
    let text = "level=fatal msg=\"something new\"";
    for (exit_code, reason, class) in [
        (1, "UnknownError", Class::Unknown),
        (2, "UnknownError", Class::Unknown),
        (3, "InvalidInstallConfig", Class::InvalidConfig),
        (4, "InfrastructureFailed", Class::Unknown),
        (5, "BootstrapFailed", Class::Timeout),
        (6, "OperatorsNotReady", Class::Timeout),
        (7, "OperatorsUnstable", Class::Timeout),
        (8, "Interrupted", Class::Interrupted),
    ] {
        expect(exit_code, text, reason, class);
        expect(exit_code, "", reason, class);
    }
    let killed = Evidence { exit_code: None, ..evidence(0, text) };
    let classified = built_in().classify(&killed);
    assert_eq!((classified.reason.as_str(), classified.class), ("InstallerKilled", Class::Unknown));
    assert_eq!(classified.rule, None);
    assert_eq!(classified.excerpt.as_deref(), Some("something new"));
}

#[test]
fn a_rejected_install_config_is_invalid_unless_a_call_failed() {
    // Other rules do not matter: nothing was created.
    expect(3, QUOTA, "InvalidInstallConfig", Class::InvalidConfig);
    let denied = "level=fatal msg=\"failed to load asset \\\"Install Config\\\": AccessDenied\"";
    expect(3, denied, "FallbackInstallConfig", Class::InvalidConfig);
    let tags = "level=fatal msg=\"platform.aws.userTags[a]: Invalid value: \\\"|\\\"\"";
    expect(3, tags, "InvalidAWSTags", Class::InvalidConfig);
    for (text, reason, class) in [
        ("ExpiredToken: expired", "InvalidCredentials", Class::Credentials),
        ("Throttling: Rate exceeded", "Throttling", Class::Throttled),
        ("dial tcp: lookup sts.amazonaws.com: no such host", "FallbackNetwork", Class::Network),
    ] {
        let text = format!(
            "level=fatal msg=\"failed to fetch Metadata: failed to load asset \\\"Install \
             Config\\\": {text}\""
        );
        expect(3, &text, reason, class);
    }
}

#[test]
fn a_late_failure_is_a_timeout_unless_a_cause_is_known() {
    for exit_code in [5, 6, 7] {
        expect(exit_code, QUOTA, "VPCLimit", Class::Quota);
        let (_, class) = classify(exit_code, "level=fatal msg=\"context deadline exceeded\"");
        assert_eq!(class, Class::Timeout);
        let limit = "level=fatal msg=\"InternetGatewayLimitExceeded\"";
        expect(exit_code, limit, "FallbackLimit", Class::Quota);
    }
    let proxy = "level=fatal msg=\"proxyconnect tcp: dial tcp 10.0.0.9:1: i/o timeout\"";
    expect(5, proxy, "Proxy", Class::Network);
    expect(4, "level=fatal msg=\"context deadline exceeded\"", "FallbackNetwork", Class::Network);
}

#[test]
fn an_interruption_is_no_failure_of_its_own() {
    expect(8, QUOTA, "Interrupted", Class::Interrupted);
    assert_eq!(built_in().classify(&evidence(8, QUOTA)).others.len(), 2);
}

#[test]
fn a_run_that_was_stopped_at_its_time_limit_has_timed_out() {
    for (text, reason, class) in [
        ("level=info msg=\"Waiting up to 45m0s\"", "AttemptDeadlineExceeded", Class::Timeout),
        (
            "level=error msg=\"context deadline exceeded\"",
            "AttemptDeadlineExceeded",
            Class::Timeout,
        ),
        ("level=error msg=\"Got 0 worker nodes\"", "AttemptDeadlineExceeded", Class::Timeout),
        (QUOTA, "VPCLimit", Class::Quota),
    ] {
        for exit_code in [None, Some(8)] {
            let stopped = Evidence { exit_code, timed_out: true, ..evidence(0, text) };
            let classified = built_in().classify(&stopped);
            assert_eq!((classified.reason.as_str(), classified.class), (reason, class), "{text}");
        }
    }
}

#[test]
fn what_cannot_exist_is_not_removed() {
    let cleanup = |exit_code, console, infra_started, step| {
        let evidence = Evidence { infra_started, step, ..evidence(exit_code, console) };
        built_in().classify(&evidence).cleanup
    };
    let capacity = "level=error msg=\"InsufficientInstanceCapacity\"";
    for (exit_code, console, infra_started, step, expected) in [
        (1, QUOTA, false, Step::Create, false),
        (1, QUOTA, true, Step::Create, true),
        (1, capacity, false, Step::Create, false),
        (4, capacity, false, Step::Create, true),
        (5, "", false, Step::Create, true),
        (8, "", false, Step::Create, true),
        (8, "", false, Step::Prepare, false),
        (3, "", true, Step::Create, false),
        (6, "", true, Step::Complete, true),
        (1, QUOTA, true, Step::Destroy, false),
        (1, "", true, Step::Scale, false),
    ] {
        let got = cleanup(exit_code, console, infra_started, step);
        assert_eq!(got, expected, "exit {exit_code}, {console}, {infra_started}, {step:?}");
    }
}

#[test]
fn unknown_failures_are_grouped_by_what_they_have_in_common() {
    let fingerprint = |text: &str| {
        let console = format!("level=fatal msg=\"{text}\"");
        built_in().classify(&evidence(1, &console)).fingerprint
    };
    let first =
        fingerprint("failed to tag i-0a1b2c3d in us-east-1a: odd (10.0.0.7:6443) after 31s");
    assert_eq!(
        first,
        fingerprint("failed to tag i-9f8e7d in eu-west-2b: odd (10.9.0.1:443) after 4s")
    );
    assert_eq!(first.as_deref(), Some("failed to tag # in #: odd (#:#) after #"));
    assert_ne!(first, fingerprint("failed to list i-0a1b2c3d in us-east-1a"));
    assert_eq!(built_in().classify(&evidence(1, QUOTA)).fingerprint, None);
    assert_eq!(built_in().classify(&evidence(1, "")).fingerprint, None);
}

#[test]
fn only_the_end_of_a_long_text_is_searched() {
    let filler = "level=info msg=\"ü\"\n".repeat(CONSOLE_BYTES_MAX / 18);
    let early = format!("{QUOTA}\n{filler}");
    assert!(early.len() > CONSOLE_BYTES_MAX);
    expect(1, &early, "UnknownError", Class::Unknown);
    expect(1, &format!("{filler}\n{QUOTA}"), "VPCLimit", Class::Quota);
}

#[test]
fn an_excerpt_is_one_line_of_bounded_length() {
    let text = format!(
        "level=error msg=\"first\"\nlevel=fatal msg=\"a\\n b {}\"\nINFO x",
        "ü".repeat(999)
    );
    let excerpt = built_in().classify(&evidence(1, &text)).excerpt.unwrap();
    assert!(excerpt.starts_with("a b ü") && excerpt.len() <= 400, "{excerpt}");
}
