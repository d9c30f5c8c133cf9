//! Who asks, and what that allows.
//!
//! A key decides tenant and role. `keys` knows the keys, `access` is the one table of what each
//! route needs, `guard` stands before every route and asks both, `cookie` is how a browser carries
//! a key, `limits` bounds how much anybody may ask. Handlers get a [`Caller`] that has passed.

pub mod access;
mod cookie;
pub(crate) mod guard;
pub mod keys;
pub mod limits;
mod veil;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use tenure::wire::ReasonBody;
use tenure_core::engine::check_text;
use tenure_core::limits::REASON_BYTES_MAX;
use tenure_core::session::ALL_TENANTS;
use tenure_core::{ResourceKey, Role, Text};

use crate::App;
use crate::problem::Problem;

pub use cookie::{COOKIE, Signer};
pub use keys::Keys;
pub use veil::Veil;

/// Whoever asks, and is allowed to.
#[derive(Clone, Debug)]
pub struct Caller {
    /// For this tenant, or `*` for all of them.
    pub tenant: Text,
    /// With this role.
    pub role: Role,
    /// Under this name, for the record.
    pub name: Text,
    /// With this key; none for the admin key of the data directory.
    pub key: Option<Text>,
    /// The tenant that the key is bound to; `*` for one that may act for any.
    pub home: Text,
    /// From here.
    pub address: Option<IpAddr>,
    /// The reason that was given, for the audit.
    pub(crate) reason: Arc<OnceLock<Text>>,
    /// Whose thing it is about, for the audit, when that is another tenant than the one it is
    /// acted for.
    pub(crate) about: Arc<OnceLock<Text>>,
}

impl Caller {
    /// The one tenant that the caller acts for; none when it is all of them.
    #[must_use]
    pub fn only(&self) -> Option<Text> {
        (*self.tenant != *ALL_TENANTS).then(|| self.tenant.clone())
    }

    /// The tenant that the caller's key is bound to; none for a key of all tenants.
    #[must_use]
    pub fn bound(&self) -> Option<&Text> {
        (*self.home != *ALL_TENANTS).then_some(&self.home)
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

    /// The reason that must be given.
    pub fn must_say_why(&self, body: ReasonBody) -> Result<Text, Problem> {
        let reason = self.may_say_why(body)?;
        if reason.trim().is_empty() {
            let detail = "give a `reason`: whoever looks later will ask for it";
            return Err(Problem::invalid(&detail));
        }
        Ok(reason)
    }

    /// The reason, or nothing. It is checked also if nothing will come of it; the audit knows it
    /// from now on.
    pub fn may_say_why(&self, body: ReasonBody) -> Result<Text, Problem> {
        let Some(reason) = body.reason else { return Ok("".into()) };
        check_text("reason", &reason, REASON_BYTES_MAX)?;
        let reason: Text = reason.into();
        // The first one counts; a request has only one.
        self.reason.set(reason.clone()).ok();
        Ok(reason)
    }
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        // The guard puts it there before any handler runs.
        parts.extensions.get::<Self>().cloned().ok_or_else(Problem::unauthenticated)
    }
}
