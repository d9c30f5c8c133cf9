//! The one place of the command line that reads the wall clock: for people, never for a decision.

/// The wall time `left` from now, for people and commands; never for a decision.
#[expect(clippy::disallowed_methods, reason = "only shown")]
pub(crate) fn wall_in(left: std::time::Duration) -> String {
    let now = jiff::Timestamp::now();
    now.checked_add(left).unwrap_or(jiff::Timestamp::MAX).to_string()
}
