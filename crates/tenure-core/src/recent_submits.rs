//! Idempotency cache for the latest submits of a resource.
//!
//! Every submit is looked up here and nearly all are new, so the request ids are stored
//! contiguously, apart from the rest, to keep the linear scan cheap.

use std::collections::VecDeque;
use std::num::ParseIntError;

use serde::{Deserialize, Serialize, Serializer};

use crate::command::{Precondition, Put, Submit, TimerChange, TimerSetting};
use crate::history::digest;
use crate::id::{JobId, RequestId};
use crate::job::{Job, Verdict};
use crate::limits;
use crate::time::Millis;

/// Response to an earlier submit, kept for a limited time to answer retries. Serialized as one
/// short text because a resource keeps many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RecentSubmit {
    /// Request id.
    pub request: RequestId,
    /// Job whose id was returned.
    pub job: JobId,
    /// Verdict that was returned.
    pub verdict: Verdict,
    /// Time of the response.
    pub at: Millis,
    /// Digest of what was submitted; `None` if it was stored by a version without digests.
    pub digest: Option<SubmitDigest>,
}

/// Digest of what a submit asks for, to detect another submit with the same request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SubmitDigest(u64);

impl SubmitDigest {
    /// Computes the digest. `run_at` counts only if it is later than `at`, the time of the submit.
    #[must_use]
    pub fn new(submit: &Submit, at: Millis) -> Self {
        let Submit { operation, args, priority, run_at, precondition, .. } = submit;
        Self::compute(operation, args.as_deref(), *priority, *run_at, *precondition, at)
    }

    /// Computes the digest of the submit that made `job`, as it entered its lane.
    pub(crate) fn of_job(job: &Job, precondition: Option<Precondition>, at: Millis) -> Self {
        let (args, due) = (job.args.as_deref(), Some(job.due));
        Self::compute(&job.operation, args, job.priority, due, precondition, at)
    }

    fn compute(
        operation: &str,
        args: Option<&str>,
        priority: i32,
        run_at: Option<Millis>,
        precondition: Option<Precondition>,
        at: Millis,
    ) -> Self {
        let run_at = run_at.filter(|run_at| *run_at > at).unwrap_or_default().0;
        let args = args.map_or("-".to_owned(), |args| format!("+{args}"));
        let condition = precondition.map_or(String::new(), describe);
        let digest = digest(&format!("{condition}{priority} {run_at} {operation} {args}"));
        Self(upper_half(digest))
    }
}

/// Digest of what a put asks for apart from its spec, to detect another put with the same request
/// id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PutDigest(u64);

impl PutDigest {
    /// Computes the digest.
    #[must_use]
    pub fn new(put: &Put) -> Self {
        let condition = put.precondition.map_or(String::new(), describe);
        let timers = put.timers.iter().map(|TimerChange { operation, setting }| match setting {
            TimerSetting::At(at) => format!("{operation} at {}", at.0),
            TimerSetting::After(ms) => format!("{operation} after {ms}"),
            TimerSetting::Remove => format!("{operation} removed"),
        });
        let timers: Vec<String> = timers.collect();
        Self(upper_half(digest(&format!("{condition}{}", timers.join("\n")))))
    }
}

fn describe(precondition: Precondition) -> String {
    match precondition {
        Precondition::Generation(generation) => format!("={generation} "),
        Precondition::Absent => "absent ".to_owned(),
    }
}

fn upper_half(digest: u128) -> u64 {
    u64::try_from(digest >> 64).expect("the upper half")
}

impl From<PutDigest> for String {
    fn from(PutDigest(digest): PutDigest) -> Self {
        format!("{digest:x}")
    }
}

impl TryFrom<String> for PutDigest {
    type Error = ParseIntError;
    fn try_from(text: String) -> Result<Self, ParseIntError> {
        u64::from_str_radix(&text, 16).map(Self)
    }
}

impl From<SubmitDigest> for String {
    fn from(SubmitDigest(digest): SubmitDigest) -> Self {
        format!("{digest:x}")
    }
}

impl TryFrom<String> for SubmitDigest {
    type Error = ParseIntError;
    fn try_from(text: String) -> Result<Self, ParseIntError> {
        u64::from_str_radix(&text, 16).map(Self)
    }
}

impl From<RecentSubmit> for String {
    fn from(RecentSubmit { request, job, verdict, at, digest }: RecentSubmit) -> Self {
        let text = format!("{request} {job} {} {}", verdict.as_str(), at.0);
        // Versions that do not know the last word ignore it.
        match digest {
            Some(digest) => format!("{text} {}", Self::from(digest)),
            None => text,
        }
    }
}

impl TryFrom<String> for RecentSubmit {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let parse = || -> Option<Self> {
            let mut words = text.split(' ');
            let (request, job) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let word = words.next()?;
            let verdict = Verdict::ALL.into_iter().find(|verdict| verdict.as_str() == word)?;
            let at = Millis(words.next()?.parse().ok()?);
            let digest = words.next().map(|word| SubmitDigest::try_from(word.to_owned()));
            let digest = digest.transpose().ok()?;
            Some(Self { request, job, verdict, at, digest })
        };
        parse().ok_or_else(|| format!("{text:?} is not a recent submit"))
    }
}

/// The latest submits, oldest first. Equal indexes in the lists belong to the same submit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "Vec<RecentSubmit>")]
pub struct RecentSubmits {
    requests: VecDeque<RequestId>,
    verdicts: VecDeque<Verdict>,
    jobs: VecDeque<(JobId, Millis)>,
    digests: VecDeque<Option<SubmitDigest>>,
}

impl RecentSubmits {
    /// Returns the number of cached submits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns `true` if no submit is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Iterates over the cached submits, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = RecentSubmit> {
        (0..self.len()).map(|index| self.at(index))
    }

    /// Returns the latest response to `request`.
    #[must_use]
    pub fn get(&self, request: RequestId) -> Option<RecentSubmit> {
        let index = self.requests.iter().rposition(|seen| *seen == request)?;
        Some(self.at(index))
    }

    /// Caches a response and evicts entries that are too old or exceed the limit.
    pub(crate) fn remember(&mut self, submit: RecentSubmit) {
        let now = submit.at;
        while self.jobs.front().is_some_and(|(_, at)| now.since(*at) > limits::RECENT_TTL_MS) {
            self.evict(0);
        }
        if self.len() >= limits::RECENT_SUBMITS_MAX {
            // Evict attached submits first: a retry of the submit that created the job must not
            // create a second one.
            let attached = self.verdicts.iter().position(|verdict| *verdict == Verdict::Attached);
            self.evict(attached.unwrap_or(0));
        }
        self.push(submit);
    }

    fn at(&self, index: usize) -> RecentSubmit {
        let (job, at) = self.jobs[index];
        let (verdict, digest) = (self.verdicts[index], self.digests[index]);
        RecentSubmit { request: self.requests[index], job, verdict, at, digest }
    }

    fn push(&mut self, submit: RecentSubmit) {
        self.requests.push_back(submit.request);
        self.verdicts.push_back(submit.verdict);
        self.jobs.push_back((submit.job, submit.at));
        self.digests.push_back(submit.digest);
    }

    fn evict(&mut self, index: usize) {
        self.requests.remove(index);
        self.verdicts.remove(index);
        self.jobs.remove(index);
        self.digests.remove(index);
    }
}

impl FromIterator<RecentSubmit> for RecentSubmits {
    fn from_iter<I: IntoIterator<Item = RecentSubmit>>(all: I) -> Self {
        let mut recent = Self::default();
        all.into_iter().for_each(|submit| recent.push(submit));
        recent
    }
}

impl From<Vec<RecentSubmit>> for RecentSubmits {
    fn from(all: Vec<RecentSubmit>) -> Self {
        all.into_iter().collect()
    }
}

impl Serialize for RecentSubmits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submit(n: u64, verdict: Verdict) -> RecentSubmit {
        let n128 = u128::from(n);
        let digest =
            SubmitDigest::new(&Submit::new(RequestId(n128), "work", "ann".into()), Millis(n));
        let digest = n.is_multiple_of(2).then_some(digest);
        let (request, job, at) = (RequestId(n128), JobId(n128 + 1), Millis(n));
        RecentSubmit { request, job, verdict, at, digest }
    }

    #[test]
    fn digests_differ_if_the_submits_do() {
        let at = Millis(10);
        let submit = || Submit::new(RequestId(1), "work", "ann".into());
        let plain = SubmitDigest::new(&submit(), at);
        let now = Submit { run_at: Some(at), ..submit() };
        assert_eq!(plain, SubmitDigest::new(&now, at), "it starts at once");
        let others = [
            Submit { operation: "other".into(), ..submit() },
            Submit { args: Some("{}".into()), ..submit() },
            Submit { priority: 1, ..submit() },
            Submit { run_at: Some(Millis(11)), ..submit() },
            Submit { precondition: Some(Precondition::Absent), ..submit() },
            Submit { precondition: Some(Precondition::Generation(0)), ..submit() },
        ];
        let digests: Vec<_> = others.iter().map(|other| SubmitDigest::new(other, at)).collect();
        for (index, digest) in digests.iter().enumerate() {
            assert!(plain != *digest && !digests[..index].contains(digest), "{:?}", others[index]);
        }
    }

    #[test]
    fn a_submit_of_a_version_without_digests_is_read() {
        let text = format!("{} {} queued 7", RequestId(1), JobId(2));
        let read = RecentSubmit::try_from(text).unwrap();
        assert_eq!((read.at, read.digest), (Millis(7), None));
    }

    #[test]
    fn latest_response_is_returned_and_round_trips() {
        let mut recent = RecentSubmits::default();
        recent.remember(submit(1, Verdict::Started));
        recent.remember(submit(2, Verdict::Queued));
        recent.remember(RecentSubmit { at: Millis(3), ..submit(1, Verdict::Attached) });
        assert_eq!(recent.get(RequestId(1)).map(|a| a.verdict), Some(Verdict::Attached));
        assert_eq!(recent.get(RequestId(2)), Some(submit(2, Verdict::Queued)));
        assert_eq!(recent.get(RequestId(3)), None);
        let text = serde_json::to_string(&recent).unwrap();
        assert_eq!(serde_json::from_str::<RecentSubmits>(&text).unwrap(), recent);
        assert_eq!(serde_json::from_str::<Vec<RecentSubmit>>(&text).unwrap().len(), 3);
    }

    #[test]
    fn old_submits_are_evicted_and_attached_ones_first() {
        let mut recent = RecentSubmits::default();
        recent.remember(submit(1, Verdict::Started));
        recent.remember(submit(2, Verdict::Attached));
        for n in 3..=limits::RECENT_SUBMITS_MAX as u64 + 1 {
            recent.remember(submit(n, Verdict::Queued));
        }
        assert_eq!(recent.len(), limits::RECENT_SUBMITS_MAX);
        assert_eq!(recent.get(RequestId(2)), None, "attached submits are evicted first");
        assert!(recent.get(RequestId(1)).is_some());
        recent.remember(submit(9_000, Verdict::Queued));
        assert_eq!(
            recent.get(RequestId(1)),
            None,
            "no attached submit is left: the oldest is evicted"
        );
        recent.remember(submit(9_001 + limits::RECENT_TTL_MS, Verdict::Queued));
        assert_eq!(recent.len(), 1);
    }
}
