//! What is seen of pipelines: runs with their steps, locks, and what is declared.

use std::collections::HashMap;

use crate::declare::MAX_RUNS_MAX;
use crate::wire::{
    AttachedAnswer, ParameterAnswer, PipelineAnswer, PipelineLockAnswer, RunAnswer, RunDetail,
    RunStatus, StepAnswer,
};
use crate::{Catalog, KIND, Pipeline, slots, timeline};
use tenure_core::history::{Entry, Event};
use tenure_core::{JobId, Millis, Refusal, ResourceKey, TenureView, Text, Token};
use tenure_store::store::{
    HistoryQuery, JobQuery, JobView, LogQuery, PAGE_MAX, ResourceQuery, TenureQuery,
};
use tenure_wire::{ListAnswer, instant};

use super::OnPipeline;
use tenure_app::Problem;
use tenure_app::Services;

/// Most pages of jobs that are read for one list of runs; then the caller goes on from there.
const PAGES_MAX: usize = 10;
/// Most triggers that are shown with the run that they got.
const ATTACHED_MAX: usize = 100;
/// Most lines of history that are read to find them.
const LINES_MAX: usize = 1_000;

/// A run.
pub(super) fn answer(shown: &JobView, now: Millis) -> RunAnswer {
    let key = &shown.key;
    RunAnswer::of(key.tenant(), slots::pipeline(key.name()), &shown.job, now)
}

/// A run with all that is known of it.
pub(super) async fn detail(services: &Services, shown: &JobView) -> Result<RunDetail, Problem> {
    let now = services.store().status().await?.now;
    let run = answer(shown, now);
    let attached = if run.duplicates == 0 { Vec::new() } else { attached(services, shown).await? };
    Ok(RunDetail { run, steps: steps(services, shown).await?, attached })
}

/// The steps of the latest attempt; before the first, those that are declared.
async fn steps(services: &Services, shown: &JobView) -> Result<Vec<StepAnswer>, Problem> {
    if let Some(attempt) = shown.job.attempts.last() {
        let mut log = String::new();
        let mut after = 0;
        loop {
            let query = LogQuery { job: shown.job.id, after, limit: PAGE_MAX };
            let lines = services.store().reads().logs(query).await?;
            let Some(last) = lines.last() else { break };
            after = last.position;
            let of_attempt = lines.iter().filter(|line| line.attempt == attempt.n);
            of_attempt.for_each(|line| log.push_str(&line.text));
            if lines.len() < PAGE_MAX {
                break;
            }
        }
        let steps = timeline::read(log.lines(), attempt.started_at, attempt.ended_at);
        if !steps.is_empty() {
            return Ok(steps);
        }
    }
    let catalog = services.live.app::<Catalog>();
    let name = slots::pipeline(shown.key.name());
    let declared = catalog.as_ref().and_then(|catalog| catalog.get(shown.key.tenant(), name));
    let names = declared.iter().flat_map(|one| one.steps.iter().map(|step| step.name.as_str()));
    Ok(timeline::pending(names))
}

/// The latest triggers that got the id of a run, oldest first, as history tells them.
async fn attached(services: &Services, shown: &JobView) -> Result<Vec<AttachedAnswer>, Problem> {
    let (key, id) = (shown.key.clone(), shown.job.id);
    let query = HistoryQuery::Of { key, before: None, limit: LINES_MAX };
    let lines = services.store().reads().history(query).await?;
    let mut attached = Vec::new();
    for line in &lines {
        let Ok(entry) = Entry::parse(&line.text) else { continue };
        match entry.event {
            Event::Attached { id: joined, by, .. } if joined == id => {
                let (trigger_by, at) = (by.to_string(), instant(entry.at));
                attached.push(AttachedAnswer { trigger_by, at });
            }
            // Nobody could get it before it was there.
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

/// Which runs to list.
pub(super) struct Wanted {
    pub(super) tenant: Option<Text>,
    pub(super) pipeline: Option<String>,
    pub(super) status: Option<RunStatus>,
    pub(super) after: Option<JobId>,
    pub(super) limit: usize,
}

impl Wanted {
    fn is(&self, shown: &JobView) -> bool {
        let of = |name: &String| slots::pipeline(shown.key.name()) == name;
        self.pipeline.as_ref().is_none_or(of)
            && self.status.is_none_or(|status| status == RunStatus::of(&shown.job))
    }

    /// The status can be asked for only when it is that of one state. A pipeline may have had more
    /// places than it has now, so its name cannot.
    fn query(&self, after: Option<JobId>) -> JobQuery {
        let state = match self.status.map(RunStatus::states) {
            Some([state]) => Some(*state),
            _ => None,
        };
        let filtered = self.pipeline.is_some() || (self.status.is_some() && state.is_none());
        let limit = if filtered { PAGE_MAX } else { (self.limit + 1).min(PAGE_MAX) };
        let (tenant, kind) = (self.tenant.clone(), Some(KIND.into()));
        JobQuery { tenant, kind, name: None, operation: None, state, after, limit }
    }
}

/// Runs, newest first.
pub(super) async fn runs(
    services: &Services,
    wanted: Wanted,
) -> Result<ListAnswer<RunAnswer>, Problem> {
    let now = services.store().status().await?.now;
    let mut items = Vec::new();
    let mut after = wanted.after;
    for _ in 0..PAGES_MAX {
        let page = services.store().reads().jobs(wanted.query(after)).await?;
        for shown in &page.items {
            if items.len() == wanted.limit {
                return Ok(ListAnswer { items, next: after.map(|id| id.to_string()) });
            }
            after = Some(shown.job.id);
            if wanted.is(shown) {
                items.push(answer(shown, now));
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(ListAnswer { items, next: after.map(|id| id.to_string()) })
}

/// The locks that runs hold, and those that somebody holds by hand.
pub(super) async fn locks(
    services: &Services,
    tenant: Option<Text>,
    after: Option<ResourceKey>,
    limit: usize,
) -> Result<ListAnswer<PipelineLockAnswer>, Problem> {
    let query = TenureQuery { tenant, kind: Some(KIND.into()), after, limit, ..<_>::default() };
    let page = services.store().reads().tenures(query).await?;
    let mut items = Vec::new();
    for view in &page.items {
        items.push(lock(services, view).await?);
    }
    Ok(ListAnswer { items, next: page.next.map(String::from) })
}

async fn lock(services: &Services, view: &TenureView) -> Result<PipelineLockAnswer, Problem> {
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
    Ok(PipelineLockAnswer {
        tenant_id: view.key.tenant().to_owned(),
        pipeline_id: name.to_owned(),
        pipeline_logging_id: view.job,
        locked_by: job.map_or_else(|| view.holder.to_string(), |shown| shown.job.by.to_string()),
        locked_at: instant(view.since),
        age_ms: view.age_ms,
        limit_ms,
        token: view.token,
    })
}

/// The resource of a pipeline on which a tenure is held, and the run that holds it.
pub(super) async fn holding(
    services: &Services,
    on: &OnPipeline,
    token: Token,
    run: Option<JobId>,
) -> Result<(ResourceKey, Option<JobId>), Problem> {
    let mut held: Vec<TenureView> = Vec::new();
    for place in 1..=MAX_RUNS_MAX {
        let place = u32::try_from(place).unwrap_or(1);
        let Some(key) = slots::key(&on.caller.tenant, &on.id, place) else { continue };
        let shown = services.store().reads().show(&key).await?;
        held.extend(shown.into_iter().flat_map(|shown| shown.tenures));
    }
    let meant =
        |view: &&TenureView| view.token == token && run.is_none_or(|run| view.job == Some(run));
    let meant: Vec<&TenureView> = held.iter().filter(meant).collect();
    match meant[..] {
        [view] => Ok((view.key.clone(), view.job)),
        [] => {
            let current = held.first().cloned();
            Err(Refusal::NotCurrent { current }.into())
        }
        _ => {
            let detail = "several runs hold this token; name the one by `pipeline_logging_id`";
            Err(Problem::new(409, "conflict", detail))
        }
    }
}

/// The pipelines that are declared, with the runs that are not over.
pub(super) async fn pipelines(
    services: &Services,
    tenant: Option<&str>,
) -> Result<Vec<PipelineAnswer>, Problem> {
    let Some(catalog) = services.live.app::<Catalog>() else { return Ok(Vec::new()) };
    let now = services.store().status().await?.now;
    let mut running: HashMap<(String, String), Vec<JobId>> = HashMap::new();
    let mut after = None;
    loop {
        let (tenant, kind) = (tenant.map(Text::from), Some(KIND.into()));
        let query = ResourceQuery { tenant, kind, state: None, after, limit: PAGE_MAX };
        let page = services.store().reads().resources(query).await?;
        for shown in page.items {
            let key = &shown.key;
            let of = (key.tenant().to_owned(), slots::pipeline(key.name()).to_owned());
            let lane = shown.resource.lane.iter().map(|job| job.id);
            running.entry(of).or_default().extend(lane);
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut of = |one: &Pipeline| running.remove(&(one.tenant.clone(), one.name.clone()));
    Ok(catalog.iter(tenant).map(|one| pipeline(one, of(one).unwrap_or_default(), now)).collect())
}

fn pipeline(one: &Pipeline, running: Vec<JobId>, now: Millis) -> PipelineAnswer {
    let parameter = |parameter: &crate::parameters::Parameter| ParameterAnswer {
        name: parameter.name.clone(),
        kind: parameter.kind.as_str().to_owned(),
        default: parameter.default.clone(),
    };
    let schedule = one.schedule.as_ref();
    PipelineAnswer {
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
