//! Errors of the API in words of the command line: options instead of fields and headers, and
//! durations as they are typed.

use tenure_config::duration;

/// What the API calls an input of a request, and what the command line calls it.
const SPELLINGS: [(&str, &str); 17] = [
    ("?tenant=NAME", "--tenant NAME"),
    ("?tenant=", "--tenant"),
    (
        "send a valid key as `Authorization: Bearer KEY` or `x-api-key: KEY`",
        "pass a valid key with --key or TENURE_KEY",
    ),
    ("an Idempotency-Key", "--idempotency-key"),
    (
        "the idempotency key was used for another request. Draw a new one for each request",
        "--idempotency-key was used for another request; choose another key for each request",
    ),
    ("`reason` is missing", "--reason is missing"),
    ("its ttl_ms is fixed", "its --ttl is fixed"),
    ("run_at is more than", "--at or --in is more than"),
    ("priority is ", "--priority is "),
    ("the session name is empty", "--holder is empty"),
    ("the session name has", "--holder has"),
    ("the purpose has", "--reason has"),
    ("the reason has", "--reason has"),
    ("the submitter has", "--by has"),
    ("name must have 1 to", "--name must have 1 to"),
    ("since is \"", "--since is \""),
    (
        "there is no such resource. Put it first",
        "there is no such resource; `tenure resource ls` lists all",
    ),
];

/// Returns the text of an error of the API with the names of options.
pub(crate) fn name_options(text: String) -> String {
    let rename = |text: String, (api, option): &(&str, &str)| match text.contains(option) {
        true => text,
        false => text.replace(api, option),
    };
    let text = SPELLINGS.iter().fold(text, rename);
    let text = name_document(&text).unwrap_or(text);
    name_duration(&text).unwrap_or(text)
}

/// Rewrites `args has 70000 bytes` and `the spec has a NUL character`.
fn name_document(text: &str) -> Option<String> {
    ["args", "spec"].iter().find_map(|document| {
        let (before, after) = text.split_once(&format!("{document} has "))?;
        let before = before.strip_suffix("the ").unwrap_or(before);
        let is_word = before.is_empty() || before.ends_with(' ');
        is_word.then(|| format!("{before}--{document} has {after}"))
    })
}

/// Rewrites `wait_ms is 90000000; it must be at most 86400000`.
fn name_duration(text: &str) -> Option<String> {
    let (before, after) = text.split_once("_ms is ")?;
    let is_part = |c: &char| c.is_ascii_lowercase() || *c == '_';
    let (before, field) =
        before.split_at(before.len() - before.chars().rev().take_while(is_part).count());
    let (value, bounds) = after.split_once("; it must be ")?;
    let bounds = match bounds.strip_prefix("at most ") {
        Some(max) => format!("at most {}", typed(max)?),
        None => {
            let (min, max) = bounds.strip_prefix("between ")?.split_once(" and ")?;
            format!("between {} and {}", typed(min)?, typed(max)?)
        }
    };
    let (option, value) = (field.replace('_', "-"), typed(value)?);
    Some(format!("{before}--{option} is {value}; it must be {bounds}"))
}

/// Returns milliseconds in the form in which durations are typed.
fn typed(ms: &str) -> Option<String> {
    ms.parse().ok().map(duration::format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_api_are_described_in_words_of_the_command_line() {
        for (api, expected) in [
            (
                "a resource belongs to one tenant: name it with ?tenant=NAME, not *",
                "a resource belongs to one tenant: name it with --tenant NAME, not *",
            ),
            (
                "the key is bound to its own tenant; leave ?tenant= out",
                "the key is bound to its own tenant; leave --tenant out",
            ),
            (
                "db/x: ttl_ms is 432000000; it must be between 1000 and 86400000",
                "db/x: --ttl is 5d; it must be between 1s and 1d",
            ),
            (
                "wait_ms is 90000000; it must be at most 86400000",
                "--wait is 1d1h; it must be at most 1d",
            ),
            (
                "max_age_ms is 0; it must be between 1 and 31622400000",
                "--max-age is 0s; it must be between 1ms and 366d",
            ),
            ("args has 70000 bytes; at most 65536", "--args has 70000 bytes; at most 65536"),
            ("the args has a NUL character", "--args has a NUL character"),
            ("db/x: spec has 9 bytes; at most 8", "db/x: --spec has 9 bytes; at most 8"),
            ("--args has 70000 bytes", "--args has 70000 bytes"),
            ("db/x: the session name is empty", "db/x: --holder is empty"),
            ("the purpose has control characters", "--reason has control characters"),
            ("priority is 9999; it must be", "--priority is 9999; it must be"),
            ("--priority is 9999; it must be", "--priority is 9999; it must be"),
            ("it took 5 s; wait_ms is unknown", "it took 5 s; wait_ms is unknown"),
        ] {
            assert_eq!(name_options(api.to_owned()), expected);
        }
    }
}
