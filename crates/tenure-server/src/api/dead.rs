//! Dead letters: list, redrive and discard jobs that used up their attempts.
//!
//! A bulk request works page by page, on a bounded number of jobs. Whether a job may be retried is
//! decided by the core.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use tenure_core::{
    Code, Command, Job, JobAction, JobId, JobRequirement, JobState, Millis, Outcome, Refusal,
    RequestId, Text,
};
use tenure_store::StoreError;
use tenure_store::store::{JobPage, JobQuery, JobView, PAGE_MAX};
use tenure_wire::request_schemas::DeadLetterRequestSchema;
use tenure_wire::{
    DeadLetterFilter, DeadLetterGroup, DeadLetterRequest, DeadLettersResponse, DiscardResponse,
    JobInfo, ReasonRequest, RedriveResponse, RedrivenJob, RefusedJob, instant, schema,
};
use tokio::task::JoinHandle;
use utoipa::IntoParams;

use crate::ServerState;
use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::extract::{Body, Idempotency, Params};
use tenure_app::services::{job_cursor, page_size};

/// Maximum number of dead jobs that one request processes or counts.
const DEAD_MAX: usize = 10_000;
/// Number of jobs processed concurrently.
const BATCH_SIZE: usize = 250;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Filter by kind.
    #[param(value_type = String, required = false, inline)]
    kind: Option<String>,
    /// Maximum number of items; 100 by default.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
    /// `next` of the previous page.
    #[param(value_type = schema::Id, required = false, inline)]
    cursor: Option<String>,
}

/// Lists dead jobs, newest first, and their number by error code.
#[utoipa::path(
    get,
    path = "/v1/dead",
    tag = "dead letters",
    operation_id = "list_dead",
    params(Caller, ListParams),
    responses((
        status = 200, description = "A page of jobs, and the groups",
        body = DeadLettersResponse
    ))
)]
pub(super) async fn list(
    State(state): State<ServerState>,
    caller: Caller,
    Params(params): Params<ListParams>,
) -> Result<Json<DeadLettersResponse>, Problem> {
    let filter = DeadLetterFilter { kind: params.kind, ..DeadLetterFilter::default() };
    let (after, limit) = (job_cursor(params.cursor)?, page_size(params.limit)?);
    let (groups, complete) = match after {
        None => groups(&state, &caller, &filter).await?,
        Some(_) => (Vec::new(), true),
    };
    let page = page(&state, &caller, &filter, after, limit).await?;
    let items = page.items.iter().map(|shown| JobInfo::new(&shown.key, &shown.job)).collect();
    let next = page.next.map(|id| id.to_string());
    Ok(Json(DeadLettersResponse { groups, complete, items, next }))
}

/// Reads one page of dead jobs. The error code of the filter is not applied.
async fn page(
    state: &ServerState,
    caller: &Caller,
    filter: &DeadLetterFilter,
    after: Option<JobId>,
    limit: usize,
) -> Result<JobPage, Problem> {
    let query = JobQuery {
        tenant: caller.only_tenant(),
        kind: filter.kind.as_deref().map(Into::into),
        name: None,
        operation: filter.operation.as_deref().map(Into::into),
        state: Some(JobState::Dead),
        after,
        limit,
        group: None,
    };
    Ok(state.services.store().reads().jobs(query).await?)
}

fn code(job: &Job) -> &str {
    job.error.as_ref().map_or("", |error| &error.code)
}

/// Groups dead jobs by error code, the largest group first. Also returns whether all were counted.
async fn groups(
    state: &ServerState,
    caller: &Caller,
    filter: &DeadLetterFilter,
) -> Result<(Vec<DeadLetterGroup>, bool), Problem> {
    let mut groups = BTreeMap::new();
    let mut after = None;
    for _ in 0..DEAD_MAX / PAGE_MAX {
        let page = page(state, caller, filter, after, PAGE_MAX).await?;
        for shown in &page.items {
            add_to_group(&mut groups, shown);
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut groups: Vec<_> = groups.into_values().map(Group::answer).collect();
    groups.sort_by_key(|group: &DeadLetterGroup| std::cmp::Reverse(group.count));
    Ok((groups, after.is_none()))
}

/// Dead jobs with the same kind, operation and error code.
struct Group {
    latest: JobView,
    count: usize,
    oldest: Millis,
    newest: Millis,
}

fn add_to_group(groups: &mut BTreeMap<(Text, Text, Text), Group>, shown: &JobView) {
    let job = &shown.job;
    let group_key = (shown.key.kind().into(), job.operation.clone(), code(job).into());
    let at = job.ended_at.unwrap_or_default();
    let new = || Group { latest: shown.clone(), count: 0, oldest: at, newest: at };
    let group = groups.entry(group_key).or_insert_with(new);
    group.count += 1;
    group.oldest = group.oldest.min(at);
    if at > group.newest {
        (group.newest, group.latest) = (at, shown.clone());
    }
}

impl Group {
    fn answer(self) -> DeadLetterGroup {
        let (key, job) = (self.latest.key, self.latest.job);
        DeadLetterGroup {
            kind: key.kind().to_owned(),
            operation: job.operation.to_string(),
            code: code(&job).to_owned(),
            count: self.count,
            message: job.error.map(|error| error.message.to_string()).unwrap_or_default(),
            oldest: instant(self.oldest),
            newest: instant(self.newest),
        }
    }
}

/// Redrives dead jobs: submits each one again.
#[utoipa::path(
    post,
    path = "/v1/dead/redrive",
    tag = "dead letters",
    operation_id = "redrive_dead",
    params(Caller, Idempotency),
    request_body = DeadLetterRequestSchema,
    responses((status = 200, description = "The result for each job", body = RedriveResponse))
)]
pub(super) async fn redrive(
    State(state): State<ServerState>,
    caller: Caller,
    key: Idempotency,
    Body(body): Body<DeadLetterRequest>,
) -> Result<Json<RedriveResponse>, Problem> {
    let base = key.id(&caller.tenant)?;
    let action = |by: &Text, reason: &Text, id| {
        let (by, reason) = (by.clone(), reason.clone());
        JobAction::Retry { request: retry_request_id(&state, base, id), by, reason }
    };
    let result = run_bulk(&state, &caller, body, &action).await?;
    let redriven = result.done.into_iter().filter_map(|(from, outcome)| match outcome {
        Outcome::Submitted { job, .. } => Some(RedrivenJob { from, job }),
        _ => None,
    });
    let (matched, more, refused) = (result.matched, result.more, result.refused);
    Ok(Json(RedriveResponse { matched, more, redriven: redriven.collect(), refused }))
}

/// Derives the request id of a retry, so that a repeated redrive submits no job twice.
fn retry_request_id(state: &ServerState, base: RequestId, id: JobId) -> RequestId {
    state.services.derive_request_id(&format!("redrive\n{base} {id}"))
}

/// Discards dead jobs.
#[utoipa::path(
    post,
    path = "/v1/dead/discard",
    tag = "dead letters",
    operation_id = "discard_dead",
    params(Caller),
    request_body = DeadLetterRequestSchema,
    responses((status = 200, description = "The result for each job", body = DiscardResponse))
)]
pub(super) async fn discard(
    State(state): State<ServerState>,
    caller: Caller,
    Body(body): Body<DeadLetterRequest>,
) -> Result<Json<DiscardResponse>, Problem> {
    let action = |by: &Text, reason: &Text, _| {
        let (by, reason) = (by.clone(), reason.clone());
        JobAction::Discard { by, reason }
    };
    let result = run_bulk(&state, &caller, body, &action).await?;
    let discarded = result.done.into_iter().map(|(id, _)| id).collect();
    let (matched, more, refused) = (result.matched, result.more, result.refused);
    Ok(Json(DiscardResponse { matched, more, discarded, refused }))
}

/// Result of a bulk operation on dead jobs.
#[derive(Default)]
struct BulkResult {
    matched: usize,
    more: bool,
    done: Vec<(JobId, Outcome)>,
    refused: Vec<RefusedJob>,
}

impl BulkResult {
    fn refuse(&mut self, job: JobId, refusal: &Refusal) {
        let (code, detail) = (refusal.code().as_str().to_owned(), refusal.to_string());
        self.refused.push(RefusedJob { job, code, detail });
    }
}

type ActionBuilder<'a> = dyn Fn(&Text, &Text, JobId) -> JobAction + Send + Sync + 'a;

/// Applies an action to all dead jobs that match the filter.
async fn run_bulk(
    state: &ServerState,
    caller: &Caller,
    body: DeadLetterRequest,
    action: &ActionBuilder<'_>,
) -> Result<BulkResult, Problem> {
    let DeadLetterRequest { filter, dry_run, reason } = body;
    let reason =
        if dry_run { Text::from("") } else { caller.required_reason(ReasonRequest { reason })? };
    let build = |id| (!dry_run).then(|| action(&caller.name, &reason, id));
    let mut result = BulkResult::default();
    if let Some(ids) = &filter.ids {
        let jobs = select_by_id(state, caller, &filter, ids, &mut result).await?;
        for batch in jobs.chunks(BATCH_SIZE) {
            submit_batch(state, batch, &build, &mut result).await?;
        }
        return Ok(result);
    }
    let mut after = None;
    loop {
        let page = page(state, caller, &filter, after, BATCH_SIZE).await?;
        let matching = page.items.iter().filter(|shown| matches_filter(&filter, shown));
        let jobs: Vec<JobId> = matching.map(|shown| shown.job.id).collect();
        submit_batch(state, &jobs, &build, &mut result).await?;
        after = page.next;
        result.more = after.is_some();
        if !result.more || result.matched >= DEAD_MAX {
            return Ok(result);
        }
    }
}

fn matches_filter(filter: &DeadLetterFilter, shown: &JobView) -> bool {
    let is = |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|it| it == value);
    is(&filter.kind, shown.key.kind())
        && is(&filter.operation, &shown.job.operation)
        && is(&filter.code, code(&shown.job))
}

/// Returns the ids whose jobs are dead, redriven or discarded; refuses the others.
async fn select_by_id(
    state: &ServerState,
    caller: &Caller,
    filter: &DeadLetterFilter,
    ids: &[JobId],
    result: &mut BulkResult,
) -> Result<Vec<JobId>, Problem> {
    if ids.len() > PAGE_MAX {
        let detail = format!("ids names {} jobs; at most {PAGE_MAX} are allowed", ids.len());
        return Err(Problem::invalid(&detail));
    }
    let mut jobs = Vec::new();
    for &id in ids {
        match state.services.find_job(caller, id).await {
            Ok(shown) if !matches_filter(filter, &shown) => {}
            Ok(shown) => match shown.job.state {
                JobState::Dead | JobState::Redriven | JobState::Discarded => jobs.push(id),
                state => result
                    .refuse(id, &Refusal::WrongJobState { state, wanted: JobRequirement::Dead }),
            },
            Err(problem) if problem.is(Code::NotFound) => result.refuse(id, &Refusal::NoSuchJob),
            Err(problem) => return Err(problem),
        }
    }
    jobs.sort_unstable();
    jobs.dedup();
    Ok(jobs)
}

/// Submits the actions of some jobs concurrently; only counts the jobs of a dry run.
async fn submit_batch(
    state: &ServerState,
    jobs: &[JobId],
    build: &(dyn Fn(JobId) -> Option<JobAction> + Send + Sync),
    result: &mut BulkResult,
) -> Result<(), Problem> {
    result.matched += jobs.len();
    let submitted = jobs.iter().filter_map(|id| {
        let command = Command::Job { id: *id, action: build(*id)? };
        let committer = state.services.committer.clone();
        Some((*id, tokio::spawn(async move { committer.submit(command).await })))
    });
    let submitted: Vec<(JobId, JoinHandle<Result<Outcome, StoreError>>)> = submitted.collect();
    for (id, outcome) in submitted {
        let failed = |error| Problem::unavailable(&format!("a task failed: {error}"));
        match outcome.await.map_err(failed)?? {
            Outcome::Refused(refusal) => result.refuse(id, &refusal),
            outcome => result.done.push((id, outcome)),
        }
    }
    Ok(())
}
