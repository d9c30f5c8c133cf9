//! Known bugs that a test build can put back on purpose.
//!
//! Each canary is one of the failure modes that lease systems have shipped. A suite that does not
//! die of a canary is blind there. Without the feature `canary` every question is answered `false`
//! at compile time and the bug does not exist in the binary.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Canary {
    /// K3: a missing owner counts as "me".
    MissingOwnerIsMe,
    /// H6: a renewal goes by name and refreshes whoever holds the lock now.
    RenewByName,
    /// A3: a release does not look at the token.
    ReleaseWithoutToken,
    /// T6: a waiter is granted although its session lapsed while it queued.
    DeadWaiterGranted,
    /// K1: tokens start again when the lock was idle.
    TokenStartsAgain,
    /// A1: a repeated request is taken for a new one.
    RepeatedIsNew,
    /// A7: a withdrawn wait leaks the lock it was granted at that moment.
    WithdrawLeaks,
    /// A8: a release wakes nobody.
    ReleaseWakesNobody,
    /// J3: the session lapses, what it held stays held.
    LapsedStillHolds,
    /// A heartbeat brings an ended session back.
    BeatRevives,
    /// A6: a set of locks is taken in part.
    SetTakenInPart,
    /// A6: narrow requests overtake a wide one for ever.
    WideStarves,
    /// T7: everything lapses when the store restarts.
    NoGraceAfterRestart,
    /// F3: the answer leaves before the change is durable.
    AnswerBeforeDurable,
    /// T5: the holder counts its time from the answer.
    CountFromAnswer,
    /// T4: the holder allows for no difference between the clocks.
    NoDriftMargin,
    /// T2: the holder's clock stands still during suspend.
    ClockStopsInSuspend,
    /// H1: a failed heartbeat is taken for a good one.
    FailedBeatIsFine,
    /// J2: an attempt is counted twice.
    AttemptCountedTwice,
    /// A finish does not look at the token.
    FinishWithoutToken,
    /// A repeated submit makes a second job.
    RepeatedSubmitIsNew,
    /// A repeated claim takes more jobs.
    RepeatedClaimIsNew,
    /// J7: a submit attaches to a job that is asked to stop.
    AttachToDying,
    /// J9: a completion overwrites a cancel.
    CompletionOverwritesCancel,
    /// J10: a change that was made during a sync is lost.
    ChangeDuringSyncLost,
}

impl Canary {
    /// All of them.
    pub const ALL: [Self; 25] = [
        Self::MissingOwnerIsMe,
        Self::RenewByName,
        Self::ReleaseWithoutToken,
        Self::DeadWaiterGranted,
        Self::TokenStartsAgain,
        Self::RepeatedIsNew,
        Self::WithdrawLeaks,
        Self::ReleaseWakesNobody,
        Self::LapsedStillHolds,
        Self::BeatRevives,
        Self::SetTakenInPart,
        Self::WideStarves,
        Self::NoGraceAfterRestart,
        Self::AnswerBeforeDurable,
        Self::CountFromAnswer,
        Self::NoDriftMargin,
        Self::ClockStopsInSuspend,
        Self::FailedBeatIsFine,
        Self::AttemptCountedTwice,
        Self::FinishWithoutToken,
        Self::RepeatedSubmitIsNew,
        Self::RepeatedClaimIsNew,
        Self::AttachToDying,
        Self::CompletionOverwritesCancel,
        Self::ChangeDuringSyncLost,
    ];
}

#[cfg(feature = "canary")]
mod switch {
    use super::Canary;
    use std::cell::Cell;

    thread_local! {
        // Per thread, so that a test with a planted bug leaves the tests beside it alone.
        static PLANTED: Cell<Option<Canary>> = const { Cell::new(None) };
    }

    /// Whether `canary` is planted on this thread.
    #[must_use]
    pub fn planted(canary: Canary) -> bool {
        PLANTED.get() == Some(canary)
    }

    /// Runs `work` with `canary` planted on this thread.
    pub fn with<T>(canary: Canary, work: impl FnOnce() -> T) -> T {
        struct Pull;
        impl Drop for Pull {
            fn drop(&mut self) {
                PLANTED.set(None);
            }
        }
        PLANTED.set(Some(canary));
        let _pull = Pull;
        work()
    }
}

#[cfg(feature = "canary")]
pub use switch::{planted, with};

/// Whether `canary` is planted: never, in this build.
#[cfg(not(feature = "canary"))]
#[must_use]
#[inline(always)]
pub const fn planted(_canary: Canary) -> bool {
    false
}
