//! Random status updates of workers, changes of timers and conditions of users.

use tenure_core::{
    Millis, Precondition, ResourceKey, StatusUpdate, Text, TimerChange, TimerSetting,
};

use crate::holder::Env;
use crate::plan::{LANE_JOBS_MAX, Phase, SCHEDULE_MS_MAX};

/// Draws a status update. Each patch differs from all others, so that none is without effect.
pub(crate) fn draw_update(key: &ResourceKey, env: &mut Env<'_>) -> StatusUpdate {
    let (n, old) = (env.rng.bits(), env.rng.within(0, 3));
    let merge = match env.rng.within(0, 5) {
        0 => format!(r#"{{"n":{n},"step":{{"now":{old},"seen":{{"{old}":true}}}}}}"#),
        1 => format!(r#"{{"n":{n},"step":{{"now":null}}}}"#),
        2 => format!(r#"{{"n":{n},"step":{{"seen":null,"list":[{old},null]}}}}"#),
        3 => format!(r#"{{"n":{n},"step":{old}}}"#),
        4 => format!(r#"{{"n":{n},"step":null,"cluster":"c{old}"}}"#),
        _ => format!(r#"{{"n":{n}}}"#),
    };
    let timers = if env.rng.chance(250) { draw_timers(key, env) } else { Vec::new() };
    let merge = (timers.is_empty() || env.rng.chance(700)).then(|| merge.into());
    StatusUpdate { merge, timers }
}

/// Draws changes of one or two timers. They are only removed while everything drains, or if the
/// lane is so long that it could not drain in time.
pub(crate) fn draw_timers(key: &ResourceKey, env: &mut Env<'_>) -> Vec<TimerChange> {
    let kind = env.kinds.get(key.kind()).expect("every kind is declared");
    let operations: Vec<Text> = kind.operations.keys().cloned().collect();
    let is_full = env.job_model.unfinished(Some(key)) >= LANE_JOBS_MAX;
    let change = |env: &mut Env<'_>| {
        let operation = operations[env.rng.below(operations.len())].clone();
        let after_ms = env.rng.within(0, SCHEDULE_MS_MAX);
        let setting = match env.rng.within(0, 9) {
            _ if is_full || env.phase == Phase::Draining => TimerSetting::Remove,
            0..3 => TimerSetting::Remove,
            3..6 => TimerSetting::At(Millis(env.store_now.0 + after_ms)),
            6 => TimerSetting::At(Millis(env.store_now.0.saturating_sub(after_ms))),
            _ => TimerSetting::After(after_ms),
        };
        TimerChange { operation, setting }
    };
    let count = if env.rng.chance(200) { 2 } else { 1 };
    (0..count).map(|_| change(env)).collect()
}

/// Draws a condition, which usually holds.
pub(crate) fn draw_condition(key: &ResourceKey, env: &mut Env<'_>) -> Precondition {
    let generation = env.job_model.resources.get(key).map(|resource| resource.generation);
    match (env.rng.within(0, 9), generation) {
        (0, _) => Precondition::Absent,
        (1, _) => Precondition::Generation(env.rng.within(0, 4)),
        (_, Some(generation)) => Precondition::Generation(generation),
        (_, None) => Precondition::Absent,
    }
}
