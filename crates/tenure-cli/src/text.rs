//! Durations as people write and read them.

use std::time::Duration;

/// Reads `250ms`, `30s`, `5m`, `2h`, `1d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit_ms = units.iter().find(|(name, _)| *name == unit).map(|(_, ms)| *ms);
    let ms = number.parse::<u64>().ok().zip(unit_ms).and_then(|(n, ms)| n.checked_mul(ms));
    let hint = || format!("{text:?} is not a duration; write for example 500ms, 30s, 5m, 2h or 1d");
    ms.map(Duration::from_millis).ok_or_else(hint)
}

/// Writes a duration in its largest fitting unit, and the next one where it matters.
pub(crate) fn human(ms: u64) -> String {
    let (seconds, minutes, hours) = (ms / 1_000, ms / 60_000, ms / 3_600_000);
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 => format!("{seconds}s"),
        60_000..3_600_000 => format!("{minutes}m{:02}s", seconds % 60),
        3_600_000..86_400_000 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{}d{:02}h", hours / 24, hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_every_unit() {
        for (text, ms) in [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "s", "-1s", "1.5s", "10", "10x", "99999999999999999999s"] {
            assert!(parse_duration(bad).unwrap_err().contains("write for example"), "{bad}");
        }
    }

    #[test]
    fn durations_are_written_for_people() {
        assert_eq!(
            [12, 12_000, 75_000, 3_700_000, 90_000_000].map(human),
            ["12ms", "12s", "1m15s", "1h01m", "1d01h"]
        );
    }
}
