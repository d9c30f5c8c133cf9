//! Prechecks that send an HTTP request and find the id of the active run in the response.

use reqwest::StatusCode;
use serde_json::Value;
use tenure::worker::Failure;
use tenure_config::report::Report;
use tenure_config::section::Section;

use super::address::AddressPolicy;
use super::http::{self, Request};
use crate::declare::DeclaredNames;
use crate::template::Values;

/// Maximum size of the response body.
const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Failure code: the response is not as declared.
const HTTP_UNEXPECTED: &str = "HTTP_UNEXPECTED";

/// A request whose response tells whether a run is active.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HttpCheck {
    request: Request,
    /// JSON pointer to the id of the active run.
    id: String,
    /// Statuses that mean that no run is active.
    none: Vec<u16>,
}

impl HttpCheck {
    /// Returns the id of the active run, if there is one.
    pub(crate) async fn perform(
        &self,
        http: &reqwest::Client,
        addresses: &AddressPolicy,
        values: &Values,
    ) -> Result<Option<String>, Failure> {
        let request = self.request.build(http, addresses, values)?;
        let response = request.send().await.map_err(|error| http::request_failure(&error))?;
        let status = response.status();
        if self.none.contains(&status.as_u16()) {
            return Ok(None);
        }
        if !self.request.is_success(status) {
            return Err(unexpected(format!("the server responded with {status}")));
        }
        self.find_id(status, &read_body(response).await?)
    }

    fn find_id(&self, status: StatusCode, body: &[u8]) -> Result<Option<String>, Failure> {
        let body: Value = serde_json::from_slice(body).map_err(|error| {
            unexpected(format!("the body of the response {status} is not JSON: {error}"))
        })?;
        match body.pointer(&self.id) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(id)) => Ok(Some(id.clone())),
            Some(Value::Number(id)) => Ok(Some(id.to_string())),
            Some(_) => {
                Err(unexpected(format!("{} of the response is not a text or a number", self.id)))
            }
        }
    }

    pub(crate) fn secrets(&self) -> Vec<&str> {
        self.request.secrets()
    }
}

fn unexpected(why: String) -> Failure {
    Failure::permanent(HTTP_UNEXPECTED, why)
}

async fn read_body(mut response: reqwest::Response) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| http::request_failure(&error))? {
        body.extend_from_slice(&chunk);
        if body.len() > BODY_BYTES_MAX {
            let why = format!("the response has more than {BODY_BYTES_MAX} bytes; ask for less");
            return Err(unexpected(why));
        }
    }
    Ok(body)
}

pub(crate) fn read(
    precheck: &Section<'_>,
    names: &DeclaredNames<'_>,
    report: &mut Report<'_>,
) -> Option<HttpCheck> {
    let section = precheck.section("http", report)?;
    section.check_keys(&[&["id", "none"], &http::KEYS[..]].concat(), report);
    let id = section.text("id", report);
    if !section.has("id") {
        let why = "`id` is missing: a JSON pointer such as \"/runs/0/id\"";
        report.add(&section.place, why);
    }
    if id.is_some_and(|id| !id.is_empty() && !id.starts_with('/')) {
        let why = "a JSON pointer starts with a slash, such as \"/runs/0/id\"".to_owned();
        section.reject::<()>("id", why, report);
    }
    let none = http::statuses(&section, "none", report);
    let request = http::read_request(&section, "GET", names, report);
    Some(HttpCheck { request: request?, id: id?.to_owned(), none })
}
