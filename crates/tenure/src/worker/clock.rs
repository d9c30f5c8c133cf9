//! The only use of the wall clock in the worker: for display, never for a decision.

use std::time::Duration;

/// Returns the wall time in `left` from now, as RFC 3339.
#[expect(clippy::disallowed_methods, reason = "only displayed")]
pub(super) fn wall_time_after(left: Duration) -> String {
    let now = jiff::Timestamp::now();
    now.checked_add(left).unwrap_or(jiff::Timestamp::MAX).to_string()
}
