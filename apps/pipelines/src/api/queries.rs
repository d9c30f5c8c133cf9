//! Queries: runs with their steps, locks, and declared pipelines.

use std::collections::HashMap;

use crate::declare::MAX_RUNS_MAX;
use crate::wire::{
    AttachedTriggerInfo, ParameterInfo, PipelineInfo, PipelineLockInfo, RunDetail, RunInfo,
    RunStatus, StepInfo,
};
use crate::{Catalog, KIND, Pipeline, slots, timeline};
use tenure_core::history::{Entry, Event};
use tenure_core::{JobId, Millis, Refusal, ResourceKey, TenureView, Text, Token};
use tenure_store::store::{
    HistoryQuery, JobQuery, JobView, LogQuery, PAGE_MAX, ResourceQuery, TenureQuery,
};
use tenure_wire::{ListResponse, instant};

use super::OnPipeline;
use tenure_app::Problem;
use tenure_app::Services;

/// Maximum number of pages of jobs read for one list of runs. The response then has a cursor to
/// continue from.
const PAGES_MAX: usize = 10;
/// Maximum number of attached triggers in the detail of a run.
const ATTACHED_MAX: usize = 100;
/// Maximum number of history entries read to find them.
const HISTORY_ENTRIES_MAX: usize = 1_000;

/// Converts a job to a run.
pub(super) fn run_info(view: &JobView, now: Millis) -> RunInfo {
    let key = &view.key;
    RunInfo::new(key.tenant(), slots::pipeline(key.name()), &view.job, now)
}

/// Reads the details of a run: its steps and the triggers attached to it.
pub(super) async fn run_detail(services: &Services, view: &JobView) -> Result<RunDetail, Problem> {
    let now = services.store().status().await?.now;
    let run = run_info(view, now);
    let attached = if run.duplicates == 0 { Vec::new() } else { attached(services, view).await? };
    Ok(RunDetail { run, steps: steps(services, view).await?, attached })
}

/// Reads the steps of the latest attempt; before the first one, the declared steps.
async fn steps(services: &Services, view: &JobView) -> Result<Vec<StepInfo>, Problem> {
    if let Some(attempt) = view.job.attempts.last() {
        let mut log = String::new();
        let mut after = 0;
        loop {
            let query = LogQuery { job: view.job.id, after, limit: PAGE_MAX };
            let chunks = services.store().reads().logs(query).await?;
            let Some(last) = chunks.last() else { break };
            after = last.position;
            let of_attempt = chunks.iter().filter(|chunk| chunk.attempt == attempt.n);
            of_attempt.for_each(|chunk| log.push_str(&chunk.text));
            if chunks.len() < PAGE_MAX {
                break;
            }
        }
        let steps = timeline::parse_steps(log.lines(), attempt.started_at, attempt.ended_at);
        if !steps.is_empty() {
            return Ok(steps);
        }
    }
    let catalog = services.live.app::<Catalog>();
    let name = slots::pipeline(view.key.name());
    let declared = catalog.as_ref().and_then(|catalog| catalog.get(view.key.tenant(), name));
    let names = declared.iter().flat_map(|one| one.steps.iter().map(|step| step.name.as_str()));
    Ok(timeline::pending_steps(names))
}

/// Reads the latest triggers attached to a run from the history, oldest first.
async fn attached(
    services: &Services,
    view: &JobView,
) -> Result<Vec<AttachedTriggerInfo>, Problem> {
    let (key, id) = (view.key.clone(), view.job.id);
    let query = HistoryQuery::Of { key, before: None, limit: HISTORY_ENTRIES_MAX };
    let entries = services.store().reads().history(query).await?;
    let mut attached = Vec::new();
    for row in &entries {
        let Ok(entry) = Entry::parse(&row.text) else { continue };
        match entry.event {
            Event::Attached { id: joined, by, .. } if joined == id => {
                let (trigger_by, at) = (by.to_string(), instant(entry.at));
                attached.push(AttachedTriggerInfo { trigger_by, at });
            }
            // No trigger can attach before the submit.
            Event::Submitted { job, .. } if job.id == id => break,
            _ => {}
        }
        if attached.len() == ATTACHED_MAX {
            break;
        }
    }
    attached.reverse();
    Ok(attached)
}

/// Filter and page of a list of runs.
pub(super) struct RunFilter {
    pub(super) tenant: Option<Text>,
    pub(super) pipeline: Option<String>,
    pub(super) status: Option<RunStatus>,
    pub(super) after: Option<JobId>,
    pub(super) limit: usize,
}

impl RunFilter {
    fn matches(&self, view: &JobView) -> bool {
        let is_pipeline = |name: &String| slots::pipeline(view.key.name()) == name;
        self.pipeline.as_ref().is_none_or(is_pipeline)
            && self.status.is_none_or(|status| status == RunStatus::of(&view.job))
    }

    /// Returns the query for one page. The store can filter by status only if the status maps to a
    /// single job state. It cannot filter by pipeline, which may have had more slots than now.
    fn query(&self, after: Option<JobId>) -> JobQuery {
        let state = match self.status.map(RunStatus::states) {
            Some([state]) => Some(*state),
            _ => None,
        };
        let filtered = self.pipeline.is_some() || (self.status.is_some() && state.is_none());
        let limit = if filtered { PAGE_MAX } else { (self.limit + 1).min(PAGE_MAX) };
        let (tenant, kind) = (self.tenant.clone(), Some(KIND.into()));
        JobQuery { tenant, kind, name: None, operation: None, state, after, limit, group: None }
    }
}

/// Lists runs, newest first.
pub(super) async fn runs(
    services: &Services,
    filter: RunFilter,
) -> Result<ListResponse<RunInfo>, Problem> {
    let now = services.store().status().await?.now;
    let mut items = Vec::new();
    let mut after = filter.after;
    for _ in 0..PAGES_MAX {
        let page = services.store().reads().jobs(filter.query(after)).await?;
        for view in &page.items {
            if items.len() == filter.limit {
                return Ok(ListResponse { items, next: after.map(|id| id.to_string()) });
            }
            after = Some(view.job.id);
            if filter.matches(view) {
                items.push(run_info(view, now));
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(ListResponse { items, next: after.map(|id| id.to_string()) })
}

/// Lists the locks held by runs, and those acquired manually.
pub(super) async fn locks(
    services: &Services,
    tenant: Option<Text>,
    after: Option<ResourceKey>,
    limit: usize,
) -> Result<ListResponse<PipelineLockInfo>, Problem> {
    let query = TenureQuery { tenant, kind: Some(KIND.into()), after, limit, ..<_>::default() };
    let page = services.store().reads().tenures(query).await?;
    let mut items = Vec::new();
    for view in &page.items {
        items.push(lock(services, view).await?);
    }
    Ok(ListResponse { items, next: page.next.map(String::from) })
}

async fn lock(services: &Services, view: &TenureView) -> Result<PipelineLockInfo, Problem> {
    let job = match view.job {
        Some(id) => services.store().reads().job(id).await?,
        None => None,
    };
    let name = slots::pipeline(view.key.name());
    let catalog = services.live.app::<Catalog>();
    let limit_ms = catalog.as_ref().map_or(0, |catalog| {
        let declared = catalog.get(view.key.tenant(), name);
        declared.map_or(catalog.settings.limit_ms, |pipeline| pipeline.limit_ms)
    });
    Ok(PipelineLockInfo {
        tenant_id: view.key.tenant().to_owned(),
        pipeline_id: name.to_owned(),
        pipeline_logging_id: view.job,
        locked_by: job.map_or_else(|| view.holder.to_string(), |view| view.job.by.to_string()),
        locked_at: instant(view.since),
        age_ms: view.age_ms,
        limit_ms,
        token: view.token,
    })
}

/// Finds the slot of a pipeline on which the tenure `token` is held.
pub(super) async fn find_tenure(
    services: &Services,
    on: &OnPipeline,
    token: Token,
    run: Option<JobId>,
) -> Result<ResourceKey, Problem> {
    let mut held: Vec<TenureView> = Vec::new();
    for slot in 1..=MAX_RUNS_MAX {
        let slot = u32::try_from(slot).unwrap_or(1);
        let Some(key) = slots::key(&on.caller.tenant, &on.id, slot) else { continue };
        let view = services.store().reads().show(&key).await?;
        held.extend(view.into_iter().flat_map(|view| view.tenures));
    }
    let is_match =
        |view: &&TenureView| view.token == token && run.is_none_or(|run| view.job == Some(run));
    let matches: Vec<&TenureView> = held.iter().filter(is_match).collect();
    match matches[..] {
        [view] => Ok(view.key.clone()),
        [] => {
            let current = held.first().cloned();
            Err(Refusal::NotCurrent { current }.into())
        }
        _ => {
            let detail = "several runs have this token; select one by `pipeline_logging_id`";
            Err(Problem::new(409, "conflict", detail))
        }
    }
}

/// Lists the declared pipelines with their unfinished runs.
pub(super) async fn pipelines(
    services: &Services,
    tenant: Option<&str>,
) -> Result<Vec<PipelineInfo>, Problem> {
    let Some(catalog) = services.live.app::<Catalog>() else { return Ok(Vec::new()) };
    let now = services.store().status().await?.now;
    let mut running: HashMap<(String, String), Vec<JobId>> = HashMap::new();
    let mut after = None;
    loop {
        let (tenant, kind) = (tenant.map(Text::from), Some(KIND.into()));
        let query =
            ResourceQuery { tenant, kind, state: None, after, limit: PAGE_MAX, group: None };
        let page = services.store().reads().resources(query).await?;
        for view in page.items {
            let key = &view.key;
            let pipeline = (key.tenant().to_owned(), slots::pipeline(key.name()).to_owned());
            let lane = view.resource.lane.iter().map(|job| job.id);
            running.entry(pipeline).or_default().extend(lane);
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut runs_of = |one: &Pipeline| running.remove(&(one.tenant.clone(), one.name.clone()));
    Ok(catalog
        .iter(tenant)
        .map(|one| pipeline_info(one, runs_of(one).unwrap_or_default(), now))
        .collect())
}

fn pipeline_info(one: &Pipeline, running: Vec<JobId>, now: Millis) -> PipelineInfo {
    let parameter = |parameter: &crate::parameters::Parameter| ParameterInfo {
        name: parameter.name.clone(),
        kind: parameter.kind.as_str().to_owned(),
        default: parameter.default.clone(),
    };
    let schedule = one.schedule.as_ref();
    PipelineInfo {
        tenant_id: one.tenant.clone(),
        pipeline_id: one.name.clone(),
        description: one.description.clone(),
        limit_ms: one.limit_ms,
        max_runs: one.max_runs,
        schedule: schedule.map(|schedule| schedule.text().to_owned()),
        next_at: schedule.and_then(|schedule| schedule.next(now)).map(instant),
        parameters: one.parameters.iter().map(parameter).collect(),
        steps: one.steps.iter().map(|step| step.name.clone()).collect(),
        running,
    }
}
