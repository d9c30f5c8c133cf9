//! Parameters of one run, drawn from its seed.

use tenure_core::{LockName, ResourceKey};

use crate::kinds::{CAREFUL, GROUPED, NAMES};
use crate::rng::Rng;
use crate::skewed_clock::SECOND;

/// Phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Faults are injected.
    Faulty,
    /// No faults; new work is still submitted, and every request must be served.
    Healing,
    /// No new work; everything must drain.
    Draining,
}

/// Duration of the faulty phase.
pub const FAULTY_US: u64 = 60 * SECOND;
/// Duration of the healing phase.
pub const HEALING_US: u64 = 40 * SECOND;
/// Time limit of the draining phase, if no job is left to run. A run ends as soon as everything has
/// drained.
pub const DRAINING_US: u64 = 120 * SECOND;
/// Extra time for each job that is left: its attempts, their backoffs, and claims. Jobs of one lane
/// run one after the other, and a lane may have got many at once when the server was stalled.
pub const DRAINING_JOB_US: u64 = 10 * SECOND;
/// Lane length from which no more jobs are submitted: they could not be finished in time.
pub const LANE_JOBS_MAX: usize = 6;
/// Time limit for a grant once faults stop: one or two sessions may have to expire, and all other
/// holders may work first.
pub const GRANT_WAIT_MAX_US: u64 = 45 * SECOND;

/// Time limit for progress once faults stop, of a running job, and from one start of a ready job or
/// of one that ranks before it to the next: all workers may have to wait for locks and to work
/// first.
pub const JOB_WAIT_MAX_US: u64 = 60 * SECOND;

/// Maximum time from now to the instant of a new timer, a new job or the next attempt of a job.
pub const SCHEDULE_MS_MAX: u64 = 6_000;

/// Parameters of one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of holders.
    pub holders: usize,
    /// Resources that are only locked, with their locks. The last one is rarely used.
    pub resources: Vec<(ResourceKey, Vec<LockName>)>,
    /// Resources that have jobs.
    pub lanes: Vec<ResourceKey>,
    /// Probability that an idle process claims jobs rather than acquires locks.
    pub claim_per_mille: u64,
    /// Mean time between user commands of one process.
    pub user_command_ms: u64,
    /// Maximum duration of work under a lock.
    pub work_ms_max: u64,
    /// Probability that a message is lost.
    pub loss_per_mille: u64,
    /// Probability that a message is duplicated.
    pub duplicate_per_mille: u64,
    /// Probability that a message is slow.
    pub slow_per_mille: u64,
    /// Maximum extra latency of every message; zero in most runs.
    pub extra_latency_ms: u64,
    /// Mean time between faults of the server.
    pub server_fault_ms: u64,
    /// Mean time between faults of one holder.
    pub holder_fault_ms: u64,
    /// Mean time between breaks by an operator.
    pub break_ms: u64,
    /// Probability that a flush is slow.
    pub slow_flush_per_mille: u64,
}

impl Plan {
    /// Draws a resource, with or without jobs.
    pub fn any_resource(&self, rng: &mut Rng) -> ResourceKey {
        let mut keys = self.resources.iter().map(|(key, _)| key).chain(&self.lanes);
        let at = rng.below(self.resources.len() + self.lanes.len());
        keys.nth(at).expect("the index is in range").clone()
    }

    /// Draws the parameters of a run.
    #[must_use]
    pub fn draw(rng: &mut Rng) -> Self {
        let names = ["main", "config", "panic"];
        let resource = |n: u64, rng: &mut Rng| {
            let kind = if rng.chance(250) { CAREFUL } else { "k" };
            let key = ResourceKey::new("t", kind, &format!("l{n}")).expect("short plain names");
            let locks = names.iter().take(1 + rng.below(names.len()));
            (key, locks.map(|name| name.parse().expect("short plain names")).collect())
        };
        let lane = |n: u64, rng: &mut Rng| {
            let tenant = if rng.chance(300) { "u" } else { "t" };
            let kind = NAMES[rng.below(NAMES.len())];
            let name = match kind == GROUPED {
                true => format!("g{}:r{n}", rng.below(2)),
                false => format!("r{n}"),
            };
            ResourceKey::new(tenant, kind, &name).expect("short plain names")
        };
        let (count, lanes) = (rng.within(2, 4), rng.within(1, 6));
        Self {
            holders: 2 + rng.below(5),
            resources: (0..count).map(|n| resource(n, rng)).collect(),
            lanes: (0..lanes).map(|n| lane(n, rng)).collect(),
            claim_per_mille: rng.within(300, 850),
            user_command_ms: rng.within(600, 5_000),
            work_ms_max: rng.within(200, 4_000),
            loss_per_mille: rng.within(0, 150),
            duplicate_per_mille: rng.within(0, 150),
            slow_per_mille: rng.within(0, 100),
            extra_latency_ms: if rng.chance(250) { rng.within(200, 1_200) } else { 0 },
            server_fault_ms: rng.within(2_000, 20_000),
            holder_fault_ms: rng.within(3_000, 30_000),
            break_ms: rng.within(4_000, 60_000),
            slow_flush_per_mille: rng.within(0, 60),
        }
    }
}
