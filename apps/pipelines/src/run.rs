//! Execution of a run: the steps of a pipeline, in order, as an attempt of a job.

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
use super::run_args::RunArgs;
use super::settings::PipelineSettings;
use super::steps::{PolicySource, StepContext, http_client, percent_encode};
use super::template::{SCHEDULED_AT, Values};
use super::timeline::Timeline;
use super::{secrets, slots};

/// Failure code: the pipeline is no longer declared, or its file is invalid.
pub const NO_SUCH_PIPELINE: &str = "NO_SUCH_PIPELINE";
/// Failure code: a secret of a step cannot be read.
pub const NO_SUCH_SECRET: &str = "NO_SUCH_SECRET";

/// Time after which a pipeline that is not declared fails its run.
const DECLARATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Handler that executes runs. It looks the pipeline up when a run starts.
pub struct Runner {
    live: Live,
    http: reqwest::Client,
    addresses: PolicySource,
    guarded: bool,
    parent: fn() -> Option<TraceParent>,
}

impl Runner {
    /// Creates a handler for the pipelines of the live catalog. `guarded` tells whether the store
    /// is a PostgreSQL database; `parent` returns the parent span of commands.
    ///
    /// # Errors
    ///
    /// Fails if the HTTP client cannot be created.
    pub fn new(
        live: Live,
        guarded: bool,
        parent: fn() -> Option<TraceParent>,
    ) -> Result<Self, tenure::Error> {
        let http = http_client(PolicySource::Live(live.clone()))?;
        let addresses = PolicySource::Live(live.clone());
        Ok(Self { live, http, addresses, guarded, parent })
    }

    /// Returns the pipeline and the common settings. Waits for the declaration, which may reach
    /// this process later than the one that accepted the trigger.
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
            found = timeout(DECLARATION_TIMEOUT, find) => found,
            _ = job.lost() => return Err(Failure::transient(STOPPED, "the run lost its tenure")),
            halt = job.cancelled() => return Err(Failure::transient(STOPPED, halt)),
        };
        found.map_err(|_| {
            let catalog = self.live.app::<Catalog>();
            let why = match catalog.and_then(|catalog| catalog.broken(tenant, name)) {
                Some(why) => format!("the file of the pipeline {name} is invalid: {why}"),
                None => format!(
                    "the pipeline {name} of the tenant {tenant} is not declared on this worker"
                ),
            };
            Failure::permanent(NO_SUCH_PIPELINE, why)
        })
    }
}

#[async_trait]
impl Handler for Runner {
    async fn run(&self, job: &Context) -> Result<Done, Failure> {
        let (tenant, name) = (job.key().tenant(), slots::pipeline(job.key().name()));
        if !slots::is_slot(job.key().name()) {
            let why =
                "the resource is not a slot of a pipeline; trigger a run of the pipeline instead";
            return Err(Failure::permanent(NO_SUCH_PIPELINE, why));
        }
        let (pipeline, settings) = self.find(job, tenant, name).await?;
        let mut values = template_values(job, &pipeline)?;
        let loaded = secrets::load(settings.secrets.as_deref(), tenant, pipeline.secrets());
        values.secrets = loaded.map_err(|why| Failure::permanent(NO_SUCH_SECRET, why))?;
        for secret in values.secrets.values() {
            job.add_secret(secret);
            job.add_secret(&percent_encode(secret));
        }
        let pass_env = self.live.get().pass_env;
        RunAttempt { runner: self, job, values, pass_env }.execute(&pipeline).await
    }

    fn must_complete(&self) -> bool {
        true
    }
}

/// Returns the values of placeholders in templates, without secrets.
fn template_values(job: &Context, pipeline: &Pipeline) -> Result<Values, Failure> {
    let args: Option<Map<String, Value>> = job.args()?;
    let RunArgs { parameters, scheduled_at } = RunArgs::from_json(args.map(Value::Object));
    let parameters = pipeline.fill(&parameters);
    let parameters = parameters.map_err(|why| Failure::permanent(BAD_ARGS, why))?;
    let mut run = BTreeMap::from([
        ("id", job.id().to_string()),
        ("token", job.token().to_string()),
        ("attempt", job.attempt().to_string()),
        ("tenant", pipeline.tenant.clone()),
        ("pipeline", pipeline.name.clone()),
    ]);
    run.extend(scheduled_at.map(|at| (SCHEDULED_AT, at)));
    Ok(Values { parameters, secrets: BTreeMap::new(), run })
}

/// One attempt of a run.
struct RunAttempt<'a> {
    runner: &'a Runner,
    job: &'a Context,
    values: Values,
    pass_env: Arc<[String]>,
}

impl RunAttempt<'_> {
    async fn execute(&self, pipeline: &Pipeline) -> Result<Done, Failure> {
        let steps = &pipeline.steps;
        let timeline = Timeline::begin(self.job, steps.iter().map(|step| step.name.as_str()));
        let mut results = Map::new();
        for (index, step) in steps.iter().enumerate() {
            let percent = |index: usize| u8::try_from(100 * index / steps.len()).unwrap_or(100);
            let (from, to) = (percent(index), percent(index + 1));
            let phase = Phase { name: step.name.clone(), from, to };
            if let Some(result) = self.execute_step(step, &phase, &timeline).await? {
                results.insert(step.name.clone(), result);
            }
        }
        self.job.progress(100, "");
        if results.is_empty() { Ok(Done::default()) } else { Ok(Done::with(&results)?) }
    }

    /// Executes a step, with retries according to its rule.
    async fn execute_step(
        &self,
        step: &Step,
        phase: &Phase,
        timeline: &Timeline<'_>,
    ) -> Result<Option<Value>, Failure> {
        let Step { name, action, limit, retry } = step;
        let mut tries = 0;
        loop {
            tries += 1;
            self.check_active()?;
            timeline.record(name, tries, StepStatus::Running, None);
            phase.progress(self.job, 0, "");
            let cx = StepContext {
                job: self.job,
                values: &self.values,
                phase: phase.clone(),
                limit: *limit,
                http: &self.runner.http,
                addresses: self.runner.addresses.policy(),
                guarded: self.runner.guarded,
                parent: (self.runner.parent)(),
                pass_env: &self.pass_env,
            };
            let failure = match action.perform(&cx).await {
                Ok(result) => {
                    timeline.record(name, tries, StepStatus::Complete, None);
                    return Ok(result);
                }
                Err(failure) => failure,
            };
            if self.check_active().is_err() {
                timeline.record(name, tries, StepStatus::Stopped, None);
                return Err(failure);
            }
            let retryable = retry.class(&failure.code, failure.class) == Class::Transient;
            if !retryable || tries >= retry.attempts {
                timeline.record(name, tries, StepStatus::Failed, Some(&failure));
                let message = format!("step {name}: {}", failure.message);
                return Err(Failure { message, ..failure });
            }
            timeline.record(name, tries, StepStatus::Retrying, Some(&failure));
            self.back_off(retry.backoff_ms(self.job.id(), tries)).await;
        }
    }

    /// Fails if the run has been requested to stop or has lost its tenure.
    fn check_active(&self) -> Result<(), Failure> {
        if let Some(halt) = self.job.cancel_reason() {
            return Err(Failure::transient(STOPPED, halt));
        }
        self.job.check().map_err(|lost| Failure::transient(STOPPED, lost))
    }

    /// Waits before the next try, or until the run should stop.
    async fn back_off(&self, backoff_ms: u64) {
        tokio::select! {
            _ = self.job.lost() => {}
            _ = self.job.cancelled() => {}
            () = tokio::time::sleep(Duration::from_millis(backoff_ms)) => {}
        }
    }
}
