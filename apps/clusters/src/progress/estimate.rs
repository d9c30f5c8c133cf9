//! Estimates the remaining time of an install.

use super::Phase;

/// Maximum number of earlier installs that are taken into account; of more, the first are.
pub const EARLIER_MAX: usize = 101;

/// Returns the estimated remaining time of an install, from the durations of earlier ones of the
/// same profile, newest first, and the time that it has spent in its phase.
///
/// The median of the durations is divided among the phases as in a typical install. A phase that
/// takes longer than its share does not reduce what later phases need. `None` if there is nothing
/// to compare with, or if it is not an install.
#[must_use]
pub fn remaining_ms(earlier_ms: &[u64], phase: Phase, in_phase_ms: u64) -> Option<u64> {
    if phase >= Phase::Destroying {
        return None;
    }
    let median = median(earlier_ms)?;
    let rest = |percent: u8| {
        let share = u128::from(median) * u128::from(100 - percent.min(100)) / 100;
        u64::try_from(share).unwrap_or(u64::MAX)
    };
    let at_start = rest(phase.elapsed_percent());
    let at_end = rest(next(phase).elapsed_percent());
    Some(at_start.saturating_sub(in_phase_ms).max(at_end))
}

/// Returns the next phase that takes time.
fn next(phase: Phase) -> Phase {
    let later = |other: &Phase| {
        *other > phase
            && *other <= Phase::Complete
            && other.elapsed_percent() > phase.elapsed_percent()
    };
    Phase::ALL.into_iter().find(later).unwrap_or(Phase::Complete)
}

fn median(values: &[u64]) -> Option<u64> {
    let mut values: Vec<u64> = values.iter().copied().take(EARLIER_MAX).collect();
    values.sort_unstable();
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *values.get(middle.checked_sub(1)?)?;
    Some(lower + (upper - lower) / 2)
}
