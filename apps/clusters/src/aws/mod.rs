//! A small client for the JSON and query protocols of AWS.
//!
//! Credentials and signatures come from `object_store`: the environment, a web identity, a
//! container or the instance. Requests are bounded in time, size and number of tries. Errors never
//! have credentials.
//!
//! See `sqs.rs`, `tagging.rs` and `ec2.rs` for the services.

pub mod ec2;
mod error;
pub mod sqs;
pub mod tagging;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AwsAuthorizer, AwsCredentialProvider};
use object_store::client::HttpRequest;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use error::AwsError;

/// Number of tries of a request.
const TRIES_MAX: u32 = 5;
/// Time before the second try; it doubles each time.
const BACKOFF: Duration = Duration::from_millis(250);
/// Time limit of a request, without what it waits for on purpose.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// What is asked of the server.
const TARGET: HeaderName = HeaderName::from_static("x-amz-target");

/// Protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Json10,
    Json11,
    /// Form fields, with an answer in XML.
    Query,
}

impl Protocol {
    fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Json10 => "application/x-amz-json-1.0",
            Self::Json11 => "application/x-amz-json-1.1",
            Self::Query => "application/x-www-form-urlencoded; charset=utf-8",
        })
    }
}

/// A service of AWS.
#[derive(Clone, Copy, Debug)]
struct Service {
    /// Name in addresses and signatures.
    name: &'static str,
    protocol: Protocol,
    /// What precedes the names of actions.
    target: &'static str,
}

/// Client for AWS in one region.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    credentials: AwsCredentialProvider,
    region: String,
    endpoint: Option<Url>,
    backoff: Duration,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoint = self.endpoint.as_ref().map(Url::as_str);
        f.debug_struct("Client")
            .field("region", &self.region)
            .field("endpoint", &endpoint)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Creates a client with the credentials of the environment.
    ///
    /// `endpoint` replaces the addresses of all services.
    ///
    /// # Errors
    ///
    /// Fails if the endpoint is not a URL, or an option of the environment is wrong.
    pub fn from_env(region: &str, endpoint: Option<&str>) -> Result<Self, AwsError> {
        Self::with_credentials(region, endpoint, &BTreeMap::new())
    }

    /// Creates a client with credentials like `access_key_id` and `secret_access_key`, the options
    /// of `object_store`. Others come from the environment.
    ///
    /// # Errors
    ///
    /// See [`Client::from_env`].
    pub fn with_credentials(
        region: &str,
        endpoint: Option<&str>,
        options: &BTreeMap<String, String>,
    ) -> Result<Self, AwsError> {
        install_crypto();
        let endpoint = endpoint.map(parse_endpoint).transpose()?;
        // Only its credentials are used. They need no bucket, but the builder does.
        let builder = AmazonS3Builder::from_env().with_bucket_name("unused").with_region(region);
        let builder = options.iter().try_fold(builder, |builder, (name, value)| {
            let key = name.to_ascii_lowercase().parse().map_err(|_| {
                AwsError::Setup(format!("the option {name:?} is not known; remove it"))
            })?;
            Ok(builder.with_config(key, value))
        })?;
        let store = builder.build().map_err(|error| AwsError::credentials(&error))?;
        Ok(Self {
            http: http_client()?,
            credentials: store.credentials().clone(),
            region: region.to_owned(),
            endpoint,
            backoff: BACKOFF,
        })
    }

    /// Returns the client for another region.
    #[must_use]
    pub fn in_region(&self, region: &str) -> Self {
        Self { region: region.to_owned(), ..self.clone() }
    }

    /// Returns the region.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Sends a JSON request. It is repeated if that can help, so it has to be idempotent.
    async fn call<T: DeserializeOwned>(
        &self,
        service: Service,
        action: &'static str,
        body: &(impl Serialize + Sync),
        wait: Duration,
    ) -> Result<T, AwsError> {
        let invalid = |error: serde_json::Error| AwsError::Answer {
            service: service.name,
            action,
            why: error.to_string(),
        };
        let body = serde_json::to_vec(body).map_err(invalid)?;
        let answer = self.send(service, action, body, wait).await?;
        // Some actions answer with nothing.
        let answer = if answer.is_empty() { b"{}".as_slice() } else { &answer };
        serde_json::from_slice(answer).map_err(invalid)
    }

    /// Sends a request until it succeeds, or fails for good. Returns the body of the answer.
    async fn send(
        &self,
        service: Service,
        action: &'static str,
        body: Vec<u8>,
        wait: Duration,
    ) -> Result<Vec<u8>, AwsError> {
        let mut backoff = self.backoff;
        for _ in 1..TRIES_MAX {
            match self.try_send(service, action, body.clone(), wait).await {
                Err(error) if error.is_transient() => {
                    tracing::debug!(%error, "repeating a request to AWS");
                    tokio::time::sleep(backoff).await;
                    backoff *= 2;
                }
                done => return done,
            }
        }
        self.try_send(service, action, body, wait).await
    }

    async fn try_send(
        &self,
        service: Service,
        action: &'static str,
        body: Vec<u8>,
        wait: Duration,
    ) -> Result<Vec<u8>, AwsError> {
        let url = self.address(service)?;
        let headers = self.sign(service, action, &url, body.clone()).await?;
        let unreachable = |error: &reqwest::Error| AwsError::Unreachable {
            service: service.name,
            action,
            why: error::transport(error),
        };
        let request = self.http.post(url).headers(headers).body(body);
        let request = request.timeout(REQUEST_TIMEOUT + wait);
        let mut response = request.send().await.map_err(|error| unreachable(&error))?;
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| unreachable(&error))? {
            if answer.len() + chunk.len() > ANSWER_BYTES_MAX {
                let why = format!("it has more than {ANSWER_BYTES_MAX} bytes");
                return Err(AwsError::Answer { service: service.name, action, why });
            }
            answer.extend_from_slice(&chunk);
        }
        if response.status().is_success() {
            return Ok(answer);
        }
        Err(AwsError::refused(service.name, action, &response, &answer))
    }

    /// Returns the headers of a request, with its signature.
    async fn sign(
        &self,
        service: Service,
        action: &str,
        url: &Url,
        body: Vec<u8>,
    ) -> Result<HeaderMap, AwsError> {
        let failed = |error: object_store::Error| AwsError::credentials(&error);
        let credential = self.credentials.get_credential().await.map_err(failed)?;
        let mut request = HttpRequest::new(body.into());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = url.as_str().parse().map_err(|_| endpoint_error(url.as_str()))?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, service.protocol.content_type());
        if service.protocol != Protocol::Query {
            let target = HeaderValue::try_from(format!("{}.{action}", service.target));
            let target = target.map_err(|error| AwsError::Setup(error.to_string()))?;
            headers.insert(TARGET, target);
        }
        AwsAuthorizer::new(&credential, service.name, &self.region)
            .try_authorize(&mut request, None)
            .map_err(failed)?;
        Ok(std::mem::take(request.headers_mut()))
    }

    fn address(&self, service: Service) -> Result<Url, AwsError> {
        if let Some(endpoint) = &self.endpoint {
            return Ok(endpoint.clone());
        }
        let region = &self.region;
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if region.is_empty() || !region.chars().all(allowed) {
            return Err(AwsError::Setup(format!("{region:?} is not the name of a region")));
        }
        let suffix = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        let address = format!("https://{}.{region}.{suffix}/", service.name);
        Url::parse(&address).map_err(|_| endpoint_error(&address))
    }
}

fn parse_endpoint(endpoint: &str) -> Result<Url, AwsError> {
    let url = Url::parse(endpoint).map_err(|_| endpoint_error(endpoint))?;
    let is_plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    if !is_plain {
        // It may have a password, so it is not quoted.
        let why = "the endpoint has credentials or a query; it is only scheme, host and port";
        return Err(AwsError::Setup(why.to_owned()));
    }
    if !matches!(url.scheme(), "http" | "https") || url.cannot_be_a_base() {
        return Err(endpoint_error(endpoint));
    }
    Ok(url)
}

fn endpoint_error(endpoint: &str) -> AwsError {
    AwsError::Setup(format!("the endpoint {endpoint:?} is not a URL like https://host:port"))
}

fn http_client() -> Result<reqwest::Client, AwsError> {
    // Plain HTTP needs no certificates.
    let tls = tenure::http::tls::client_config()
        .or_else(|_| tenure::http::tls::plain_http_config())
        .map_err(|error| AwsError::Setup(error.to_string()))?;
    reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        // A redirect would need another signature.
        .redirect(reqwest::redirect::Policy::none())
        .tls_backend_preconfigured(tls)
        .build()
        .map_err(|error| AwsError::Setup(format!("cannot create an HTTP client: {error}")))
}

/// Makes ring the provider of cryptography of this process, which the HTTP client of `object_store`
/// needs, unless there is another one.
pub(crate) fn install_crypto() {
    rustls::crypto::ring::default_provider().install_default().ok();
}

#[cfg(test)]
mod tests;
