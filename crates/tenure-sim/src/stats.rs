//! Counts of what happened, so that a quiet simulation cannot pass for a good one.

use std::fmt;
use std::ops::AddAssign;

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What happened in one run or in many.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats { $($(#[$doc])* pub $name: u64),* }

        impl AddAssign for Stats {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }

        impl Stats {
            /// The kinds of things that never happened.
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
    /// Commands that the server decided.
    commands,
    /// Tenures that began.
    grants,
    /// Of these, by hand-over from the queue.
    handovers,
    /// Of these, with a session of their own.
    solos,
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
    /// Withdrawals that met a grant.
    withdrawn_grants,
    /// Crashes of the server.
    crashes,
    /// Of these, between applying a batch and flushing it.
    unflushed,
    /// Of these, between flushing a batch and answering it.
    unanswered,
    /// Stalls of the server.
    stalls,
    /// Crashes of holders.
    holder_crashes,
    /// Freezes and suspends of holders.
    freezes,
    /// Holders cut off from the network.
    partitions,
    /// Sessions that their holders gave up for lost.
    losses,
    /// Messages lost.
    dropped,
    /// Messages doubled.
    doubled,
    /// Effects that a guard accepted.
    effects,
    /// Effects that a guard refused because of an older token.
    fenced_writes,
    /// Writes with stale tokens that the server noted in history.
    fenced_events,
    /// Records that were dropped from memory and read again.
    evictions,
    /// Jobs that were submitted.
    submits,
    /// Of these, in the place of others.
    replaced,
    /// Submits that joined a job.
    attached,
    /// First attempts.
    starts,
    /// Further attempts.
    retries,
    /// Attempts that succeeded.
    successes,
    /// Jobs that failed for good at once.
    failures,
    /// Jobs that used up their attempts.
    deaths,
    /// Of these, because their workers were lost.
    lost_to_death,
    /// Other attempts that were lost with their workers.
    lost_attempts,
    /// Jobs that were given back.
    handed_back,
    /// Jobs that were cancelled, or asked to stop.
    cancels,
    /// Jobs that stopped because they were asked to.
    stopped,
    /// Dead jobs that were made into others.
    redriven,
    /// Dead jobs that were thrown away.
    discarded,
    /// Changes of what resources should be like.
    changes,
    /// Resources that were paused.
    pauses,
    /// Resources that were deleted.
    deletes,
    /// Reports of workers that were heard.
    reports,
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
            self.lost_attempts + self.lost_to_death,
            self.deaths + self.lost_to_death
        )
    }
}
