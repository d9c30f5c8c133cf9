//! What handlers take from a request: bodies, paths and ids that were checked.

use std::sync::Arc;

use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure::wire::Object;
use tenure_core::{JobId, RequestId, ResourceKey, SessionId, Text};

use crate::App;
use crate::auth::Caller;
use crate::problem::Problem;
use crate::whose;

/// Longest body that is read.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Longest body that carries a document: 64 KiB of it, each byte perhaps written as `\u0000`.
pub const DOCUMENT_BODY_BYTES_MAX: usize = 512 * 1024;
/// How deep a document may be nested. Readers stop at 128 and see it inside of other things.
const DOCUMENT_DEPTH_MAX: usize = 64;
/// Longest `Idempotency-Key`.
const IDEMPOTENCY_KEY_MAX: usize = 256;

/// A JSON body. An empty one counts as `{}`.
pub struct Body<T, const BYTES_MAX: usize = BODY_BYTES_MAX>(pub T);

/// A JSON body with a document in it: arguments, a result, a desired state, a piece of log.
pub type DocumentBody<T> = Body<T, DOCUMENT_BODY_BYTES_MAX>;

impl<T: DeserializeOwned, const BYTES_MAX: usize> FromRequest<Arc<App>> for Body<T, BYTES_MAX> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        Self::from_json(request, app).await
    }
}

impl<T: DeserializeOwned, const BYTES_MAX: usize> Body<T, BYTES_MAX> {
    /// JSON.
    pub(crate) async fn from_json(request: Request, app: &App) -> Result<Self, Problem> {
        let bytes = Self::bytes(request, app).await?;
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        read(text).map(Self).map_err(|error| {
            Problem::invalid(&format!("the body is not what is expected: {error}"))
        })
    }

    /// What the form of a page sends.
    pub(crate) async fn from_form(request: Request, app: &App) -> Result<Self, Problem> {
        let bytes = Self::bytes(request, app).await?;
        serde_urlencoded::from_bytes(&bytes).map(Self).map_err(|error| {
            Problem::invalid(&format!("the form is not what is expected: {error}"))
        })
    }

    async fn bytes(request: Request, app: &App) -> Result<Bytes, Problem> {
        let (body, patience) = (to_bytes(request.into_body(), BYTES_MAX), app.patience);
        let Ok(bytes) = tokio::time::timeout(patience, body).await else {
            let detail = format!("the body did not come within {patience:?}; send it again");
            return Err(Problem::new(408, "timeout", &detail));
        };
        bytes.map_err(|_| {
            let detail = format!("the body is cut off or has more than {BYTES_MAX} bytes");
            Problem::new(413, "too_large", &detail)
        })
    }
}

/// Reads JSON; the error names the field.
fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let Object(value) = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let what = error.into_inner();
        if path == "." { what.to_string() } else { format!("{path}: {what}") }
    })?;
    json.end().map_err(|error| error.to_string())?;
    Ok(value)
}

/// A document as the model keeps it; `what` is the field that it came in.
pub fn document(what: &str, value: &Value) -> Result<Text, Problem> {
    if depth(value, DOCUMENT_DEPTH_MAX).is_none() {
        let detail = format!("{what} is nested deeper than {DOCUMENT_DEPTH_MAX} levels");
        return Err(Problem::invalid(&detail));
    }
    Ok(tenure::wire::document(value))
}

/// Whether a value is nested at most so deep; what is left then.
fn depth(value: &Value, left: usize) -> Option<usize> {
    let left = left.checked_sub(1)?;
    match value {
        Value::Array(items) => items.iter().try_fold(left, |_, item| depth(item, left)),
        Value::Object(fields) => fields.values().try_fold(left, |_, item| depth(item, left)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(left),
    }
}

/// Whoever asks, and the resource in the path.
pub struct On {
    /// Whoever asks.
    pub caller: Caller,
    /// The resource, of the caller's tenant.
    pub key: ResourceKey,
}

impl FromRequestParts<Arc<App>> for On {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let path = Path::<(String, String)>::from_request_parts(parts, app).await;
        let Path((kind, name)) = path.map_err(|error| Problem::invalid(&error))?;
        let key = caller.resource(&kind, &name)?;
        Ok(Self { caller, key })
    }
}

/// Whoever asks, and the one name in the path.
async fn named(parts: &mut Parts, app: &Arc<App>) -> Result<(Caller, String), Problem> {
    let caller = Caller::from_request_parts(parts, app).await?;
    let path = Path::<String>::from_request_parts(parts, app).await;
    let Path(name) = path.map_err(|error| Problem::invalid(&error))?;
    Ok((caller, name))
}

/// Whoever asks, and the job in the path. Whether it is there for the caller is not known yet.
pub struct OnJob {
    /// Whoever asks.
    pub caller: Caller,
    /// The job.
    pub id: JobId,
}

impl FromRequestParts<Arc<App>> for OnJob {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let (caller, id) = named(parts, app).await?;
        let id = id.parse().map_err(|error| Problem::invalid(&format!("the job: {error}")))?;
        Ok(Self { caller, id })
    }
}

/// Whoever asks, and the pipeline in the path.
pub struct OnPipeline {
    /// Whoever asks.
    pub caller: Caller,
    /// The name of the pipeline.
    pub id: String,
}

impl FromRequestParts<Arc<App>> for OnPipeline {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let (caller, id) = named(parts, app).await?;
        Ok(Self { caller, id })
    }
}

/// Whoever asks, and the session in the path, which is the caller's tenant's.
pub struct OnSession {
    /// Whoever asks.
    pub caller: Caller,
    /// The session.
    pub id: SessionId,
}

impl FromRequestParts<Arc<App>> for OnSession {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let (caller, id) = named(parts, app).await?;
        let id = id.parse().map_err(|error| Problem::invalid(&format!("the session: {error}")))?;
        whose::check_session(&caller, id, app.committer.store().reads()).await?;
        Ok(Self { caller, id })
    }
}

/// Whoever asks, and the key in the path.
pub struct OnKey {
    /// Whoever asks.
    pub caller: Caller,
    /// The id of the key.
    pub id: String,
}

impl FromRequestParts<Arc<App>> for OnKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let (caller, id) = named(parts, app).await?;
        Ok(Self { caller, id })
    }
}

/// A query string.
pub struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Arc<App>> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        let query = Query::<T>::try_from_uri(&parts.uri);
        query.map(|query| Self(query.0)).map_err(|error| Problem::invalid(&error))
    }
}

/// The `Idempotency-Key`, if there is one.
pub struct Idempotency(Option<String>, Arc<App>);

impl Idempotency {
    /// The id of a request within a scope: two scopes may use the same key.
    pub fn id(self, scope: &str) -> Result<RequestId, Problem> {
        match self.0 {
            Some(key) => self.1.request_id(&key, scope),
            None => Ok(tenure_store::random::request_id()),
        }
    }
}

impl FromRequestParts<Arc<App>> for Idempotency {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let value = parts.headers.get("idempotency-key").map(|value| value.to_str());
        let value = value.transpose().map_err(|error| Problem::invalid(&error))?;
        Ok(Self(value.map(str::to_owned), Arc::clone(app)))
    }
}

impl App {
    /// The request id that a key names in a scope: itself when it is one, otherwise a hash of both
    /// that only servers can compute, so that nobody can tell in advance what others will use.
    pub(crate) fn request_id(&self, key: &str, scope: &str) -> Result<RequestId, Problem> {
        if key.is_empty() || key.len() > IDEMPOTENCY_KEY_MAX {
            let detail = format!("an Idempotency-Key has 1 to {IDEMPOTENCY_KEY_MAX} characters");
            return Err(Problem::invalid(&detail));
        }
        if let Ok(id) = key.parse() {
            return Ok(id);
        }
        let hash = self.signer.mac("request", &format!("{scope}\n{key}"));
        Ok(RequestId(hash.iter().take(16).fold(0, |id, byte| id << 8 | u128::from(*byte))))
    }
}
