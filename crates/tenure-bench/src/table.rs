//! Output of results as a table or as JSON.
//!
//! Only formats: callers compute comparisons and pass them as text.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};
use tenure_cli_kit::text::header_case;

use crate::histogram::Spread;
use crate::load::Sample;

const HEADER: [&str; 6] = ["what", "in flight", "", "p50", "p99", "ratio"];

/// A row of the result. A limit of the machine has no load, and so no pairs.
#[derive(Debug, Clone)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// Requests in flight.
    pub in_flight: Option<usize>,
    /// Rate.
    pub pairs_per_s: Option<f64>,
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
    /// Comparison with a limit or another system measured in the same run.
    pub ratio: String,
}

impl Row {
    /// Creates a row with latencies only.
    pub fn floor(what: impl Into<String>, spread: Spread) -> Self {
        let Spread { p50_us, p99_us } = spread;
        let (what, ratio) = (what.into(), String::new());
        Self { what, in_flight: None, pairs_per_s: None, p50_us, p99_us, ratio }
    }

    /// Creates a row of a load.
    pub fn load(
        what: impl Into<String>,
        in_flight: usize,
        sample: &Sample,
        ratio: impl Into<String>,
    ) -> Self {
        Self {
            what: what.into(),
            in_flight: Some(in_flight),
            pairs_per_s: Some(sample.pairs_per_s()),
            p50_us: sample.p50_us,
            p99_us: sample.p99_us,
            ratio: ratio.into(),
        }
    }

    fn cells(&self) -> [String; 6] {
        [
            self.what.clone(),
            self.in_flight.map(|n| n.to_string()).unwrap_or_default(),
            self.pairs_per_s.map(rate).unwrap_or_default(),
            micros(self.p50_us),
            micros(self.p99_us),
            self.ratio.clone(),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "what": self.what,
            "in_flight": self.in_flight,
            "pairs_per_s": self.pairs_per_s,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "ratio": self.ratio,
        })
    }
}

/// Formats rows as a Markdown table.
pub fn text(rows: &[Row]) -> String {
    text_with(rows, "pairs/s")
}

/// Formats rows as a Markdown table with another unit than pairs.
pub fn text_with(rows: &[Row], unit: &str) -> String {
    let mut table = Table::new();
    let header = HEADER.map(|name| header_case(if name.is_empty() { unit } else { name }));
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    table.add_rows(rows.iter().map(Row::cells));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// Converts rows to an array of objects; missing values are null.
pub fn json(rows: &[Row]) -> Value {
    rows.iter().map(Row::json).collect()
}

/// Formats a duration with three digits: `0.42 µs`, `87.3 µs`, `1.25 ms`, `2.10 s`.
pub fn micros(us: f64) -> String {
    match us {
        us if us < 999.5 => format!("{} µs", three_digits(us)),
        us if us < 999_500.0 => format!("{} ms", three_digits(us / 1e3)),
        us => format!("{} s", three_digits(us / 1e6)),
    }
}

fn three_digits(value: f64) -> String {
    let decimals = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Formats a whole number with thousands separators: `12,345`.
pub fn rate(per_s: f64) -> String {
    let digits = format!("{per_s:.0}");
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn rows() -> [Row; 2] {
        let elapsed = Duration::from_secs(2);
        let sample = Sample { pairs: 24_690, elapsed, p50_us: 87.26, p99_us: 1_250.0 };
        let floor = Spread { p50_us: 640.0, p99_us: 2_100_000.0 };
        [Row::floor("fdatasync", floor), Row::load("Redis", 16, &sample, "1.0 x")]
    }

    #[test]
    fn table_is_aligned_markdown() {
        let expected = "\
| WHAT      | IN FLIGHT | PAIRS/S |     P50 |     P99 | RATIO |
|-----------|-----------|---------|---------|---------|-------|
| fdatasync |           |         |  640 µs |  2.10 s |       |
| Redis     |        16 |  12,345 | 87.3 µs | 1.25 ms | 1.0 x |";
        assert_eq!(text(&rows()), expected);
    }

    #[test]
    fn json_has_plain_numbers_and_nulls() {
        let json = json(&rows());
        assert_eq!(json[0]["pairs_per_s"], Value::Null);
        assert_eq!(json[1]["pairs_per_s"], 12_345.0);
        assert_eq!(json[1]["in_flight"], 16);
        assert_eq!(json[1]["p99_us"], 1_250.0);
    }

    #[test]
    fn durations_have_three_digits_and_a_unit() {
        for (us, text) in [
            (0.0, "0.00 µs"),
            (0.42, "0.42 µs"),
            (9.996, "10.0 µs"),
            (99.96, "100 µs"),
            (999.4, "999 µs"),
            (999.6, "1.00 ms"),
            (1_250.0, "1.25 ms"),
            (999_600.0, "1.00 s"),
            (61_000_000.0, "61.0 s"),
        ] {
            assert_eq!(micros(us), text);
        }
    }

    #[test]
    fn thousands_are_separated() {
        for (per_s, text) in
            [(0.0, "0"), (999.4, "999"), (999.6, "1,000"), (1_234_567.0, "1,234,567")]
        {
            assert_eq!(rate(per_s), text);
        }
    }
}
