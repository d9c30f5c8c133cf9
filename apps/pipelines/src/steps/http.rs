//! A step that sends a request over HTTP and looks at the status of the answer.
//!
//! The request carries an `Idempotency-Key` that is the same for each try of the step in a run, and
//! the token of the run, so that whoever is asked can tell repetitions and late ones apart. No
//! redirect is followed: it could lead a secret elsewhere.

use std::error::Error as _;
use std::fmt::Write as _;
use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{Method, StatusCode, redirect};
use serde_json::{Map, Value};
use tenure::worker::Failure;
use tenure_config::report::Report;
use tenure_config::section::Section;
use tokio::time::timeout;

use super::Try;
use crate::declare::{Allowed, Declared};
use crate::template::{Place, Template};

/// The methods that there are.
const METHODS: [Method; 6] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
/// How much of an answer is shown.
const ANSWER_BYTES_MAX: usize = 16 * 1024;
/// How much of it is read: what is cut off at the end must not be half a secret.
const READ_BYTES_MAX: usize = ANSWER_BYTES_MAX + 64 * 1024;
/// How long to wait for the body of an answer that is good, and of another.
const GOOD_BODY_MAX: Duration = Duration::from_secs(2);
const BODY_MAX: Duration = Duration::from_secs(10);
/// The headers that are the step's own.
const OWN_HEADERS: [&str; 2] = ["idempotency-key", "x-tenure-token"];
/// How long making a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Longest request when the step has no limit of its own.
const REQUEST_MAX: Duration = Duration::from_secs(60 * 60);

/// No answer: nobody is there, or the connection broke.
const HTTP_UNREACHABLE: &str = "HTTP_UNREACHABLE";
/// What a parameter makes of the request is no request.
const HTTP_INVALID: &str = "HTTP_INVALID";

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    method: Method,
    url: Template,
    headers: Vec<(HeaderName, Template)>,
    body: Option<Json>,
    /// The statuses that are good; those from 200 to 299 when nothing is said.
    ok: Vec<u16>,
}

/// A JSON document with places in its texts.
#[derive(Clone, Debug, PartialEq)]
enum Json {
    Plain(Value),
    Text(Template),
    Array(Vec<Self>),
    Object(Vec<(String, Self)>),
}

/// What sends the requests of all steps.
///
/// # Errors
///
/// When the certificates of this system cannot be read.
pub fn client() -> Result<reqwest::Client, tenure::Error> {
    // Who only speaks plain HTTP needs no certificates.
    let tls =
        tenure::http::tls::client_config().or_else(|_| tenure::http::tls::plain_http_config())?;
    let builder = reqwest::Client::builder()
        .connect_timeout(CONNECT_MAX)
        .redirect(redirect::Policy::none())
        .tls_backend_preconfigured(tls);
    builder.build().map_err(|error| tenure::Error::Unavailable(format!("no HTTP client: {error}")))
}

impl Request {
    pub(super) async fn perform(&self, with: &Try<'_>) -> Result<Option<Value>, Failure> {
        let values = with.values;
        let url = self.url.fill_with(|place| match place {
            // The one who wrote the file chose the address, the one who triggers only fills it in.
            Place::Parameter(_) => encoded(&values.text(place)),
            Place::Secret(_) | Place::Run(_) => values.text(place),
        });
        // A part of the way that means another part is nobody's to fill in.
        let way = url.split(['?', '#']).next().unwrap_or("");
        if way.split('/').any(|part| part == "." || part == "..") {
            let why = "a parameter makes `.` or `..` of a part of the address";
            return Err(Failure::permanent(HTTP_INVALID, why));
        }
        let mut request = with.http.request(self.method.clone(), &url);
        request = request.timeout(with.limit.unwrap_or(REQUEST_MAX));
        request =
            request.header("idempotency-key", format!("{}/{}", with.job.id(), with.part.name));
        request = request.header("x-tenure-token", with.job.token().to_string());
        for (name, value) in &self.headers {
            let value = HeaderValue::from_str(&value.fill(values)).map_err(|_| {
                let why = format!("the header {name} has characters that no header has");
                Failure::permanent(HTTP_INVALID, why)
            })?;
            request = request.header(name, value);
        }
        match &self.body {
            Some(Json::Text(text)) => request = request.body(text.fill(values)),
            Some(json) => request = request.json(&json.fill(with)),
            None => {}
        }
        // Right before the effect.
        with.job.check()?;
        let answer = request.send().await.map_err(|error| unreachable(&error))?;
        self.judge(with, answer).await
    }

    async fn judge(
        &self,
        with: &Try<'_>,
        answer: reqwest::Response,
    ) -> Result<Option<Value>, Failure> {
        let status = answer.status();
        let good = if self.ok.is_empty() {
            status.is_success()
        } else {
            self.ok.contains(&status.as_u16())
        };
        // Whoever answered well has done it, whatever becomes of the rest of the answer.
        let body = timeout(if good { GOOD_BODY_MAX } else { BODY_MAX }, beginning(answer)).await;
        let body = with.job.redact(&body.unwrap_or_default());
        let body = &body[..body.floor_char_boundary(ANSWER_BYTES_MAX)];
        with.log(&format!("HTTP {status}\n{body}"));
        if good {
            return Ok(None);
        }
        let code = format!("HTTP_{}", status.as_u16());
        let line = body.lines().next().unwrap_or("");
        let why = format!("the answer is {status} {line}");
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
        let places = templates.into_iter().flat_map(Template::places);
        places.filter_map(super::super::template::secret).collect()
    }
}

impl Json {
    fn fill(&self, with: &Try<'_>) -> Value {
        match self {
            Self::Plain(value) => value.clone(),
            Self::Text(text) => text.json(with.values),
            Self::Array(items) => items.iter().map(|item| item.fill(with)).collect(),
            Self::Object(fields) => {
                let fill = |(name, value): &(String, Self)| (name.clone(), value.fill(with));
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

fn unreachable(error: &reqwest::Error) -> Failure {
    if error.is_builder() {
        return Failure::permanent(HTTP_INVALID, "the address is none");
    }
    // Without the address, which may have a secret in it.
    let mut why = "no answer".to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        write!(why, ": {error}").expect("a string takes everything");
        cause = error.source();
    }
    Failure::transient(HTTP_UNREACHABLE, why)
}

/// The beginning of an answer, as text.
async fn beginning(mut answer: reqwest::Response) -> String {
    let mut bytes = Vec::new();
    while let Ok(Some(piece)) = answer.chunk().await {
        bytes.extend_from_slice(&piece);
        if bytes.len() >= READ_BYTES_MAX {
            bytes.truncate(READ_BYTES_MAX);
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A text as a part of an address.
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("a string takes everything");
        }
    }
    encoded
}

pub(super) fn read(
    step: &Section<'_>,
    declared: &Declared<'_>,
    report: &mut Report<'_>,
) -> Option<Request> {
    let section = step.section("http", report)?;
    section.known(&["method", "url", "headers", "body", "ok"], report);
    let word = section.text("method", report).unwrap_or("POST");
    let method = METHODS.into_iter().find(|method| method.as_str() == word);
    if method.is_none() {
        let words = METHODS.map(|method| method.as_str().to_owned()).join(", ");
        section.refuse::<()>("method", format!("{word:?} is none of {words}"), report);
    }
    let url = section.text("url", report);
    if !section.has("url") {
        report.add(&section.place, "`url` is missing");
    }
    if url.is_some_and(|url| !["http://", "https://", "{{"].iter().any(|p| url.starts_with(p))) {
        let why = "an address begins with https:// or http://".to_owned();
        section.refuse::<()>("url", why, report);
    }
    let url = declared.template((&section, "url"), url?, Allowed::Secrets, report);
    let headers = headers(&section, declared, report);
    let body = section.json("body", report);
    let body = body.map(|body| json((&section, "body"), body, declared, report));
    let ok = statuses(&section, report);
    Some(Request { method: method?, url, headers, body, ok })
}

fn headers(
    section: &Section<'_>,
    declared: &Declared<'_>,
    report: &mut Report<'_>,
) -> Vec<(HeaderName, Template)> {
    let Some(section) = section.section("headers", report) else { return Vec::new() };
    let mut headers = Vec::new();
    for (name, text) in section.pairs(report) {
        let text = declared.template((&section, name), text, Allowed::Secrets, report);
        match name.parse::<HeaderName>() {
            Ok(name) if OWN_HEADERS.contains(&name.as_str()) => {
                let why = "every step sends this header by itself".to_owned();
                section.refuse::<()>(name.as_str(), why, report);
            }
            Ok(name) => headers.push((name, text)),
            Err(_) => drop(section.refuse::<()>(name, "it is no name of a header".into(), report)),
        }
    }
    headers
}

fn statuses(section: &Section<'_>, report: &mut Report<'_>) -> Vec<u16> {
    let Some(value) = section.json("ok", report) else { return Vec::new() };
    let numbers = value.as_array().cloned().unwrap_or_else(|| vec![value]);
    let status = |number: &Value| number.as_u64().filter(|n| (100..=599).contains(n));
    let statuses: Option<Vec<u64>> = numbers.iter().map(status).collect();
    match statuses {
        Some(statuses) => statuses.into_iter().filter_map(|n| u16::try_from(n).ok()).collect(),
        None => {
            let why = "it is a list of statuses such as [200, 404]".to_owned();
            section.refuse("ok", why, report).unwrap_or_default()
        }
    }
}

fn json(
    at: (&Section<'_>, &str),
    value: Value,
    declared: &Declared<'_>,
    report: &mut Report<'_>,
) -> Json {
    match value {
        Value::String(text) => Json::Text(declared.template(at, &text, Allowed::Secrets, report)),
        Value::Array(items) => {
            Json::Array(items.into_iter().map(|item| json(at, item, declared, report)).collect())
        }
        Value::Object(fields) => {
            let field = |(name, value): (String, Value), report: &mut Report<'_>| {
                (name, json(at, value, declared, report))
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
    fn a_value_stays_one_part_of_an_address() {
        assert_eq!(encoded("a b/../c?d=ä"), "a%20b%2F..%2Fc%3Fd%3D%C3%A4");
    }

    #[test]
    fn what_may_be_better_later_is_told_from_what_will_not() {
        for status in [408, 425, 429, 500, 502, 503] {
            assert!(is_transient(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        for status in [301, 400, 401, 404, 409, 422] {
            assert!(!is_transient(StatusCode::from_u16(status).unwrap()), "{status}");
        }
    }
}
