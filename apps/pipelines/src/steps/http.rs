//! Steps that send an HTTP request and check the status of the response.
//!
//! The request has an `Idempotency-Key` that is the same for all tries of the step in a run, and
//! the token of the run, so that the server can detect duplicate and stale requests. Redirects are
//! not followed: they could leak a secret.

use std::error::Error as _;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode, Url, redirect};
use serde_json::{Map, Value};
use tenure::worker::Failure;
use tenure_config::report::Report;
use tenure_config::section::Section;
use tokio::time::timeout;

use super::StepContext;
use super::address::{AddressPolicy, PolicySource, RefusedAddress, Resolver};
use crate::declare::{DeclaredNames, SecretUse};
use crate::template::{Placeholder, Template, Values};

/// Supported methods.
const METHODS: [Method; 6] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
/// Maximum size of the response body in the log.
const LOGGED_BYTES_MAX: usize = 16 * 1024;
/// Maximum size read, larger than what is logged so that truncation does not cut a secret in half.
const READ_BYTES_MAX: usize = LOGGED_BYTES_MAX + 64 * 1024;
/// Time limit for reading the body of a successful response.
const SUCCESS_BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for reading the body of any other response.
const FAILURE_BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Headers that every step sets itself.
const RESERVED_HEADERS: [&str; 2] = ["idempotency-key", "x-tenure-token"];
/// Time limit for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of a request if the step has none.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// Failure code: no response, because the server is unreachable or the connection broke.
const HTTP_UNREACHABLE: &str = "HTTP_UNREACHABLE";
/// Failure code: the parameters make the request invalid.
const HTTP_INVALID: &str = "HTTP_INVALID";

/// An HTTP request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    method: Method,
    url: Template,
    headers: Vec<(HeaderName, Template)>,
    body: Option<Json>,
    /// Statuses that mean success; empty for 200 to 299.
    ok: Vec<u16>,
}

/// A JSON document with templates in its strings.
#[derive(Clone, Debug, PartialEq)]
enum Json {
    Plain(Value),
    Text(Template),
    Array(Vec<Self>),
    Object(Vec<(String, Self)>),
}

/// Creates an HTTP client, which connects to what a policy permits.
///
/// # Errors
///
/// Fails if the client cannot be created.
pub fn client(policy: PolicySource) -> Result<reqwest::Client, tenure::Error> {
    // Plain HTTP needs no certificates.
    let tls =
        tenure::http::tls::client_config().or_else(|_| tenure::http::tls::plain_http_config())?;
    let builder = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(redirect::Policy::none())
        .dns_resolver(Arc::new(Resolver(policy)))
        .tls_backend_preconfigured(tls);
    builder.build().map_err(|error| {
        tenure::Error::Unavailable(format!("cannot create an HTTP client: {error}"))
    })
}

impl Request {
    pub(super) async fn perform(&self, cx: &StepContext<'_>) -> Result<Option<Value>, Failure> {
        let mut request = self.build(cx.http, &cx.addresses, cx.values)?;
        request = request.timeout(cx.limit.unwrap_or(REQUEST_TIMEOUT));
        request = request.header("idempotency-key", format!("{}/{}", cx.job.id(), cx.phase.name));
        request = request.header("x-tenure-token", cx.job.token().to_string());
        // Right before the effect.
        cx.job.check()?;
        let response = request.send().await.map_err(|error| request_failure(&error))?;
        self.evaluate(cx, response).await
    }

    /// Builds the request, without what identifies a run.
    pub(super) fn build(
        &self,
        http: &reqwest::Client,
        addresses: &AddressPolicy,
        values: &Values,
    ) -> Result<reqwest::RequestBuilder, Failure> {
        let url = self.url.fill_with(|placeholder| match placeholder {
            // The author of the file chooses the URL; a trigger only fills in components of it.
            Placeholder::Parameter(_) => percent_encode(&values.text(placeholder)),
            Placeholder::Secret(_) | Placeholder::Run(_) => values.text(placeholder),
        });
        // A parameter must not change the path by dot segments.
        let path = url.split(['?', '#']).next().unwrap_or("");
        if path.split('/').any(|segment| segment == "." || segment == "..") {
            let why = "a parameter turns a segment of the URL path into `.` or `..`";
            return Err(Failure::permanent(HTTP_INVALID, why));
        }
        let url: Url =
            url.parse().map_err(|_| Failure::permanent(HTTP_INVALID, "the URL is invalid"))?;
        addresses
            .check(&url)
            .map_err(|error| Failure::permanent(HTTP_INVALID, error.to_string()))?;
        let mut request = http.request(self.method.clone(), url);
        for (name, value) in &self.headers {
            let value = HeaderValue::from_str(&value.fill(values)).map_err(|_| {
                let why =
                    format!("the header {name} has characters that are not allowed in a header");
                Failure::permanent(HTTP_INVALID, why)
            })?;
            request = request.header(name, value);
        }
        match &self.body {
            Some(Json::Text(text)) => request = request.body(self.fill_body(text, values)),
            Some(json) => request = request.json(&json.fill(values)),
            None => {}
        }
        Ok(request)
    }

    /// Returns whether a status means success.
    pub(super) fn is_success(&self, status: StatusCode) -> bool {
        if self.ok.is_empty() { status.is_success() } else { self.ok.contains(&status.as_u16()) }
    }

    /// Renders a text body. In JSON, which is known by its content type or by how it starts, and in
    /// a form, no value changes the structure.
    fn fill_body(&self, text: &Template, values: &Values) -> String {
        let content_type = self.headers.iter().find(|(name, _)| *name == CONTENT_TYPE);
        let content_type = content_type.map(|(_, value)| value.fill(values).to_ascii_lowercase());
        let starts_as_json = || text.literal_start().trim_start().starts_with(['{', '[', '"']);
        if content_type.as_ref().map_or_else(starts_as_json, |it| it.contains("json")) {
            text.fill_json_text(values)
        } else if content_type.is_some_and(|it| it.contains("x-www-form-urlencoded")) {
            text.fill_with(|placeholder| percent_encode(&values.text(placeholder)))
        } else {
            text.fill(values)
        }
    }

    async fn evaluate(
        &self,
        cx: &StepContext<'_>,
        response: reqwest::Response,
    ) -> Result<Option<Value>, Failure> {
        let status = response.status();
        let success = self.is_success(status);
        // A success status is final, even if the body cannot be read.
        let body = timeout(
            if success { SUCCESS_BODY_TIMEOUT } else { FAILURE_BODY_TIMEOUT },
            read_prefix(response),
        )
        .await;
        let body = cx.job.redact(&body.unwrap_or_default());
        let body = &body[..body.floor_char_boundary(LOGGED_BYTES_MAX)];
        cx.log(&format!("HTTP {status}\n{body}"));
        if success {
            return Ok(None);
        }
        let code = format!("HTTP_{}", status.as_u16());
        let line = body.lines().next().unwrap_or("");
        let why = format!("the server responded with {status} {line}");
        Err(match is_transient(status) {
            true => Failure::transient(&code, why.trim_end()),
            false => Failure::permanent(&code, why.trim_end()),
        })
    }

    pub(super) fn secrets(&self) -> Vec<&str> {
        let mut templates: Vec<&Template> = self.headers.iter().map(|(_, value)| value).collect();
        templates.push(&self.url);
        if let Some(body) = &self.body {
            body.templates(&mut templates);
        }
        let placeholders = templates.into_iter().flat_map(Template::placeholders);
        placeholders.filter_map(super::super::template::secret).collect()
    }
}

impl Json {
    fn fill(&self, values: &Values) -> Value {
        match self {
            Self::Plain(value) => value.clone(),
            Self::Text(text) => text.json(values),
            Self::Array(items) => items.iter().map(|item| item.fill(values)).collect(),
            Self::Object(fields) => {
                let fill = |(name, value): &(String, Self)| (name.clone(), value.fill(values));
                Value::Object(fields.iter().map(fill).collect::<Map<_, _>>())
            }
        }
    }

    fn templates<'s>(&'s self, found: &mut Vec<&'s Template>) {
        match self {
            Self::Plain(_) => {}
            Self::Text(text) => found.push(text),
            Self::Array(items) => items.iter().for_each(|item| item.templates(found)),
            Self::Object(fields) => fields.iter().for_each(|(_, value)| value.templates(found)),
        }
    }
}

fn is_transient(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 425 | 429) || status.is_server_error()
}

pub(super) fn request_failure(error: &reqwest::Error) -> Failure {
    if error.is_builder() {
        return Failure::permanent(HTTP_INVALID, "the URL is invalid");
    }
    // Without the URL, which may contain a secret.
    let mut why = "no response".to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(refused) = error.downcast_ref::<RefusedAddress>() {
            return Failure::permanent(HTTP_INVALID, refused.to_string());
        }
        write!(why, ": {error}").expect("writing to a string");
        cause = error.source();
    }
    Failure::transient(HTTP_UNREACHABLE, why)
}

/// Reads the first bytes of a response body as text.
async fn read_prefix(mut response: reqwest::Response) -> String {
    let mut bytes = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        bytes.extend_from_slice(&chunk);
        if bytes.len() >= READ_BYTES_MAX {
            bytes.truncate(READ_BYTES_MAX);
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Percent-encodes text as a component of a URL.
pub(crate) fn percent_encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("writing to a string");
        }
    }
    encoded
}

/// Keys of a request.
pub(super) const KEYS: [&str; 5] = ["method", "url", "headers", "body", "ok"];

pub(super) fn read(
    step: &Section<'_>,
    names: &DeclaredNames<'_>,
    report: &mut Report<'_>,
) -> Option<Request> {
    let section = step.section("http", report)?;
    section.check_keys(&KEYS, report);
    read_request(&section, "POST", names, report)
}

/// Reads a request; `method` is the default.
pub(super) fn read_request(
    section: &Section<'_>,
    method: &str,
    names: &DeclaredNames<'_>,
    report: &mut Report<'_>,
) -> Option<Request> {
    let name = section.text("method", report).unwrap_or(method);
    let method = METHODS.into_iter().find(|method| method.as_str() == name);
    if method.is_none() {
        let expected = METHODS.map(|method| method.as_str().to_owned()).join(", ");
        section.reject::<()>(
            "method",
            format!("{name:?} is not a supported method; expected one of {expected}"),
            report,
        );
    }
    let url = section.text("url", report);
    if !section.has("url") {
        report.add(&section.place, "`url` is missing");
    }
    if url.is_some_and(|url| !["http://", "https://", "{{"].iter().any(|p| url.starts_with(p))) {
        let why = "a URL must start with https:// or http://".to_owned();
        section.reject::<()>("url", why, report);
    }
    let url = names.template((section, "url"), url?, SecretUse::Allowed, report);
    let headers = headers(section, names, report);
    let body = section.json("body", report);
    let body = body.map(|body| json((section, "body"), body, names, report));
    let ok = statuses(section, "ok", report);
    Some(Request { method: method?, url, headers, body, ok })
}

fn headers(
    section: &Section<'_>,
    names: &DeclaredNames<'_>,
    report: &mut Report<'_>,
) -> Vec<(HeaderName, Template)> {
    let Some(section) = section.section("headers", report) else { return Vec::new() };
    let mut headers = Vec::new();
    for (name, text) in section.pairs(report) {
        let text = names.template((&section, name), text, SecretUse::Allowed, report);
        match name.parse::<HeaderName>() {
            Ok(name) if RESERVED_HEADERS.contains(&name.as_str()) => {
                let why = "every step sets this header itself".to_owned();
                section.reject::<()>(name.as_str(), why, report);
            }
            Ok(name) => headers.push((name, text)),
            Err(_) => drop(section.reject::<()>(name, "not a valid header name".into(), report)),
        }
    }
    headers
}

pub(super) fn statuses(section: &Section<'_>, key: &str, report: &mut Report<'_>) -> Vec<u16> {
    let Some(value) = section.json(key, report) else { return Vec::new() };
    let numbers = value.as_array().cloned().unwrap_or_else(|| vec![value]);
    let status = |number: &Value| number.as_u64().filter(|n| (100..=599).contains(n));
    let statuses: Option<Vec<u64>> = numbers.iter().map(status).collect();
    match statuses {
        Some(statuses) => statuses.into_iter().filter_map(|n| u16::try_from(n).ok()).collect(),
        None => {
            let why = "it must be a list of statuses such as [200, 404]".to_owned();
            section.reject(key, why, report).unwrap_or_default()
        }
    }
}

fn json(
    at: (&Section<'_>, &str),
    value: Value,
    names: &DeclaredNames<'_>,
    report: &mut Report<'_>,
) -> Json {
    match value {
        Value::String(text) => Json::Text(names.template(at, &text, SecretUse::Allowed, report)),
        Value::Array(items) => {
            Json::Array(items.into_iter().map(|item| json(at, item, names, report)).collect())
        }
        Value::Object(fields) => {
            let field = |(name, value): (String, Value), report: &mut Report<'_>| {
                (name, json(at, value, names, report))
            };
            Json::Object(fields.into_iter().map(|pair| field(pair, report)).collect())
        }
        plain => Json::Plain(plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_encoded_as_one_url_component() {
        assert_eq!(percent_encode("a b/../c?d=ä"), "a%20b%2F..%2Fc%3Fd%3D%C3%A4");
    }

    #[test]
    fn transient_statuses_are_distinguished_from_permanent_ones() {
        for status in [408, 425, 429, 500, 502, 503] {
            assert!(is_transient(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        for status in [301, 400, 401, 404, 409, 422] {
            assert!(!is_transient(StatusCode::from_u16(status).unwrap()), "{status}");
        }
    }
}
