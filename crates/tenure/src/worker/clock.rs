//! The one place of the worker that reads the wall clock: for commands, never for a decision.

use std::time::Duration;

/// The wall time `left` from now, as RFC 3339.
#[expect(clippy::disallowed_methods, reason = "only shown")]
pub(super) fn wall_in(left: Duration) -> String {
    let now = jiff::Timestamp::now();
    now.checked_add(left).unwrap_or(jiff::Timestamp::MAX).to_string()
}
