//! Parser for the output of `/metrics`.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};

/// Values by series.
pub type Series = BTreeMap<String, f64>;

pub fn parse(text: &str) -> Series {
    assert!(text.ends_with("# EOF\n"), "truncated: {text}");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| split(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

fn split(line: &str) -> Option<(String, f64)> {
    let (series, value) = line.rsplit_once(' ')?;
    Some((series.to_owned(), value.parse().ok()?))
}

/// Returns the name of a series without its labels.
pub fn name(series: &str) -> &str {
    series.split('{').next().unwrap_or(series)
}

/// Returns the names and types of metrics from the `# TYPE` lines.
pub fn types(text: &str) -> BTreeSet<(String, String)> {
    let typed = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let typed = typed.filter_map(|line| line.split_once(' '));
    typed.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
}

/// Returns the distinct values of a label.
pub fn values(series: &Series, label: &str) -> BTreeSet<String> {
    let label = format!("{label}=\"");
    let of = |series: &String| {
        let at = series.find(&label)? + label.len();
        let rest = &series[at..];
        Some(rest[..rest.find('"')?].to_owned())
    };
    series.keys().filter_map(of).collect()
}

/// Returns the increases from one scrape to the next, as `name{labels} +n`.
pub fn increases(before: &Series, after: &Series) -> Vec<String> {
    let increase = |(series, value): (&String, &f64)| {
        let by = value - before.get(series).unwrap_or(&0.0);
        (by != 0.0).then(|| format!("{series} +{by}"))
    };
    after.iter().filter_map(increase).collect()
}
