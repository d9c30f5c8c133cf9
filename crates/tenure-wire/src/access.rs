//! Keys, who one is, and the audit.

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
pub struct KeyBody {
    /// What people call it.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::KeyName))]
    pub name: String,
    /// Whose it is, `*` for all tenants; the caller's tenant when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::TenantOrAll>))]
    pub tenant: Option<String>,
    /// What it may do.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::RoleName))]
    pub role: Role,
    /// How long it is good for; for ever when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Count>))]
    pub expires_in_ms: Option<u64>,
    /// Why it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Reason, required = true))]
    pub reason: Option<String>,
}

/// A key, without what one could ask with.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyAnswer {
    /// Names the key; no secret.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// Whose it is; `*` for all tenants.
    pub tenant: String,
    /// What it may do.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::RoleName))]
    pub role: Role,
    /// Whether it is good now.
    pub good: bool,
    /// When it was made.
    pub created_at: String,
    /// Who made it.
    pub created_by: String,
    /// From when on it is not good any more.
    pub expires_at: Option<String>,
    /// When it was last used, to within a minute or so.
    pub used_at: Option<String>,
    /// When it was taken back.
    pub revoked_at: Option<String>,
    /// Who took it back, and why.
    pub revoked_by: Option<String>,
}

/// A key that was just made.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewKeyAnswer {
    /// The key itself. It is shown this once.
    pub secret: String,
    /// What is kept of it.
    pub key: KeyAnswer,
}

/// `GET /v1/whoami`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhoamiAnswer {
    /// The name of the key.
    pub name: String,
    /// The id of the key; none for the admin key.
    pub key: Option<String>,
    /// The tenant that is acted for.
    pub tenant: String,
    /// What the key may do.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::RoleName))]
    pub role: Role,
    /// For whoever came with a cookie: what must come along as `x-tenure-csrf` with whatever
    /// changes something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csrf: Option<String>,
}

/// `POST /signin`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SignInBody {
    /// The key.
    pub key: String,
}

/// A line of the audit.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AuditLine {
    /// When.
    pub at: String,
    /// What: `lock.break`, ….
    pub action: String,
    /// On what.
    pub path: String,
    /// Who: the name of the key; nobody when none was known.
    pub principal: Option<String>,
    /// The id of the key; none for the admin key.
    pub key: Option<String>,
    /// What the key may do.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::RoleName>))]
    pub role: Option<Role>,
    /// For which tenant.
    pub tenant: Option<String>,
    /// From where.
    pub address: Option<String>,
    /// The HTTP status of the answer.
    pub status: u16,
    /// `ok`, or the code of the problem.
    pub outcome: String,
    /// Why, as the caller said.
    pub reason: Option<String>,
    /// The id of the request.
    pub request_id: String,
    /// How long it took.
    pub took_ms: u64,
}
