//! Jobs and resources over HTTP.

use std::time::Duration;

use reqwest::Method;
use serde::Serialize;
use serde_json::Value;
use tenure_core::{
    Claim, JobAction, JobId, Outcome, Put, Refusal, RequestId, ResourceAction, ResourceKey, Submit,
    Text, Token,
};

use super::HttpTransport;
use super::queries::resource_path;
use crate::error::Error;
use crate::wire::{
    AppendLogRequest, CancelResponse, ClaimRequest, ClaimResponse, DeleteResourceResponse,
    DiscardJobResponse, FinishRequest, FinishResponse, PauseResponse, ProgressRequest,
    PutResourceRequest, PutResourceResponse, ReasonRequest, ReportResponse, SubmitRequest,
    SubmitResponse, instant,
};

/// Maximum time that a server holds back a claim.
const CLAIM_WAIT_MAX: Duration = Duration::from_secs(60);

impl HttpTransport {
    pub(super) async fn resource(
        &self,
        key: &ResourceKey,
        action: ResourceAction,
    ) -> Result<Outcome, Error> {
        let path = resource_path(key);
        match action {
            ResourceAction::Put(Put { spec, .. }) => {
                let body = PutResourceRequest { spec: parse_json("spec", &spec)? };
                let answer: PutResourceResponse = self.put(&path, &body).await?;
                let (generation, job) = (answer.resource.generation, answer.job);
                // The JSON of a resource does not have all its fields.
                Ok(Outcome::Put { generation, job, snapshot: None })
            }
            ResourceAction::Delete { .. } => {
                let none = None::<&()>;
                let _: DeleteResourceResponse =
                    self.call(Method::DELETE, &path, None, none, Duration::ZERO).await?;
                Ok(Outcome::Deleted)
            }
            ResourceAction::Pause { reason, .. } => {
                self.post_pause(&format!("{path}/pause"), &reason).await
            }
            ResourceAction::Resume { reason, .. } => {
                self.post_pause(&format!("{path}/resume"), &reason).await
            }
            ResourceAction::SetTimers { .. } => {
                Err(Error::Protocol("timers are not available over HTTP".to_owned()))
            }
            ResourceAction::Submit(submit) => self.submit(&format!("{path}/jobs"), submit).await,
        }
    }

    async fn post_pause(&self, path: &str, reason: &Text) -> Result<Outcome, Error> {
        let answer: PauseResponse = self.post_without_id(path, &reason_body(reason)).await?;
        Ok(Outcome::Paused(answer.paused))
    }

    async fn submit(&self, path: &str, submit: Submit) -> Result<Outcome, Error> {
        let body = SubmitRequest {
            operation: submit.operation.to_string(),
            args: submit.args.as_ref().map(|args| parse_json("args", args)).transpose()?,
            priority: submit.priority,
            run_at: submit.run_at.map(instant),
        };
        self.post_submit(path, submit.request, &body).await
    }

    async fn post_submit(
        &self,
        path: &str,
        request: RequestId,
        body: &impl Serialize,
    ) -> Result<Outcome, Error> {
        let id = Some(request.to_string());
        let answer: SubmitResponse = self.post(path, id, body, Duration::ZERO).await?;
        // The JSON of a job does not have all its fields.
        Ok(Outcome::Submitted { verdict: answer.verdict, job: answer.job.id, snapshot: None })
    }

    pub(super) async fn claim(&self, claim: Claim, max_wait: Duration) -> Result<Outcome, Error> {
        let max_wait = max_wait.min(CLAIM_WAIT_MAX);
        let body = ClaimRequest {
            session: claim.session,
            kinds: claim.kinds.iter().map(Text::to_string).collect(),
            max: claim.max,
            wait_ms: u64::try_from(max_wait.as_millis()).unwrap_or(u64::MAX),
        };
        let id = Some(claim.request.to_string());
        let answer: ClaimResponse = self.post("/v1/jobs/claim", id, &body, max_wait).await?;
        let assigned = answer.jobs.iter().map(|job| job.to_assignment(claim.request));
        Ok(Outcome::Claimed(assigned.collect::<Result<_, _>>()?))
    }

    pub(super) async fn job(&self, id: JobId, action: JobAction) -> Result<Outcome, Error> {
        let path = |verb| format!("/v1/jobs/{id}/{verb}");
        match action {
            JobAction::Finish { token, finish, .. } => {
                let body = FinishRequest::new(token, &finish);
                let answer: FinishResponse = self.post_without_id(&path("finish"), &body).await?;
                Ok(Outcome::Finished { state: answer.state, already: answer.already })
            }
            JobAction::Status { .. } => {
                Err(Error::Protocol("status is not available over HTTP".to_owned()))
            }
            JobAction::Progress { token, percent, message } => {
                let body = ProgressRequest { token, percent, message: message.to_string() };
                self.post_update(&path("progress"), &body).await
            }
            JobAction::Log { token, text } => self.log(&path("logs"), token, &text).await,
            JobAction::Cancel { reason, .. } => {
                let answer: CancelResponse =
                    self.post_without_id(&path("cancel"), &reason_body(&reason)).await?;
                Ok(Outcome::Cancelled { state: answer.state })
            }
            JobAction::Retry { request, reason, .. } => {
                self.post_submit(&path("retry"), request, &reason_body(&reason)).await
            }
            JobAction::Discard { reason, .. } => {
                let _: DiscardJobResponse =
                    self.post_without_id(&path("discard"), &reason_body(&reason)).await?;
                Ok(Outcome::Discarded)
            }
        }
    }

    async fn log(&self, path: &str, token: Token, text: &Text) -> Result<Outcome, Error> {
        self.post_update(path, &AppendLogRequest { token, text: text.to_string() }).await
    }

    async fn post_update(&self, path: &str, body: &impl Serialize) -> Result<Outcome, Error> {
        let answer: ReportResponse = self.post_without_id(path, body).await?;
        Ok(Outcome::Noted { cancelling: answer.cancelling })
    }

    /// Sends a request that is idempotent without an `Idempotency-Key`.
    async fn post_without_id<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Error> {
        self.post(path, None, body, Duration::ZERO).await
    }
}

fn reason_body(reason: &Text) -> ReasonRequest {
    ReasonRequest { reason: Some(reason.to_string()) }
}

fn parse_json(field: &str, document: &Text) -> Result<Value, Error> {
    serde_json::from_str(document).map_err(|error| {
        Error::Refused(Refusal::Invalid(format!("{field} is not a JSON document: {error}")))
    })
}
