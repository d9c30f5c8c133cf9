//! Durations in text form: a number and a unit, or several from large to small.

use std::time::Duration;

/// Units in milliseconds, from large to small.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Parses `500ms`, `30s`, `5m`, `1h30m`, `7d`.
pub fn parse(text: &str) -> Result<Duration, String> {
    let hint =
        || format!("{text:?} is not a duration; write for example 500ms, 30s, 5m, 1h30m or 7d");
    milliseconds(text).map(Duration::from_millis).ok_or_else(hint)
}

/// Formats a duration as it is typed: [`parse`] returns it.
#[must_use]
pub fn format(ms: u64) -> String {
    let (mut text, mut rest) = (String::new(), ms);
    for (unit, length) in UNITS.into_iter() {
        if rest >= length {
            text += &format!("{}{unit}", rest / length);
            rest %= length;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

fn milliseconds(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut units = &UNITS[..];
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit());
        let (unit, after) = split(after, |c| c.is_ascii_alphabetic());
        // Each unit once and the larger first, so that a typo is not accepted as a sum.
        let index = units.iter().position(|(name, _)| *name == unit)?;
        let part = number.parse::<u64>().ok()?.checked_mul(units[index].1)?;
        total = total.checked_add(part)?;
        units = &units[index + 1..];
        rest = after;
    }
    (!text.is_empty()).then_some(total)
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_with_one_or_several_units_are_parsed() {
        for (text, ms) in [
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
            ("1h30m", 5_400_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
            assert_eq!(format(ms), text);
        }
    }

    #[test]
    fn invalid_durations_are_rejected_with_examples() {
        let too_large = format!("{}d", u64::MAX);
        for bad in [
            "",
            "s",
            "-1s",
            "1.5s",
            "10",
            "10x",
            "1m1h",
            "1m1m",
            "1s ",
            " 1s",
            "1 s",
            "1h30",
            "5M",
            "99999999999999999999s",
            &too_large,
        ] {
            assert!(parse(bad).unwrap_err().contains("write for example"), "{bad}");
        }
    }
}
