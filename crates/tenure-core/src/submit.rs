//! Submitting: what happens when an operation meets those that are queued or running.
//!
//! The kind says it for each pair. When several jobs are present the strictest policy wins: a
//! rejection before an attachment, an attachment before joining a waiting one, and so on down to
//! plain waiting.

use crate::canary::{Canary, planted};
use crate::command::Submit;
use crate::engine::check_text;
use crate::fact::Fact;
use crate::history::Event;
use crate::id::{JobId, RequestId};
use crate::job::{Asked, Job, JobState, Ran, Verdict};
use crate::key::Text;
use crate::kind::{Operation, Policy};
use crate::limits;
use crate::outcome::Outcome;
use crate::refusal::Refusal;
use crate::resource::Resource;
use crate::time::Millis;
use crate::turn::Turn;

/// What a submit does to the jobs that are there.
enum Meeting {
    /// It gets the id of this one.
    Join(JobId),
    /// It takes the place of these, and asks these to stop, perhaps none.
    Enter { superseded: Vec<JobId>, cancelled: Vec<JobId> },
}

impl<'a> Turn<'a> {
    /// Asks for an operation; `retry_of` is the job that it does over.
    pub(crate) fn submit(
        &mut self,
        ask: &Submit,
        retry_of: Option<JobId>,
    ) -> Result<Outcome, Refusal> {
        self.check_submit(ask)?;
        if let Some(answer) = self.answered_before(ask) {
            return answer;
        }
        let operation = self.declared(&ask.operation)?;
        match self.meet(operation, self.due(ask))? {
            Meeting::Join(job) => {
                let (request, by) = (ask.request, ask.by.clone());
                self.tell(Event::Attached { id: job, request, by });
                self.changes.facts.push(Fact::Joined { key: self.key.clone() });
                Ok(Outcome::Submitted { verdict: Verdict::Attached, job })
            }
            Meeting::Enter { superseded, cancelled } => {
                self.check_entry(operation, self.leaving(&superseded, &cancelled))?;
                Ok(self.enter(ask, operation, retry_of, &superseded, &cancelled))
            }
        }
    }

    fn answered_before(&self, ask: &Submit) -> Option<Result<Outcome, Refusal>> {
        if planted(Canary::RepeatedSubmitIsNew) {
            return None;
        }
        let resource = self.record.resource.as_ref()?;
        let answered = resource.answered.of(ask.request);
        // Its own job is known as long as it is not over, however many submits came since.
        if let Some(job) = resource.lane.iter().find(|job| job.request == ask.request) {
            if job.operation != ask.operation {
                return Some(Err(Refusal::RequestReused));
            }
            let verdict = answered.map_or(Verdict::Queued, |answered| answered.verdict);
            return Some(Ok(Outcome::Submitted { verdict, job: job.id }));
        }
        let answered = answered?;
        Some(Ok(Outcome::Submitted { verdict: answered.verdict, job: answered.job }))
    }

    /// An operation, or the refusal that says what is not declared.
    pub(crate) fn declared(&self, name: &Text) -> Result<&'a Operation, Refusal> {
        let kind = self.key.kind();
        let Some(declared) = self.kind() else {
            return Err(Refusal::NotDeclared(format!("the kind {kind}")));
        };
        declared.operations.get(name).ok_or_else(|| {
            let known: Vec<&str> = declared.operations.keys().map(|name| &**name).collect();
            let known = known.join(", ");
            Refusal::NotDeclared(format!(
                "the operation {name} of the kind {kind} (it has {known})"
            ))
        })
    }

    fn check_submit(&self, ask: &Submit) -> Result<(), Refusal> {
        check_text("submitter", &ask.by, limits::SESSION_NAME_BYTES_MAX)?;
        if let Some(args) = &ask.args {
            check_size("args", args, limits::ARGS_BYTES_MAX)?;
        }
        let (got, max) = (ask.priority, limits::PRIORITY_MAX);
        if !(-max..=max).contains(&got) {
            let why = format!("priority is {got}; it must be between -{max} and {max}");
            return Err(Refusal::Invalid(why));
        }
        if ask.run_at.is_some_and(|at| at.since(self.now) > limits::RUN_AHEAD_MS_MAX) {
            let why = "run_at is more than 366 days ahead; submit the job nearer to its time";
            return Err(Refusal::Invalid(why.to_owned()));
        }
        Ok(())
    }

    /// What the policies say about the jobs that are there.
    fn meet(&self, operation: &Operation, due: Millis) -> Result<Meeting, Refusal> {
        if operation.meets.values().all(|policy| *policy == Policy::Queue) {
            // It minds nobody, and lanes are long.
            return Ok(Meeting::Enter { superseded: Vec::new(), cancelled: Vec::new() });
        }
        let present: Vec<(&Job, Policy)> = self
            .record
            .lane()
            .iter()
            .map(|job| (&**job, operation.policy(&job.operation)))
            .collect();
        let of =
            |policy: Policy| present.iter().filter(move |(_, p)| *p == policy).map(|(j, _)| *j);
        if let Some(job) = of(Policy::Reject).next() {
            let (present, operation, state) = (job.id, job.operation.clone(), job.state);
            return Err(Refusal::Rejected { present, operation, state });
        }
        // A job that is asked to stop, or is scheduled for later than the caller wants it, will not
        // do what the caller wants: it is no flight to join.
        let can_finish = |job: &&Job| {
            let dying = job.state == JobState::Cancelling && !planted(Canary::AttachToDying);
            !dying && in_time(job, due)
        };
        let running = of(Policy::Attach).filter(can_finish).find(|job| job.state.is_running());
        if let Some(job) = running.or_else(|| of(Policy::Attach).find(can_finish)) {
            return Ok(Meeting::Join(job.id));
        }
        let waits = |job: &&Job| !job.state.is_running();
        if let Some(job) = of(Policy::Coalesce).filter(waits).find(|job| in_time(job, due)) {
            return Ok(Meeting::Join(job.id));
        }
        Ok(Meeting::Enter {
            superseded: of(Policy::Replace).filter(waits).map(|job| job.id).collect(),
            cancelled: of(Policy::Cancel).map(|job| job.id).collect(),
        })
    }

    /// When a job is wanted.
    fn due(&self, ask: &Submit) -> Millis {
        ask.run_at.map_or(self.now, |at| at.max(self.now))
    }

    /// How many jobs leave the lane when another enters.
    fn leaving(&self, superseded: &[JobId], cancelled: &[JobId]) -> usize {
        let waits = |id: &&JobId| self.record.job(**id).is_some_and(|job| !job.state.is_running());
        superseded.len() + cancelled.iter().filter(waits).count()
    }

    /// The place of the first job that loses it, unless its priority is another.
    fn place_of(&self, superseded: &[JobId], priority: i32) -> Option<usize> {
        let lane = self.record.lane();
        let first = lane.iter().position(|job| superseded.contains(&job.id))?;
        (lane[first].priority == priority).then_some(first)
    }

    /// Whether there is room, and any hope that it can start.
    fn check_entry(&self, operation: &Operation, leaving: usize) -> Result<(), Refusal> {
        let lane = self.record.lane();
        if lane.len() - leaving >= limits::LANE_MAX {
            return Err(Refusal::LaneFull);
        }
        let state = self.state();
        if lane.len() == leaving && !operation.allows(&state) {
            let (operation, from) = (operation.name.clone(), operation.from.clone());
            return Err(Refusal::BadTransition { operation, state, from });
        }
        Ok(())
    }

    /// The state of the resource, also of one that is not known yet.
    fn state(&self) -> Text {
        match (&self.record.resource, self.kind()) {
            (Some(resource), _) => resource.state.clone(),
            (None, Some(kind)) => kind.initial.clone(),
            (None, None) => "".into(),
        }
    }

    fn enter(
        &mut self,
        ask: &Submit,
        operation: &Operation,
        retry_of: Option<JobId>,
        superseded: &[JobId],
        cancelled: &[JobId],
    ) -> Outcome {
        self.create();
        let id = self.new_id(ask.request);
        for &stopped in cancelled {
            let reason = format!("{} was submitted as job {id}", operation.name).into();
            self.ask_to_stop(stopped, Asked { by: ask.by.clone(), reason, at: self.now });
        }
        let place = self.place_of(superseded, ask.priority);
        for &gone in superseded {
            self.tell(Event::Superseded { id: gone, followed_by: id });
        }
        let resource = self.record.resource.as_ref().expect("it was made above");
        let place = place.unwrap_or_else(|| resource.place(ask.priority));
        let due = self.due(ask);
        let at_once = due == self.now && self.may_start(resource, operation, place);
        let verdict = match (superseded.is_empty(), at_once) {
            (false, _) => Verdict::Replaced,
            (true, true) => Verdict::Started,
            (true, false) => Verdict::Queued,
        };
        let job = Box::new(Job {
            id,
            request: ask.request,
            operation: operation.name.clone(),
            args: ask.args.clone(),
            priority: ask.priority,
            by: ask.by.clone(),
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
            joined: 0,
            generation: 0,
            before: None,
            retry_of,
            followed_by: None,
            previous: None,
            log_bytes: 0,
        });
        self.tell(Event::Submitted { job, place, verdict });
        Outcome::Submitted { verdict, job: id }
    }

    /// Whether a job that comes to this place could be claimed at once.
    fn may_start(&self, resource: &Resource, operation: &Operation, place: usize) -> bool {
        let ahead = resource.lane.iter().take(place).any(|job| !job.state.is_running());
        let free = self.record.obtainable(&operation.locks);
        !ahead && free && resource.paused.is_none() && operation.allows(&resource.state)
    }

    /// Makes the resource known, if it is not.
    pub(crate) fn create(&mut self) {
        if self.record.resource.is_none() {
            let state = self.state();
            self.tell(Event::Created { state });
        }
    }

    /// Whether it should be looked again, after an attempt, what the resource should be like: not
    /// after a failure of the very operation that brings it there, which would go on for ever.
    pub(crate) fn may_have_changed(&self, ran: &Ran) -> bool {
        let reconciles = |job: &Job| {
            let name = self.kind().and_then(|kind| kind.reconcile.as_ref());
            name == Some(&job.operation)
        };
        let failed = ran.then != JobState::Succeeded;
        let given_up = failed && self.record.job(ran.id).is_some_and(reconciles);
        ran.then.is_over() && !given_up && !planted(Canary::ChangeDuringSyncLost)
    }

    /// Sees to it that a job runs while the resource is not what it should be like.
    pub(crate) fn reconcile(&mut self) -> Option<JobId> {
        let name = self.kind()?.reconcile.clone()?;
        let resource = self.record.resource.as_ref()?;
        if resource.observed >= resource.generation {
            return None;
        }
        let mine = |job: &&Job| job.operation == name;
        let jobs = || resource.lane.iter().map(|job| &**job).filter(mine);
        let soon = |job: &&Job| !job.state.is_running() && in_time(job, self.now);
        if let Some(job) = jobs().find(soon) {
            let id = job.id;
            self.hasten(id);
            return Some(id);
        }
        let seen = |job: &Job| job.generation == resource.generation;
        if jobs().any(|job| job.state == JobState::Running && seen(job)) {
            return None;
        }
        let request = self.derived_request(resource.generation);
        let operation = self.operation(&name)?;
        self.check_entry(operation, 0).ok()?;
        let by = "tenure".into();
        let ask = Submit { request, operation: name, args: None, priority: 0, run_at: None, by };
        let Outcome::Submitted { job, .. } = self.enter(&ask, operation, None, &[], &[]) else {
            return None;
        };
        Some(job)
    }

    /// What rests between two attempts need not: what it failed on has changed.
    pub(crate) fn hasten(&mut self, id: JobId) {
        let now = self.now;
        let job = self.record.resource.as_mut().and_then(|resource| resource.job_mut(id));
        if let Some(job) = job.filter(|job| job.state == JobState::Backoff && job.due > now) {
            job.due = now;
            self.untold = true;
        }
    }

    /// A request id that only this change of this resource has.
    fn derived_request(&self, generation: u64) -> RequestId {
        RequestId(self.unlike(&generation.to_string()))
    }

    /// The id of a job that a request makes here and now. Another resource may be asked under the
    /// same request in the same instant, and one that was deleted does not remember its requests.
    fn new_id(&self, request: RequestId) -> JobId {
        JobId::new(self.now, RequestId(self.unlike(&request.to_string())))
    }

    /// A number that only this place in the history of this resource gives to a text.
    fn unlike(&self, text: &str) -> u128 {
        let n = self.record.chain.n + self.changes.events.len() as u64;
        crate::history::digest(&format!("{}#{text}#{n}", self.key))
    }
}

/// Whether a job is not scheduled for later than this. One that rests between two attempts is under
/// way.
fn in_time(job: &Job, due: Millis) -> bool {
    job.state != JobState::Queued || job.due <= due
}

/// Whether a document is within its bound; the message names the field.
pub(crate) fn check_size(what: &str, text: &str, bytes_max: usize) -> Result<(), Refusal> {
    if text.contains('\0') {
        return Err(Refusal::Invalid(format!("the {what} has a character that is zero")));
    }
    if text.len() <= bytes_max {
        return Ok(());
    }
    let got = text.len();
    Err(Refusal::Invalid(format!("{what} has {got} bytes; at most {bytes_max} are allowed")))
}
