//! The API of builds, as a node uses it: requests are repeated while the server is unavailable.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure::Error;
use tenure::clock::BootInstant;
use tenure::http::HttpTransport;
use tenure::transport::Transport as _;
use tenure_cli_kit::message;
use tenure_cli_kit::text::query;

use tenure_core::retry::Class;
use tenure_core::{Command, Finish, JobAction, Outcome};

use crate::wire::{
    AckRequest, AckResponse, BuildInfo, BuildReportResponse, JoinRequest, JoinResponse,
    LeadershipInfo, PublishRequest, PublishResponse, ReleaseNodeRequest, ReleaseNodeResponse,
    ReserveRequest, ReserveResponse, RetryRequest, RetryResponse,
};

/// Time for which requests of verbs other than `run` are repeated.
pub(crate) const SERVER_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before a request is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(300);

/// Maximum length of the message of a failed setup: a quarter of the limit in bytes.
const MESSAGE_CHARS_MAX: usize = tenure_core::limits::MESSAGE_BYTES_MAX / 4;

/// The API of one build.
pub(crate) struct BuildApi {
    transport: HttpTransport,
    path: String,
    /// Time for which requests are repeated while the server does not answer.
    timeout: Duration,
}

impl BuildApi {
    pub(crate) fn new(transport: HttpTransport, build: &str, timeout: Duration) -> Self {
        let id = build.replace('/', "%2F");
        Self { transport, path: format!("/v1/builds/{id}"), timeout }
    }

    pub(crate) async fn join(&self, body: &JoinRequest) -> Result<JoinResponse, Error> {
        self.post("join", body, Duration::from_millis(body.wait_ms)).await
    }

    pub(crate) async fn publish(&self, body: &PublishRequest) -> Result<PublishResponse, Error> {
        self.post("publish", body, Duration::ZERO).await
    }

    pub(crate) async fn reserve(&self, body: &ReserveRequest) -> Result<ReserveResponse, Error> {
        self.post("reserve", body, Duration::from_millis(body.wait_ms)).await
    }

    pub(crate) async fn ack(&self, body: &AckRequest) -> Result<AckResponse, Error> {
        self.post("ack", body, Duration::ZERO).await
    }

    pub(crate) async fn release(
        &self,
        body: &ReleaseNodeRequest,
    ) -> Result<ReleaseNodeResponse, Error> {
        self.post("release", body, Duration::ZERO).await
    }

    pub(crate) async fn retry(&self, body: &RetryRequest) -> Result<RetryResponse, Error> {
        self.post("retry", body, Duration::ZERO).await
    }

    /// Ends the setup of a build as failed, on behalf of its leader.
    pub(crate) async fn fail_setup(
        &self,
        leadership: LeadershipInfo,
        code: &str,
        message: &str,
    ) -> Result<(), Error> {
        let LeadershipInfo { job, term: token } = leadership;
        let finish = Finish::Failed {
            code: code.into(),
            message: message.chars().take(MESSAGE_CHARS_MAX).collect::<String>().into(),
            class: Some(Class::Permanent),
            state: None,
            delay_ms: None,
        };
        let action = JobAction::Finish { token, finish, update: None };
        let command = Command::Job { id: job, action };
        let send = || self.transport.send(command.clone(), Duration::ZERO);
        match self.repeat(send).await? {
            Outcome::Refused(refusal) => Err(Error::Refused(refusal)),
            _ => Ok(()),
        }
    }

    pub(crate) async fn show(&self) -> Result<BuildInfo, Error> {
        self.get(&self.path).await
    }

    pub(crate) async fn report(&self, all: bool) -> Result<BuildReportResponse, Error> {
        let all = all.then(|| "true".to_owned());
        self.get(&query(&format!("{}/report", self.path), &[("all", all)])).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.repeat(|| self.transport.get(path)).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        verb: &str,
        body: &impl Serialize,
        wait: Duration,
    ) -> Result<T, Error> {
        let path = format!("{}/{verb}", self.path);
        // One key for all repetitions: a request whose answer was lost has no second effect.
        let key = tenure_store::random::request_id().to_string();
        self.repeat(|| self.transport.post(&path, Some(key.clone()), body, wait)).await
    }

    async fn repeat<T, F: Future<Output = Result<T, Error>>>(
        &self,
        mut request: impl FnMut() -> F,
    ) -> Result<T, Error> {
        let deadline = BootInstant::now() + self.timeout;
        let mut is_first = true;
        loop {
            match request().await {
                Err(error) if error.is_unavailable() && !deadline.has_passed() => {
                    if std::mem::take(&mut is_first) {
                        message::warn(&format!("{error}; retrying"));
                    }
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                result => return result,
            }
        }
    }
}
