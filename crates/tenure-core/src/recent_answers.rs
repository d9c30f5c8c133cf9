//! Answers to the latest [`Command::Once`] of a resource.
//!
//! Unlike `recent_submits.rs`, it remembers whatever was answered, also refusals: a request of a
//! batch must not take effect when the batch is repeated because a later one has made way for it.
//! Nothing is evicted before its time. When the memory is full, further requests are refused.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::canary::{Canary, planted};
use crate::command::Command;
use crate::history::digest;
use crate::id::RequestId;
use crate::key::{ResourceKey, Text};
use crate::limits;
use crate::outcome::Outcome;
use crate::recent_submits::RecentSubmits;
use crate::refusal::Refusal;
use crate::resource::Resource;
use crate::time::Millis;
use crate::world::World;

/// Answer to a command that is executed at most once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RecentAnswer {
    /// Request id.
    pub request: RequestId,
    /// Digest of the command, to detect another one with the same request id.
    pub digest: u64,
    /// Time of the answer.
    pub at: Millis,
    /// Outcome, as JSON; `None` if it was too large to be remembered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Text>,
}

/// The latest answers, in the order in which they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RecentAnswers(VecDeque<RecentAnswer>);

impl RecentAnswers {
    /// Returns the number of remembered answers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if no answer is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the remembered answers, in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = &RecentAnswer> {
        self.0.iter()
    }

    /// Returns `true` if an answer is younger than [`limits::RECENT_TTL_MS`].
    #[must_use]
    pub fn any_fresh(&self, now: Millis) -> bool {
        self.0.iter().any(|answer| is_fresh(answer, now))
    }

    /// Returns when a remembered request was executed.
    #[must_use]
    pub fn answered_at(&self, request: RequestId) -> Option<Millis> {
        self.0.iter().find(|answer| answer.request == request).map(|answer| answer.at)
    }

    fn get(&self, request: RequestId, now: Millis) -> Option<&RecentAnswer> {
        self.0.iter().find(|answer| answer.request == request && is_fresh(answer, now))
    }

    fn is_full(&self, now: Millis) -> bool {
        let fresh = |answer: &&RecentAnswer| is_fresh(answer, now);
        self.len() >= limits::RECENT_ANSWERS_MAX
            && self.0.iter().filter(fresh).count() >= limits::RECENT_ANSWERS_MAX
    }

    /// Remembers an answer. The oldest outcomes are dropped if all of them are too large, but not
    /// the fact that the request was answered.
    fn remember(&mut self, answer: RecentAnswer) {
        let now = answer.at;
        // They are not in order of time if the clock of the server was set back while it was down:
        // an answer alone is no event, which the store time would follow.
        self.0.retain(|answer| is_fresh(answer, now));
        self.0.push_back(answer);
        let size = |answer: &RecentAnswer| answer.outcome.as_ref().map_or(0, |text| text.len());
        let mut left = limits::RECENT_ANSWERS_BYTES_MAX;
        for answer in self.0.iter_mut().rev() {
            match left.checked_sub(size(answer)) {
                Some(rest) => left = rest,
                None => (answer.outcome, left) = (None, 0),
            }
        }
    }
}

impl FromIterator<RecentAnswer> for RecentAnswers {
    fn from_iter<I: IntoIterator<Item = RecentAnswer>>(all: I) -> Self {
        Self(all.into_iter().collect())
    }
}

fn is_fresh(answer: &RecentAnswer, now: Millis) -> bool {
    now.since(answer.at) <= limits::RECENT_TTL_MS
}

/// Decides a command unless it was answered before; then it changes nothing, and the answer is
/// returned again. `key` is the resource of the command.
pub(crate) fn step_once(
    world: &mut World,
    key: &ResourceKey,
    request: RequestId,
    command: &Command,
    now: Millis,
) -> Outcome {
    let digest = digest(&format!("{command:?}"));
    let digest = u64::try_from(digest >> 64).expect("the upper half");
    if let Some(record) = world.records.get(key) {
        let answer = record.recent_answers.get(request, now);
        if let Some(answer) = answer.filter(|_| !planted(Canary::RepeatedOnceIsNew)) {
            if answer.digest != digest {
                return Outcome::Refused(Refusal::RequestReused);
            }
            let outcome =
                answer.outcome.as_deref().and_then(|text| serde_json::from_str(text).ok());
            return outcome
                .map_or(Outcome::Refused(Refusal::AlreadyAnswered), |o| complete(world, key, o));
        }
        if record.recent_answers.is_full(now) {
            return Outcome::Refused(Refusal::TooManyKeys);
        }
    }
    let outcome = crate::step(world, command, now);
    let new = || world.floors.new_record(key);
    let record = world.records.entry(key.clone()).or_insert_with(new);
    let text = to_text(&outcome);
    record.recent_answers.remember(RecentAnswer { request, digest, at: now, outcome: text });
    world.changes.unlogged.push(key.clone());
    world.changes.records.push(key.clone());
    outcome
}

/// Maximum number of unfinished jobs of a resource that is remembered as a part of an answer.
const SNAPSHOT_JOBS_MAX: usize = 16;

/// Serializes an outcome, unless it is too large.
fn to_text(outcome: &Outcome) -> Option<Text> {
    let without_cache = |resource: &Resource| {
        Box::new(Resource { recent_submits: RecentSubmits::default(), ..resource.clone() })
    };
    let is_short = |resource: &Resource| resource.lane.len() <= SNAPSHOT_JOBS_MAX;
    let text = match outcome {
        // The job is read from the lane when the answer is repeated.
        Outcome::Submitted { verdict, job, .. } => serde_json::to_string(&Outcome::Submitted {
            verdict: *verdict,
            job: *job,
            snapshot: None,
        }),
        Outcome::Put { generation, job, snapshot } => {
            let snapshot = Some(without_cache(snapshot.as_deref().filter(|r| is_short(r))?));
            let (generation, job) = (*generation, *job);
            serde_json::to_string(&Outcome::Put { generation, job, snapshot })
        }
        Outcome::TimersSet { snapshot } => {
            let snapshot = Some(without_cache(snapshot.as_deref().filter(|r| is_short(r))?));
            serde_json::to_string(&Outcome::TimersSet { snapshot })
        }
        outcome => serde_json::to_string(outcome),
    };
    text.ok().map(Into::into)
}

/// Adds the job that a remembered outcome names, if it has not finished.
fn complete(world: &World, key: &ResourceKey, outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Submitted { verdict, job, .. } => {
            let current = world.records.get(key).and_then(|record| record.job(job));
            let snapshot = current.map(|job| Box::new(job.clone()));
            Outcome::Submitted { verdict, job, snapshot }
        }
        outcome => outcome,
    }
}
