//! Checks that a request which is executed once gets the same answer each time.

use std::collections::BTreeMap;

use tenure_core::{Command, Millis, Outcome, Record, Refusal, RequestId};

use crate::message::Reply;
use crate::oracle::CheckResult;

/// Requests that are executed once, and their answers.
#[derive(Debug, Default)]
pub struct Answers {
    /// When each was executed last, and in which batch. It is executed again if a crash lost its
    /// batch, or when the resource has forgotten it.
    executed: BTreeMap<RequestId, (Millis, u64)>,
    /// Answers that reached a process, since then.
    delivered: BTreeMap<RequestId, String>,
}

impl Answers {
    /// Records a reply of a batch after which the record of its resource is `record`. Returns
    /// whether the command was answered from memory.
    pub(crate) fn record(&mut self, reply: &Reply, record: Option<&Record>) -> bool {
        let Command::Once { request, .. } = &*reply.command else { return false };
        let at = record.and_then(|record| record.recent_answers.answered_at(*request));
        let Some(at) = at else { return false };
        if self.executed.get(request).is_some_and(|(before, _)| *before == at) {
            return true;
        }
        self.executed.insert(*request, (at, reply.batch));
        self.delivered.remove(request);
        false
    }

    /// Checks that a delivered answer equals those before.
    pub(crate) fn check(&mut self, reply: &Reply) -> CheckResult {
        let Command::Once { request, .. } = &*reply.command else { return Ok(()) };
        let is_current = |(_, batch): &(Millis, u64)| reply.batch >= *batch;
        let Some(answer) = summarize(&reply.outcome) else { return Ok(()) };
        if !self.executed.get(request).is_some_and(is_current) {
            return Ok(());
        }
        let first = self.delivered.entry(*request).or_insert_with(|| answer.clone());
        match *first == answer {
            true => Ok(()),
            false => Err(format!(
                "request {request} was executed again: it was answered {first}, then {answer}"
            )),
        }
    }
}

/// Summarizes an answer without what may change later; `None` if it says nothing.
fn summarize(outcome: &Outcome) -> Option<String> {
    Some(match outcome {
        // The answer was too large, or no resource could remember it.
        Outcome::Refused(Refusal::AlreadyAnswered | Refusal::NoSuchJob) => return None,
        Outcome::Submitted { verdict, job, .. } => format!("{} {job}", verdict.as_str()),
        Outcome::Put { generation, job, .. } => format!("put {generation} {job:?}"),
        Outcome::TimersSet { snapshot } => {
            format!("timers {:?}", snapshot.as_ref().map(|resource| &resource.timers))
        }
        other => format!("{other:?}"),
    })
}
