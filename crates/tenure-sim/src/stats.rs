//! Counters of what a run exercised, so that a run without faults cannot pass unnoticed.

use std::fmt;
use std::ops::AddAssign;

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of one run or of many.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats { $($(#[$doc])* pub $name: u64),* }

        impl AddAssign for Stats {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }

        impl Stats {
            /// Returns the names of the counters that are zero.
            #[must_use]
            pub fn missing(&self) -> Vec<&'static str> {
                let mut missing = Vec::new();
                $(if self.$name == 0 { missing.push(stringify!($name)); })*
                missing
            }
        }
    };
}

stats! {
    /// Commands that the server applied.
    commands,
    /// Tenures granted.
    grants,
    /// Of these, from the wait queue.
    handovers,
    /// Of these, with a solo session.
    solo_grants,
    /// Tenures that expired.
    expiries,
    /// Tenures that ended with a closed session.
    closes,
    /// Tenures that were broken.
    breaks,
    /// Requests that were sent again.
    repeats,
    /// Requests that were withdrawn.
    withdrawals,
    /// Withdrawals that released a grant.
    withdrawn_grants,
    /// Crashes of the server.
    crashes,
    /// Of these, between applying a batch and flushing it.
    crashes_before_flush,
    /// Of these, between flushing a batch and answering it.
    crashes_before_reply,
    /// Stalls of the server.
    stalls,
    /// Crashes of holders.
    holder_crashes,
    /// Freezes and suspends of holders.
    freezes,
    /// Holders cut off from the network.
    partitions,
    /// Sessions that their holders considered lost.
    losses,
    /// Requests that are executed once and arrived again.
    repeated_answers,
    /// Messages dropped.
    dropped,
    /// Messages duplicated.
    duplicated,
    /// Effects that a guard accepted.
    effects,
    /// Effects that a guard refused because of an older token.
    fenced_writes,
    /// Writes with stale tokens that the server recorded in history.
    fenced_events,
    /// Records evicted from memory.
    evictions,
    /// Jobs that were submitted.
    submits,
    /// Jobs that replaced others.
    replaced,
    /// Submits that joined a job.
    attached,
    /// First attempts.
    starts,
    /// Further attempts.
    retries,
    /// Attempts that succeeded.
    successes,
    /// Jobs that failed permanently.
    failures,
    /// Jobs that exhausted their attempts by failing.
    dead_jobs,
    /// Jobs that exhausted their attempts by losing their worker.
    dead_after_loss,
    /// Other attempts that lost their worker.
    lost_attempts,
    /// Jobs that were handed back.
    handed_back,
    /// Cancel requests.
    cancels,
    /// Running jobs that ended as cancelled.
    stopped,
    /// Dead jobs that were redriven.
    redriven,
    /// Dead jobs that were discarded.
    discarded,
    /// Changes of specs.
    spec_changes,
    /// Resources that were paused.
    pauses,
    /// Resources that were deleted.
    deletes,
    /// Progress and log reports of workers that were accepted.
    reports,
    /// Changes of a status.
    status_writes,
    /// Finishes that updated status or timers in the same step.
    updates_in_finish,
    /// Attempts that were deferred.
    deferred,
    /// Failures with a delay of their own.
    own_delays,
    /// Jobs that failed because they had not started in time.
    not_started,
    /// Timers that were set or moved.
    timers_set,
    /// Timers that were removed.
    timers_removed,
    /// Timers that fired.
    timers_fired,
    /// Timers whose submit was refused.
    timers_refused,
    /// Conditional puts that were accepted.
    conditional_puts,
    /// Conditional deletes that were accepted.
    conditional_deletes,
    /// Conditional submits that were accepted.
    conditional_submits,
    /// Conditional writes whose condition did not hold.
    conditions_failed,
    /// Restricted claims that got jobs.
    restricted_claims,
    /// Planned transfers to a named waiter.
    transfers,
    /// Planned transfers to a session that did not wait.
    transfers_refused,
    /// Tenures of a kind with a stale margin that expired.
    margin_expiries,
    /// Ready jobs of the same kind and tenant, seen when a claim started another.
    ordered_starts,
    /// Ready jobs of other tenants, seen when a worker of all tenants started a job of the kind.
    tenant_turns,
    /// Ready jobs of the same tenant and another claimed kind that a start was compared with.
    kind_priorities,
    /// Kinds that a start of a worker of all tenants was compared with.
    kind_turns,
    /// Restarts by which the store clock leapt beyond the memory of requests.
    leaps,
    /// Resources that were forgotten.
    forgotten,
    /// Resources that were not forgotten, because they were in use or had changed.
    forgets_refused,
    /// Forgotten resources that were used again.
    names_used_again,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { commands, grants, handovers, expiries, .. } = self;
        write!(
            f,
            "{commands} commands, {grants} grants, {handovers} hand-overs, {} repeats, {} crashes, \
             {} stalls, {} freezes, {expiries} expiries, {} fenced writes, {} jobs, {} attempts, \
             {} lost, {} dead",
            self.repeats,
            self.crashes,
            self.stalls,
            self.freezes,
            self.fenced_writes,
            self.submits + self.replaced,
            self.starts + self.retries,
            self.lost_attempts + self.dead_after_loss,
            self.dead_jobs + self.dead_after_loss
        )
    }
}
