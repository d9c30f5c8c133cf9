//! Tests of the files of profiles.

use std::fs;

use super::super::tags::is_always_reserved;
use super::*;

#[track_caller]
fn refuses(lines: &str, parts: &[&str]) {
    let problems = parse(&format!("{LEAST}{lines}\n")).unwrap_err();
    for part in parts {
        assert!(problems.contains(part), "{lines}: {part}: {problems}");
    }
    assert_eq!(problems.lines().count(), 1, "{problems}");
}

#[test]
fn every_key_is_read() {
    let profile = parse(FULL).unwrap();
    assert_eq!(profile.description.as_deref(), Some("Clusters for development"));
    assert_eq!(profile.platform.name, "aws");
    assert_eq!(profile.versions.allowed, ["4.18.9", "4.19.1", "4.20.0-rc.2"]);
    assert_eq!(profile.versions.default.as_deref(), Some("4.19.1"));
    assert_eq!(profile.regions.default.as_deref(), Some("eu-west-1"));
    assert_eq!(profile.base_domains.default.as_deref(), Some("dev.example.com"));
    let ttl = TtlRule {
        min_ms: 3_600_000,
        max_ms: 259_200_000,
        default_ms: Some(28_800_000),
        required: true,
    };
    assert_eq!(profile.ttl, ttl);
    assert_eq!(profile.workers, WorkersRule { min: 2, max: 6, default: 3 });
    assert_eq!(profile.required_tags, ["team"]);
    assert_eq!(profile.tags["environment"], "dev");
    assert!(profile.allow_preserve);
    assert_eq!(profile.pull_secret_file, Some("/etc/profiles/pull-secret.json".into()));
    assert_eq!(profile.ssh_key_file, Some("/etc/ssh.pub".into()));
    assert_eq!(profile.preflight, ["/etc/profiles/preflight", "--quick"]);
    assert_eq!(profile.install_config["networking"]["networkType"], "OVNKubernetes");
}

#[test]
fn the_least_profile_has_defaults() {
    let profile = parse(LEAST).unwrap();
    assert_eq!(profile.versions.default.as_deref(), Some("4.19.1"));
    let ttl = TtlRule { min_ms: TTL_MS_MIN, max_ms: TTL_MS_MAX, default_ms: None, required: true };
    assert_eq!(profile.ttl, ttl);
    assert_eq!(profile.workers, WorkersRule { min: 0, max: WORKERS_MAX, default: 3 });
    assert!(!profile.allow_preserve && profile.preflight.is_empty());
    let clamped = parse(&format!("{LEAST}workers = {{ max = 1 }}\n")).unwrap();
    assert_eq!(clamped.workers.default, 1);
}

#[test]
fn the_installer_of_a_version_can_be_another() {
    let (profile, settings) = (parse(FULL).unwrap(), Settings::new(Path::new("/")));
    let installer = |version| profile.installer(version, &settings);
    assert_eq!(installer("4.18.9"), "/etc/profiles/old/openshift-install-4.18.9");
    assert_eq!(installer("4.19.1"), "openshift-install");
}

#[test]
fn every_problem_is_reported_at_once_with_its_line() {
    let text = "platform = \"awz\"\nversion = \"4.19.1\"\nversions = [\"4.19\", \"../x\"]\n\
                base_domains = [\"example\"]\nregions = []\nttl = { min = \"9ms\", max = \"2y\" }\n\
                workers = { min = 5, max = 4 }\nrequired_tags = [\"Name\"]\n\
                tags = { owner = \"x\", \"kubernetes.io/cluster/x\" = \"owned\" }\n\
                owner_pattern = \"(\"\nallow_preserve = \"no\"\ninstall_config = 3\n\
                preflight = []\n";
    let problems = parse(text).unwrap_err();
    for part in [
        "line 1: platform: unknown platform `awz`; did you mean `aws`?",
        "line 2: version: unknown key `version`; did you mean `versions`?",
        "line 3: versions: \"4.19\" is not a version",
        "line 3: versions: \"../x\" is not a version",
        "line 4: base_domains: the base domain \"example\" has no dot",
        "line 5: regions: `regions` needs at least one entry",
        "line 6: ttl.min: it is 9ms",
        "line 6: ttl.max: ",
        "line 7: workers.max: it must be between 5",
        "line 8: required_tags: no request may set the tag Name",
        "line 9: tags.owner: it is set for each cluster",
        "line 9: tags.kubernetes.io/cluster/x: AWS or the installer",
        "line 10: owner_pattern: \"(\" is not a regular expression",
        "line 11: allow_preserve: ",
        "line 12: install_config: it must be a table",
        "line 13: preflight: ",
    ] {
        assert!(problems.contains(part), "{part}:\n{problems}");
    }
    assert_eq!(problems.lines().count(), 16, "{problems}");
}

#[test]
fn missing_keys_are_named() {
    let problems = parse("description = \"empty\"\n").unwrap_err();
    for key in ["platform", "versions", "regions", "base_domains"] {
        assert!(problems.contains(&format!("`{key}`")), "{key}: {problems}");
    }
}

#[test]
fn defaults_are_allowed_values() {
    refuses("default_version = \"4.19.2\"", &["default_version", "did you mean `4.19.1`"]);
    refuses("default_region = \"eu\"", &["default_region", "us-east-1"]);
    refuses("default_base_domain = \"x.y\"", &["default_base_domain", "dev.example.com"]);
    refuses("ttl = { max = \"1d\", default = \"2d\" }", &["ttl.default", "2d", "1d"]);
    refuses("workers = { max = 2, default = 3 }", &["workers.default", "between 0 and 2"]);
    refuses("installers = { \"4.18.0\" = \"x\" }", &["4.18.0 is not one of the `versions`"]);
}

#[test]
fn a_platform_without_regions_has_none() {
    let text = LEAST.replace("aws", "vsphere");
    assert!(parse(&text).unwrap_err().contains("the platform vsphere has no regions"));
    let profile = parse(&text.replace("regions = [\"us-east-1\"]\n", "")).unwrap();
    assert_eq!(profile.regions, Choice::default());
}

#[test]
fn the_install_config_does_not_change_what_requests_decide() {
    for (lines, part) in [
        ("install_config.baseDomain = \"x.y\"", "comes from the request"),
        ("install_config.metadata.name = \"x\"", "comes from the request"),
        ("install_config.pullSecret = \"x\"", "`pull_secret_file`"),
        ("install_config.platform.aws.region = \"x\"", "`regions`"),
        ("install_config.platform.aws.userTags.a = \"x\"", "`tags`"),
        ("install_config.platform.gcp.projectID = \"x\"", "remove the table gcp"),
        ("install_config.compute = [{ name = \"worker\", replicas = 3 }]", "`workers`"),
        ("install_config.compute = [{ name = \"infra\" }]", "0 entries"),
        ("install_config.compute = [{ replicas = 3 }]", "each with a `name`"),
        ("install_config.compute = []", "each with a `name`"),
    ] {
        refuses(lines, &["line 5: install_config.", part]);
    }
}

#[test]
fn lists_and_texts_have_bounds() {
    let list = |entries: usize| {
        let tags: Vec<String> = (0..entries).map(|n| format!("\"t{n}/\"")).collect();
        format!("reserved_tags = [{}]", tags.join(", "))
    };
    parse(&format!("{LEAST}{}\n", list(ENTRIES_MAX))).unwrap();
    refuses(&list(ENTRIES_MAX + 1), &["201 entries", "200"]);
    refuses("reserved_tags = [\"a\", \"a\"]", &["\"a\" twice"]);
    refuses("reserved_tags = [\"*\"]", &["all tags"]);
    let description = "x".repeat(DESCRIPTION_BYTES_MAX + 1);
    refuses(&format!("description = \"{description}\""), &["1025 bytes"]);
    let tags = |n: usize| {
        let tags: Vec<String> = (0..n).map(|n| format!("t{n} = \"x\"")).collect();
        format!("tags = {{ {} }}", tags.join(", "))
    };
    parse(&format!("{LEAST}{}\n", tags(TAGS_MAX - 2))).unwrap();
    refuses(&tags(TAGS_MAX - 1), &["at least 41 tags"]);
}

#[test]
fn versions_cannot_leave_the_directory_of_installers() {
    for version in ["4.19", "4.19.1.2", "a.b.c", "4.19.1-", "4.19.1-../x", "4.19.1-a/b", "4..1", ""]
    {
        refuses(&format!("default_version = {version:?}"), &["default_version"]);
        let text = LEAST.replace("4.19.1", version);
        assert!(parse(&text).is_err(), "{version}");
    }
}

#[test]
fn namespaces_prefixes_and_names_of_tags_are_reserved() {
    for (entry, key, expected) in [
        ("example.com/", "example.com/a", true),
        ("example.com/", "x.example.com/a", true),
        ("example.com/", "badexample.com/a", false),
        ("example.com/", "example.com", false),
        ("internal-*", "Internal-x", true),
        ("internal-*", "internal", false),
        ("Cost", "cost", true),
        ("Cost", "costs", false),
    ] {
        assert_eq!(ReservedTag::new(entry).matches(key), expected, "{entry} {key}");
    }
    for key in [
        "kubernetes.io/cluster/x",
        "node.kubernetes.io/x",
        "sigs.k8s.io/cluster-api-provider-aws/cluster/x",
        "aws:cloudformation:stack-name",
        "name",
        "api.openshift.com/x",
        "openshiftClusterID",
        "red-hat.openshift.io/x",
    ] {
        assert_eq!(is_always_reserved(key), !key.starts_with("api."), "{key}");
    }
}

#[test]
fn a_broken_file_disables_only_its_own_profile() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("good.toml", LEAST);
    write("broken.toml", "platform = \"aws\"\nversions = [\"4\"]\n");
    write("bad name.toml", LEAST);
    write("syntax.toml", "platform = ");
    write(".hidden.toml", "no");
    write("notes.txt", "no");
    fs::create_dir(dir.path().join("directory.toml")).unwrap();
    let (profiles, problems) = Profiles::load(dir.path());
    assert_eq!(profiles.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["good"]);
    assert_eq!(profiles.get("good").unwrap().name, "good");
    let disabled: Vec<&str> = profiles.disabled().map(|(name, _)| name).collect();
    assert_eq!(disabled, ["bad name", "broken", "directory", "syntax"]);
    let why = profiles.get("broken").unwrap_err().to_string();
    assert!(why.contains("broken is disabled"), "{why}");
    assert!(why.contains("broken.toml:2: versions: \"4\" is not a version"), "{why}");
    assert!(why.contains("; "), "all problems: {why}");
    assert!(!why.contains(&*dir.path().to_string_lossy()), "{why}");
    for profile in ["directory", "syntax"] {
        let why = profiles.get(profile).unwrap_err().to_string();
        assert!(!why.contains(&*dir.path().to_string_lossy()), "{why}");
    }
    let unknown = profiles.get("goood").unwrap_err().to_string();
    assert_eq!(unknown, "unknown profile `goood`; did you mean `good`?");
    assert!(problems.iter().all(|p| p.file.as_ref().is_some_and(|f| f.starts_with(dir.path()))));
}

#[test]
fn a_missing_directory_is_a_problem() {
    let (profiles, problems) = Profiles::load(Path::new("/nonexistent/profiles"));
    assert!(problems[0].message.contains("check `profiles` in [clusters]"), "{problems:?}");
    assert!(profiles.get("a").unwrap_err().to_string().contains("there are none"));
}

#[test]
fn secrets_are_read_and_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let text = format!("{LEAST}pull_secret_file = \"pull\"\nssh_key_file = \"key.pub\"\n");
    let profile = Profile::parse(&text, "p", dir.path()).unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    assert!(profile.read_secrets().unwrap_err().to_string().contains("cannot be read"));
    write("pull", "{ \"auths\": { \"quay.io\": { \"auth\": \"hunter2\" } } }\n");
    write("key.pub", "ssh-ed25519 AAAA-hunter2 ann\n");
    let secrets = profile.read_secrets().unwrap();
    let key = secrets.ssh_key.as_ref().unwrap();
    assert_eq!(key.expose(), "ssh-ed25519 AAAA-hunter2 ann");
    let pull_secret = secrets.pull_secret.as_ref().unwrap().expose();
    assert_eq!(pull_secret, r#"{"auths":{"quay.io":{"auth":"hunter2"}}}"#);
    assert!(!format!("{secrets:?} {profile:?}").contains("hunter2"));
    for (name, content, part) in [
        ("pull", "{ hunter2", "is not JSON, see line 1"),
        ("pull", "{\"hunter2\":1}", "no object `auths`"),
        ("pull", "\"hunter2\"", "no object `auths`"),
    ] {
        write(name, content);
        let error = profile.read_secrets().unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(part) && !shown.contains("hunter2"), "{shown}");
    }
    write("pull", "{\"auths\":{}}");
    for (content, part) in [
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2 x", "private key"),
        ("", "not a public key"),
        ("hunter2", "not a public key"),
    ] {
        write("key.pub", content);
        let error = profile.read_secrets().unwrap_err().to_string();
        assert!(error.contains(part) && !error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_secret_in_place_of_its_file_is_not_repeated() {
    let problems = parse(&format!("{LEAST}ssh_key_file = \"ssh-rsa\\nhunter2\"\n")).unwrap_err();
    assert!(problems.contains("not its contents") && !problems.contains("hunter2"), "{problems}");
}
