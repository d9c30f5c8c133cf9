//! Extractors: validated bodies, paths and ids of a request.

use axum::extract::{FromRef, FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure_core::{Command, JobId, Precondition, RequestId, ResourceKey, SessionId, Text};
use tenure_wire::Object;

use crate::bodies::ReadBody;
use crate::caller::Caller;
use crate::problem::Problem;
use crate::services::Services;

/// Maximum size of a body.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Maximum size of a body with a document: 64 KiB, each byte possibly escaped as `\u0000`.
pub const DOCUMENT_BODY_BYTES_MAX: usize = 512 * 1024;
/// Maximum nesting of a document. Common parsers stop at 128 and may see it inside other values.
const DOCUMENT_DEPTH_MAX: usize = 64;

/// A JSON body. An empty body counts as `{}`.
pub struct Body<T, const BYTES_MAX: usize = BODY_BYTES_MAX>(pub T);

/// A JSON body that carries a document: arguments, a result, a spec, log text.
pub type DocumentBody<T> = Body<T, DOCUMENT_BODY_BYTES_MAX>;

impl<S, T, const BYTES_MAX: usize> FromRequest<S> for Body<T, BYTES_MAX>
where
    S: Send + Sync,
    T: DeserializeOwned,
    Services: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        Self::from_json(request, &Services::from_ref(state)).await
    }
}

impl<T: DeserializeOwned, const BYTES_MAX: usize> Body<T, BYTES_MAX> {
    /// Reads a JSON body.
    pub async fn from_json(request: Request, services: &Services) -> Result<Self, Problem> {
        Self::parse(&Self::read(request, services).await?.bytes)
    }

    /// Parses a JSON body.
    pub fn parse(bytes: &[u8]) -> Result<Self, Problem> {
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { bytes };
        parse_json(text)
            .map(Self)
            .map_err(|error| Problem::invalid(&format!("invalid body: {error}")))
    }

    /// Reads the body of an HTML form.
    pub async fn from_form(request: Request, services: &Services) -> Result<Self, Problem> {
        let body = Self::read(request, services).await?;
        serde_urlencoded::from_bytes(&body.bytes)
            .map(Self)
            .map_err(|error| Problem::invalid(&format!("invalid form: {error}")))
    }

    /// Reads a body.
    pub async fn read(request: Request, services: &Services) -> Result<ReadBody, Problem> {
        services.bodies.read(request.into_body(), BYTES_MAX).await
    }
}

/// Parses JSON; the error names the field.
fn parse_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let Object(value) = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let cause = error.into_inner();
        if path == "." { cause.to_string() } else { format!("{path}: {cause}") }
    })?;
    json.end().map_err(|error| error.to_string())?;
    Ok(value)
}

/// Serializes a document in its stored form; `field` is the name of the field it was sent in.
pub fn document(field: &str, value: &Value) -> Result<Text, Problem> {
    if depth(value, DOCUMENT_DEPTH_MAX).is_none() {
        let detail = format!("{field} is nested deeper than {DOCUMENT_DEPTH_MAX} levels");
        return Err(Problem::invalid(&detail));
    }
    Ok(tenure_wire::to_document(value))
}

/// Returns the remaining depth; `None` if `value` is nested deeper than `left` levels.
fn depth(value: &Value, left: usize) -> Option<usize> {
    let left = left.checked_sub(1)?;
    match value {
        Value::Array(items) => items.iter().try_fold(left, |_, item| depth(item, left)),
        Value::Object(fields) => fields.values().try_fold(left, |_, item| depth(item, left)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(left),
    }
}

/// The caller and the resource in the path.
pub struct OnResource {
    /// The caller.
    pub caller: Caller,
    /// The resource, of the caller's tenant.
    pub key: ResourceKey,
}

impl<S: Send + Sync> FromRequestParts<S> for OnResource {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let path = Path::<(String, String)>::from_request_parts(parts, state).await;
        let Path((kind, name)) = path.map_err(|error| Problem::invalid(&error))?;
        let key = caller.resource(&kind, &name)?;
        Ok(Self { caller, key })
    }
}

/// The caller and the only parameter of the path.
pub struct OnName {
    /// The caller.
    pub caller: Caller,
    /// The parameter.
    pub name: String,
}

impl<S: Send + Sync> FromRequestParts<S> for OnName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let path = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) = path.map_err(|error| Problem::invalid(&error))?;
        Ok(Self { caller, name })
    }
}

/// The caller and the job in the path. Whether the caller may see the job is not checked yet.
pub struct OnJob {
    /// The caller.
    pub caller: Caller,
    /// The job.
    pub id: JobId,
}

impl<S: Send + Sync> FromRequestParts<S> for OnJob {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let OnName { caller, name } = OnName::from_request_parts(parts, state).await?;
        let id = name.parse().map_err(|error| Problem::invalid(&format!("the job: {error}")))?;
        Ok(Self { caller, id })
    }
}

/// The caller and the session in the path. Whether it belongs to the caller's tenant is decided by
/// the command that names it.
pub struct OnSession {
    /// The caller.
    pub caller: Caller,
    /// The session.
    pub id: SessionId,
}

impl<S: Send + Sync> FromRequestParts<S> for OnSession {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let OnName { caller, name } = OnName::from_request_parts(parts, state).await?;
        let bad = |error| Problem::invalid(&format!("the session: {error}"));
        let id = name.parse().map_err(bad)?;
        Ok(Self { caller, id })
    }
}

/// The query string.
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = Query::<T>::try_from_uri(&parts.uri);
        query.map(|query| Self(query.0)).map_err(|error| Problem::invalid(&error))
    }
}

/// Marks a request whose `Idempotency-Key` was derived from that of its batch.
#[derive(Clone, Copy, Debug)]
pub struct KeyOfBatch;

/// The `Idempotency-Key`, if the request has one.
pub struct Idempotency {
    key: Option<String>,
    of_batch: bool,
    caller: Caller,
    services: Services,
}

impl Idempotency {
    /// Returns the request id within a scope, if the request has a key.
    pub fn id_if_sent(&self, scope: &str) -> Result<Option<RequestId>, Problem> {
        if self.key.is_some() { self.id(scope).map(Some) } else { Ok(None) }
    }

    /// Makes a command be executed at most once if the request has a key.
    pub fn once(&self, scope: &str, command: Command) -> Result<Command, Problem> {
        let id = self.id_if_sent(scope)?;
        Ok(match id {
            Some(id) => command.once(id),
            None => command,
        })
    }

    /// Makes a command that is idempotent by itself be executed at most once if it belongs to a
    /// batch with a key: what the other requests of the batch do must not make a repetition take
    /// effect.
    pub fn once_in_batch(&self, scope: &str, command: Command) -> Result<Command, Problem> {
        if self.of_batch { self.once(scope, command) } else { Ok(command) }
    }

    /// Returns the ids of the requests of a batch, by index, if the batch has a key.
    pub fn batch_ids(&self) -> Result<Option<impl Fn(usize) -> RequestId + use<>>, Problem> {
        let scope = format!("batch\n{}", self.caller.tenant);
        let services = self.services.clone();
        let batch = self.id_if_sent(&scope)?;
        Ok(batch.map(move |id| {
            move |index: usize| services.derive_request_id(&format!("{scope}\n{id}\n{index}"))
        }))
    }

    /// Returns the request id within a scope; different scopes may use the same key.
    pub fn id(&self, scope: &str) -> Result<RequestId, Problem> {
        match &self.key {
            Some(key) => self.services.request_id(&self.caller, key, scope),
            None => Ok(tenure_store::random::request_id()),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Idempotency
where
    Services: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let value = parts.headers.get("idempotency-key").map(|value| value.to_str());
        let value = value.transpose().map_err(|error| Problem::invalid(&error))?;
        let (key, services) = (value.map(str::to_owned), Services::from_ref(state));
        let of_batch = parts.extensions.get::<KeyOfBatch>().is_some();
        let caller = Caller::from_request_parts(parts, state).await?;
        Ok(Self { key, of_batch, caller, services })
    }
}

/// The condition of `If-Match` or `If-None-Match`, if the request has one.
pub struct IfMatch(pub Option<Precondition>);

impl IfMatch {
    /// Reads the condition.
    ///
    /// # Errors
    ///
    /// Fails with a sentence that names the header and what it must be.
    pub fn from_headers(headers: &HeaderMap) -> Result<Self, String> {
        let header = |name: &str| {
            let mut values = headers.get_all(name).iter();
            let first = values.next().map(|value| value.as_bytes());
            if values.next().is_some() {
                return Err(format!("the header {name} is repeated"));
            }
            Ok(first)
        };
        let condition = match (header("if-match")?, header("if-none-match")?) {
            (None, None) => None,
            (Some(wanted), None) => Some(
                parse_generation(wanted)
                    .ok_or("If-Match must be a generation in quotes, such as \"3\"")?,
            ),
            (None, Some(b"*")) => Some(Precondition::Absent),
            (None, Some(_)) => {
                return Err("If-None-Match must be *: the resource must not exist".to_owned());
            }
            (Some(_), Some(_)) => return Err("give either If-Match or If-None-Match".to_owned()),
        };
        Ok(Self(condition))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::from_headers(&parts.headers).map_err(|why| Problem::invalid(&why))
    }
}

/// Parses a generation in quotes.
fn parse_generation(value: &[u8]) -> Option<Precondition> {
    let digits = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok().map(Precondition::Generation)
}
