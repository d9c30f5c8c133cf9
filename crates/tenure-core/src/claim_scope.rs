//! The restriction of a claim to a group or a resource.

use crate::key::{ResourceKey, Text};

/// The part of a tenant's resources that a claim is restricted to, within the kinds of the claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClaimScope {
    /// The resources of one group.
    Group {
        /// Tenant.
        tenant: Text,
        /// Group.
        group: Text,
    },
    /// One resource.
    Resource {
        /// Tenant.
        tenant: Text,
        /// Name of the resource.
        name: Text,
    },
}

impl ClaimScope {
    /// Returns the tenant.
    #[must_use]
    pub fn tenant(&self) -> &Text {
        match self {
            Self::Group { tenant, .. } | Self::Resource { tenant, .. } => tenant,
        }
    }

    /// Returns `true` if it contains the resource.
    #[must_use]
    pub fn contains(&self, key: &ResourceKey) -> bool {
        match self {
            Self::Group { tenant, group } => {
                *key.tenant() == **tenant && key.group() == Some(group)
            }
            Self::Resource { tenant, name } => *key.tenant() == **tenant && *key.name() == **name,
        }
    }
}
