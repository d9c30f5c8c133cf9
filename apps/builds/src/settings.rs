//! The table `[builds]` of `tenure.toml`.

use std::ops::RangeInclusive;

use tenure_config::{Report, Section};
use tenure_core::limits::{RECENT_TTL_MS, SUPERVISED_TTL_MS_MIN};
use tenure_core::retry::Retry;
use tenure_core::{Kind, Operation, Policy};

use crate::names::{BUILD, NODE, RUN, SETUP, TEST};
use crate::state::{BuildState, TestState};

/// Allowed times after which a build is deleted.
const TTL_MS: RangeInclusive<u64> = 60_000..=30 * 24 * 60 * 60 * 1_000;
/// Default time after which a build is deleted.
const TTL_MS_DEFAULT: u64 = 8 * 60 * 60 * 1_000;
/// Default interval between the heartbeats of a node.
const HEARTBEAT_MS_DEFAULT: u64 = 5_000;
/// Default time without a heartbeat after which a node has lost what it held.
const STALE_MS_DEFAULT: u64 = 30_000;
/// Allowed times of the same.
const STALE_MS: RangeInclusive<u64> = SUPERVISED_TTL_MS_MIN..=60 * 60 * 1_000;
/// Default time that a node waits while no other node is the leader.
const WAIT_MS_DEFAULT: u64 = 120_000;
/// Allowed times of the same.
const WAIT_MS: RangeInclusive<u64> = 1_000..=24 * 60 * 60 * 1_000;
/// Default number of leaders that a build may have, one after the other.
const ELECTIONS_DEFAULT: u32 = 3;
/// Allowed numbers of leaders.
const ELECTIONS: RangeInclusive<u64> = 1..=10;
/// Default time for which the names of a deleted build are kept.
const RETENTION_MS_DEFAULT: u64 = RECENT_TTL_MS;
/// Allowed times of the same: requests are answered again for ten minutes.
const RETENTION_MS: RangeInclusive<u64> = RECENT_TTL_MS..=30 * 24 * 60 * 60 * 1_000;
/// Number of attempts that the engine allows for a test. The limits of a build are lower.
const ATTEMPTS: u32 = 100;

/// Settings of the app.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Time after which a build is deleted.
    pub ttl_ms: u64,
    /// Interval between the heartbeats of a node.
    pub heartbeat_ms: u64,
    /// Time without a heartbeat after which a node has lost what it held.
    pub stale_ms: u64,
    /// Time that a node waits while no other node is the leader.
    pub wait_ms: u64,
    /// Number of leaders that a build may have, one after the other.
    pub elections: u32,
    /// Time for which the names of a deleted build are kept.
    pub retention_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ttl_ms: TTL_MS_DEFAULT,
            heartbeat_ms: HEARTBEAT_MS_DEFAULT,
            stale_ms: STALE_MS_DEFAULT,
            wait_ms: WAIT_MS_DEFAULT,
            elections: ELECTIONS_DEFAULT,
            retention_ms: RETENTION_MS_DEFAULT,
        }
    }
}

impl Settings {
    /// Reads the section; every problem is reported.
    pub(crate) fn read(section: &Section<'_>, report: &mut Report<'_>) -> Self {
        let keys = ["ttl", "heartbeat", "stale", "wait", "elections", "retention"];
        section.check_keys(&keys, report);
        let default = Self::default();
        let mut duration = |key, allowed: RangeInclusive<u64>, default| {
            let Some(ms) = section.duration_ms(key, report) else { return default };
            if allowed.contains(&ms) {
                return ms;
            }
            let (min, max) = (allowed.start() / 1_000, allowed.end() / 1_000);
            let why = format!("it must be between {min}s and {max}s");
            section.reject::<()>(key, why, report);
            default
        };
        let ttl_ms = duration("ttl", TTL_MS, default.ttl_ms);
        let stale_ms = duration("stale", STALE_MS, default.stale_ms);
        // The default follows a shorter or longer `stale`.
        let usual = default.heartbeat_ms.min(stale_ms / 3);
        let heartbeat_ms = duration("heartbeat", 100..=stale_ms / 2, usual);
        let wait_ms = duration("wait", WAIT_MS, default.wait_ms);
        let retention_ms = duration("retention", RETENTION_MS, default.retention_ms);
        let elections = section.count("elections", ELECTIONS, report);
        let elections = elections.and_then(|n| u32::try_from(n).ok());
        let elections = elections.unwrap_or(default.elections);
        Self { ttl_ms, heartbeat_ms, stale_ms, wait_ms, elections, retention_ms }
    }

    /// Returns the kinds of builds, tests and nodes.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let at_once = |attempts| Retry { attempts, initial_ms: 0, max_ms: 0, ..Retry::default() };
        let setup = Operation::new(SETUP)
            .path(
                &[BuildState::New.as_str(), BuildState::Failed.as_str()],
                BuildState::Setup.as_str(),
                BuildState::Ready.as_str(),
                BuildState::Failed.as_str(),
            )
            .meets(SETUP, Policy::Attach)
            .retry(at_once(self.elections));
        let mut run = Operation::new(RUN)
            .path(
                &[TestState::Pending.as_str(), TestState::Failed.as_str()],
                TestState::Running.as_str(),
                TestState::Passed.as_str(),
                TestState::Failed.as_str(),
            )
            .meets(RUN, Policy::Attach)
            .retry(at_once(ATTEMPTS));
        run.ends = vec![TestState::Flaky.as_str().into()];
        let build = Kind::new(BUILD).states(&BuildState::ALL.map(BuildState::as_str));
        let test = Kind::new(TEST).states(&TestState::ALL.map(TestState::as_str)).grouped();
        vec![
            build.operation(setup).ephemeral_ms(self.retention_ms),
            test.operation(run).ephemeral_ms(self.retention_ms),
            Kind::new(NODE).grouped().ephemeral_ms(self.retention_ms),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use tenure_app::Apps;
    use tenure_core::Kinds;

    use super::*;
    use crate::{Builds, LoadedBuilds};

    fn parse(text: &str) -> Result<tenure_app::Loaded, tenure_config::BadConfig> {
        Apps::new(vec![Arc::new(Builds)]).parse(text, Path::new("/"))
    }

    #[test]
    fn an_empty_table_has_the_defaults_and_valid_kinds() {
        let loaded = parse("[builds]\n").unwrap();
        let settings = &loaded.apps.get::<LoadedBuilds>().unwrap().settings;
        assert_eq!(*settings, Settings::default());
        Kinds::new(settings.kinds()).unwrap();
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let text = "[builds]\nttl = \"1s\"\nstale = \"10s\"\nheartbeat = \"6s\"\nelections = 0\n\
                    leader = 1\n";
        let problems = parse(text).map(|_| ()).unwrap_err().to_string();
        for part in ["ttl", "60s", "heartbeat", "elections", "leader"] {
            assert!(problems.contains(part), "{part}: {problems}");
        }
    }

    #[test]
    fn heartbeats_follow_a_short_stale_time() {
        let loaded = parse("[builds]\nstale = \"3s\"\n").unwrap();
        assert_eq!(loaded.apps.get::<LoadedBuilds>().unwrap().settings.heartbeat_ms, 1_000);
    }
}
