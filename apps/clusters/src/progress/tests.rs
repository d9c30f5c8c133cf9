//! Tests of the progress.

use super::*;

/// Log of a create, with the percentage after each line. Lines without a number change nothing.
const CREATE: [(&str, u8); 26] = [
    (r#"time="2026-11-16T03:00:00Z" level=debug msg="OpenShift Installer 4.19.1""#, 0),
    (r#"level=info msg="Consuming \"Install Config\" from target directory""#, 2),
    (r#"level=info msg="Creating infrastructure resources...""#, 5),
    ("level=info msg=Started local control plane with envtest", 7),
    ("I0812 14:37:46.543646 1434068 warning_handler.go:65] no level", 7),
    (
        "level=info msg=\"Waiting up to 15m0s (until 2:52PM CEST) for network \
         infrastructure to become ready...\"",
        10,
    ),
    (r#"level=info msg="Network infrastructure is ready""#, 20),
    (
        "level=info msg=\"Waiting up to 15m0s (until 3:02PM CEST) for machines \
         [demo-x7k2p-bootstrap demo-x7k2p-master-0] to provision...\"",
        25,
    ),
    (r#"level=info msg="Control-plane machines are ready""#, 25),
    (
        "level=info msg=\"Waiting up to 20m0s (until 3:10PM CEST) for the Kubernetes API \
         at https://api.demo.dev.example.com:6443...\"",
        35,
    ),
    (r#"level=info msg="API v1.32.5+0a3ab1c up""#, 45),
    (
        "level=info msg=\"Waiting up to 45m0s (until 3:49PM CEST) for bootstrapping to \
         complete...\"",
        50,
    ),
    // An earlier message again.
    (r#"level=info msg="Network infrastructure is ready""#, 50),
    (r#"level=info msg="Destroying the bootstrap resources...""#, 70),
    (
        "level=info msg=\"Waiting up to 40m0s (until 4:13PM CEST) for the cluster at \
         https://api.demo.dev.example.com:6443 to initialize...\"",
        75,
    ),
    (
        "time=\"2026-11-16T03:30:00Z\" level=debug msg=\"Still waiting for the cluster \
         to initialize: Working towards 4.19.1: 385 of 770 done (50% complete)\"",
        85,
    ),
    (
        "time=\"2026-11-16T03:31:00Z\" level=debug msg=\"Still waiting for the cluster \
         to initialize: Working towards 4.19.1: 77 of 770 done (10% complete)\"",
        85,
    ),
    (
        "time=\"2026-11-16T03:32:00Z\" level=debug msg=\"Still waiting for the cluster \
         to initialize: Working towards 4.19.1: 770 of 770 done (100% complete)\"",
        94,
    ),
    (
        "time=\"2026-11-16T03:33:00Z\" level=debug msg=\"Still waiting for the cluster \
         to initialize: Some cluster operators are still updating: authentication, \
         monitoring\"",
        94,
    ),
    (
        "level=info msg=\"Waiting up to 30m0s (until 4:43PM CEST) to ensure each cluster \
         operator has finished progressing...\"",
        95,
    ),
    (r#"level=info msg="Checking to see if there is a route at openshift-console/console...""#, 95),
    (r#"level=info msg="Install complete!""#, 100),
    (
        "level=info msg=\"To access the cluster as the system:admin user when using \
         'oc', run\\n    export KUBECONFIG=/tmp/auth/kubeconfig\"",
        100,
    ),
    (
        "level=info msg=\"Access the OpenShift web-console here: \
         https://console-openshift-console.apps.demo.dev.example.com\"",
        100,
    ),
    (
        "level=info msg=\"Login to the console with user: \\\"kubeadmin\\\", and \
         password: \\\"FwSTf-XPwzz-yEMf9-zzj8X\\\"\"",
        100,
    ),
    (r#"level=info msg="Uninstallation complete!""#, 100),
];

#[test]
fn a_create_advances_with_the_markers_of_its_log_and_never_goes_back() {
    let mut progress = Progress::create();
    for (line, percent) in CREATE {
        let before = progress.clone();
        let changed = progress.feed(line);
        assert_eq!(progress.percent(), percent, "{line}");
        assert!(progress.phase() >= before.phase(), "{line}");
        let shown = |progress: &Progress| (progress.percent(), progress.message());
        assert_eq!(changed, shown(&before) != shown(&progress), "{line}");
        // Resources may exist from the third line on.
        assert_eq!(progress.infra_started(), percent >= 5, "{line}");
    }
    assert_eq!(progress.phase(), Phase::Complete);
    assert!(progress.is_complete());
}

#[test]
fn the_console_of_a_terminal_is_read_as_well() {
    for (line, phase) in [
        ("INFO Creating infrastructure resources...         ", Phase::Infrastructure),
        ("\u{1b}[36mINFO\u{1b}[0m API v1.25.4+18eadca up                       ", Phase::ApiUp),
        ("INFO[0312] Destroying the bootstrap resources...", Phase::BootstrapRemoval),
        ("INFO Waiting up to 30m0s for the bootstrap-complete event...", Phase::Bootstrap),
        ("level=info msg=\"API up\"", Phase::ApiUp),
        ("INFO Waiting up to 15m0s for machines to provision...", Phase::Machines),
        ("INFO Waiting up to 40m0s for the cluster to initialize...", Phase::Operators),
    ] {
        let mut progress = Progress::create();
        assert!(progress.feed(line), "{line}");
        assert_eq!(progress.phase(), phase, "{line}");
        assert!(progress.infra_started());
    }
}

#[test]
fn other_texts_are_no_markers() {
    let mut progress = Progress::create();
    for line in [
        "",
        "Install complete!",
        "level=info",
        "level=info msg=",
        "level=loud msg=\"Install complete!\"",
        "level=debug msg=\"Install complete!\"",
        "level=info msg=\"see also: Install complete!\"",
        "INFORMATION Install complete!",
        "INFO[x] Install complete!",
        "INFO API version is unknown",
        "\u{1b}[",
    ] {
        assert!(!progress.feed(line), "{line}");
    }
    assert_eq!(progress, Progress::create());
}

#[test]
fn addresses_are_kept_and_the_password_is_not() {
    let mut progress = Progress::create();
    assert_eq!(progress.outputs(), None);
    for (line, _) in CREATE {
        progress.feed(line);
    }
    let expected = Outputs {
        api_url: "https://api.demo.dev.example.com:6443".to_owned(),
        console_url: Some("https://console-openshift-console.apps.demo.dev.example.com".to_owned()),
    };
    assert_eq!(progress.outputs(), Some(expected));
    assert!(!format!("{progress:?} {}", progress.message()).contains("FwSTf"));
}

#[test]
fn an_address_with_other_characters_is_not_kept() {
    let mut progress = Progress::create();
    for url in ["https://api.demo:6443/?x=<script>", "https://user@evil", "http://api.demo"] {
        progress.feed(&format!("INFO Waiting up to 20m0s for the Kubernetes API at {url}..."));
    }
    assert_eq!(progress.outputs(), None);
    let long = format!("https://api.{}", "a".repeat(URL_BYTES_MAX));
    progress.feed(&format!("INFO Waiting up to 20m0s for the Kubernetes API at {long}"));
    assert_eq!(progress.outputs(), None);
}

#[test]
fn lines_with_credentials_are_secret() {
    for line in [
        "user: kubeadmin, Password: x",
        "pullSecret: '{}'",
        "AWS_SECRET_ACCESS_KEY=x",
        "key AKIAIOSFODNN7EXAMPLE is used",
        "ASIAIOSFODNN7EXAMPLE",
        "Authorization: Bearer eyJ",
        "-----BEGIN RSA PRIVATE KEY-----",
    ] {
        assert!(is_secret(line), "{line}");
        let mut progress = Progress::create();
        assert!(!progress.feed(&format!("level=info msg=\"Install complete! {line}\"")), "{line}");
    }
    for line in ["INFO API v1 up", "AKIA is short", "the region is ASIA", "AKIAiosfodnn7example"] {
        assert!(!is_secret(line), "{line}");
    }
}

#[test]
fn a_destroy_advances_with_each_deleted_resource() {
    let mut progress = Progress::destroy();
    assert_eq!((progress.percent(), progress.is_complete()), (0, false));
    let deleted = "time=\"2026-11-16T03:00:14Z\" level=info msg=Deleted \
     arn=\"arn:aws:ec2:us-east-1:1:instance/i-0\" id=i-0 resourceType=instance";
    let mut last = 0;
    for n in 1..=500_u32 {
        assert!(progress.feed(deleted));
        assert!(progress.percent() >= last && progress.percent() <= DESTROY_PERCENT_MAX);
        last = progress.percent();
        if n == DELETED_HALF {
            assert_eq!(last, 47);
        }
    }
    assert_eq!(progress.message(), "deleting resources: 500 resources deleted");
    assert!(!progress.feed("level=debug msg=Deleted"));
    assert!(!progress.feed("level=info msg=\"Install complete!\""));
    assert!(progress.feed("level=info msg=\"Uninstallation complete!\""));
    assert_eq!((progress.percent(), progress.phase()), (100, Phase::Destroyed));
    assert!(!progress.feed(deleted));
    assert!(progress.is_complete() && !progress.infra_started());
}

#[test]
fn messages_are_unescaped() {
    for (line, level, message) in [
        (r#"level=error msg="a \"b\" c\\d\n\te""#, Level::Error, "a \"b\" c\\d\n\te"),
        (r#"level=warning msg="\u00fc \x41 \U0001F600""#, Level::Warning, "ü A \u{1F600}"),
        (r#"time=now level=fatal msg="end" id=1"#, Level::Fatal, "end"),
        (r#"level=info msg="no end"#, Level::Info, "no end"),
        (r#"level=info msg="bad \uD800 escape \x4""#, Level::Info, "bad  escape"),
        (r#"level=info msg="open \"#, Level::Info, "open"),
        ("level=info msg=without quotes", Level::Info, "without quotes"),
        ("FATAL failed", Level::Fatal, "failed"),
        ("WARN careful", Level::Warning, "careful"),
        ("ERRO[0001] failed", Level::Error, "failed"),
    ] {
        let expected = LogLine { level, message: message.to_owned() };
        assert_eq!(LogLine::parse(line), Some(expected), "{line}");
    }
}

#[test]
fn a_long_line_is_cut_off_at_a_character() {
    let line = format!("INFO {}", "ü".repeat(100_000));
    let message = LogLine::parse(&line).unwrap().message;
    assert!(message.len() <= 64 * 1024 && message.chars().all(|c| c == 'ü'));
}

#[test]
fn percentages_and_shares_of_time_increase_with_the_phases() {
    let create: Vec<Phase> =
        Phase::ALL.into_iter().filter(|phase| *phase < Phase::Destroying).collect();
    for pair in create.windows(2) {
        assert!(pair[0] < pair[1] && pair[0].percent() < pair[1].percent(), "{pair:?}");
        assert!(pair[0].elapsed_percent() <= pair[1].elapsed_percent(), "{pair:?}");
    }
}

#[test]
fn the_remaining_time_follows_the_median_of_earlier_installs() {
    let minutes = |n: u64| n * 60_000;
    let earlier = [minutes(30), minutes(200), minutes(40), minutes(50), minutes(40)];
    let remaining = |phase, in_phase| remaining_ms(&earlier, phase, in_phase).unwrap();
    assert_eq!(remaining(Phase::Starting, 0), minutes(40));
    assert_eq!(remaining(Phase::Operators, 0), minutes(16));
    assert_eq!(remaining(Phase::Operators, minutes(6)), minutes(10));
    // A phase that takes too long leaves the time of those after it.
    assert_eq!(remaining(Phase::Operators, minutes(100)), minutes(40) * 6 / 100);
    assert_eq!(remaining(Phase::Complete, minutes(100)), 0);
    assert_eq!(remaining_ms(&[10, 20], Phase::Starting, 0), Some(15));
    assert_eq!(remaining_ms(&[], Phase::Starting, 0), None);
    assert_eq!(remaining_ms(&earlier, Phase::Destroying, 0), None);
    assert_eq!(remaining_ms(&[u64::MAX, u64::MAX], Phase::Starting, 0), Some(u64::MAX));
    let mut last = u64::MAX;
    for phase in Phase::ALL.into_iter().filter(|phase| *phase < Phase::Destroying) {
        assert!(remaining(phase, 0) <= last, "{phase:?}");
        last = remaining(phase, 0);
    }
}

#[test]
fn only_the_newest_installs_count() {
    let mut earlier = vec![1_000; EARLIER_MAX];
    earlier.extend(vec![9_000; 10 * EARLIER_MAX]);
    assert_eq!(remaining_ms(&earlier, Phase::Starting, 0), Some(1_000));
}
