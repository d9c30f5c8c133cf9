//! Wall clock of the command line, the only place that reads it. For display only.

use jiff::Timestamp;
use tenure_core::Millis;

/// Returns the wall time `left` from now, as an RFC 3339 timestamp.
pub fn wall_time_in(left: std::time::Duration) -> String {
    now().checked_add(left).unwrap_or(Timestamp::MAX).to_string()
}

/// Returns the current wall time.
pub fn wall_time() -> Millis {
    Millis(u64::try_from(now().as_millisecond()).unwrap_or_default())
}

#[expect(clippy::disallowed_methods, reason = "for display only")]
fn now() -> Timestamp {
    Timestamp::now()
}
