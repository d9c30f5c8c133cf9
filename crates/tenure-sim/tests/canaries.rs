//! Every known bug that can be planted is caught by the simulation, and the seed that catches it is
//! clean without the bug. A suite that does not die of a canary would be blind there.

use tenure_core::canary::{Canary, with};
use tenure_sim::{Violation, run};

/// A holder believes what is not so: three ways to notice it first.
const BELIEF: [&str; 3] = ["while h", "both believe", "which is over"];
/// A holder that is well loses its lock.
const AWAY: [&str; 4] = ["because the store was away", "while h", "both believe", "which is over"];
/// Seeds that a canary may survive.
const SEEDS: u64 = 2_000;

fn catch(canary: Canary) -> Box<Violation> {
    let found = with(canary, || (0..SEEDS).find_map(|seed| run(seed, false).err()));
    found.unwrap_or_else(|| panic!("{canary:?} survives {SEEDS} seeds"))
}

/// Plants a bug and gives the words in which the oracle complains; each must be among `expected`.
#[track_caller]
fn caught(canary: Canary, expected: &[&str]) {
    let Violation { seed, what, .. } = *catch(canary);
    println!("{canary:?}: seed {seed}: {what}");
    assert!(expected.iter().any(|words| what.contains(words)), "{canary:?}, seed {seed}: {what}");
    assert!(run(seed, false).is_ok(), "seed {seed} fails without {canary:?} as well");
}

macro_rules! canaries {
    ($($name:ident: $canary:ident => $expected:expr;)*) => {
        $(#[test]
        fn $name() {
            caught(Canary::$canary, &$expected);
        })*

        #[test]
        fn every_canary_has_its_test() {
            let tested = [$(Canary::$canary),*];
            let missing: Vec<_> = Canary::ALL.iter().filter(|c| !tested.contains(c)).collect();
            assert!(missing.is_empty(), "no test plants {missing:?}");
        }
    };
}

canaries! {
    a_missing_owner_that_counts_as_me_is_caught: MissingOwnerIsMe =>
        ["was said to be released and was not"];
    a_renewal_by_name_is_caught: RenewByName => ["the renewal of token"];
    a_release_without_token_is_caught: ReleaseWithoutToken =>
        ["was said to be released and was not", "while h"];
    a_grant_to_a_dead_waiter_is_caught: DeadWaiterGranted => ["dead session"];
    a_token_that_starts_again_is_caught: TokenStartsAgain =>
        ["was given out twice", "the last token went"];
    a_repeated_request_taken_for_a_new_one_is_caught: RepeatedIsNew =>
        ["a repeated request was taken for another", "then"];
    a_withdrawal_that_leaks_the_lock_is_caught: WithdrawLeaks =>
        ["a withdrawn request still holds"];
    a_release_that_wakes_nobody_is_caught: ReleaseWakesNobody => ["waits for free locks"];
    a_lapsed_session_that_still_holds_is_caught: LapsedStillHolds =>
        ["dead session", "revived", "in vain", "are left at the end", "runs with token"];
    a_heartbeat_that_revives_is_caught: BeatRevives => ["revived"];
    a_set_taken_in_part_is_caught: SetTakenInPart => ["two tenures", "while h", "overtook"];
    a_starving_wide_request_is_caught: WideStarves => ["overtook"];
    a_restart_without_grace_is_caught: NoGraceAfterRestart => AWAY;
    an_answer_before_it_is_durable_is_caught: AnswerBeforeDurable => ["is not durable"];
    time_counted_from_the_answer_is_caught: CountFromAnswer => BELIEF;
    a_lease_without_drift_margin_is_caught: NoDriftMargin => BELIEF;
    a_clock_that_stops_in_suspend_is_caught: ClockStopsInSuspend => BELIEF;
    a_failed_heartbeat_taken_for_a_good_one_is_caught: FailedBeatIsFine => AWAY;
    an_attempt_that_is_counted_twice_is_caught: AttemptCountedTwice => ["begins attempt"];
    a_finish_without_token_is_caught: FinishWithoutToken => ["ended another attempt", "while h"];
    a_repeated_submit_taken_for_a_new_one_is_caught: RepeatedSubmitIsNew => ["made job"];
    a_repeated_claim_taken_for_a_new_one_is_caught: RepeatedClaimIsNew => ["took jobs twice"];
    a_submit_that_attaches_to_a_dying_job_is_caught: AttachToDying =>
        ["which cannot finish any more"];
    a_completion_that_overwrites_a_cancel_is_caught: CompletionOverwritesCancel =>
        ["the cancel was lost"];
    a_change_that_is_lost_during_a_sync_is_caught: ChangeDuringSyncLost =>
        ["came during a sync and is lost"];
}
