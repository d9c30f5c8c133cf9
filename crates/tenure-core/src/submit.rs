//! Submits: what happens when an operation meets queued or running ones.
//!
//! The kind declares a policy per pair of operations. If several jobs are present, the strictest
//! policy wins: reject, then attach, then coalesce, then replace and cancel, then queue.

use crate::canary::{Canary, planted};
use crate::command::Submit;
use crate::engine::check_text;
use crate::history::Event;
use crate::id::{JobId, RequestId};
use crate::job::{CompletedAttempt, Job, JobState, RequestedBy, Verdict};
use crate::key::Text;
use crate::kind::{Operation, Policy};
use crate::lane::LaneScan;
use crate::limits;
use crate::metric_event::MetricEvent;
use crate::outcome::Outcome;
use crate::recent_submits::{RecentSubmit, SubmitDigest};
use crate::refusal::Refusal;
use crate::step_context::StepContext;
use crate::time::Millis;

/// Decision about a submit.
enum Admission {
    /// Attach to this job.
    Attach(JobId),
    /// Enqueue a new job; supersede and cancel these.
    Enqueue { superseded: Vec<JobId>, cancelled: Vec<JobId> },
}

impl<'a> StepContext<'a> {
    /// Submits a job; `retry_of` is the finished job that it retries.
    pub(crate) fn submit(
        &mut self,
        submit: &Submit,
        retry_of: Option<JobId>,
    ) -> Result<Outcome, Refusal> {
        self.check_submit(submit)?;
        if let Some(response) = self.repeated_submit(submit) {
            return response;
        }
        let operation = self.declared_operation(&submit.operation)?;
        self.check_group()?;
        self.check_precondition(submit.precondition)?;
        match self.resolve_policies(operation, self.due_at(submit))? {
            Admission::Attach(job) => {
                let (request, by) = (submit.request, submit.by.clone());
                let digest = Some(SubmitDigest::new(submit, self.now));
                self.append_event(Event::Attached { id: job, request, by, digest });
                self.changes.metric_events.push(MetricEvent::Attached { key: self.key.clone() });
                Ok(self.submitted(Verdict::Attached, job))
            }
            Admission::Enqueue { superseded, cancelled } => {
                self.check_enqueue(operation, self.count_leaving(&superseded, &cancelled))?;
                let (verdict, job, position) =
                    self.enqueue_job(submit, operation, retry_of, &superseded, &cancelled);
                // By position, because lanes can be long.
                let snapshot = self.record.lane().get(position).cloned();
                Ok(Outcome::Submitted { verdict, job, snapshot })
            }
        }
    }

    /// Returns the outcome of a submit whose job is not new.
    pub(crate) fn submitted(&self, verdict: Verdict, job: JobId) -> Outcome {
        let snapshot = self.record.job(job).map(|job| Box::new(job.clone()));
        Outcome::Submitted { verdict, job, snapshot }
    }

    fn repeated_submit(&self, submit: &Submit) -> Option<Result<Outcome, Refusal>> {
        if planted(Canary::RepeatedSubmitIsNew) {
            return None;
        }
        let resource = self.record.resource.as_ref()?;
        let recent = resource.recent_submits.get(submit.request);
        if recent.is_some_and(|recent| is_other_submit(&recent, submit)) {
            return Some(Err(Refusal::RequestReused));
        }
        // A job in the lane answers retries of its submit even after the cache has evicted it.
        if let Some(job) = resource.lane.iter().find(|job| job.request == submit.request) {
            // Its due time changes with every attempt, and is not compared.
            let same = job.operation == submit.operation
                && job.args == submit.args
                && job.priority == submit.priority;
            if !same {
                return Some(Err(Refusal::RequestReused));
            }
            let verdict = recent.map_or(Verdict::Queued, |recent| recent.verdict);
            let (job, snapshot) = (job.id, Some(job.clone()));
            return Some(Ok(Outcome::Submitted { verdict, job, snapshot }));
        }
        let recent = recent?;
        Some(Ok(self.submitted(recent.verdict, recent.job)))
    }

    /// Returns an operation, or a refusal that names what is not declared.
    pub(crate) fn declared_operation(&self, name: &Text) -> Result<&'a Operation, Refusal> {
        let kind = self.key.kind();
        let Some(declared) = self.kind() else {
            return Err(Refusal::NotDeclared(format!("the kind {kind}")));
        };
        declared.operations.get(name).ok_or_else(|| {
            let names: Vec<&str> = declared.operations.keys().map(|name| &**name).collect();
            let names = names.join(", ");
            Refusal::NotDeclared(format!(
                "the operation {name} of the kind {kind} (it has {names})"
            ))
        })
    }

    fn check_submit(&self, submit: &Submit) -> Result<(), Refusal> {
        check_text("submitter", &submit.by, limits::SESSION_NAME_BYTES_MAX)?;
        if let Some(args) = &submit.args {
            check_size("args", args, limits::ARGS_BYTES_MAX)?;
        }
        let (got, max) = (submit.priority, limits::PRIORITY_MAX);
        if !(-max..=max).contains(&got) {
            let why = format!("priority is {got}; it must be between -{max} and {max}");
            return Err(Refusal::Invalid(why));
        }
        if submit.run_at.is_some_and(|at| at.since(self.now) > limits::RUN_AHEAD_MS_MAX) {
            let why = "run_at is more than 366 days ahead; submit the job nearer to its time";
            return Err(Refusal::Invalid(why.to_owned()));
        }
        Ok(())
    }

    /// Resolves the policies against the jobs in the lane.
    fn resolve_policies(&self, operation: &Operation, due: Millis) -> Result<Admission, Refusal> {
        if operation.meets.values().all(|policy| *policy == Policy::Queue) {
            // Every policy is `queue`: skip the scan, because lanes can be long.
            return Ok(Admission::Enqueue { superseded: Vec::new(), cancelled: Vec::new() });
        }
        let present: Vec<(&Job, Policy)> = self
            .record
            .lane()
            .iter()
            .map(|job| (&**job, operation.policy(&job.operation)))
            .collect();
        let with_policy =
            |policy: Policy| present.iter().filter(move |(_, p)| *p == policy).map(|(j, _)| *j);
        if let Some(job) = with_policy(Policy::Reject).next() {
            let (present, operation, state) = (job.id, job.operation.clone(), job.state);
            return Err(Refusal::Rejected { present, operation, state });
        }
        // Do not attach to a job that is stopping or is scheduled later than the caller wants: it
        // would not do what the caller asked for.
        let can_finish = |job: &&Job| {
            let stopping = job.state == JobState::Cancelling && !planted(Canary::AttachToDying);
            !stopping && is_due_by(job, due)
        };
        let running =
            with_policy(Policy::Attach).filter(can_finish).find(|job| job.state.is_running());
        if let Some(job) = running.or_else(|| with_policy(Policy::Attach).find(can_finish)) {
            return Ok(Admission::Attach(job.id));
        }
        let is_waiting = |job: &&Job| !job.state.is_running();
        if let Some(job) =
            with_policy(Policy::Coalesce).filter(is_waiting).find(|job| is_due_by(job, due))
        {
            return Ok(Admission::Attach(job.id));
        }
        Ok(Admission::Enqueue {
            superseded: with_policy(Policy::Replace).filter(is_waiting).map(|job| job.id).collect(),
            cancelled: with_policy(Policy::Cancel).map(|job| job.id).collect(),
        })
    }

    /// Returns the earliest start that the submit asks for.
    fn due_at(&self, submit: &Submit) -> Millis {
        submit.run_at.map_or(self.now, |at| at.max(self.now))
    }

    /// Returns the number of jobs that leave the lane when the new one enters.
    fn count_leaving(&self, superseded: &[JobId], cancelled: &[JobId]) -> usize {
        let is_waiting =
            |id: &&JobId| self.record.job(**id).is_some_and(|job| !job.state.is_running());
        superseded.len() + cancelled.iter().filter(is_waiting).count()
    }

    /// Returns the index of the first superseded job, if its priority is the same.
    fn superseded_position(&self, superseded: &[JobId], priority: i32) -> Option<usize> {
        let lane = self.record.lane();
        let first = lane.iter().position(|job| superseded.contains(&job.id))?;
        (lane[first].priority == priority).then_some(first)
    }

    /// Checks that the lane has capacity and that the job could ever start.
    fn check_enqueue(&self, operation: &Operation, leaving: usize) -> Result<(), Refusal> {
        let lane = self.record.lane();
        if lane.len() - leaving >= limits::LANE_MAX {
            return Err(Refusal::LaneFull);
        }
        let state = self.resource_state();
        if lane.len() == leaving && !operation.allows(&state) {
            let (operation, from) = (operation.name.clone(), operation.from.clone());
            return Err(Refusal::BadTransition { operation, state, from });
        }
        Ok(())
    }

    /// Returns the state of the resource, which is the initial one if it does not exist yet.
    fn resource_state(&self) -> Text {
        match (&self.record.resource, self.kind()) {
            (Some(resource), _) => resource.state.clone(),
            (None, Some(kind)) => kind.initial.clone(),
            (None, None) => "".into(),
        }
    }

    /// Enqueues a new job. Returns the verdict, its id and its position in the lane.
    fn enqueue_job(
        &mut self,
        submit: &Submit,
        operation: &Operation,
        retry_of: Option<JobId>,
        superseded: &[JobId],
        cancelled: &[JobId],
    ) -> (Verdict, JobId, usize) {
        self.ensure_resource();
        let id = self.new_job_id(submit.request);
        for &stopped in cancelled {
            let reason = format!("{} was submitted as job {id}", operation.name).into();
            self.request_cancel(
                stopped,
                RequestedBy { by: submit.by.clone(), reason, at: self.now },
            );
        }
        let position = self.superseded_position(superseded, submit.priority);
        for &replaced in superseded {
            self.append_event(Event::Superseded { id: replaced, followed_by: id });
        }
        let resource = self.record.resource.as_ref().expect("created above");
        let position = position.unwrap_or_else(|| resource.insert_position(submit.priority));
        let due = self.due_at(submit);
        let at_once = self.can_start_at(operation, position, due);
        let verdict = match (superseded.is_empty(), at_once) {
            (false, _) => Verdict::Replaced,
            (true, true) => Verdict::Started,
            (true, false) => Verdict::Queued,
        };
        let job = Box::new(Job {
            id,
            request: submit.request,
            operation: operation.name.clone(),
            args: submit.args.clone(),
            priority: submit.priority,
            by: submit.by.clone(),
            submitted_at: self.now,
            due,
            state: JobState::Queued,
            attempt: 0,
            attempts: Vec::new(),
            cancel: None,
            progress: None,
            error: None,
            result: None,
            ended_at: None,
            deferrals: 0,
            joined: 0,
            generation: 0,
            state_before: None,
            retry_of,
            followed_by: None,
            previous: None,
            log_bytes: 0,
        });
        let precondition = submit.precondition;
        self.append_event(Event::Submitted { job, position, verdict, precondition });
        (verdict, id, position)
    }

    /// Returns `true` if a job inserted at `position` could be claimed at once.
    fn can_start_at(&self, operation: &Operation, position: usize, due: Millis) -> bool {
        let scan = self.kind().and_then(|kind| LaneScan::new(self.record, kind, self.now));
        let Some(mut scan) = scan else { return false };
        let ahead = self.record.lane().iter().take(position);
        for job in ahead.filter(|job| !job.state.is_running()) {
            // Only what it reserves matters here.
            scan.examine(job).ok();
            if scan.is_stopped() {
                // Lanes can be long.
                return false;
            }
        }
        scan.decide(operation, due).is_ok()
    }

    /// Creates the resource if it does not exist.
    pub(crate) fn ensure_resource(&mut self) {
        if self.record.resource.is_none() {
            let state = self.resource_state();
            self.append_event(Event::Created { state });
        }
    }

    /// Returns `true` if the resource must be reconciled again after an attempt. A failure of the
    /// reconciling operation itself does not count, because that would loop forever.
    pub(crate) fn needs_reconcile(&self, completed: &CompletedAttempt) -> bool {
        let reconciles = |job: &Job| {
            let name = self.kind().and_then(|kind| kind.reconcile.as_ref());
            name == Some(&job.operation)
        };
        let failed = completed.job_state != JobState::Succeeded;
        let given_up = failed && self.record.job(completed.id).is_some_and(reconciles);
        completed.job_state.is_finished() && !given_up && !planted(Canary::ChangeDuringSyncLost)
    }

    /// Ensures that a reconciling job is queued or running while observed and desired generation
    /// differ.
    pub(crate) fn reconcile(&mut self) -> Option<JobId> {
        let name = self.kind()?.reconcile.clone()?;
        let resource = self.record.resource.as_ref()?;
        if resource.observed >= resource.generation {
            return None;
        }
        let reconciles = |job: &&Job| job.operation == name;
        let jobs = || resource.lane.iter().map(|job| &**job).filter(reconciles);
        let is_startable = |job: &&Job| !job.state.is_running() && is_due_by(job, self.now);
        if let Some(job) = jobs().find(is_startable) {
            let id = job.id;
            self.wake_early(id);
            return Some(id);
        }
        let is_current = |job: &Job| job.generation == resource.generation;
        if jobs().any(|job| job.state == JobState::Running && is_current(job)) {
            return None;
        }
        let request = self.derived_request(resource.generation);
        let operation = self.operation(&name)?;
        self.check_enqueue(operation, 0).ok()?;
        let by: Text = "tenure".into();
        let submit = Submit::new(request, &name, by);
        let (_, job, _) = self.enqueue_job(&submit, operation, None, &[], &[]);
        Some(job)
    }

    /// Ends the backoff of a job, because the cause of its failure may have changed.
    pub(crate) fn wake_early(&mut self, id: JobId) {
        let now = self.now;
        let job = self.record.resource.as_mut().and_then(|resource| resource.job_mut(id));
        if let Some(job) = job.filter(|job| job.state == JobState::Backoff && job.due > now) {
            job.due = now;
            self.unlogged = true;
        }
    }

    /// Returns a request id unique to this generation of the resource.
    fn derived_request(&self, generation: u64) -> RequestId {
        RequestId(self.derive_id(&generation.to_string()))
    }

    /// Derives a job id from the request. The key and the history position are included because
    /// another resource may get the same request in the same millisecond, and a deleted resource
    /// has forgotten its requests.
    fn new_job_id(&self, request: RequestId) -> JobId {
        JobId::new(self.now, RequestId(self.derive_id(&request.to_string())))
    }

    /// Hashes `text` with the resource key and a position that advances with every event: the
    /// length of the sealed history plus the events of this batch, of all resources.
    pub(crate) fn derive_id(&self, text: &str) -> u128 {
        let n = self.record.chain.n + self.changes.events.len() as u64;
        crate::history::digest(&format!("{}#{text}#{n}", self.key))
    }
}

/// Returns `true` if `submit` asks for something else than the submit with the same id that was
/// answered before.
fn is_other_submit(recent: &RecentSubmit, submit: &Submit) -> bool {
    recent.digest.is_some_and(|digest| digest != SubmitDigest::new(submit, recent.at))
}

/// Returns `true` unless the job is scheduled after `due`. A job in backoff has started already.
fn is_due_by(job: &Job, due: Millis) -> bool {
    job.state != JobState::Queued || job.due <= due
}

/// Checks the size of a document; the error names `what`.
pub(crate) fn check_size(what: &str, text: &str, bytes_max: usize) -> Result<(), Refusal> {
    if text.contains('\0') {
        return Err(Refusal::Invalid(format!("the {what} has a NUL character")));
    }
    if text.len() <= bytes_max {
        return Ok(());
    }
    let got = text.len();
    Err(Refusal::Invalid(format!("{what} has {got} bytes; at most {bytes_max} are allowed")))
}
