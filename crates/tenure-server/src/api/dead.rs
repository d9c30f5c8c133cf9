//! Dead letters: jobs that used up their attempts, looked at in groups, tried again or thrown away.
//!
//! A request deals with them page by page, and with a bounded number in all. Whether a job may be
//! tried again is the model's to say.

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
use tenure_wire::bodies::DeadBodies;
use tenure_wire::{
    DeadAnswer, DeadBody, DeadFilter, DeadGroup, DiscardAnswer, JobAnswer, ReasonBody,
    RedriveAnswer, Redriven, Unmoved, instant, schema,
};
use tokio::task::JoinHandle;
use utoipa::IntoParams;

use crate::ServerState;
use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::extract::{Body, Idempotency, Params};
use tenure_app::services::{job_cursor, page_size};

/// Most dead jobs that one request deals with or counts.
const DEAD_MAX: usize = 10_000;
/// How many of them are dealt with at once.
const BATCH: usize = 250;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Only of this kind.
    #[param(value_type = String, required = false, inline)]
    kind: Option<String>,
    /// How many rows at most; 100 when nothing is said.
    #[param(value_type = schema::PageSize, required = false, inline)]
    limit: Option<usize>,
    /// `next` of the page before.
    #[param(value_type = schema::Id, required = false, inline)]
    cursor: Option<String>,
}

/// Lists dead jobs, and what they died of.
#[utoipa::path(
    get,
    path = "/v1/dead",
    tag = "dead letters",
    operation_id = "list_dead",
    params(Caller, ListParams),
    responses((status = 200, description = "A page", body = DeadAnswer))
)]
pub(super) async fn list(
    State(state): State<ServerState>,
    caller: Caller,
    Params(params): Params<ListParams>,
) -> Result<Json<DeadAnswer>, Problem> {
    let filter = DeadFilter { kind: params.kind, ..DeadFilter::default() };
    let (after, limit) = (job_cursor(params.cursor)?, page_size(params.limit)?);
    let (groups, complete) = match after {
        None => groups(&state, &caller, &filter).await?,
        Some(_) => (Vec::new(), true),
    };
    let page = page(&state, &caller, &filter, after, limit).await?;
    let items = page.items.iter().map(|shown| JobAnswer::of(&shown.key, &shown.job)).collect();
    let next = page.next.map(|id| id.to_string());
    Ok(Json(DeadAnswer { groups, complete, items, next }))
}

/// One page of dead jobs; whether they failed with the code that is looked for is not seen to.
async fn page(
    state: &ServerState,
    caller: &Caller,
    filter: &DeadFilter,
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
    };
    Ok(state.services.store().reads().jobs(query).await?)
}

fn code(job: &Job) -> &str {
    job.error.as_ref().map_or("", |error| &error.code)
}

/// What jobs died of, the most frequent first, and whether all of them were counted.
async fn groups(
    state: &ServerState,
    caller: &Caller,
    filter: &DeadFilter,
) -> Result<(Vec<DeadGroup>, bool), Problem> {
    let mut groups = BTreeMap::new();
    let mut after = None;
    for _ in 0..DEAD_MAX / PAGE_MAX {
        let page = page(state, caller, filter, after, PAGE_MAX).await?;
        for shown in &page.items {
            count(&mut groups, shown);
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut groups: Vec<_> = groups.into_values().map(Group::answer).collect();
    groups.sort_by_key(|group: &DeadGroup| std::cmp::Reverse(group.count));
    Ok((groups, after.is_none()))
}

/// Jobs that died of the same.
struct Group {
    first: JobView,
    count: usize,
    oldest: Millis,
    newest: Millis,
}

fn count(groups: &mut BTreeMap<(Text, Text, Text), Group>, shown: &JobView) {
    let job = &shown.job;
    let of = (shown.key.kind().into(), job.operation.clone(), code(job).into());
    let at = job.ended_at.unwrap_or_default();
    let new = || Group { first: shown.clone(), count: 0, oldest: at, newest: at };
    let group = groups.entry(of).or_insert_with(new);
    group.count += 1;
    group.oldest = group.oldest.min(at);
    if at > group.newest {
        (group.newest, group.first) = (at, shown.clone());
    }
}

impl Group {
    fn answer(self) -> DeadGroup {
        let (key, job) = (self.first.key, self.first.job);
        DeadGroup {
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

/// Tries dead jobs again.
#[utoipa::path(
    post,
    path = "/v1/dead/redrive",
    tag = "dead letters",
    operation_id = "redrive_dead",
    params(Caller, Idempotency),
    request_body = DeadBodies,
    responses((status = 200, description = "What became of them", body = RedriveAnswer))
)]
pub(super) async fn redrive(
    State(state): State<ServerState>,
    caller: Caller,
    key: Idempotency,
    Body(body): Body<DeadBody>,
) -> Result<Json<RedriveAnswer>, Problem> {
    let base = key.id(&caller.tenant)?;
    let action = |by: &Text, reason: &Text, id| {
        let (by, reason) = (by.clone(), reason.clone());
        JobAction::Retry { request: derived(&state, base, id), by, reason }
    };
    let dealt = deal(&state, &caller, body, &action).await?;
    let redriven = dealt.done.into_iter().filter_map(|(from, outcome)| match outcome {
        Outcome::Submitted { job, .. } => Some(Redriven { from, job }),
        _ => None,
    });
    let (matched, more, refused) = (dealt.matched, dealt.more, dealt.refused);
    Ok(Json(RedriveAnswer { matched, more, redriven: redriven.collect(), refused }))
}

/// The request that makes a job from a dead one: the same for a repetition of the redrive.
fn derived(state: &ServerState, base: RequestId, id: JobId) -> RequestId {
    state
        .services
        .request_id(&format!("{base} {id}"), "redrive")
        .expect("two ids are a key of fitting length")
}

/// Throws dead jobs away.
#[utoipa::path(
    post,
    path = "/v1/dead/discard",
    tag = "dead letters",
    operation_id = "discard_dead",
    params(Caller),
    request_body = DeadBodies,
    responses((status = 200, description = "What became of them", body = DiscardAnswer))
)]
pub(super) async fn discard(
    State(state): State<ServerState>,
    caller: Caller,
    Body(body): Body<DeadBody>,
) -> Result<Json<DiscardAnswer>, Problem> {
    let action = |by: &Text, reason: &Text, _| {
        let (by, reason) = (by.clone(), reason.clone());
        JobAction::Discard { by, reason }
    };
    let dealt = deal(&state, &caller, body, &action).await?;
    let discarded = dealt.done.into_iter().map(|(id, _)| id).collect();
    let (matched, more, refused) = (dealt.matched, dealt.more, dealt.refused);
    Ok(Json(DiscardAnswer { matched, more, discarded, refused }))
}

/// What became of the jobs that a filter found.
#[derive(Default)]
struct Dealt {
    matched: usize,
    more: bool,
    done: Vec<(JobId, Outcome)>,
    refused: Vec<Unmoved>,
}

impl Dealt {
    fn refuse(&mut self, job: JobId, refusal: &Refusal) {
        let (code, detail) = (refusal.code().as_str().to_owned(), refusal.to_string());
        self.refused.push(Unmoved { job, code, detail });
    }
}

type Act<'a> = dyn Fn(&Text, &Text, JobId) -> JobAction + Send + Sync + 'a;

/// Does something to all dead jobs that a filter finds.
async fn deal(
    state: &ServerState,
    caller: &Caller,
    body: DeadBody,
    action: &Act<'_>,
) -> Result<Dealt, Problem> {
    let DeadBody { filter, dry_run, reason: why } = body;
    let why = if dry_run {
        Text::from("")
    } else {
        caller.required_reason(ReasonBody { reason: why })?
    };
    let act = |id| (!dry_run).then(|| action(&caller.name, &why, id));
    let mut dealt = Dealt::default();
    if let Some(ids) = &filter.ids {
        let jobs = named(state, caller, &filter, ids, &mut dealt).await?;
        for batch in jobs.chunks(BATCH) {
            send(state, batch, &act, &mut dealt).await?;
        }
        return Ok(dealt);
    }
    let mut after = None;
    loop {
        let page = page(state, caller, &filter, after, BATCH).await?;
        let fits = |shown: &&JobView| fits(&filter, shown);
        let jobs: Vec<JobId> = page.items.iter().filter(fits).map(|shown| shown.job.id).collect();
        send(state, &jobs, &act, &mut dealt).await?;
        after = page.next;
        dealt.more = after.is_some();
        if !dealt.more || dealt.matched >= DEAD_MAX {
            return Ok(dealt);
        }
    }
}

fn fits(filter: &DeadFilter, shown: &JobView) -> bool {
    let is = |wish: &Option<String>, have: &str| wish.as_ref().is_none_or(|wish| wish == have);
    is(&filter.kind, shown.key.kind())
        && is(&filter.operation, &shown.job.operation)
        && is(&filter.code, code(&shown.job))
}

/// Those of the named jobs that are dead, or were before somebody dealt with them.
async fn named(
    state: &ServerState,
    caller: &Caller,
    filter: &DeadFilter,
    ids: &[JobId],
    dealt: &mut Dealt,
) -> Result<Vec<JobId>, Problem> {
    if ids.len() > PAGE_MAX {
        let detail = format!("ids names {} jobs; at most {PAGE_MAX} are allowed", ids.len());
        return Err(Problem::invalid(&detail));
    }
    let mut jobs = Vec::new();
    for &id in ids {
        match state.services.find_job(caller, id).await {
            Ok(shown) if !fits(filter, &shown) => {}
            Ok(shown) => match shown.job.state {
                JobState::Dead | JobState::Redriven | JobState::Discarded => jobs.push(id),
                state => dealt
                    .refuse(id, &Refusal::WrongJobState { state, wanted: JobRequirement::Dead }),
            },
            Err(problem) if problem.is(Code::NotFound) => dealt.refuse(id, &Refusal::NoSuchJob),
            Err(problem) => return Err(problem),
        }
    }
    jobs.sort_unstable();
    jobs.dedup();
    Ok(jobs)
}

/// Deals with some jobs at once, unless it is only a rehearsal.
async fn send(
    state: &ServerState,
    jobs: &[JobId],
    act: &(dyn Fn(JobId) -> Option<JobAction> + Send + Sync),
    dealt: &mut Dealt,
) -> Result<(), Problem> {
    dealt.matched += jobs.len();
    let sent = jobs.iter().filter_map(|id| {
        let command = Command::Job { id: *id, action: act(*id)? };
        let committer = state.services.committer.clone();
        Some((*id, tokio::spawn(async move { committer.submit(command).await })))
    });
    let sent: Vec<(JobId, JoinHandle<Result<Outcome, StoreError>>)> = sent.collect();
    for (id, answer) in sent {
        let lost = |error| Problem::unavailable(&format!("the answer got lost: {error}"));
        match answer.await.map_err(lost)?? {
            Outcome::Refused(refusal) => dealt.refuse(id, &refusal),
            outcome => dealt.done.push((id, outcome)),
        }
    }
    Ok(())
}
