//! Jobs and resources over HTTP.

use std::time::Duration;

use reqwest::Method;
use serde::Serialize;
use serde_json::Value;
use tenure_core::{
    Claim, ClaimScope, JobAction, JobId, Outcome, Precondition, Put, Refusal, RequestId,
    ResourceAction, ResourceKey, Submit, Text, TimerChange, Token,
};

use super::queries::resource_path;
use super::{HttpTransport, RequestOptions};
use crate::error::Error;
use crate::wire::{
    AppendLogRequest, CancelResponse, ClaimRequest, ClaimResponse, ClaimScopeRequest,
    DeleteResourceResponse, DiscardJobResponse, FinishRequest, FinishResponse, PauseResponse,
    ProgressRequest, PutResourceRequest, PutResourceResponse, ReasonRequest, ReportResponse,
    ResourceInfo, StatusRequest, SubmitRequest, SubmitResponse, TimerRequest, instant,
    timer_requests,
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
            ResourceAction::Put(Put { spec, request, precondition, timers, .. }) => {
                let spec = parse_json("spec", &spec)?;
                let body = PutResourceRequest { spec, timers: timer_requests(&timers) };
                let id = request.map(|id| id.to_string());
                let options = RequestOptions { id, precondition, tenant: None };
                let answer: PutResourceResponse =
                    self.call(Method::PUT, &path, options, Some(&body), Duration::ZERO).await?;
                let (generation, job) = (answer.resource.generation, answer.job);
                // The JSON of a resource does not have all its fields.
                Ok(Outcome::Put { generation, job, snapshot: None })
            }
            ResourceAction::Delete { precondition, .. } => {
                let none = None::<&()>;
                let options = RequestOptions { precondition, ..RequestOptions::default() };
                let _: DeleteResourceResponse =
                    self.call(Method::DELETE, &path, options, none, Duration::ZERO).await?;
                Ok(Outcome::Deleted)
            }
            ResourceAction::Pause { reason, .. } => {
                self.post_pause(&format!("{path}/pause"), &reason).await
            }
            ResourceAction::Resume { reason, .. } => {
                self.post_pause(&format!("{path}/resume"), &reason).await
            }
            ResourceAction::SetTimers { timers, precondition, .. } => {
                self.set_timer(&path, &timers, precondition).await
            }
            ResourceAction::Submit(submit) => self.submit(&format!("{path}/jobs"), submit).await,
        }
    }

    async fn set_timer(
        &self,
        resource: &str,
        timers: &[TimerChange],
        precondition: Option<Precondition>,
    ) -> Result<Outcome, Error> {
        let [TimerChange { operation, setting }] = timers else {
            let message = "over HTTP, several timers are set with a put or by the holder of a job";
            return Err(Error::Protocol(message.to_owned()));
        };
        let path = format!("{resource}/timers/{operation}");
        let body = TimerRequest::new(*setting);
        let method = if body.is_some() { Method::PUT } else { Method::DELETE };
        let options = RequestOptions { precondition, ..RequestOptions::default() };
        let _: ResourceInfo =
            self.call(method, &path, options, body.as_ref(), Duration::ZERO).await?;
        Ok(Outcome::TimersSet { snapshot: None })
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
        self.post_submit(path, submit.request, submit.precondition, &body).await
    }

    async fn post_submit(
        &self,
        path: &str,
        request: RequestId,
        precondition: Option<Precondition>,
        body: &impl Serialize,
    ) -> Result<Outcome, Error> {
        let options = RequestOptions { id: Some(request.to_string()), precondition, tenant: None };
        let answer: SubmitResponse =
            self.call(Method::POST, path, options, Some(body), Duration::ZERO).await?;
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
            only: scope_request(&claim),
        };
        let tenant = claim.only.as_ref().map(|only| only.tenant().to_string());
        let options =
            RequestOptions { id: Some(claim.request.to_string()), precondition: None, tenant };
        let answer: ClaimResponse =
            self.call(Method::POST, "/v1/jobs/claim", options, Some(&body), max_wait).await?;
        let assigned = answer.jobs.iter().map(|job| job.to_assignment(claim.request));
        Ok(Outcome::Claimed(assigned.collect::<Result<_, _>>()?))
    }

    pub(super) async fn job(&self, id: JobId, action: JobAction) -> Result<Outcome, Error> {
        let path = |verb| format!("/v1/jobs/{id}/{verb}");
        match action {
            JobAction::Finish { token, finish, update } => {
                let body = FinishRequest::new(token, &finish, update.as_deref());
                let answer: FinishResponse = self.post_without_id(&path("finish"), &body).await?;
                Ok(Outcome::Finished { state: answer.state, already: answer.already })
            }
            JobAction::Status { token, update } => {
                self.post_update(&path("status"), &StatusRequest::new(token, &update)).await
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
                self.post_submit(&path("retry"), request, None, &reason_body(&reason)).await
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

/// Returns the restriction of a claim, which has one kind then.
fn scope_request(claim: &Claim) -> Option<ClaimScopeRequest> {
    let kind = claim.kinds.first()?.to_string();
    Some(match claim.only.as_ref()? {
        ClaimScope::Group { group, .. } => {
            ClaimScopeRequest { kind, group: Some(group.to_string()), name: None }
        }
        ClaimScope::Resource { name, .. } => {
            ClaimScopeRequest { kind, group: None, name: Some(name.to_string()) }
        }
    })
}

fn reason_body(reason: &Text) -> ReasonRequest {
    ReasonRequest { reason: Some(reason.to_string()) }
}

fn parse_json(field: &str, document: &Text) -> Result<Value, Error> {
    serde_json::from_str(document).map_err(|error| {
        Error::Refused(Refusal::Invalid(format!("{field} is not a JSON document: {error}")))
    })
}
