//! What became of the latest submits of a resource.
//!
//! Every submit looks whether it was here before, and nearly none was. So the requests are kept
//! close together, apart from the rest: looking through all of them takes next to no time.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize, Serializer};

use crate::id::{JobId, RequestId};
use crate::job::Verdict;
use crate::limits;
use crate::time::Millis;

/// What became of a submit, kept for a while for those who repeat it. There are many of them, so
/// they are kept in one short text each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Answered {
    /// The request.
    pub request: RequestId,
    /// The job that counts.
    pub job: JobId,
    /// What was answered.
    pub verdict: Verdict,
    /// When.
    pub at: Millis,
}

impl From<Answered> for String {
    fn from(Answered { request, job, verdict, at }: Answered) -> Self {
        format!("{request} {job} {} {}", verdict.word(), at.0)
    }
}

impl TryFrom<String> for Answered {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let parse = || -> Option<Self> {
            let mut words = text.split(' ');
            let (request, job) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let word = words.next()?;
            let verdict = Verdict::ALL.into_iter().find(|verdict| verdict.word() == word)?;
            let at = Millis(words.next()?.parse().ok()?);
            Some(Self { request, job, verdict, at })
        };
        parse().ok_or_else(|| format!("{text:?} says nothing about a submit"))
    }
}

/// The latest submits, the oldest first: at the same place in each list is the same submit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "Vec<Answered>")]
pub struct Answers {
    requests: VecDeque<RequestId>,
    verdicts: VecDeque<Verdict>,
    jobs: VecDeque<(JobId, Millis)>,
}

impl Answers {
    /// How many are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether nothing is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// All of them, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Answered> {
        (0..self.len()).map(|place| self.at(place))
    }

    /// The answer that a request got before.
    #[must_use]
    pub fn of(&self, request: RequestId) -> Option<Answered> {
        let place = self.requests.iter().rposition(|known| *known == request)?;
        Some(self.at(place))
    }

    /// Remembers what a submit was answered, forgetting what is too old or too much.
    pub(crate) fn remember(&mut self, answered: Answered) {
        let now = answered.at;
        while self.jobs.front().is_some_and(|(_, at)| now.since(*at) > limits::RECENT_MS) {
            self.forget(0);
        }
        if self.len() >= limits::ANSWERED_MAX {
            // Who made a job must not make a second one because many have joined the first.
            let joined = self.verdicts.iter().position(|verdict| *verdict == Verdict::Attached);
            self.forget(joined.unwrap_or(0));
        }
        self.push(answered);
    }

    fn at(&self, place: usize) -> Answered {
        let (job, at) = self.jobs[place];
        Answered { request: self.requests[place], job, verdict: self.verdicts[place], at }
    }

    fn push(&mut self, answered: Answered) {
        self.requests.push_back(answered.request);
        self.verdicts.push_back(answered.verdict);
        self.jobs.push_back((answered.job, answered.at));
    }

    fn forget(&mut self, place: usize) {
        self.requests.remove(place);
        self.verdicts.remove(place);
        self.jobs.remove(place);
    }
}

impl FromIterator<Answered> for Answers {
    fn from_iter<I: IntoIterator<Item = Answered>>(all: I) -> Self {
        let mut answers = Self::default();
        all.into_iter().for_each(|answered| answers.push(answered));
        answers
    }
}

impl From<Vec<Answered>> for Answers {
    fn from(all: Vec<Answered>) -> Self {
        all.into_iter().collect()
    }
}

impl Serialize for Answers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(n: u64, verdict: Verdict) -> Answered {
        let n128 = u128::from(n);
        Answered { request: RequestId(n128), job: JobId(n128 + 1), verdict, at: Millis(n) }
    }

    #[test]
    fn the_last_answer_to_a_request_counts_and_reads_back() {
        let mut answers = Answers::default();
        answers.remember(answered(1, Verdict::Started));
        answers.remember(answered(2, Verdict::Queued));
        answers.remember(Answered { at: Millis(3), ..answered(1, Verdict::Attached) });
        assert_eq!(answers.of(RequestId(1)).map(|a| a.verdict), Some(Verdict::Attached));
        assert_eq!(answers.of(RequestId(2)), Some(answered(2, Verdict::Queued)));
        assert_eq!(answers.of(RequestId(3)), None);
        let text = serde_json::to_string(&answers).unwrap();
        assert_eq!(serde_json::from_str::<Answers>(&text).unwrap(), answers);
        assert_eq!(serde_json::from_str::<Vec<Answered>>(&text).unwrap().len(), 3);
    }

    #[test]
    fn what_is_too_old_goes_and_when_it_is_too_much_whoever_joined_goes_first() {
        let mut answers = Answers::default();
        answers.remember(answered(1, Verdict::Started));
        answers.remember(answered(2, Verdict::Attached));
        for n in 3..=limits::ANSWERED_MAX as u64 + 1 {
            answers.remember(answered(n, Verdict::Queued));
        }
        assert_eq!(answers.len(), limits::ANSWERED_MAX);
        assert_eq!(answers.of(RequestId(2)), None, "it only joined");
        assert!(answers.of(RequestId(1)).is_some());
        answers.remember(answered(9_000, Verdict::Queued));
        assert_eq!(answers.of(RequestId(1)), None, "nobody joined: the oldest goes");
        answers.remember(answered(9_001 + limits::RECENT_MS, Verdict::Queued));
        assert_eq!(answers.len(), 1);
    }
}
