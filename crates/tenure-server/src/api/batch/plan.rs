//! Checks the requests of a batch and turns them into requests of their own.
//!
//! Whatever is refused here is refused for the whole batch, with the index of the request: requests
//! that wait or stream, and those that are no HTTP requests. All else is decided by the handlers.

use std::collections::HashMap;
use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, IF_MATCH, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use futures_util::{TryStreamExt as _, stream};
use serde_json::Value;
use tenure_app::extract::{IfMatch, KeyOfBatch};
use tenure_app::{Caller, Problem, Services};
use tenure_core::{JobId, RequestId};
use tenure_wire::BatchedRequest;

use super::READS_MAX;
use crate::request_id;

/// Headers of the batch that its requests have, too: who sends them where, in which trace.
const SHARED_HEADERS: [HeaderName; 6] = [
    HOST,
    AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    COOKIE,
    HeaderName::from_static("x-tenure-csrf"),
    HeaderName::from_static("traceparent"),
];
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REQUEST_ID: HeaderName = HeaderName::from_static(request_id::HEADER);
const METHODS: [Method; 4] = [Method::GET, Method::POST, Method::PUT, Method::DELETE];
/// Fields and parameters that make a request wait.
const WAITS: [&str; 2] = ["wait_ms", "poll_ms"];
/// Routes whose calls are independent of each other.
const UNORDERED: [&str; 2] = ["/v1/sessions", "/v1/jobs/claim"];

/// A request that can be sent.
pub(super) struct PlannedRequest {
    pub(super) request: Request,
    /// Requests of one lane are applied in order.
    pub(super) lane: Option<String>,
    /// Whether it runs alone in its lane.
    pub(super) exclusive: bool,
}

/// What the requests have from the batch.
pub(super) struct Origin {
    version: Version,
    headers: HeaderMap,
    peer: Option<ConnectInfo<SocketAddr>>,
    request_id: String,
    tenant: String,
    /// Added to a request that names no tenant.
    tenant_query: Option<String>,
}

/// Maximum length of an `Idempotency-Key`.
const KEY_BYTES_MAX: usize = 256;

impl Origin {
    pub(super) fn new(parts: &Parts, caller: &Caller) -> Self {
        let mut headers = HeaderMap::new();
        for name in SHARED_HEADERS {
            for value in parts.headers.get_all(&name) {
                headers.append(name.clone(), value.clone());
            }
        }
        let query = || serde_urlencoded::to_string([("tenant", &*caller.tenant)]).ok();
        Self {
            version: parts.version,
            headers,
            peer: parts.extensions.get::<ConnectInfo<SocketAddr>>().copied(),
            request_id: tenure_app::request_id::current(),
            tenant: caller.tenant.to_string(),
            tenant_query: if caller.bound_tenant().is_none() { query() } else { None },
        }
    }

    /// Plans a request, or refuses the batch because of it. `id` is the derived request id.
    pub(super) fn plan(
        &self,
        index: usize,
        request: BatchedRequest,
        id: Option<RequestId>,
    ) -> Result<PlannedRequest, Problem> {
        self.try_plan(index, request, id).map_err(|why| {
            let detail = format!("requests[{index}]: {why}; nothing was executed");
            Problem::new(400, "invalid", &detail)
        })
    }

    fn try_plan(
        &self,
        index: usize,
        request: BatchedRequest,
        id: Option<RequestId>,
    ) -> Result<PlannedRequest, String> {
        let BatchedRequest { method, path, body, idempotency_key, if_match, if_none_match } =
            request;
        let method =
            METHODS.into_iter().find(|known| known.as_str() == method).ok_or_else(|| {
                format!("the method {method:?} is not supported; use GET, POST, PUT or DELETE")
            })?;
        let (uri, tenant) = self.target(&path)?;
        check_body(body.as_ref())?;
        let mut headers = self.headers.clone();
        let derived = id.filter(|_| idempotency_key.is_none()).map(|id| id.to_string());
        let key_of_batch = derived.as_ref().map(|_| KeyOfBatch);
        if let Some(key) = &idempotency_key {
            check_key(key)?;
        }
        let key = idempotency_key.or(derived);
        let own = [
            (IDEMPOTENCY_KEY, "idempotency_key", key),
            (IF_MATCH, "if_match", if_match),
            (IF_NONE_MATCH, "if_none_match", if_none_match),
        ];
        for (header, field, value) in own {
            let Some(value) = value else { continue };
            let value = HeaderValue::from_str(&value)
                .map_err(|_| format!("{field} contains characters that a header cannot have"))?;
            headers.insert(header, value);
        }
        IfMatch::from_headers(&headers)?;
        if let Ok(id) = HeaderValue::from_str(&format!("{}.{index}", self.request_id)) {
            headers.insert(REQUEST_ID, id);
        }
        let (lane, exclusive) =
            lane(&method, uri.path(), tenant.as_deref().unwrap_or(&self.tenant));
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let mut request = Request::new(body);
        *request.version_mut() = self.version;
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(peer);
        }
        if let Some(key_of_batch) = key_of_batch {
            request.extensions_mut().insert(key_of_batch);
        }
        Ok(PlannedRequest { request, lane, exclusive })
    }

    /// Returns the target of a request with its tenant, and the tenant if the request names it.
    fn target(&self, path: &str) -> Result<(Uri, Option<String>), String> {
        if !path.starts_with("/v1/") {
            return Err(format!("the path {path:?} does not start with /v1/"));
        }
        let uri: Uri = path.parse().map_err(|error| format!("the path {path:?}: {error}"))?;
        match uri.path() {
            "/v1/batch" => return Err("a batch cannot contain a batch".to_owned()),
            "/v1/events" => {
                return Err("a batch cannot contain an event stream; open it on its own".to_owned());
            }
            _ => {}
        }
        let query = uri.query().unwrap_or_default();
        let parameters: Vec<(String, String)> =
            serde_urlencoded::from_str(query).map_err(|error| format!("the query: {error}"))?;
        if let Some((name, _)) = parameters
            .iter()
            .find(|(name, value)| WAITS.contains(&&**name) && !value.trim_matches('0').is_empty())
        {
            return Err(waits(name));
        }
        let named = parameters.into_iter().find(|(name, _)| name == "tenant");
        let named = named.map(|(_, tenant)| tenant);
        let Some(tenant) = self.tenant_query.as_ref().filter(|_| named.is_none()) else {
            return Ok((uri, named));
        };
        let separator = if query.is_empty() { "" } else { "&" };
        let target = format!("{}?{query}{separator}{tenant}", uri.path());
        let uri = target.parse().map_err(|error| format!("the path {path:?}: {error}"))?;
        Ok((uri, named))
    }
}

fn waits(name: &str) -> String {
    format!("a request of a batch must not wait; leave {name} out, or send it on its own")
}

/// Refuses bodies with a wait. Other routes refuse these fields themselves.
fn check_body(body: Option<&Value>) -> Result<(), String> {
    let Some(Value::Object(fields)) = body else { return Ok(()) };
    let is_wait = |value: &Value| match value {
        Value::Number(number) => number.as_f64() != Some(0.0),
        _ => false,
    };
    match WAITS.into_iter().find(|name| fields.get(*name).is_some_and(is_wait)) {
        Some(name) => Err(waits(name)),
        None => Ok(()),
    }
}

/// Prefix of the lanes of jobs until [`order`] has replaced them by those of their resources.
const JOB_LANE: &str = "job ";

/// Returns the lane of a request, and whether it runs alone in it.
fn lane(method: &Method, path: &str, tenant: &str) -> (Option<String>, bool) {
    let parts: Vec<String> = path.split('/').skip(2).map(decode).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let reads = method == Method::GET;
    match parts.as_slice() {
        ["resources" | "locks", kind, name, ..] => {
            (Some(format!("resource {tenant}/{kind}/{name}")), reads)
        }
        ["jobs", id, ..] if id.parse::<JobId>().is_ok() => {
            (Some(format!("{JOB_LANE}{}", id.to_ascii_lowercase())), reads)
        }
        _ if UNORDERED.contains(&path) => (None, false),
        // Lists, and routes of apps: in order if they are the same.
        _ => (Some(format!("path {tenant} {path}")), true),
    }
}

/// Decodes the percent-encoding of a path segment.
fn decode(segment: &str) -> String {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let escaped = tail.get(..2).filter(|_| first == b'%');
        let code = escaped
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Puts requests on jobs into the lanes of their resources, and removes lanes of one request.
pub(super) async fn order(
    requests: &mut [PlannedRequest],
    services: &Services,
) -> Result<(), Problem> {
    let jobs = requests.iter_mut().filter_map(|request| {
        let lane = request.lane.as_mut()?;
        let id: JobId = lane.strip_prefix(JOB_LANE)?.parse().ok()?;
        Some((lane, id))
    });
    stream::iter(jobs.map(Ok))
        .try_for_each_concurrent(READS_MAX, async |(lane, id)| {
            if let Some(key) = services.resource_of_job(id).await? {
                *lane = format!("resource {key}");
            }
            Ok::<_, Problem>(())
        })
        .await?;
    let mut sizes: HashMap<&str, usize> = HashMap::new();
    for lane in requests.iter().filter_map(|request| request.lane.as_deref()) {
        *sizes.entry(lane).or_default() += 1;
    }
    let single: Vec<bool> = requests
        .iter()
        .map(|request| request.lane.as_deref().is_some_and(|lane| sizes.get(lane) == Some(&1)))
        .collect();
    for (request, _) in requests.iter_mut().zip(single).filter(|(_, single)| *single) {
        request.lane = None;
    }
    Ok(())
}

/// Refuses a key that a header would not keep as it is.
fn check_key(key: &str) -> Result<(), String> {
    let is_edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_graphic);
    let bytes = key.as_bytes();
    if is_edge(bytes.first()) && is_edge(bytes.last()) && bytes.len() <= KEY_BYTES_MAX {
        return Ok(());
    }
    Err(format!("idempotency_key must have 1 to {KEY_BYTES_MAX} characters, without blanks around"))
}
