//! What handlers take from a request: bodies, paths and ids that were checked.

use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tenure_core::{RequestId, ResourceKey};

use crate::App;
use crate::auth::Caller;
use crate::problem::Problem;

/// Longest body that is read.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Longest `Idempotency-Key`.
const IDEMPOTENCY_KEY_MAX: usize = 256;

/// A JSON body. An empty one counts as `{}`.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &Arc<App>) -> Result<Self, Problem> {
        let bytes = to_bytes(request.into_body(), BODY_BYTES_MAX).await;
        let bytes = bytes.map_err(|_| {
            let detail = format!("the body is cut off or has more than {BODY_BYTES_MAX} bytes");
            Problem::new(413, "too_large", &detail)
        })?;
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        let bad = |error| Problem::invalid(&format!("the body is not what is expected: {error}"));
        serde_json::from_slice(text).map(Self).map_err(bad)
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
pub struct Idempotency(Option<String>);

impl Idempotency {
    /// The id of a request within a scope: two scopes may use the same key.
    pub fn id(self, scope: &str) -> Result<RequestId, Problem> {
        match self.0 {
            Some(key) => request_id(&key, scope),
            None => Ok(tenure_store::random::request_id()),
        }
    }
}

impl FromRequestParts<Arc<App>> for Idempotency {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        let value = parts.headers.get("idempotency-key").map(|value| value.to_str());
        let value = value.transpose().map_err(|error| Problem::invalid(&error))?;
        Ok(Self(value.map(str::to_owned)))
    }
}

/// The request id that a key names in a scope: itself when it is one, otherwise a hash of both.
pub fn request_id(key: &str, scope: &str) -> Result<RequestId, Problem> {
    if key.is_empty() || key.len() > IDEMPOTENCY_KEY_MAX {
        let detail = format!("an Idempotency-Key has 1 to {IDEMPOTENCY_KEY_MAX} characters");
        return Err(Problem::invalid(&detail));
    }
    if let Ok(id) = key.parse() {
        return Ok(id);
    }
    let hash: [u8; 32] = Sha256::digest(format!("{scope}\n{key}").as_bytes()).into();
    Ok(RequestId(hash.iter().take(16).fold(0, |id, byte| id << 8 | u128::from(*byte))))
}
