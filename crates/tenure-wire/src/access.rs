//! JSON types of API keys, the caller's identity and the audit log.

use serde::{Deserialize, Serialize};
use tenure_core::Role;

#[cfg(feature = "openapi")]
use super::schema;

/// `POST /v1/keys`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({
    "name": "ci", "tenant": "acme", "role": "worker", "reason": "the build fleet"
})))]
#[serde(deny_unknown_fields)]
pub struct CreateKeyRequest {
    /// Display name of the key.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::KeyName))]
    pub name: String,
    /// Tenant of the key, `*` for all tenants. Defaults to the caller's tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::TenantOrAll>))]
    pub tenant: Option<String>,
    /// Role that the key grants.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Role))]
    pub role: Role,
    /// Lifetime of the key in milliseconds. Without it, the key does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Uint64>))]
    pub expires_in_ms: Option<u64>,
    /// Reason for creating the key, for the audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Reason, required = true))]
    pub reason: Option<String>,
}

/// An API key, without its secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyInfo {
    /// Id of the key. Not secret.
    pub id: String,
    /// Display name.
    pub name: String,
    /// Tenant of the key; `*` for all tenants.
    pub tenant: String,
    /// Role that the key grants.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Role))]
    pub role: Role,
    /// Whether the key is valid: neither expired nor revoked.
    pub good: bool,
    /// Time of creation.
    pub created_at: String,
    /// Principal that created the key.
    pub created_by: String,
    /// Time at which the key expires.
    pub expires_at: Option<String>,
    /// Time of the last use, accurate to about a minute.
    pub used_at: Option<String>,
    /// Time of revocation.
    pub revoked_at: Option<String>,
    /// Principal that revoked the key, and the reason.
    pub revoked_by: Option<String>,
}

/// A newly created key.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateKeyResponse {
    /// The key itself. It is returned only here and cannot be retrieved later.
    pub secret: String,
    /// The key as it is stored.
    pub key: KeyInfo,
}

/// `GET /v1/whoami`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhoamiResponse {
    /// Name of the key.
    pub name: String,
    /// Id of the key; null for the admin key.
    pub key: Option<String>,
    /// Tenant on whose behalf requests are made.
    pub tenant: String,
    /// Role that the key grants.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Role))]
    pub role: Role,
    /// CSRF token of a caller that authenticates with a cookie. Every request that changes
    /// something must send it as the header `x-tenure-csrf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csrf: Option<String>,
}

/// `POST /signin`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SignInRequest {
    /// The key.
    pub key: String,
}

/// Entries of the audit log.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditResponse {
    /// Entries, newest first.
    pub items: Vec<AuditEntry>,
    /// Always null: there is one page.
    pub next: Option<String>,
    /// Why entries of other servers are missing; absent if none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
}

/// An entry of the audit log.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditEntry {
    /// Time of the request.
    pub at: String,
    /// Action, such as `lock.break`.
    pub action: String,
    /// Path of the request.
    pub path: String,
    /// Name of the key; null if the caller was not authenticated.
    pub principal: Option<String>,
    /// Id of the key; null for the admin key.
    pub key: Option<String>,
    /// Role that the key grants.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Role>))]
    pub role: Option<Role>,
    /// Tenant on whose behalf the request was made.
    pub tenant: Option<String>,
    /// Server that was called; null in entries of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Remote address of the caller.
    pub address: Option<String>,
    /// HTTP status of the response.
    pub status: u16,
    /// `ok`, or the code of the problem.
    pub outcome: String,
    /// Reason given by the caller.
    pub reason: Option<String>,
    /// Id of the request.
    pub request_id: String,
    /// Duration of the request in milliseconds.
    pub took_ms: u64,
}
