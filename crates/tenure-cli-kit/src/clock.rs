//! The one place of the command line that reads the wall clock: for people, never for a decision.

use jiff::Timestamp;
use tenure_core::Millis;

/// The wall time `left` from now, for people and commands; never for a decision.
pub fn wall_in(left: std::time::Duration) -> String {
    now().checked_add(left).unwrap_or(Timestamp::MAX).to_string()
}

/// The wall time, to say for people how long ago something was.
pub fn wall() -> Millis {
    Millis(u64::try_from(now().as_millisecond()).unwrap_or_default())
}

#[expect(clippy::disallowed_methods, reason = "only shown")]
fn now() -> Timestamp {
    Timestamp::now()
}
