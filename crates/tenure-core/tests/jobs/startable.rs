//! Claims, explanations and verdicts agree on which jobs may start.

use std::sync::Arc;

use proptest::prelude::*;
use tenure_core::record::Tenure;
use tenure_core::why::{EngineContext, Why, explain_job};
use tenure_core::{
    Command, JobId, LockAction, LockSet, Outcome, Record, ResourceKey, TenureView, Verdict, World,
    step,
};

use crate::run::{Checked, Run, is_capped};

impl Run {
    /// A claim takes the first job of each lane that an explanation calls startable, and no other.
    pub(crate) fn check_explanations(&self) -> Checked {
        let mut world = self.world.clone();
        for key in self.keys() {
            step(&mut world, &Command::Lock { key, action: LockAction::Settle }, self.now);
        }
        for kind in self.kinds().iter().filter(|kind| !is_capped(kind)) {
            let claimed = self.claim_all(&world, kind);
            for (key, record) in world.records.iter().filter(|(key, _)| *key.kind() == *kind.name) {
                let waiting = record.lane().iter().filter(|job| !job.state.is_running());
                let first =
                    waiting.map(|job| job.id).find(|id| self.is_startable(record, key, *id));
                let taken = record.lane().iter().any(|job| claimed.contains(&job.id));
                prop_assert_eq!(taken, first.is_some(), "{} {:?}", key, first);
                prop_assert!(
                    first.is_none_or(|first| claimed.contains(&first)),
                    "{} {:?}",
                    key,
                    first
                );
            }
        }
        Ok(())
    }

    /// A submit says `started` if and only if the explanation of its new job says that it can
    /// start. `before` is the world before the submit.
    pub(crate) fn check_verdict(
        &self,
        before: &World,
        command: &Command,
        outcome: &Outcome,
    ) -> Checked {
        let (Command::Resource { key, .. }, Outcome::Submitted { verdict, job, .. }) =
            (command, outcome)
        else {
            return Ok(());
        };
        let Some(record) = self.world.records.get(key) else { return Ok(()) };
        let is_new = !before.job_index.contains_key(job) && record.job(*job).is_some();
        // It may have attached to the job that a timer has just submitted.
        if is_new && !matches!(verdict, Verdict::Replaced | Verdict::Attached) {
            let started = *verdict == Verdict::Started;
            prop_assert_eq!(started, self.is_startable(record, key, *job), "{:?}", command);
        }
        Ok(())
    }

    /// Returns `true` if the explanation of a waiting job says that nothing but a worker is
    /// missing.
    fn is_startable(&self, record: &Record, key: &ResourceKey, id: JobId) -> bool {
        let tenures = record.tenures.iter().map(|tenure| view(key, tenure)).collect();
        let context = EngineContext {
            kind: Some(Arc::new(self.kind(key).clone())),
            tenures,
            now: self.now,
            ..EngineContext::default()
        };
        let why = explain_job(record, id, &context);
        matches!(why, Why::NoWorker | Why::Ready { .. } | Why::AtCap { .. })
    }
}

/// Returns a tenure as a store shows it; only its token matters here.
fn view(key: &ResourceKey, tenure: &Tenure) -> TenureView {
    TenureView {
        key: key.clone(),
        locks: LockSet::new(vec![tenure.lock.clone()]).expect("one lock"),
        token: tenure.token,
        session: tenure.session,
        holder: "holder".into(),
        purpose: None,
        max_age_ms: None,
        request: tenure.request,
        job: tenure.job,
        since: tenure.since,
        age_ms: 0,
        expires_in_ms: 0,
        waiters: 0,
        heartbeat_age_ms: 0,
    }
}
