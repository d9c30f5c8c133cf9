//! Who asks: the key decides tenant and role.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tenure::client::DEFAULT_TENANT;
use tenure_core::session::ALL_TENANTS;
use tenure_core::{ResourceKey, Text};

use crate::App;
use crate::problem::Problem;

/// What a key may do; each role may do all that the ones before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Looks.
    Viewer,
    /// Takes locks, submits jobs and works them.
    Worker,
    /// Breaks locks; decides about jobs and resources.
    Operator,
    /// Everything.
    Admin,
}

/// The keys that are known. Only their hashes are kept.
#[derive(Clone)]
pub struct Keys {
    admin: [u8; 32],
}

impl Keys {
    /// Only the admin key, which acts for any tenant.
    #[must_use]
    pub fn admin(key: &str) -> Self {
        Self { admin: hash(key) }
    }

    fn role(&self, key: &str) -> Option<Role> {
        same(&self.admin, &hash(key)).then_some(Role::Admin)
    }
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Compares all bytes whatever they are, so that the time it takes says nothing.
fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

/// Whoever asks.
pub struct Caller {
    /// For this tenant, or `*` for all of them.
    pub tenant: Text,
    /// With this role.
    pub role: Role,
    /// Under this name, for the record.
    pub name: Text,
}

impl Caller {
    /// Refuses a caller whose role is too low.
    pub fn require(&self, role: Role) -> Result<(), Problem> {
        if self.role >= role {
            return Ok(());
        }
        let detail = format!("this needs a key of role {role:?} or higher");
        Err(Problem::new(403, "forbidden", &detail))
    }

    /// The one tenant that the caller acts for; none when it is all of them.
    #[must_use]
    pub fn only(&self) -> Option<Text> {
        (*self.tenant != *ALL_TENANTS).then(|| self.tenant.clone())
    }

    /// Whether something of a tenant is there for the caller at all.
    #[must_use]
    pub fn sees(&self, tenant: &str) -> bool {
        self.only().is_none_or(|only| *only == *tenant)
    }

    /// A resource of the caller's tenant.
    pub fn resource(&self, kind: &str, name: &str) -> Result<ResourceKey, Problem> {
        if self.only().is_none() {
            let detail = "a resource belongs to one tenant: name it with ?tenant=NAME, not *";
            return Err(Problem::invalid(&detail));
        }
        ResourceKey::new(&self.tenant, kind, name).map_err(|error| Problem::invalid(&error))
    }
}

#[derive(Deserialize)]
struct TenantQuery {
    tenant: Option<String>,
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let role = key(parts).and_then(|key| app.keys.role(key)).ok_or_else(|| {
            let detail = "send a valid key as `Authorization: Bearer KEY` or `x-api-key: KEY`; the \
                          admin key is in admin.key in the server's data directory";
            Problem::new(401, "unauthenticated", detail)
        })?;
        let tenant = match parts.uri.query() {
            Some(_) => tenant(parts)?,
            None => DEFAULT_TENANT.into(),
        };
        if *tenant == *ALL_TENANTS && role < Role::Admin {
            let detail = "only the admin key acts for all tenants; name one with ?tenant=NAME";
            return Err(Problem::new(403, "forbidden", detail));
        }
        Ok(Self { tenant, role, name: "admin".into() })
    }
}

/// The tenant that is named in the query, or the default.
fn tenant(parts: &Parts) -> Result<Text, Problem> {
    let query = Query::<TenantQuery>::try_from_uri(&parts.uri);
    let tenant = query.map_err(|error| Problem::invalid(&error))?.0.tenant;
    let tenant = tenant.unwrap_or_else(|| DEFAULT_TENANT.to_owned());
    if tenant == ALL_TENANTS {
        return Ok(tenant.into());
    }
    // Checked as part of a key, so that the message is the same everywhere.
    ResourceKey::new(&tenant, "kind", "name").map_err(|error| Problem::invalid(&error))?;
    Ok(tenant.into())
}

fn key(parts: &Parts) -> Option<&str> {
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    bearer.or_else(|| header("x-api-key")).map(str::trim)
}
