//! The shape of one run, drawn from its seed: how many, how often, how long.

use tenure_core::{LockName, ResourceKey};

use crate::kinds::NAMES;
use crate::rng::Rng;
use crate::skew::SECOND;

/// How things stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Everything that can fail fails now and then.
    Faulty,
    /// Nothing fails any more, but work goes on: everybody who wants something must get it.
    Healing,
    /// Nothing new is begun: everything must come to rest.
    Draining,
}

/// How long things go wrong.
pub const FAULTY_US: u64 = 60 * SECOND;
/// How long work goes on after that.
pub const HEALING_US: u64 = 40 * SECOND;
/// By when everything must have come to rest after that. A run ends as soon as it has.
pub const DRAINING_US: u64 = 120 * SECOND;
/// Most jobs that a lane may have when one more is submitted: more could not be worked in time.
pub const LANE_FULL: usize = 6;
/// Longest wait for a lock, once nothing fails: a dead session or two before it, then everybody's
/// work.
pub const GRANTED_WITHIN_US: u64 = 45 * SECOND;

/// Longest that a job may be ready or running while nothing else happens on its resource, once
/// nothing fails: everybody may have to wait for locks and to work before.
pub const WORKED_WITHIN_US: u64 = 60 * SECOND;

/// The shape of one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many holders.
    pub holders: usize,
    /// The resources with their locks.
    pub resources: Vec<(ResourceKey, Vec<LockName>)>,
    /// The resources with jobs.
    pub lanes: Vec<ResourceKey>,
    /// How often a free process looks for jobs and not for locks, in a thousand.
    pub labour: u64,
    /// Mean time between wishes of one process.
    pub wish_ms: u64,
    /// Longest work under a lock.
    pub work_ms_max: u64,
    /// Messages lost, in a thousand.
    pub loss: u64,
    /// Messages doubled, in a thousand.
    pub doubles: u64,
    /// Messages that are slow, in a thousand.
    pub slow: u64,
    /// What every message may take longer; zero for most runs.
    pub lag_ms: u64,
    /// Mean time between faults of the server.
    pub server_fault_ms: u64,
    /// Mean time between faults of one holder.
    pub holder_fault_ms: u64,
    /// Mean time between breaks by an operator.
    pub break_ms: u64,
    /// Batches whose flush is slow, in a thousand.
    pub slow_flush: u64,
}

impl Plan {
    /// One of the resources, with jobs or without.
    pub fn any_resource(&self, rng: &mut Rng) -> ResourceKey {
        let mut keys = self.resources.iter().map(|(key, _)| key).chain(&self.lanes);
        let at = rng.below(self.resources.len() + self.lanes.len());
        keys.nth(at).expect("it is below their number").clone()
    }

    /// The shape that a seed gives.
    #[must_use]
    pub fn draw(rng: &mut Rng) -> Self {
        let names = ["main", "config", "panic"];
        let resource = |n: u64, rng: &mut Rng| {
            let key = ResourceKey::new("t", "k", &format!("r{n}")).expect("short plain names");
            let locks = names.iter().take(1 + rng.below(names.len()));
            (key, locks.map(|name| name.parse().expect("short plain names")).collect())
        };
        let lane = |n: u64, rng: &mut Rng| {
            let tenant = if rng.chance(300) { "u" } else { "t" };
            let kind = NAMES[rng.below(NAMES.len())];
            ResourceKey::new(tenant, kind, &format!("r{n}")).expect("short plain names")
        };
        let (count, lanes) = (rng.within(1, 3), rng.within(1, 5));
        Self {
            holders: 2 + rng.below(5),
            resources: (0..count).map(|n| resource(n, rng)).collect(),
            lanes: (0..lanes).map(|n| lane(n, rng)).collect(),
            labour: rng.within(300, 850),
            wish_ms: rng.within(600, 5_000),
            work_ms_max: rng.within(200, 4_000),
            loss: rng.within(0, 150),
            doubles: rng.within(0, 150),
            slow: rng.within(0, 100),
            lag_ms: if rng.chance(250) { rng.within(200, 1_200) } else { 0 },
            server_fault_ms: rng.within(2_000, 20_000),
            holder_fault_ms: rng.within(3_000, 30_000),
            break_ms: rng.within(4_000, 60_000),
            slow_flush: rng.within(0, 60),
        }
    }
}
