//! Mutation tests of the simulation: it catches every planted bug, and the seed that catches it
//! passes without the bug. A bug that survives would show a blind spot of the oracle.

use tenure_core::canary::{Canary, with};
use tenure_sim::{Violation, run};

/// Violations of a false belief, whichever is detected first.
const FALSE_BELIEF: [&str; 3] = ["while h", "both believe", "which has ended"];
/// Violations of a healthy holder that loses its lock.
const UNJUSTIFIED_LOSS: [&str; 5] = [
    "because the store was unavailable",
    "after its renewal, within its ttl",
    "while h",
    "both believe",
    "which has ended",
];
/// Number of seeds within which a canary must be caught.
const SEEDS: u64 = 2_000;

fn catch(canary: Canary) -> Box<Violation> {
    let found = with(canary, || (0..SEEDS).find_map(|seed| run(seed, false).err()));
    found.unwrap_or_else(|| panic!("{canary:?} survives {SEEDS} seeds"))
}

/// Plants a bug and checks that the violation contains one of the `expected` texts.
#[track_caller]
fn assert_caught(canary: Canary, expected: &[&str]) {
    let Violation { seed, what, .. } = *catch(canary);
    println!("{canary:?}: seed {seed}: {what}");
    assert!(expected.iter().any(|words| what.contains(words)), "{canary:?}, seed {seed}: {what}");
    assert!(run(seed, false).is_ok(), "seed {seed} fails without {canary:?} as well");
}

macro_rules! canaries {
    ($($name:ident: $canary:ident => $expected:expr;)*) => {
        $(#[test]
        fn $name() {
            assert_caught(Canary::$canary, &$expected);
        })*

        #[test]
        fn every_canary_has_a_test() {
            let tested = [$(Canary::$canary),*];
            let missing: Vec<_> = Canary::ALL.iter().filter(|c| !tested.contains(c)).collect();
            assert!(missing.is_empty(), "no test plants {missing:?}");
        }
    };
}

canaries! {
    catches_missing_owner_treated_as_caller: MissingOwnerIsMe =>
        ["was reported released but was not"];
    catches_renewal_by_name: RenewByName => ["renewal of token"];
    catches_release_without_token: ReleaseWithoutToken =>
        ["was reported released but was not", "while h"];
    catches_grant_to_ended_session: DeadWaiterGranted => ["ended session"];
    catches_token_that_restarts: TokenStartsAgain =>
        ["was granted twice", "the last token went"];
    catches_repeated_request_treated_as_new: RepeatedIsNew =>
        ["a repeated request was rejected as reused", "then"];
    catches_withdrawal_that_leaks_the_lock: WithdrawLeaks =>
        ["a withdrawn request still holds"];
    catches_release_that_wakes_no_waiter: ReleaseWakesNoWaiter =>
        ["waits for free locks", "was not transferred to"];
    catches_expired_session_that_still_holds: ExpiredStillHolds =>
        ["ended session", "revived", "was not granted", "remain at the end", "runs with token"];
    catches_heartbeat_that_revives_a_session: HeartbeatRevives => ["revived"];
    catches_heartbeat_of_another_tenant: ForeignTenantHeartbeats =>
        ["a caller of another tenant got"];
    catches_partially_granted_lock_set: SetTakenInPart => ["two tenures", "while h", "overtook"];
    catches_starving_wide_request: WideStarves => ["overtook"];
    catches_restart_without_grace: NoGraceAfterRestart => UNJUSTIFIED_LOSS;
    catches_reply_before_flush: AnswerBeforeDurable => ["is not durable"];
    catches_lease_counted_from_the_reply: CountFromAnswer => FALSE_BELIEF;
    catches_lease_without_drift_margin: NoDriftMargin => FALSE_BELIEF;
    catches_clock_that_stops_in_suspend: ClockStopsInSuspend => FALSE_BELIEF;
    catches_failed_heartbeat_treated_as_success: FailedHeartbeatIgnored => UNJUSTIFIED_LOSS;
    catches_attempt_that_is_counted_twice: AttemptCountedTwice => ["starts attempt"];
    catches_finish_without_token: FinishWithoutToken => ["ended another attempt", "while h"];
    catches_repeated_submit_treated_as_new: RepeatedSubmitIsNew => ["created job"];
    catches_repeated_request_of_a_batch_that_is_executed_again: RepeatedOnceIsNew =>
        ["was executed again"];
    catches_repeated_claim_treated_as_new: RepeatedClaimIsNew =>
        ["was assigned jobs twice", "runs with token"];
    catches_attach_to_a_cancelled_job: AttachToDying =>
        ["which can no longer finish"];
    catches_completion_that_overwrites_a_cancel: CompletionOverwritesCancel =>
        ["the cancel was lost"];
    catches_spec_change_lost_during_a_sync: ChangeDuringSyncLost =>
        ["changed during a sync and is lost"];
    catches_status_written_without_token: StatusWithoutToken =>
        ["which runs no job, wrote the status"];
    catches_deferred_attempt_that_counts: DeferredCounts =>
        ["starts attempt", "is stored as"];
    catches_timer_that_fires_twice: TimerFiresTwice => ["it can fire twice"];
    catches_tokens_that_restart_after_forgetting: TokenFloorForgotten =>
        ["was granted after token", "was granted twice"];
    catches_ignored_precondition: PreconditionIgnored => ["against its condition"];
    catches_transfer_to_the_next_waiter: TransferToNext => ["was not transferred to"];
    catches_restricted_claim_that_takes_others: GroupIgnored => ["outside its scope"];
    catches_lock_taken_from_a_job_in_backoff: ReserveIgnored => ["in backoff reserves"];
    catches_start_after_the_start_deadline: StartDeadlineIgnored => ["after its start deadline"];
    catches_ignored_stale_margin: MarginIgnored => ["and the stale margin of"];
    catches_claim_of_the_newest_job: NewestClaimedFirst => ["overtook ready job"];
    catches_tenant_that_is_served_again: TenantServedAgain => ["was claimed out of turn"];
    catches_kind_that_is_served_again: KindServedAgain => ["took the turn of"];
    catches_kind_before_priority: KindBeforePriority => ["of another kind"];
}
