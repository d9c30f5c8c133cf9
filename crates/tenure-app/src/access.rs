//! Access rules: the role that a route requires, and its action in the audit log.
//!
//! The server has one table of rules; apps add theirs through [`crate::AppRoutes`]. A route without
//! a rule is refused to every caller.

use tenure_core::Role;

/// The access rule of one route.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The HTTP method, in upper case.
    pub method: &'static str,
    /// The route pattern, with parameters in braces.
    pub path: &'static str,
    /// Who may call it.
    pub access: Access,
    /// Whether the audit log records it.
    pub audit: Audit,
}

/// Who may call a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Any client, without a key.
    Public,
    /// Keys of this role or higher, for resources of their tenant.
    Tenant(Role),
    /// Keys of this role or higher that are not bound to a tenant.
    AllTenants(Role),
}

/// Whether the audit log records the calls of a route, and under which action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audit {
    /// Only denied calls: the route is read-only.
    Denied,
    /// Every call.
    Always(&'static str),
    /// Only refused calls: the route is called frequently and starts or ends nothing.
    Refused(&'static str),
}

impl Rule {
    /// Creates the rule of a read-only route.
    #[must_use]
    pub const fn read(path: &'static str, access: Access) -> Self {
        Self { method: "GET", path, access, audit: Audit::Denied }
    }

    /// Creates the rule of a mutation within a tenant.
    #[must_use]
    pub const fn write(
        method: &'static str,
        path: &'static str,
        role: Role,
        action: &'static str,
    ) -> Self {
        Self { method, path, access: Access::Tenant(role), audit: Audit::Always(action) }
    }

    /// Creates the rule of a mutation that requires no key.
    #[must_use]
    pub const fn public_write(
        method: &'static str,
        path: &'static str,
        action: &'static str,
    ) -> Self {
        Self { method, path, access: Access::Public, audit: Audit::Always(action) }
    }

    /// Creates the rule of a route that workers call frequently.
    #[must_use]
    pub const fn routine(path: &'static str, role: Role, action: &'static str) -> Self {
        Self { method: "POST", path, access: Access::Tenant(role), audit: Audit::Refused(action) }
    }

    /// Returns the action under which the audit log records the route.
    #[must_use]
    pub fn action(&self) -> Option<&'static str> {
        match self.audit {
            Audit::Denied => None,
            Audit::Always(action) | Audit::Refused(action) => Some(action),
        }
    }
}

impl Access {
    /// Any key of the tenant.
    pub const VIEWER: Self = Self::Tenant(Role::Viewer);

    /// Returns the minimum role; `None` if no key is required.
    #[must_use]
    pub fn role(self) -> Option<Role> {
        match self {
            Self::Public => None,
            Self::Tenant(role) | Self::AllTenants(role) => Some(role),
        }
    }
}
