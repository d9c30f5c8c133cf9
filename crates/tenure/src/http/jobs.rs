//! Jobs and resources over HTTP.

use std::time::Duration;

use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
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

/// A request on a resource, and how its answer is read.
pub(super) struct ResourceCall {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) options: RequestOptions,
    pub(super) body: Option<Value>,
    pub(super) parse: fn(Value) -> Result<Outcome, Error>,
}

impl ResourceCall {
    pub(super) fn new(key: &ResourceKey, action: ResourceAction) -> Result<Self, Error> {
        let path = resource_path(key);
        match action {
            ResourceAction::Put(Put { spec, request, precondition, timers, .. }) => {
                let spec = parse_json("spec", &spec)?;
                let body = PutResourceRequest { spec, timers: timer_requests(&timers) };
                let id = request.map(|id| id.to_string());
                let options = RequestOptions { id, precondition, tenant: None };
                let body = to_body(Some(&body))?;
                Ok(Self { method: Method::PUT, path, options, body, parse: parse_put })
            }
            ResourceAction::Delete { precondition, .. } => {
                let options = RequestOptions { precondition, ..RequestOptions::default() };
                let parse = parse_deleted;
                Ok(Self { method: Method::DELETE, path, options, body: None, parse })
            }
            ResourceAction::Pause { reason, .. } => Self::pause(format!("{path}/pause"), &reason),
            ResourceAction::Resume { reason, .. } => Self::pause(format!("{path}/resume"), &reason),
            ResourceAction::SetTimers { timers, precondition, .. } => {
                Self::timer(&path, &timers, precondition)
            }
            ResourceAction::Submit(submit) => Self::submit(format!("{path}/jobs"), &submit),
        }
    }

    /// Sends the id of a [`Command::Once`].
    pub(super) fn once(mut self, request: Option<RequestId>) -> Self {
        if let Some(request) = request {
            self.options.id = Some(request.to_string());
        }
        self
    }

    fn pause(path: String, reason: &Text) -> Result<Self, Error> {
        let body = to_body(Some(&reason_body(reason)))?;
        let options = RequestOptions::default();
        Ok(Self { method: Method::POST, path, options, body, parse: parse_paused })
    }

    fn timer(
        resource: &str,
        timers: &[TimerChange],
        precondition: Option<Precondition>,
    ) -> Result<Self, Error> {
        let [TimerChange { operation, setting }] = timers else {
            let message = "over HTTP, several timers are set with a put or by the holder of a job";
            return Err(Error::Protocol(message.to_owned()));
        };
        let path = format!("{resource}/timers/{operation}");
        let body = TimerRequest::new(*setting);
        let method = if body.is_some() { Method::PUT } else { Method::DELETE };
        let options = RequestOptions { precondition, ..RequestOptions::default() };
        Ok(Self { method, path, options, body: to_body(body.as_ref())?, parse: parse_timers })
    }

    fn submit(path: String, submit: &Submit) -> Result<Self, Error> {
        let body = SubmitRequest {
            operation: submit.operation.to_string(),
            args: submit.args.as_ref().map(|args| parse_json("args", args)).transpose()?,
            priority: submit.priority,
            run_at: submit.run_at.map(instant),
        };
        let id = Some(submit.request.to_string());
        let options = RequestOptions { id, precondition: submit.precondition, tenant: None };
        let body = to_body(Some(&body))?;
        Ok(Self { method: Method::POST, path, options, body, parse: parse_submitted })
    }
}

fn to_body(body: Option<&impl Serialize>) -> Result<Option<Value>, Error> {
    let body = body.map(serde_json::to_value).transpose();
    body.map_err(|error| Error::Refused(Refusal::Invalid(error.to_string())))
}

fn read<T: DeserializeOwned>(answer: Value) -> Result<T, Error> {
    serde_json::from_value(answer).map_err(|error| Error::Protocol(error.to_string()))
}

fn parse_put(answer: Value) -> Result<Outcome, Error> {
    let answer: PutResourceResponse = read(answer)?;
    let (generation, job) = (answer.resource.generation, answer.job);
    // The JSON of a resource does not have all its fields.
    Ok(Outcome::Put { generation, job, snapshot: None })
}

fn parse_deleted(answer: Value) -> Result<Outcome, Error> {
    let _: DeleteResourceResponse = read(answer)?;
    Ok(Outcome::Deleted)
}

fn parse_paused(answer: Value) -> Result<Outcome, Error> {
    let answer: PauseResponse = read(answer)?;
    Ok(Outcome::Paused(answer.paused))
}

fn parse_timers(answer: Value) -> Result<Outcome, Error> {
    let _: ResourceInfo = read(answer)?;
    Ok(Outcome::TimersSet { snapshot: None })
}

fn parse_submitted(answer: Value) -> Result<Outcome, Error> {
    let answer: SubmitResponse = read(answer)?;
    // The JSON of a job does not have all its fields.
    Ok(Outcome::Submitted { verdict: answer.verdict, job: answer.job.id, snapshot: None })
}

impl HttpTransport {
    pub(super) async fn resource(
        &self,
        key: &ResourceKey,
        action: ResourceAction,
        once: Option<RequestId>,
    ) -> Result<Outcome, Error> {
        let call = ResourceCall::new(key, action)?.once(once);
        let ResourceCall { method, path, options, body, parse } = call;
        parse(self.call(method, &path, options, body.as_ref(), Duration::ZERO).await?)
    }

    async fn retry(&self, path: &str, request: RequestId, reason: &Text) -> Result<Outcome, Error> {
        let body = reason_body(reason);
        let id = Some(request.to_string());
        parse_submitted(self.post(path, id, &body, Duration::ZERO).await?)
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
                self.retry(&path("retry"), request, &reason).await
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
    async fn post_without_id<T: DeserializeOwned>(
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
