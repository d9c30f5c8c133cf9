//! Texts that mislead.

use super::*;

#[test]
fn request_limit_exceeded_is_throttling_and_no_quota() {
    let text = "level=error msg=\"RequestLimitExceeded: Request limit exceeded.\"";
    expect(1, text, "Throttling", Class::Throttled);
    // The fallback for limits matches as well, and is ranked below.
    let classified = built_in().classify(&evidence(1, text));
    assert_eq!(classified.others.len(), 1);
    assert_eq!(classified.others[0].reason, "FallbackLimit");
}

#[test]
fn throttled_calls_that_were_repeated_are_no_cause() {
    let text = r#"
time="2026-11-16T03:00:14Z" level=debug msg="retrying: Throttling: Rate exceeded"
time="2026-11-16T03:00:14Z" level=debug msg="RequestLimitExceeded"
a second line of the same debug message: Throttling: Rate exceeded
time="2026-11-16T03:20:14Z" level=error msg="Cluster operator authentication Degraded is True"
time="2026-11-16T03:20:15Z" level=debug msg="SlowDown"
time="2026-11-16T03:20:15Z" level=fatal msg="failed to initialize the cluster"
"#;
    expect(6, text, "OperatorDegraded", Class::Timeout);
    let only_debug = "level=debug msg=\"Throttling: Rate exceeded\"\nlevel=fatal msg=\"failed\"";
    expect(1, only_debug, "UnknownError", Class::Unknown);
    assert!(built_in().classify(&evidence(1, only_debug)).others.is_empty());
}

#[test]
fn a_denied_snapshot_is_no_missing_permission_of_the_account() {
    let text = "PutObject: AccessDenied: Access Denied";
    expect(1, text, "InsufficientPermissions", Class::Permission);
    let snapshot =
        Evidence { source: Source::ArtifactStore, step: Step::Snapshot, ..evidence(1, text) };
    let classified = built_in().classify(&snapshot);
    assert_eq!(
        (classified.reason.as_str(), classified.class),
        ("ArtifactStoreDenied", Class::Network)
    );
    assert!(!classified.cleanup && classified.others.is_empty());
    let other = Evidence { console: "disk full", ..snapshot };
    let classified = built_in().classify(&other);
    assert_eq!(
        (classified.reason.as_str(), classified.class),
        ("ArtifactStoreFailed", Class::Network)
    );
    // Exit codes are those of the installer.
    let other = Evidence { exit_code: Some(8), console: text, ..snapshot };
    assert_eq!(built_in().classify(&other).reason, "ArtifactStoreDenied");
}

#[test]
fn the_last_error_is_often_a_symptom_of_an_earlier_one() {
    for (cause, reason, class) in [
        ("VcpuLimitExceeded: more than 32", "VcpuLimit", Class::Quota),
        ("UnauthorizedOperation: no", "InsufficientPermissions", Class::Permission),
        ("InsufficientInstanceCapacity", "AWSInsufficientCapacity", Class::Capacity),
    ] {
        for symptom in [
            "Bootstrap failed to complete: timed out waiting for the condition",
            "failed doing terraform destroy: exit status 1",
            "Throttling: Rate exceeded",
            "Error waiting for NAT Gateway (nat-0) to become available",
            "waiting for Kubernetes API: context deadline exceeded",
            "context deadline exceeded",
            "InternetGatewayLimitExceeded",
        ] {
            let apart = format!(
                "level=error msg=\"{cause}\"\nlevel=info msg=\"Gathering logs\"\n\
                 level=fatal msg=\"{symptom}\""
            );
            expect(4, &apart, reason, class);
            let together = format!("level=error msg=\"{cause}\"\nlevel=fatal msg=\"{symptom}\"");
            expect(4, &together, reason, class);
        }
    }
}

#[test]
fn of_two_causes_the_newest_decides() {
    let text = "level=error msg=\"VpcLimitExceeded\"\nlevel=info msg=\"Retrying\"\n\
                level=fatal msg=\"ExpiredToken: expired\"";
    expect(1, text, "InvalidCredentials", Class::Credentials);
    let classified = built_in().classify(&evidence(1, text));
    let others: Vec<&str> = classified.others.iter().map(|other| other.reason.as_str()).collect();
    assert_eq!(others, ["VPCLimit", "FallbackLimit"]);
}

#[test]
fn within_a_block_the_order_of_the_rules_decides() {
    let text = "level=error msg=\"ExpiredToken\"\nlevel=fatal msg=\"VpcLimitExceeded\"";
    expect(1, text, "VPCLimit", Class::Quota);
}

#[test]
fn errors_are_preferred_to_warnings_and_warnings_to_fallbacks() {
    let warning = "level=warning msg=\"cannot check quotas: AccessDenied\"";
    let symptom = format!("{warning}\nlevel=fatal msg=\"Bootstrap failed to complete\"");
    expect(5, &symptom, "BootstrapFailed", Class::Timeout);
    let fallback = "level=warning msg=\"condition: VpcLimitExceeded\"\n\
                    level=fatal msg=\"infrastructure is not ready: context deadline exceeded\"";
    expect(4, fallback, "VPCLimit", Class::Quota);
}

#[test]
fn an_error_of_several_lines_is_one_block() {
    let text = "level=error\nlevel=error msg=\"Error: creating EC2 instance\"\n  \
                with module.master\n  VcpuLimitExceeded: more\nlevel=info msg=x";
    expect(1, text, "VcpuLimit", Class::Quota);
}

#[test]
fn lines_with_credentials_are_neither_searched_nor_kept() {
    let text = "level=fatal msg=\"VpcLimitExceeded, password: hunter2\"";
    let classified = built_in().classify(&evidence(1, text));
    assert_eq!(classified.class, Class::Unknown);
    assert!(!format!("{classified:?}").contains("hunter2"));
}
