//! Known bugs that a test build can inject.
//!
//! Each canary is a failure mode that a lease system has shipped. A test suite that passes with a
//! canary planted has a blind spot. Without the feature `canary`, [`planted`] is a constant `false`
//! and the bug is not compiled in.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Canary {
    /// K3: a missing owner counts as the caller.
    MissingOwnerIsMe,
    /// H6: a renewal matches by name and refreshes the current holder.
    RenewByName,
    /// A3: a release does not check the token.
    ReleaseWithoutToken,
    /// T6: a waiter is granted although its session expired while it was queued.
    DeadWaiterGranted,
    /// K1: tokens restart when the lock was idle.
    TokenStartsAgain,
    /// A1: a repeated request is treated as new.
    RepeatedIsNew,
    /// A7: a withdrawn wait leaks the lock that was granted to it concurrently.
    WithdrawLeaks,
    /// A8: a release does not grant to the next waiter.
    ReleaseWakesNoWaiter,
    /// J3: an expired session keeps its tenures.
    ExpiredStillHolds,
    /// A heartbeat revives an ended session.
    HeartbeatRevives,
    /// A heartbeat of a caller that is bound to another tenant renews the session.
    ForeignTenantHeartbeats,
    /// A6: a lock set is acquired partially.
    SetTakenInPart,
    /// A6: requests for few locks overtake a request for many indefinitely.
    WideStarves,
    /// T7: all sessions expire when the store restarts.
    NoGraceAfterRestart,
    /// F3: the response is sent before the change is durable.
    AnswerBeforeDurable,
    /// T5: the holder measures its deadline from the response.
    CountFromAnswer,
    /// T4: the holder allows no margin for clock drift.
    NoDriftMargin,
    /// T2: the holder's clock stops during suspend.
    ClockStopsInSuspend,
    /// H1: a failed heartbeat is treated as successful.
    FailedHeartbeatIgnored,
    /// J2: an attempt is counted twice.
    AttemptCountedTwice,
    /// A finish does not check the token.
    FinishWithoutToken,
    /// A repeated submit creates a second job.
    RepeatedSubmitIsNew,
    /// A repeated request of a batch is executed again.
    RepeatedOnceIsNew,
    /// A repeated claim takes more jobs.
    RepeatedClaimIsNew,
    /// J7: a submit attaches to a job that is being cancelled.
    AttachToDying,
    /// J9: a completion overwrites a cancel.
    CompletionOverwritesCancel,
    /// J10: a change made during a sync is lost.
    ChangeDuringSyncLost,
    /// A status is written without checking the token.
    StatusWithoutToken,
    /// A deferred attempt counts.
    DeferredCounts,
    /// A timer fires again after it has fired.
    TimerFiresTwice,
    /// The tokens of a forgotten resource start again.
    TokenFloorForgotten,
    /// A conditional write ignores its condition.
    PreconditionIgnored,
    /// A planned transfer grants to the next waiter instead of the named one.
    TransferToNext,
    /// A claim that is restricted to a group or a resource takes jobs of others.
    GroupIgnored,
    /// A job takes a lock that a job in backoff ahead of it reserves.
    ReserveIgnored,
    /// A job starts although its start deadline has passed.
    StartDeadlineIgnored,
    /// Locks of a kind with a stale margin end when the session expires.
    MarginIgnored,
    /// A claim takes the resource whose job is due last, so that an earlier one starves.
    NewestClaimedFirst,
    /// Workers of all tenants serve the same tenant again, so that the others starve.
    TenantServedAgain,
    /// Workers of all tenants serve the kind with the best job, so that other kinds starve.
    KindServedAgain,
    /// Workers of all tenants serve kinds in turn, even if a tenant has a more urgent job.
    KindBeforePriority,
}

impl Canary {
    /// All canaries.
    pub const ALL: [Self; 41] = [
        Self::MissingOwnerIsMe,
        Self::RenewByName,
        Self::ReleaseWithoutToken,
        Self::DeadWaiterGranted,
        Self::TokenStartsAgain,
        Self::RepeatedIsNew,
        Self::WithdrawLeaks,
        Self::ReleaseWakesNoWaiter,
        Self::ExpiredStillHolds,
        Self::HeartbeatRevives,
        Self::ForeignTenantHeartbeats,
        Self::SetTakenInPart,
        Self::WideStarves,
        Self::NoGraceAfterRestart,
        Self::AnswerBeforeDurable,
        Self::CountFromAnswer,
        Self::NoDriftMargin,
        Self::ClockStopsInSuspend,
        Self::FailedHeartbeatIgnored,
        Self::AttemptCountedTwice,
        Self::FinishWithoutToken,
        Self::RepeatedSubmitIsNew,
        Self::RepeatedOnceIsNew,
        Self::RepeatedClaimIsNew,
        Self::AttachToDying,
        Self::CompletionOverwritesCancel,
        Self::ChangeDuringSyncLost,
        Self::StatusWithoutToken,
        Self::DeferredCounts,
        Self::TimerFiresTwice,
        Self::TokenFloorForgotten,
        Self::PreconditionIgnored,
        Self::TransferToNext,
        Self::GroupIgnored,
        Self::ReserveIgnored,
        Self::StartDeadlineIgnored,
        Self::MarginIgnored,
        Self::NewestClaimedFirst,
        Self::TenantServedAgain,
        Self::KindServedAgain,
        Self::KindBeforePriority,
    ];
}

#[cfg(feature = "canary")]
mod switch {
    use super::Canary;
    use std::cell::Cell;

    thread_local! {
        // Per thread, so that a planted bug does not affect tests that run in parallel.
        static PLANTED: Cell<Option<Canary>> = const { Cell::new(None) };
    }

    /// Returns `true` if `canary` is planted on this thread.
    #[must_use]
    pub fn planted(canary: Canary) -> bool {
        PLANTED.get() == Some(canary)
    }

    /// Runs `work` with `canary` planted on this thread.
    pub fn with<T>(canary: Canary, work: impl FnOnce() -> T) -> T {
        struct Unplant;
        impl Drop for Unplant {
            fn drop(&mut self) {
                PLANTED.set(None);
            }
        }
        PLANTED.set(Some(canary));
        let _unplant = Unplant;
        work()
    }
}

#[cfg(feature = "canary")]
pub use switch::{planted, with};

/// Returns `false`: canaries are not compiled into this build.
#[cfg(not(feature = "canary"))]
#[must_use]
#[inline(always)]
pub const fn planted(_canary: Canary) -> bool {
    false
}
