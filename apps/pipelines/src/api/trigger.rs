//! A trigger: a submit that attaches to the run that goes on, if one does.

use std::time::Duration;

use crate::wire::{RunStatus, TriggerAnswer, TriggerBody};
use crate::{Catalog, Pipeline, RUN};
use serde_json::Value;
use tenure_core::{
    Command, JobId, Outcome, RequestId, ResourceAction, ResourceKey, Submit, Text, Verdict,
};

use crate::places::spot;
use tenure_app::Caller;
use tenure_app::Problem;
use tenure_app::Services;
use tenure_app::extract::document;

/// A trigger on its way.
pub(super) struct Trigger<'a> {
    pub(super) services: &'a Services,
    pub(super) catalog: &'a Catalog,
    pub(super) pipeline: &'a Pipeline,
    pub(super) request: RequestId,
}

impl Trigger<'_> {
    pub(super) async fn send(
        &self,
        caller: &Caller,
        body: TriggerBody,
    ) -> Result<TriggerAnswer, Problem> {
        let TriggerBody { trigger_by, parameters } = body;
        let filled = self.pipeline.fill(&parameters).map_err(|why| Problem::invalid(&why))?;
        let args = document("parameters", &Value::Object(filled))?;
        let ask = Submit {
            request: self.request,
            operation: RUN.into(),
            args: Some(args.clone()),
            priority: 0,
            run_at: None,
            by: trigger_by.filter(|by| !by.is_empty()).map_or(caller.name.clone(), Text::from),
        };
        let key = self.patiently().await?;
        let command = Command::Resource { key, action: ResourceAction::Submit(ask) };
        let (verdict, job) = match self.services.submit(command).await? {
            Outcome::Submitted { verdict, job } => (verdict, job),
            other => return Err(Problem::unexpected(&other)),
        };
        tenure_app::trace::record_job(job);
        let (tenant, name) = (&self.pipeline.tenant, &self.pipeline.name);
        if verdict == Verdict::Attached {
            tracing::debug!(tenant_id = %tenant, pipeline_id = %name, pipeline_logging_id = %job,
                "triggered while it runs");
        } else {
            tracing::info!(tenant_id = %tenant, pipeline_id = %name, pipeline_logging_id = %job,
                verdict = verdict.as_str(), "triggered");
        }
        let (status, message) = self.say(verdict, job, &args).await?;
        Ok(TriggerAnswer {
            pipeline_logging_id: job,
            pipeline_id: name.clone(),
            tenant_id: tenant.clone(),
            status,
            message,
        })
    }

    /// What the trigger came to, for programs and for people.
    async fn say(
        &self,
        verdict: Verdict,
        job: JobId,
        args: &Text,
    ) -> Result<(RunStatus, String), Problem> {
        let name = &self.pipeline.name;
        if verdict == Verdict::Queued {
            return Ok((
                RunStatus::Pending,
                format!("{name} was triggered and waits for its turn"),
            ));
        }
        if verdict != Verdict::Attached {
            return Ok((RunStatus::Pending, format!("{name} was triggered")));
        }
        let mut message = format!("{name} is running already; this is the run that goes on");
        if self.services.has_other_args(job, args).await? {
            message += ", with other parameters than yours";
        }
        Ok((RunStatus::Running, message))
    }

    /// Where to begin: at once, or after it was asked again as often as the settings say.
    async fn patiently(&self) -> Result<ResourceKey, Problem> {
        let (settings, store) = (&self.catalog.settings, self.services.store());
        let mut left = settings.retries;
        loop {
            let found = spot(store, self.pipeline, self.request, left > 0).await?;
            let Some(busy) = found.busy.filter(|_| left > 0) else { return Ok(found.key) };
            left -= 1;
            // First in line, then look: an end in between wakes us.
            let mut place = self.services.job_waits.register(busy);
            if spot(store, self.pipeline, self.request, true).await?.busy.is_none() {
                continue;
            }
            tokio::select! {
                () = place.ended() => {}
                () = tokio::time::sleep(Duration::from_millis(settings.delay_ms)) => {}
                () = self.services.closing.cancelled() => {
                    return Err(Problem::unavailable("the server is shutting down; retry"));
                }
            }
        }
    }
}
