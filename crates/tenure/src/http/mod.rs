//! HTTP transport: commands become requests, responses become outcomes.
//!
//! Every request carries its id as `Idempotency-Key`, so retries are safe. The API key is a header
//! that is marked sensitive: it never appears in logs or errors.
//!
//! This module has locks and sessions; `jobs` has jobs and resources, `batch` batches, `queries`
//! has everything that only reads, `refusals` maps problem documents back to refusals, `failures`
//! describes missing responses.

mod batch;
mod failures;
mod jobs;
mod queries;
mod refusals;
pub mod tls;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
pub use reqwest::Method;
use reqwest::header::{AUTHORIZATION, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_core::{
    Acquire, Claimant, Command, LockAction, Outcome, Precondition, Refusal, ResourceKey, SessionId,
    TenureView,
};

use crate::error::Error;
use crate::http::failures::unavailable;
use crate::http::refusals::error_from_problem;
use crate::transport::{Queries, Transport};
use crate::wire::{
    AcquireRequest, BreakRequest, HeartbeatRequest, Locks, OpenSessionRequest, Problem,
    ReleaseRequest, ReleaseResponse, RenewRequest, SessionResponse, TenureInfo, WithdrawRequest,
    WithdrawResponse,
};

/// Timeout of a response, in addition to the time that the server may hold it back.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What a request has besides its path and its body.
#[derive(Debug, Default)]
pub struct RequestOptions {
    /// `Idempotency-Key`.
    pub id: Option<String>,
    /// Condition on the resource.
    pub precondition: Option<Precondition>,
    /// Tenant to act for, instead of that of the transport.
    pub tenant: Option<String>,
}

/// Transport to a server over HTTP.
pub struct HttpTransport {
    http: reqwest::Client,
    base: String,
    key: HeaderValue,
    tenant: String,
    on_problem: Option<fn(&Problem)>,
}

impl HttpTransport {
    /// Creates a transport to the server at `base` that acts for `tenant` with an API key.
    pub fn new(base: &str, key: &str, tenant: &str) -> Result<Self, Error> {
        let bad_key = |_| Error::Denied("the API key contains invalid characters".to_owned());
        let mut key = HeaderValue::from_str(&format!("Bearer {}", key.trim())).map_err(bad_key)?;
        key.set_sensitive(true);
        Self::build(base.trim_end_matches('/').to_owned(), key, tenant.to_owned())
    }

    fn build(base: String, key: HeaderValue, tenant: String) -> Result<Self, Error> {
        let is_tls = base.starts_with("https://");
        if !is_tls && !base.starts_with("http://") {
            let message = format!(
                "invalid server address {base:?}: expected https://HOST or http://HOST:7117"
            );
            return Err(Error::Refused(Refusal::Invalid(message)));
        }
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .tls_backend_preconfigured(if is_tls {
                tls::client_config()?
            } else {
                tls::plain_http_config()?
            })
            .build()
            .map_err(|error| {
                Error::Unavailable(format!("cannot create the HTTP client: {error}"))
            })?;
        Ok(Self { http, base, key, tenant, on_problem: None })
    }

    /// Calls `observe` with each problem document of the server. An [`Error`] does not have all its
    /// fields.
    #[must_use]
    pub fn on_problem(self, observe: fn(&Problem)) -> Self {
        Self { on_problem: Some(observe), ..self }
    }

    /// Sends a GET request; `path` includes the query.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.get_with_wait(path, Duration::ZERO).await
    }

    /// Sends a GET request that the server may hold back for up to `max_wait`, according to its
    /// `wait_ms`.
    pub async fn get_with_wait<T: DeserializeOwned>(
        &self,
        path: &str,
        max_wait: Duration,
    ) -> Result<T, Error> {
        self.call(Method::GET, path, RequestOptions::default(), None::<&()>, max_wait).await
    }

    /// Sends a POST request that is not a [`Command`]; `id` is its `Idempotency-Key`.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        id: Option<String>,
        body: &impl Serialize,
        max_wait: Duration,
    ) -> Result<T, Error> {
        self.call(
            Method::POST,
            path,
            RequestOptions { id, ..RequestOptions::default() },
            Some(body),
            max_wait,
        )
        .await
    }

    /// Sends a PUT request.
    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Error> {
        self.call(Method::PUT, path, RequestOptions::default(), Some(body), Duration::ZERO).await
    }

    /// Sends a DELETE request; `path` includes the query.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.call(Method::DELETE, path, RequestOptions::default(), None::<&()>, Duration::ZERO)
            .await
    }

    /// Sends a request. The server may hold it back for up to `max_wait`.
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        options: RequestOptions,
        body: Option<&impl Serialize>,
        max_wait: Duration,
    ) -> Result<T, Error> {
        let url = format!("{}{path}", self.base);
        let mut request = self.http.request(method, url).header(AUTHORIZATION, self.key.clone());
        let timeout = RESPONSE_TIMEOUT.saturating_add(max_wait);
        let RequestOptions { id, precondition, tenant } = options;
        let tenant = tenant.as_ref().unwrap_or(&self.tenant);
        request = request.query(&[("tenant", tenant)]).timeout(timeout);
        if let Some(id) = id {
            request = request.header("idempotency-key", id);
        }
        request = match precondition {
            Some(Precondition::Generation(wanted)) => {
                request.header(IF_MATCH, format!("\"{wanted}\""))
            }
            Some(Precondition::Absent) => request.header(IF_NONE_MATCH, "*"),
            None => request,
        };
        if let Some(body) = body {
            request = request.json(body);
        }
        let failed = |error| unavailable(&self.base, &error, timeout);
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(failed)?;
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|e| Error::Protocol(e.to_string()));
        }
        let problem: Problem = match serde_json::from_slice(&bytes) {
            Ok(problem) => problem,
            // A proxy answers like this while the server behind it restarts.
            Err(_) if matches!(status.as_u16(), 502..=504) => {
                return Err(Error::Unavailable(format!("{}: status {status}", self.base)));
            }
            Err(_) => {
                return Err(Error::Protocol(format!("status {status} without a problem document")));
            }
        };
        if let Some(observe) = self.on_problem {
            observe(&problem);
        }
        Err(error_from_problem(status, problem))
    }

    async fn lock(
        &self,
        key: &ResourceKey,
        action: LockAction,
        max_wait: Duration,
    ) -> Result<Outcome, Error> {
        let path = |verb| format!("/v1/locks/{}/{}/{verb}", key.kind(), key.name());
        let locks = |set: Option<_>| set.as_ref().map(Locks::from);
        match action {
            LockAction::Acquire(acquire) => self.acquire(&path("acquire"), acquire, max_wait).await,
            LockAction::Renew { token, ttl_ms } => {
                let body = RenewRequest { lock: None, token, ttl_ms };
                Ok(Outcome::Renewed(self.tenure(&path("renew"), &body).await?))
            }
            LockAction::Release { token, locks: set, to } => {
                let to = to.map(|to| to.to_string());
                let body = ReleaseRequest { lock: locks(set), token, to };
                let answer: ReleaseResponse =
                    self.post(&path("release"), None, &body, Duration::ZERO).await?;
                Ok(Outcome::Released { already: answer.already })
            }
            LockAction::Withdraw { request } => {
                let body = WithdrawRequest { request: request.to_string() };
                let answer: WithdrawResponse =
                    self.post(&path("withdraw"), None, &body, Duration::ZERO).await?;
                Ok(Outcome::Withdrawn { released: answer.token })
            }
            LockAction::Break { token, locks: set, reason, end_job, .. } => {
                let reason = reason.to_string();
                let body = BreakRequest { lock: locks(set), token, reason, end_job };
                let _: serde_json::Value =
                    self.post(&path("break"), None, &body, Duration::ZERO).await?;
                Ok(Outcome::Broken)
            }
            LockAction::Settle | LockAction::Forget { .. } => {
                Err(Error::Protocol("settle and forget are not available over HTTP".to_owned()))
            }
        }
    }

    async fn tenure(&self, path: &str, body: &impl Serialize) -> Result<TenureView, Error> {
        let answer: TenureInfo = self.post(path, None, body, Duration::ZERO).await?;
        Ok(answer.to_view()?)
    }

    async fn acquire(
        &self,
        path: &str,
        acquire: Acquire,
        max_wait: Duration,
    ) -> Result<Outcome, Error> {
        let (holder, ttl_ms, session) = match acquire.claimant {
            Claimant::Session(id) => (None, None, Some(id)),
            Claimant::Solo { name, ttl_ms } => (Some(name.to_string()), Some(ttl_ms), None),
        };
        let body = AcquireRequest {
            lock: Some(Locks::from(&acquire.locks)),
            holder,
            ttl_ms,
            session,
            wait_ms: Some(acquire.wait_ms),
            poll_ms: Some(u64::try_from(max_wait.as_millis()).unwrap_or(u64::MAX)),
            purpose: acquire.purpose.as_deref().map(str::to_owned),
            max_age_ms: acquire.max_age_ms,
        };
        let id = Some(acquire.request.to_string());
        let answer: Result<TenureInfo, _> = self.post(path, id, &body, max_wait).await;
        match answer {
            Ok(answer) => Ok(Outcome::Granted(answer.to_view()?)),
            Err(Error::Waiting { position, queue_length, held_by }) => {
                Ok(Outcome::Waiting { position, queue_length, held_by: held_by.map(|by| *by) })
            }
            Err(error) => Err(error),
        }
    }

    async fn session(
        &self,
        path: &str,
        id: Option<SessionId>,
        body: &impl Serialize,
    ) -> Result<Outcome, Error> {
        let id = id.map(|id| id.to_string());
        let answer: SessionResponse = self.post(path, id, body, Duration::ZERO).await?;
        let revoked = answer.revoked.into_iter().map(Into::into).collect();
        Ok(Outcome::Alive { session: answer.session, ttl_ms: answer.ttl_ms, revoked })
    }
}

#[async_trait]
impl Transport for HttpTransport {
    async fn send(&self, command: Command, max_wait: Duration) -> Result<Outcome, Error> {
        let result = match command {
            Command::Open { session, name, ttl_ms, .. } => {
                let body = OpenSessionRequest { name: name.to_string(), ttl_ms };
                self.session("/v1/sessions", Some(session), &body).await
            }
            Command::Heartbeat { session, seen, .. } => {
                let path = format!("/v1/sessions/{session}/beat");
                self.session(&path, None, &HeartbeatRequest { seen }).await
            }
            Command::Close { session, .. } => {
                let path = format!("/v1/sessions/{session}");
                let closed: Result<serde_json::Value, _> = self.delete(&path).await;
                closed.map(|_| Outcome::Closed)
            }
            Command::Expire { .. } | Command::Forget { .. } => {
                Err(Error::Protocol("the sweep is not available over HTTP".to_owned()))
            }
            Command::Lock { key, action } => self.lock(&key, action, max_wait).await,
            Command::Resource { key, action } => self.resource(&key, action, None).await,
            Command::Once { request, command } => match *command {
                Command::Resource { key, action } => {
                    self.resource(&key, action, Some(request)).await
                }
                _ => Err(Error::Protocol("only commands on resources have a key".to_owned())),
            },
            Command::Job { id, action } => self.job(id, action).await,
            Command::Claim(claim) => self.claim(claim, max_wait).await,
        };
        match result {
            Err(Error::Refused(refusal)) => Ok(Outcome::Refused(refusal)),
            other => other,
        }
    }

    async fn send_all(&self, commands: Vec<Command>) -> Vec<Result<Outcome, Error>> {
        self.batches(commands).await
    }

    fn queries(&self) -> &dyn Queries {
        self
    }

    fn for_tenant(&self, tenant: &str) -> Result<Option<Arc<dyn Transport>>, Error> {
        let (http, base, key) = (self.http.clone(), self.base.clone(), self.key.clone());
        let (tenant, on_problem) = (tenant.to_owned(), self.on_problem);
        Ok(Some(Arc::new(Self { http, base, key, tenant, on_problem })))
    }

    fn open_dedicated(&self) -> Result<Box<dyn Transport>, Error> {
        let transport = Self::build(self.base.clone(), self.key.clone(), self.tenant.clone())?;
        Ok(Box::new(Self { on_problem: self.on_problem, ..transport }))
    }
}
