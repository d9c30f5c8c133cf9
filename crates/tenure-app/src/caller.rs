//! The authenticated caller of a request.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use tenure_core::engine::check_text;
use tenure_core::limits::REASON_BYTES_MAX;
use tenure_core::session::ALL_TENANTS;
use tenure_core::{ResourceKey, Role, Text};
use tenure_wire::ReasonRequest;

use crate::problem::Problem;

/// The caller of a request, authenticated and authorized for its route.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Tenant that the request acts for, or `*` for all tenants.
    pub tenant: Text,
    /// Role of the key.
    pub role: Role,
    /// Name of the key, for history and the audit log.
    pub name: Text,
    /// Id of the key; `None` for the admin key of the data directory.
    pub key: Option<Text>,
    /// Tenant that the key is bound to; `*` for a key that may act for any tenant.
    pub key_tenant: Text,
    /// Address of the client.
    pub address: Option<IpAddr>,
    /// Facts that the handler adds to the audit entry of the request.
    pub audit: Arc<AuditFacts>,
}

/// Facts about a request that only its handler knows.
#[derive(Debug, Default)]
pub struct AuditFacts {
    /// The reason that the caller gave.
    pub reason: OnceLock<Text>,
    /// The tenant of the subject, if it is not the one that the request acts for.
    pub tenant: OnceLock<Text>,
}

impl Caller {
    /// Returns the one tenant that the caller acts for; `None` if it acts for all.
    #[must_use]
    pub fn only_tenant(&self) -> Option<Text> {
        (*self.tenant != *ALL_TENANTS).then(|| self.tenant.clone())
    }

    /// Returns the tenant that the key is bound to; `None` for a key of all tenants.
    #[must_use]
    pub fn bound_tenant(&self) -> Option<&Text> {
        (*self.key_tenant != *ALL_TENANTS).then_some(&self.key_tenant)
    }

    /// Returns whether the caller may see anything of `tenant`.
    #[must_use]
    pub fn sees(&self, tenant: &str) -> bool {
        self.only_tenant().is_none_or(|only| *only == *tenant)
    }

    /// Returns the key of a resource of the caller's tenant.
    pub fn resource(&self, kind: &str, name: &str) -> Result<ResourceKey, Problem> {
        if self.only_tenant().is_none() {
            let detail = "a resource belongs to one tenant: name it with ?tenant=NAME, not *";
            return Err(Problem::invalid(&detail));
        }
        ResourceKey::new(&self.tenant, kind, name).map_err(|error| Problem::invalid(&error))
    }

    /// Returns the reason in `body`, which must not be blank.
    pub fn required_reason(&self, body: ReasonRequest) -> Result<Text, Problem> {
        let reason = self.optional_reason(body)?;
        if reason.trim().is_empty() {
            let detail = "`reason` is missing; it is recorded in history and in the audit log";
            return Err(Problem::invalid(&detail));
        }
        Ok(reason)
    }

    /// Returns the reason in `body`, or an empty text. Records it for the audit log.
    pub fn optional_reason(&self, body: ReasonRequest) -> Result<Text, Problem> {
        let Some(reason) = body.reason else { return Ok("".into()) };
        check_text("reason", &reason, REASON_BYTES_MAX)?;
        let reason: Text = reason.into();
        // If a handler calls this twice, the first reason counts.
        self.audit.reason.set(reason.clone()).ok();
        Ok(reason)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // The authorization layer inserts it before any handler runs.
        parts.extensions.get::<Self>().cloned().ok_or_else(Problem::unauthenticated)
    }
}
