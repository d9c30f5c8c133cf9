//! Triggers: submits that attach to the active run, if there is one.

use std::sync::Arc;
use std::time::Duration;

use crate::wire::{RunStatus, TriggerRequest, TriggerResponse};
use crate::{Catalog, Pipeline, RUN};
use serde_json::{Map, Value};
use tenure_core::resource::Resource;
use tenure_core::{
    Command, Job, JobId, Outcome, Refusal, RequestId, ResourceAction, ResourceKey, Submit, Text,
    Verdict,
};

use crate::precheck::{Check, Decision};
use crate::run_args::RunArgs;
use crate::slot_selection::{knows_run, select_slot};
use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::Services;
use tenure_app::extract::document;

/// A trigger of a pipeline.
pub(super) struct Trigger<'a> {
    pub(super) services: &'a Services,
    pub(super) catalog: &'a Arc<Catalog>,
    pub(super) pipeline: &'a Arc<Pipeline>,
    pub(super) request: RequestId,
}

impl Trigger<'_> {
    pub(super) async fn send(
        &self,
        caller: &Caller,
        body: TriggerRequest,
    ) -> Result<TriggerResponse, Problem> {
        let TriggerRequest { trigger_by, parameters } = body;
        let filled = self.pipeline.fill(&parameters).map_err(|why| Problem::invalid(&why))?;
        let args = document("parameters", &Value::Object(filled.clone()))?;
        let submit = Submit {
            request: self.request,
            operation: RUN.into(),
            args: Some(args.clone()),
            priority: 0,
            run_at: None,
            by: trigger_by.filter(|by| !by.is_empty()).map_or(caller.name.clone(), Text::from),
            precondition: None,
        };
        let key = self.wait_for_slot().await?;
        if let Some(external_id) = self.find_external_run(filled).await? {
            return Ok(self.external_run(external_id));
        }
        let action = ResourceAction::Submit(submit);
        let command = Command::Resource { key: key.clone(), action };
        let (verdict, job, snapshot) = match self.services.committer.submit(command).await? {
            Outcome::Submitted { verdict, job, snapshot } => (verdict, job, snapshot),
            Outcome::Refused(Refusal::RequestReused) => {
                let (verdict, job) = self.find_repeated(&key, &parameters).await?;
                (verdict, job, None)
            }
            Outcome::Refused(refusal) => return Err(refusal.into()),
            other => return Err(Problem::unexpected(&other)),
        };
        tenure_app::trace::record_job(job);
        let (tenant, name) = (&self.pipeline.tenant, &self.pipeline.name);
        if verdict == Verdict::Attached {
            tracing::debug!(tenant_id = %tenant, pipeline_id = %name, pipeline_logging_id = %job,
                "trigger attached to the active run");
        } else {
            tracing::info!(tenant_id = %tenant, pipeline_id = %name, pipeline_logging_id = %job,
                verdict = verdict.as_str(), "run triggered");
        }
        let (status, message) = self.describe(verdict, job, snapshot, &args).await?;
        Ok(TriggerResponse {
            pipeline_logging_id: Some(job),
            external_id: None,
            pipeline_id: name.clone(),
            tenant_id: tenant.clone(),
            status,
            message,
        })
    }

    /// Returns the verdict and the run of an earlier trigger with the same request id. Only the
    /// given parameters have to be those of the run: defaults may have changed since. Those of a
    /// trigger that attached are not stored, so that it cannot be compared.
    async fn find_repeated(
        &self,
        key: &ResourceKey,
        given: &Map<String, Value>,
    ) -> Result<(Verdict, JobId), Problem> {
        let reads = self.services.store().reads();
        let resource = reads.show(key).await?.and_then(|detail| detail.record.resource);
        let earlier = resource.and_then(|resource| earlier_trigger(&resource, self.request));
        let created = earlier.filter(|(verdict, _)| *verdict != Verdict::Attached);
        let (verdict, job) = created.ok_or(Refusal::RequestReused)?;
        let run = reads.job(job).await?.ok_or(Refusal::RequestReused)?.job;
        let stored = stored_parameters(run.args.as_ref());
        if given.iter().all(|(name, value)| stored.get(name) == Some(value)) {
            Ok((verdict, job))
        } else {
            Err(Refusal::RequestReused.into())
        }
    }

    /// Returns the id of an active run that only an external system knows.
    async fn find_external_run(
        &self,
        parameters: Map<String, Value>,
    ) -> Result<Option<String>, Problem> {
        let (services, pipeline) = (self.services, self.pipeline);
        if pipeline.precheck.is_none()
            || knows_run(services.store(), pipeline, self.request).await?
        {
            return Ok(None);
        }
        let check = Check {
            catalog: Arc::clone(self.catalog),
            pipeline: Arc::clone(pipeline),
            parameters,
            scheduled_at: None,
            pass_env: services.live.get().pass_env,
        };
        match check.run().await {
            Decision::Start => Ok(None),
            Decision::Active(id) => Ok(Some(id)),
            Decision::Refuse(why) => Err(Problem::unavailable(&format!(
                "the precheck of {} failed, so nothing was started: {why}; see `on_error` in \
                 [precheck]",
                pipeline.name
            ))),
        }
    }

    fn external_run(&self, id: String) -> TriggerResponse {
        let Pipeline { tenant, name, .. } = &**self.pipeline;
        tracing::info!(tenant_id = %tenant, pipeline_id = %name, external_id = %id,
            "the precheck found an active run; nothing was started");
        TriggerResponse {
            pipeline_logging_id: None,
            pipeline_id: name.clone(),
            tenant_id: tenant.clone(),
            status: RunStatus::Running,
            message: format!("{name} is already running in an external system as {id}"),
            external_id: Some(id),
        }
    }

    /// Returns the status and the message of the response.
    async fn describe(
        &self,
        verdict: Verdict,
        job: JobId,
        snapshot: Option<Box<Job>>,
        args: &Text,
    ) -> Result<(RunStatus, String), Problem> {
        let name = &self.pipeline.name;
        if verdict == Verdict::Queued {
            return Ok((RunStatus::Pending, format!("{name} was triggered and is queued")));
        }
        if verdict != Verdict::Attached {
            return Ok((RunStatus::Pending, format!("{name} was triggered")));
        }
        let mut message = format!("{name} is already running; returning the active run");
        let run = match snapshot {
            Some(run) => Some(run),
            // A repeated trigger, whose run has ended meanwhile.
            None => self.services.store().reads().job(job).await?.map(|view| view.job),
        };
        let given = stored_parameters(Some(args));
        if run.is_some_and(|run| stored_parameters(run.args.as_ref()) != given) {
            message += ", which has other parameters";
        }
        Ok((RunStatus::Running, message))
    }

    /// Selects the slot for the run. While all are busy, retries as often as the settings allow.
    async fn wait_for_slot(&self) -> Result<ResourceKey, Problem> {
        let (settings, store) = (&self.catalog.settings, self.services.store());
        let mut left = settings.retries;
        loop {
            let found = select_slot(store, self.pipeline, self.request, left > 0).await?;
            let found = found.ok_or(Refusal::NoSuchResource)?;
            let Some(busy) = found.busy.filter(|_| left > 0) else { return Ok(found.key) };
            left -= 1;
            // Registered before the check, so that an end in between is not missed.
            let mut wait = self.services.job_waits.register(busy);
            let found = select_slot(store, self.pipeline, self.request, true).await?;
            if found.is_none_or(|found| found.busy.is_none()) {
                continue;
            }
            tokio::select! {
                () = wait.ended() => {}
                () = tokio::time::sleep(Duration::from_millis(settings.delay_ms)) => {}
                () = self.services.closing.cancelled() => {
                    return Err(Problem::unavailable("the server is shutting down; retry"));
                }
            }
        }
    }
}

/// Returns the parameters in the arguments of a job.
fn stored_parameters(args: Option<&Text>) -> Map<String, Value> {
    RunArgs::from_json(tenure_wire::parse_optional_document(args)).parameters
}

/// Returns the verdict and the run of an earlier trigger. One that waits for long may be in the
/// lane only.
fn earlier_trigger(resource: &Resource, request: RequestId) -> Option<(Verdict, JobId)> {
    let recent = resource.recent_submits.get(request).map(|recent| (recent.verdict, recent.job));
    let queued = || resource.lane.iter().find(|job| job.request == request);
    recent.or_else(|| queued().map(|job| (Verdict::Queued, job.id)))
}
