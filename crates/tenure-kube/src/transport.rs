//! Sends requests: time limits, repetitions, pages of lists, and watches as hints.
//!
//! Must never repeat a request that could take effect twice: writes name the version that they
//! change, so that a repetition of one that was applied is a conflict.

use futures_util::TryStreamExt as _;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use kube::client::{AuthError, Body};
use kube::core::params::{ListParams, WatchParams};
use kube::core::{ObjectList, Request as Path, WatchEvent, request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

use crate::client::Kube;
use crate::error::{Cause, Error};
use crate::retry;

/// Objects per page of a list. A node with its images has up to 50 KB.
const PAGE_OBJECTS: u32 = 200;
/// Maximum number of pages of a list.
const PAGES_MAX: u32 = 100;
/// How often a list starts over because its pages expired.
const LIST_RESTARTS_MAX: u32 = 3;
/// Largest body of an answer.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How one attempt ended.
enum Attempt<T> {
    Answered(T),
    Refused(Error),
    Failed(Cause, Option<std::time::Duration>),
}

/// A request that is built, or why it cannot be.
type Built = Result<Request<Vec<u8>>, request::Error>;

impl Kube {
    /// Sends a request and repeats it if its failure may be transient. `tried` follows "cannot".
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        tried: &str,
        built: Built,
    ) -> Result<T, Error> {
        let request = built.map_err(|error| Error::invalid(tried, error.to_string()))?;
        let attempts = self.options.attempts_max.max(1);
        let mut attempt = 0;
        loop {
            let (source, asked) = match self.attempt(tried, request.clone()).await {
                Attempt::Answered(answer) => return Ok(answer),
                Attempt::Refused(error) => return Err(error),
                Attempt::Failed(cause, asked) => (cause, asked),
            };
            attempt += 1;
            if attempt >= attempts {
                return Err(Error::Unreachable { tried: tried.to_owned(), attempts, source });
            }
            sleep(retry::delay(self.options.retry_delay, attempt - 1, asked)).await;
        }
    }

    async fn attempt<T: DeserializeOwned>(
        &self,
        tried: &str,
        request: Request<Vec<u8>>,
    ) -> Attempt<T> {
        let sent = timeout(self.options.request_timeout, self.exchange(request)).await;
        let answer = match sent {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) if is_credential_failure(&error) => {
                let (tried, message) = (tried.to_owned(), "no credentials".to_owned());
                return Attempt::Refused(Error::Unauthorized { tried, message });
            }
            Ok(Err(error)) => return Attempt::Failed(error, None),
            Err(elapsed) => return Attempt::Failed(elapsed.into(), None),
        };
        let status = answer.status;
        if status.is_success() {
            return match serde_json::from_slice(&answer.body) {
                Ok(parsed) => Attempt::Answered(parsed),
                Err(error) => {
                    let message = format!("the answer is not what this API returns: {error}");
                    Attempt::Refused(Error::invalid(tried, message))
                }
            };
        }
        let refusal = serde_json::from_slice(&answer.body).unwrap_or_else(|_| Refusal::default());
        if retry::is_transient(status) {
            let cause = format!("the server answered {status}: {}", refusal.message);
            return Attempt::Failed(cause.into(), answer.retry_after);
        }
        Attempt::Refused(Error::of_status(tried, status, &refusal.message))
    }

    async fn exchange(&self, request: Request<Vec<u8>>) -> Result<Answer, Cause> {
        let response = self.client.send(request.map(Body::from)).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await?.to_bytes().to_vec();
        Ok(Answer { status: head.status, retry_after: retry::retry_after(&head.headers), body })
    }

    /// Lists objects, all pages of it.
    pub(crate) async fn list<T: DeserializeOwned + Clone>(
        &self,
        tried: &str,
        path: &str,
        labels: Option<&str>,
    ) -> Result<Listed<T>, Error> {
        let mut restarts = 0;
        loop {
            match self.list_once(tried, path, labels).await {
                Err(Error::Expired { .. }) if restarts < LIST_RESTARTS_MAX => restarts += 1,
                listed => return listed,
            }
        }
    }

    async fn list_once<T: DeserializeOwned + Clone>(
        &self,
        tried: &str,
        path: &str,
        labels: Option<&str>,
    ) -> Result<Listed<T>, Error> {
        let mut params = ListParams::default().limit(PAGE_OBJECTS);
        params.label_selector = labels.map(str::to_owned);
        let mut items = Vec::new();
        for _ in 0..PAGES_MAX {
            let page: ObjectList<T> = self.call(tried, Path::new(path).list(&params)).await?;
            items.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => {
                    let version = page.metadata.resource_version.unwrap_or_default();
                    return Ok(Listed { items, version });
                }
            }
        }
        let objects = PAGES_MAX * PAGE_OBJECTS;
        Err(Error::invalid(tried, format!("there are more than {objects} objects")))
    }

    /// Completes when an object changes after `version`. Never completes if the watch fails: it is
    /// a hint, and the caller polls.
    pub(crate) async fn changed(&self, path: &str, version: &str) {
        if self.next_event(path, version).await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    async fn next_event(&self, path: &str, version: &str) -> Option<()> {
        let request = Path::new(path).watch(&WatchParams::default(), version).ok()?;
        let events = self.client.request_events::<serde_json::Value>(request).await.ok()?;
        let mut events = std::pin::pin!(events);
        loop {
            match events.try_next().await.ok()?? {
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(_) => return None,
                WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Deleted(_) => {
                    return Some(());
                }
            }
        }
    }
}

/// All objects of a list, and the version to watch from.
pub(crate) struct Listed<T> {
    pub(crate) items: Vec<T>,
    pub(crate) version: String,
}

struct Answer {
    status: StatusCode,
    retry_after: Option<std::time::Duration>,
    body: Vec<u8>,
}

/// The part of a `Status` object that errors repeat.
#[derive(Default, Deserialize)]
struct Refusal {
    #[serde(default)]
    message: String,
}

/// Whether a request was not sent because a plugin or a token file gave nothing. Its text can quote
/// the output of the plugin.
fn is_credential_failure(error: &Cause) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error.as_ref());
    while let Some(error) = next {
        let is_auth = matches!(error.downcast_ref(), Some(kube::Error::Auth(_)));
        if is_auth || error.is::<AuthError>() {
            return true;
        }
        next = error.source();
    }
    false
}
