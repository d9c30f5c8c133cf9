//! A run: the steps of a pipeline, one after the other, as the work of a job.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::wire::StepStatus;
use async_trait::async_trait;
use serde_json::{Map, Value};
use tenure::trace::TraceParent;
use tenure::worker::command::STOPPED;
use tenure::worker::handler::BAD_ARGS;
use tenure::worker::{Context, Done, Failure, Handler, Phase};
use tenure_app::Live;
use tenure_core::retry::Class;
use tokio::time::timeout;

use super::catalog::Catalog;
use super::declare::{Pipeline, Step};
use super::settings::PipelineSettings;
use super::steps::{Try, encoded, http_client};
use super::template::Values;
use super::timeline::Timeline;
use super::{secrets, slots};

/// The pipeline is not declared any more.
pub const NO_SUCH_PIPELINE: &str = "NO_SUCH_PIPELINE";
/// A secret that a step names cannot be read.
pub const NO_SUCH_SECRET: &str = "NO_SUCH_SECRET";

/// How long to wait for the file of a pipeline.
const FILE_MAX: Duration = Duration::from_secs(10);

/// Does runs. What a pipeline is, is looked up when a run begins.
pub struct Runner {
    live: Live,
    http: reqwest::Client,
    guarded: bool,
    parent: fn() -> Option<TraceParent>,
}

impl Runner {
    /// Runs the pipelines of a catalog. `guarded` says that the store is a PostgreSQL database,
    /// `parent` which span a command goes on with.
    ///
    /// # Errors
    ///
    /// When there can be no requests over HTTP.
    pub fn new(
        live: Live,
        guarded: bool,
        parent: fn() -> Option<TraceParent>,
    ) -> Result<Self, tenure::Error> {
        Ok(Self { live, http: http_client()?, guarded, parent })
    }

    /// The pipeline and what holds for all. A new file may come to this process a moment later than
    /// to the one that took the trigger.
    async fn find(
        &self,
        job: &Context,
        tenant: &str,
        name: &str,
    ) -> Result<(Arc<Pipeline>, PipelineSettings), Failure> {
        let mut live = self.live.clone();
        let find = async {
            loop {
                if let Some(catalog) = live.app::<Catalog>()
                    && let Some(pipeline) = catalog.get(tenant, name)
                {
                    return (Arc::clone(pipeline), catalog.settings.clone());
                }
                live.changed().await;
            }
        };
        let found = tokio::select! {
            found = timeout(FILE_MAX, find) => found,
            _ = job.lost() => return Err(Failure::transient(STOPPED, "the run was lost")),
            halt = job.cancelled() => return Err(Failure::transient(STOPPED, halt)),
        };
        found.map_err(|_| {
            let why = format!("there is no pipeline {name} of the tenant {tenant} here");
            Failure::permanent(NO_SUCH_PIPELINE, why)
        })
    }
}

#[async_trait]
impl Handler for Runner {
    async fn run(&self, job: &Context) -> Result<Done, Failure> {
        let (tenant, name) = (job.key().tenant(), slots::pipeline(job.key().name()));
        if !slots::is_place(job.key().name()) {
            let why = "no pipeline has such a place; trigger it by POST /pipelines/run/ID";
            return Err(Failure::permanent(NO_SUCH_PIPELINE, why));
        }
        let (pipeline, settings) = self.find(job, tenant, name).await?;
        let mut values = values(job, &pipeline)?;
        let mut known = BTreeMap::new();
        for secret in pipeline.secrets() {
            let dir = settings.secrets.as_deref().ok_or("no directory of secrets is named");
            let value =
                dir.map_err(str::to_owned).and_then(|dir| secrets::read(dir, tenant, secret));
            let value = value.map_err(|why| Failure::permanent(NO_SUCH_SECRET, why))?;
            job.add_secret(&value);
            job.add_secret(&encoded(&value));
            known.insert(secret.to_owned(), value);
        }
        values.secrets = known;
        Run { on: self, job, values }.all(&pipeline).await
    }

    fn must_complete(&self) -> bool {
        true
    }
}

/// What steps may name.
fn values(job: &Context, pipeline: &Pipeline) -> Result<Values, Failure> {
    let given: Option<Map<String, Value>> = job.args()?;
    let parameters = pipeline.fill(&given.unwrap_or_default());
    let parameters = parameters.map_err(|why| Failure::permanent(BAD_ARGS, why))?;
    let run = BTreeMap::from([
        ("id", job.id().to_string()),
        ("token", job.token().to_string()),
        ("attempt", job.attempt().to_string()),
        ("tenant", pipeline.tenant.clone()),
        ("pipeline", pipeline.name.clone()),
    ]);
    Ok(Values { parameters, secrets: BTreeMap::new(), run })
}

/// One attempt at a run.
struct Run<'a> {
    on: &'a Runner,
    job: &'a Context,
    values: Values,
}

impl Run<'_> {
    async fn all(&self, pipeline: &Pipeline) -> Result<Done, Failure> {
        let steps = &pipeline.steps;
        let timeline = Timeline::begin(self.job, steps.iter().map(|step| step.name.as_str()));
        let mut results = Map::new();
        for (at, step) in steps.iter().enumerate() {
            let share = |at: usize| u8::try_from(100 * at / steps.len()).unwrap_or(100);
            let part = Phase { name: step.name.clone(), from: share(at), to: share(at + 1) };
            if let Some(result) = self.step(step, &part, &timeline).await? {
                results.insert(step.name.clone(), result);
            }
        }
        self.job.progress(100, "");
        if results.is_empty() { Ok(Done::default()) } else { Ok(Done::with(&results)?) }
    }

    /// Does a step, again and again as its rule says.
    async fn step(
        &self,
        step: &Step,
        part: &Phase,
        timeline: &Timeline<'_>,
    ) -> Result<Option<Value>, Failure> {
        let Step { name, action, limit, retry } = step;
        let mut tries = 0;
        loop {
            tries += 1;
            self.going_on()?;
            timeline.note(name, tries, StepStatus::Running, None);
            part.progress(self.job, 0, "");
            let with = Try {
                job: self.job,
                values: &self.values,
                part: part.clone(),
                limit: *limit,
                http: &self.on.http,
                guarded: self.on.guarded,
                parent: (self.on.parent)(),
            };
            let failure = match action.perform(&with).await {
                Ok(result) => {
                    timeline.note(name, tries, StepStatus::Complete, None);
                    return Ok(result);
                }
                Err(failure) => failure,
            };
            if self.going_on().is_err() {
                timeline.note(name, tries, StepStatus::Stopped, None);
                return Err(failure);
            }
            let again = retry.class(&failure.code, failure.class) == Class::Transient;
            if !again || tries >= retry.attempts {
                timeline.note(name, tries, StepStatus::Failed, Some(&failure));
                let message = format!("step {name}: {}", failure.message);
                return Err(Failure { message, ..failure });
            }
            timeline.note(name, tries, StepStatus::Retrying, Some(&failure));
            self.rest(retry.backoff_ms(self.job.id(), tries)).await;
        }
    }

    /// Whether the run may go on.
    fn going_on(&self) -> Result<(), Failure> {
        if let Some(halt) = self.job.cancel_reason() {
            return Err(Failure::transient(STOPPED, halt));
        }
        self.job.check().map_err(|lost| Failure::transient(STOPPED, lost))
    }

    /// Rests, unless the run should stop.
    async fn rest(&self, rest_ms: u64) {
        tokio::select! {
            _ = self.job.lost() => {}
            _ = self.job.cancelled() => {}
            () = tokio::time::sleep(Duration::from_millis(rest_ms)) => {}
        }
    }
}
