//! Reads the file of a profile. All its problems are reported at once, with their lines.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use regex::{Regex, RegexBuilder};
use tenure_config::section::unknown_name;
use tenure_config::{BadConfig, Report, Section, duration, read_command};

use super::tags::{KEY_CHARS_MAX, TAG_CLUSTER, TAG_OWNER, TAGS_MAX};
use super::tags::{ReservedTag, check_tag, check_text, is_always_reserved};
use super::{
    Choice, DESCRIPTION_BYTES_MAX, ENTRIES_MAX, PLATFORMS, Platform, Profile, REGION_BYTES_MAX,
    TTL_MS_MAX, TTL_MS_MIN, TtlRule, VERSION_BYTES_MAX, WORKERS_MAX, WorkersRule,
};
use crate::names;
use crate::settings::read_installer;

/// Number of workers of a profile that declares none.
const WORKERS_DEFAULT: u32 = 3;
/// Maximum size of a compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 256 * 1024;

const KEYS: [&str; 20] = [
    "description",
    "platform",
    "versions",
    "default_version",
    "installers",
    "regions",
    "default_region",
    "base_domains",
    "default_base_domain",
    "ttl",
    "workers",
    "required_tags",
    "reserved_tags",
    "tags",
    "owner_pattern",
    "allow_preserve",
    "pull_secret_file",
    "ssh_key_file",
    "install_config",
    "preflight",
];

impl Profile {
    /// Parses a file. Relative paths in it are below `dir`.
    ///
    /// # Errors
    ///
    /// Fails with all problems.
    pub fn parse(text: &str, name: &str, dir: &Path) -> Result<Self, BadConfig> {
        let mut report = Report::new(text);
        let table = report.table()?;
        let root = Section::root(table.get_ref());
        let report = &mut report;
        root.check_keys(&KEYS, report);
        let platform = platform(&root, report);
        let versions = choice(&root, ["versions", "default_version"], check_version, report);
        let required_tags = required_tags(&root, report);
        let profile = Self {
            name: name.to_owned(),
            description: description(&root, report),
            installers: installers(&root, &versions, dir, report),
            versions,
            regions: regions(&root, platform, report),
            base_domains: choice(
                &root,
                ["base_domains", "default_base_domain"],
                names::check_domain,
                report,
            ),
            ttl: ttl(&root, report),
            workers: workers(&root, report),
            tags: fixed_tags(&root, required_tags.len(), report),
            required_tags,
            reserved_tags: reserved_tags(&root, report),
            owner_pattern: owner_pattern(&root, report),
            allow_preserve: root.flag("allow_preserve", report).unwrap_or(false),
            pull_secret_file: file(&root, "pull_secret_file", dir, report),
            ssh_key_file: file(&root, "ssh_key_file", dir, report),
            install_config: super::patch::read(&root, platform, report),
            preflight: if root.has("preflight") {
                read_command(&root, "preflight", dir, report)
            } else {
                Vec::new()
            },
            // Without a platform there is a problem.
            platform: platform.unwrap_or(PLATFORMS[0]),
        };
        if report.is_empty() { Ok(profile) } else { Err(std::mem::take(report).into_error()) }
    }
}

fn description(root: &Section<'_>, report: &mut Report<'_>) -> Option<String> {
    let text = root.text("description", report)?;
    if text.len() <= DESCRIPTION_BYTES_MAX {
        return Some(text.to_owned());
    }
    let why = format!("it has {} bytes; the maximum is {DESCRIPTION_BYTES_MAX}", text.len());
    root.reject("description", why, report)
}

fn platform(root: &Section<'_>, report: &mut Report<'_>) -> Option<Platform> {
    if !root.has("platform") {
        report.add("", "`platform` is missing: aws, for example");
    }
    let name = root.text("platform", report)?;
    let platform = PLATFORMS.into_iter().find(|platform| platform.name == name);
    if platform.is_none() {
        let known = PLATFORMS.iter().map(|platform| platform.name);
        root.reject::<()>("platform", unknown_name("platform", name, known), report);
    }
    platform
}

/// Reads a list of allowed values and the default, which is otherwise the first.
fn choice(
    root: &Section<'_>,
    [list, default]: [&'static str; 2],
    check: impl Fn(&str) -> Result<(), String>,
    report: &mut Report<'_>,
) -> Choice {
    let before = report.len();
    let allowed = texts(root, list, check, report);
    if allowed.is_empty() && report.len() == before {
        let place = if root.has(list) { list } else { "" };
        report.add(place, format!("`{list}` needs at least one entry"));
    }
    let chosen = root.text(default, report);
    if let Some(chosen) = chosen
        && !allowed.iter().any(|value| value == chosen)
        && !allowed.is_empty()
    {
        let known = allowed.iter().map(String::as_str);
        root.reject::<()>(default, unknown_name("value", chosen, known), report);
    }
    let default = chosen.map(str::to_owned).or_else(|| allowed.first().cloned());
    Choice { allowed, default }
}

/// Reads a list of texts without duplicates, and checks each.
fn texts(
    root: &Section<'_>,
    key: &str,
    check: impl Fn(&str) -> Result<(), String>,
    report: &mut Report<'_>,
) -> Vec<String> {
    let given = root.texts(key, report).unwrap_or_default();
    if given.len() > ENTRIES_MAX {
        let why = format!("it has {} entries; the maximum is {ENTRIES_MAX}", given.len());
        root.reject::<()>(key, why, report);
    }
    let mut texts: Vec<String> = Vec::new();
    for text in given {
        if let Err(why) = check(text) {
            root.reject::<()>(key, why, report);
        } else if texts.iter().any(|other| other == text) {
            root.reject::<()>(key, format!("it lists {text:?} twice"), report);
        } else {
            texts.push(text.to_owned());
        }
    }
    texts
}

/// Checks a version: it becomes part of a path.
fn check_version(version: &str) -> Result<(), String> {
    let (numbers, suffix) = version.split_once('-').unwrap_or((version, "a"));
    let is_number = |part: &str| {
        (1..=5).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_suffix = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let parts: Vec<&str> = numbers.split('.').collect();
    let is_version = parts.len() == 3
        && parts.into_iter().all(is_number)
        && !suffix.is_empty()
        && suffix.chars().all(is_suffix)
        && version.len() <= VERSION_BYTES_MAX;
    if is_version { Ok(()) } else { Err(format!("{version:?} is not a version such as 4.19.1")) }
}

fn check_region(region: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if (1..=REGION_BYTES_MAX).contains(&region.len()) && region.chars().all(is_allowed) {
        return Ok(());
    }
    Err(format!("{region:?} is not a region such as us-east-1"))
}

fn regions(root: &Section<'_>, platform: Option<Platform>, report: &mut Report<'_>) -> Choice {
    match platform {
        Some(platform) if !platform.has_regions => {
            for key in ["regions", "default_region"] {
                if root.has(key) {
                    let why = format!("the platform {} has no regions: remove it", platform.name);
                    root.reject::<()>(key, why, report);
                }
            }
            Choice::default()
        }
        _ => choice(root, ["regions", "default_region"], check_region, report),
    }
}

fn installers(
    root: &Section<'_>,
    versions: &Choice,
    dir: &Path,
    report: &mut Report<'_>,
) -> BTreeMap<String, String> {
    let Some(table) = root.section("installers", report) else { return BTreeMap::new() };
    let mut installers = BTreeMap::new();
    table.check_keys(&table.keys().collect::<Vec<_>>(), report);
    for version in table.keys() {
        if !versions.allowed.iter().any(|other| other == version) {
            let why = format!("{version} is not one of the `versions`");
            table.reject::<()>(version, why, report);
        }
        if let Some(path) = read_installer(&table, version, dir, report) {
            installers.insert(version.to_owned(), path);
        }
    }
    installers
}

fn ttl(root: &Section<'_>, report: &mut Report<'_>) -> TtlRule {
    let default =
        TtlRule { min_ms: TTL_MS_MIN, max_ms: TTL_MS_MAX, default_ms: None, required: true };
    let Some(table) = root.section("ttl", report) else { return default };
    table.check_keys(&["min", "max", "default", "required"], report);
    let mut bounded = |key: &str, min: u64, max: u64| {
        let ms = table.duration_ms(key, report)?;
        if (min..=max).contains(&ms) {
            return Some(ms);
        }
        let [got, min, max] = [ms, min, max].map(duration::format);
        table.reject(key, format!("it is {got}; it must be between {min} and {max}"), report)
    };
    let min_ms = bounded("min", TTL_MS_MIN, TTL_MS_MAX).unwrap_or(TTL_MS_MIN);
    let max_ms = bounded("max", min_ms, TTL_MS_MAX).unwrap_or(TTL_MS_MAX);
    let default_ms = bounded("default", min_ms, max_ms);
    let required = table.flag("required", report).unwrap_or(true);
    TtlRule { min_ms, max_ms, default_ms, required }
}

fn workers(root: &Section<'_>, report: &mut Report<'_>) -> WorkersRule {
    let usual = WorkersRule { min: 0, max: WORKERS_MAX, default: WORKERS_DEFAULT };
    let Some(table) = root.section("workers", report) else { return usual };
    table.check_keys(&["min", "max", "default"], report);
    let mut count = |key: &str, min: u32, max: u32| {
        let count = table.count(key, u64::from(min)..=u64::from(max), report);
        count.and_then(|count| u32::try_from(count).ok())
    };
    let min = count("min", 0, WORKERS_MAX).unwrap_or(0);
    let max = count("max", min, WORKERS_MAX).unwrap_or(WORKERS_MAX);
    let default = count("default", min, max).unwrap_or(WORKERS_DEFAULT.clamp(min, max));
    WorkersRule { min, max, default }
}

fn required_tags(root: &Section<'_>, report: &mut Report<'_>) -> Vec<String> {
    let check = |key: &str| {
        check_text("the name of a tag", key, KEY_CHARS_MAX)?;
        if is_always_reserved(key) || key == TAG_CLUSTER {
            return Err(format!("no request may set the tag {key}: do not require it"));
        }
        Ok(())
    };
    texts(root, "required_tags", check, report)
}

fn reserved_tags(root: &Section<'_>, report: &mut Report<'_>) -> Vec<ReservedTag> {
    let check = |entry: &str| match entry {
        "*" => Err("`*` would reserve all tags".to_owned()),
        _ => check_text("a reserved tag", entry.trim_end_matches('*'), KEY_CHARS_MAX),
    };
    let entries = texts(root, "reserved_tags", check, report);
    entries.iter().map(|entry| ReservedTag::new(entry)).collect()
}

fn fixed_tags(
    root: &Section<'_>,
    required: usize,
    report: &mut Report<'_>,
) -> BTreeMap<String, String> {
    let Some(table) = root.section("tags", report) else { return BTreeMap::new() };
    let mut tags = BTreeMap::new();
    for (key, value) in table.pairs(report) {
        let is_set = |tag: &str| key.eq_ignore_ascii_case(tag);
        let why = match check_tag(key, value) {
            Err(why) => why,
            Ok(()) if is_set(TAG_OWNER) || is_set(TAG_CLUSTER) => {
                "it is set for each cluster: remove it".to_owned()
            }
            Ok(()) if is_always_reserved(key) => {
                "AWS or the installer sets or refuses it: choose another name".to_owned()
            }
            Ok(()) => {
                tags.insert(key.to_owned(), value.to_owned());
                continue;
            }
        };
        table.reject::<()>(key, why, report);
    }
    // The owner and the id of the cluster are added.
    let least = tags.len() + required + 2;
    if least > TAGS_MAX {
        let why = format!("a cluster has at least {least} tags; the maximum is {TAGS_MAX}");
        root.reject::<()>("tags", why, report);
    }
    tags
}

fn owner_pattern(root: &Section<'_>, report: &mut Report<'_>) -> Option<Regex> {
    let pattern = root.text("owner_pattern", report)?;
    // A group, so that the whole owner has to match each alternative.
    let whole = format!("^(?:{pattern})$");
    match RegexBuilder::new(&whole).size_limit(PATTERN_BYTES_MAX).build() {
        Ok(regex) => Some(regex),
        Err(error) => {
            let why = format!("{pattern:?} is not a regular expression: {error}");
            root.reject("owner_pattern", why.replace('\n', " "), report)
        }
    }
}

fn file(root: &Section<'_>, key: &str, dir: &Path, report: &mut Report<'_>) -> Option<PathBuf> {
    let path = root.text(key, report)?;
    if !path.is_empty() && !path.contains(['\0', '\n']) {
        return Some(dir.join(path));
    }
    // The value is not repeated: it may be the secret itself.
    root.reject(key, "it must be the path of a file, not its contents".to_owned(), report)
}
