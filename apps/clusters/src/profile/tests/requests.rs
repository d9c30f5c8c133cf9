//! Tests of requests that are checked against a profile.

use super::*;
use crate::config::ClusterConfig;
use crate::request::{CreateRequest, Violation};

const HOUR_MS: u64 = 60 * 60 * 1_000;

/// A request that the full profile allows.
fn request() -> CreateRequest {
    CreateRequest {
        name: "demo".to_owned(),
        profile: "p".to_owned(),
        owner: "ann@example.com".to_owned(),
        tags: [("team".to_owned(), "blue".to_owned())].into(),
        ..CreateRequest::default()
    }
}

/// Two of the three domains belong to other tenants.
fn settings() -> Settings {
    let mut settings = Settings::new(Path::new("/"));
    for (domain, tenant) in [("dev.example.com", "dev"), ("other.example.com", "secret-team")] {
        settings.base_domains.insert(domain.to_owned(), tenant.to_owned());
    }
    settings
}

fn resolve(request: &CreateRequest, tenant: &str) -> Result<ClusterConfig, Vec<Violation>> {
    parse(FULL).unwrap().resolve(request, tenant, &settings())
}

/// Changes the request, and expects one violation.
#[track_caller]
fn refuses(change: impl Fn(&mut CreateRequest), field: &str, parts: &[&str]) {
    let mut request = request();
    change(&mut request);
    let violations = resolve(&request, "dev").unwrap_err();
    let [violation] = violations.as_slice() else { panic!("{violations:?}") };
    assert_eq!(violation.field, field, "{violation}");
    for part in parts {
        assert!(violation.message.contains(part), "{part}: {violation}");
    }
}

#[track_caller]
fn allows(change: impl Fn(&mut CreateRequest)) -> ClusterConfig {
    let mut request = request();
    change(&mut request);
    resolve(&request, "dev").unwrap()
}

#[test]
fn a_request_is_completed_by_its_profile() {
    let expected = ClusterConfig {
        name: "demo".to_owned(),
        platform: "aws".to_owned(),
        base_domain: "dev.example.com".to_owned(),
        profile: "p".to_owned(),
        version: "4.19.1".to_owned(),
        region: "eu-west-1".to_owned(),
        workers: 3,
        ttl_ms: Some(8 * HOUR_MS),
        owner: "ann@example.com".to_owned(),
        tags: [
            ("environment".to_owned(), "dev".to_owned()),
            ("team".to_owned(), "blue".to_owned()),
        ]
        .into(),
        preserve_on_failure: false,
    };
    assert_eq!(resolve(&request(), "dev"), Ok(expected));
}

#[test]
fn what_a_request_chooses_wins() {
    let config = allows(|request| {
        request.version = Some("4.20.0-rc.2".to_owned());
        request.region = Some("us-east-1".to_owned());
        request.workers = Some(6);
        request.ttl_ms = Some(72 * HOUR_MS);
        request.preserve_on_failure = Some(true);
    });
    assert_eq!((config.version.as_str(), config.region.as_str()), ("4.20.0-rc.2", "us-east-1"));
    assert_eq!((config.workers, config.ttl_ms), (6, Some(72 * HOUR_MS)));
    assert!(config.preserve_on_failure);
}

#[test]
fn all_violations_are_returned_at_once() {
    let request = CreateRequest {
        name: "Demo".to_owned(),
        profile: "q".to_owned(),
        version: Some("4.17.0".to_owned()),
        region: Some("mars".to_owned()),
        base_domain: Some("nowhere.example.com".to_owned()),
        workers: Some(7),
        ttl_ms: Some(1),
        owner: String::new(),
        tags: [("kubernetes.io/cluster/x".to_owned(), "owned".to_owned())].into(),
        preserve_on_failure: Some(true),
    };
    let text = FULL.replace("allow_preserve = true", "");
    let violations = parse(&text).unwrap().resolve(&request, "dev", &settings()).unwrap_err();
    let mut fields: Vec<&str> = violations.iter().map(|v| v.field.as_str()).collect();
    fields.sort_unstable();
    let expected = [
        "base_domain",
        "name",
        "owner",
        "preserve_on_failure",
        "profile",
        "region",
        "tags.kubernetes.io/cluster/x",
        "tags.team",
        "ttl_ms",
        "version",
        "workers",
    ];
    assert_eq!(fields, expected);
    assert_eq!(violations.iter().filter(|v| v.message.is_empty()).count(), 0);
}

#[test]
fn a_domain_of_another_tenant_is_like_one_that_does_not_exist() {
    let message = |domain: &str, tenant: &str| {
        let request = CreateRequest { base_domain: Some(domain.to_owned()), ..request() };
        let violations = resolve(&request, tenant).unwrap_err();
        assert_eq!(violations[0].field, "base_domain");
        violations[0].message.replace(domain, "DOMAIN")
    };
    let foreign = message("other.example.com", "dev");
    assert_eq!(foreign, message("nowhere.example.com", "dev"));
    assert!(!foreign.contains("secret-team") && !foreign.contains("other"), "{foreign}");
    assert!(foreign.contains("choose one of dev.example.com"), "{foreign}");
    assert!(message("other.example.com", "none").contains("choose another profile"));
}

#[test]
fn the_default_domain_is_one_of_the_tenant() {
    // The default of the profile belongs to another tenant; one domain is left.
    assert_eq!(resolve(&request(), "default").unwrap().base_domain, "test.example.com");
    assert_eq!(resolve(&request(), "secret-team").unwrap().base_domain, "other.example.com");
    let violations = resolve(&request(), "none").unwrap_err();
    assert!(violations[0].message.contains("no base domain for this tenant"), "{violations:?}");
    // With several left, the request has to choose.
    let mut settings = settings();
    settings.base_domains.remove("other.example.com");
    let violations = parse(FULL).unwrap().resolve(&request(), "default", &settings).unwrap_err();
    let expected = "it is missing; choose one of test.example.com, other.example.com";
    assert_eq!(violations[0].message, expected);
}

#[test]
fn workers_are_checked_at_their_bounds() {
    assert_eq!(allows(|request| request.workers = Some(2)).workers, 2);
    assert_eq!(allows(|request| request.workers = Some(6)).workers, 6);
    for workers in [0, 1, 7] {
        refuses(|request| request.workers = Some(workers), "workers", &["between 2 and 6"]);
    }
    let profile = parse(FULL).unwrap();
    assert_eq!(profile.check_workers(2), Ok(()));
    assert!(profile.check_workers(7).unwrap_err().message.contains("it is 7"));
}

#[test]
fn the_time_to_live_is_checked_at_its_bounds() {
    for hours in [1, 72] {
        let config = allows(|request| request.ttl_ms = Some(hours * HOUR_MS));
        assert_eq!(config.ttl_ms, Some(hours * HOUR_MS));
    }
    for ms in [HOUR_MS - 1, 72 * HOUR_MS + 1] {
        refuses(|request| request.ttl_ms = Some(ms), "ttl_ms", &["between 1h and 3d"]);
    }
    let zero = |request: &mut CreateRequest| request.ttl_ms = Some(0);
    refuses(zero, "ttl_ms", &["does not allow clusters without a time to live"]);
}

#[test]
fn clusters_are_kept_only_if_the_profile_allows_it() {
    let with = |ttl: &str| {
        parse(&FULL.replace("ttl = { min = \"1h\", max = \"3d\", default = \"8h\" }", ttl))
    };
    let ttl_of = |ttl: &str, ttl_ms| {
        let request = CreateRequest { ttl_ms, ..request() };
        with(ttl).unwrap().resolve(&request, "dev", &settings()).map(|config| config.ttl_ms)
    };
    assert_eq!(ttl_of("ttl = { required = false }", None), Ok(None));
    assert_eq!(ttl_of("ttl = { required = false }", Some(0)), Ok(None));
    assert_eq!(ttl_of("ttl = { required = false, default = \"1h\" }", None), Ok(Some(HOUR_MS)));
    assert_eq!(ttl_of("ttl = { required = false, default = \"1h\" }", Some(0)), Ok(None));
    assert_eq!(ttl_of("", Some(TTL_MS_MAX)), Ok(Some(TTL_MS_MAX)));
    let missing = ttl_of("", None).unwrap_err();
    assert!(missing[0].message.contains("the profile p has no default"), "{missing:?}");
    assert!(ttl_of("", Some(0)).is_err());
}

#[test]
fn the_whole_owner_has_to_match() {
    assert_eq!(allows(|request| request.owner = "team-blue".to_owned()).owner, "team-blue");
    for owner in ["ann@example.com.evil", "xteam-blue!", "team-blue x", "Ann@example.com"] {
        let set = |request: &mut CreateRequest| request.owner = owner.to_owned();
        refuses(set, "owner", &[]);
    }
    let set = |request: &mut CreateRequest| request.owner = "bob".to_owned();
    refuses(set, "owner", &["\"bob\" does not match [a-z]+@example[.]com|team-[a-z]+, as"]);
    refuses(|request| request.owner.clear(), "owner", &["missing"]);
    let too_long = |request: &mut CreateRequest| request.owner = "a".repeat(257);
    refuses(too_long, "owner", &["257 characters"]);
    let anyone = parse(&format!("{LEAST}ttl = {{ required = false }}\n")).unwrap();
    let request = CreateRequest { owner: "o".repeat(256), ..request() };
    anyone.resolve(&request, "dev", &settings()).unwrap();
}

#[test]
fn tags_follow_the_rules_of_aws() {
    let tag = |key: &str, value: &str| {
        let (key, value) = (key.to_owned(), value.to_owned());
        move |request: &mut CreateRequest| {
            request.tags.insert(key.clone(), value.clone());
        }
    };
    let (longest_key, longest_value) = ("k".repeat(128), "v".repeat(256));
    allows(tag(&longest_key, &longest_value));
    allows(tag("a b_.:/=+-@", "A 1"));
    let too_long = format!("{longest_key}k");
    refuses(tag(&too_long, "v"), &format!("tags.{longest_key}"), &["129 characters", "128"]);
    refuses(tag("a", &"v".repeat(257)), "tags.a", &["257 characters", "256"]);
    refuses(tag("", "v"), "tags.", &["the name is empty"]);
    refuses(tag("a", ""), "tags.a", &["the value is empty"]);
    refuses(tag("a", "ü"), "tags.a", &["'ü'"]);
    refuses(tag("a*", "v"), "tags.a*", &["'*'"]);
    refuses(tag("a", " v"), "tags.a", &["space"]);
    refuses(tag("Owner", "bob"), "tags.Owner", &["the field `owner`"]);
    refuses(tag("tenure-cluster", "x"), "tags.tenure-cluster", &["id of the cluster"]);
    for key in ["aws:x", "Name", "x.kubernetes.io/y", "billing/x", "internal-x", "cost"] {
        refuses(tag(key, "v"), &format!("tags.{key}"), &["reserved"]);
    }
    refuses(tag("environment", "prod"), "tags.environment", &["sets environment to \"dev\""]);
    refuses(tag("Environment", "dev"), "tags.Environment", &["sets environment"]);
    allows(tag("environment", "dev"));
}

#[test]
fn the_number_of_tags_includes_those_that_are_added() {
    let tags = |count: usize| {
        move |request: &mut CreateRequest| {
            // One is there, one is of the profile, and two are added.
            for n in 0..count - 4 {
                request.tags.insert(format!("t{n}"), "x".to_owned());
            }
        }
    };
    allows(tags(TAGS_MAX));
    refuses(tags(TAGS_MAX + 2), "tags", &["42 tags", "the maximum is 40", "remove 2"]);
    let many = |request: &mut CreateRequest| {
        request.tags.extend((0..1_000).map(|n| (format!("*{n}"), String::new())));
    };
    refuses(many, "tags", &["1004 tags"]);
}

#[test]
fn required_tags_have_to_be_set() {
    refuses(|request| request.tags.clear(), "tags.team", &["requires this tag"]);
    let of_owner = FULL.replace("required_tags = [\"team\"]", "required_tags = [\"owner\"]");
    parse(&of_owner).unwrap().resolve(&request(), "dev", &settings()).unwrap();
}

#[test]
fn a_platform_without_regions_refuses_one() {
    let text = LEAST.replace("aws", "vsphere").replace("regions = [\"us-east-1\"]\n", "");
    let profile = parse(&format!("{text}ttl = {{ required = false }}\n")).unwrap();
    let config = profile.resolve(&request(), "dev", &settings()).unwrap();
    assert_eq!((config.platform.as_str(), config.region.as_str()), ("vsphere", ""));
    let request = CreateRequest { region: Some("x".to_owned()), ..request() };
    let violations = profile.resolve(&request, "dev", &settings()).unwrap_err();
    assert!(violations[0].message.contains("has no regions"), "{violations:?}");
}

#[test]
fn violations_repeat_only_the_beginning_of_a_long_value() {
    let long = "x".repeat(100_000);
    let request = CreateRequest {
        name: long.clone(),
        profile: long.clone(),
        version: Some(long.clone()),
        region: Some(long.clone()),
        base_domain: Some(long.clone()),
        owner: long.clone(),
        tags: [(long.clone(), long)].into(),
        ..CreateRequest::default()
    };
    let violations = resolve(&request, "dev").unwrap_err();
    assert!(violations.len() >= 7, "{violations:?}");
    for violation in violations {
        assert!(violation.to_string().len() < 500, "{violation}");
    }
}
