//! Filters of lists of tenures, jobs and resources.

use tenure_core::resource::Resource;
use tenure_core::{Job, JobId, JobState, ResourceKey, Text};

/// Filter of a list of tenures.
#[derive(Clone, Debug, Default)]
pub struct TenureQuery {
    /// Tenant.
    pub tenant: Option<Text>,
    /// Kind.
    pub kind: Option<Text>,
    /// Resource name.
    pub name: Option<Text>,
    /// Group of the resource.
    pub group: Option<Text>,
    /// Holder name.
    pub holder: Option<Text>,
    /// Exclusive start of the page.
    pub after: Option<ResourceKey>,
    /// Maximum number of resources; all tenures of a resource are on one page.
    pub limit: usize,
}

/// Filter of a list of jobs.
#[derive(Clone, Debug, Default)]
pub struct JobQuery {
    /// Tenant.
    pub tenant: Option<Text>,
    /// Kind.
    pub kind: Option<Text>,
    /// Resource name.
    pub name: Option<Text>,
    /// Group of the resource.
    pub group: Option<Text>,
    /// Operation.
    pub operation: Option<Text>,
    /// State.
    pub state: Option<JobState>,
    /// Last job of the previous page.
    pub after: Option<JobId>,
    /// Maximum number of jobs.
    pub limit: usize,
}

impl JobQuery {
    /// Returns whether a job passes the filter. Ignores `after` and `limit`.
    #[must_use]
    pub fn matches(&self, key: &ResourceKey, job: &Job) -> bool {
        matches_filter(&self.tenant, key.tenant())
            && matches_filter(&self.kind, key.kind())
            && matches_filter(&self.name, key.name())
            && matches_group(&self.group, key)
            && matches_filter(&self.operation, &job.operation)
            && self.state.is_none_or(|state| state == job.state)
    }

    /// Returns the resource if the filter selects exactly one.
    #[must_use]
    pub fn resource(&self) -> Option<ResourceKey> {
        let (tenant, kind, name) =
            (self.tenant.as_ref()?, self.kind.as_ref()?, self.name.as_ref()?);
        ResourceKey::new(tenant, kind, name).ok()
    }
}

/// Filter of a list of resources.
#[derive(Clone, Debug, Default)]
pub struct ResourceQuery {
    /// Tenant.
    pub tenant: Option<Text>,
    /// Kind.
    pub kind: Option<Text>,
    /// Group.
    pub group: Option<Text>,
    /// State.
    pub state: Option<Text>,
    /// Exclusive start of the page.
    pub after: Option<ResourceKey>,
    /// Maximum number of resources. A page may have fewer and still not be the last.
    pub limit: usize,
}

impl ResourceQuery {
    /// Returns whether a resource passes the filter. Ignores `after` and `limit`.
    #[must_use]
    pub fn matches(&self, key: &ResourceKey, resource: &Resource) -> bool {
        matches_filter(&self.tenant, key.tenant())
            && matches_filter(&self.kind, key.kind())
            && matches_group(&self.group, key)
            && matches_filter(&self.state, &resource.state)
    }
}

/// Returns whether a resource passes an optional filter by group.
pub(crate) fn matches_group(group: &Option<Text>, key: &ResourceKey) -> bool {
    group.as_ref().is_none_or(|group| key.group() == Some(group))
}

/// Returns the half-open range of the keys of a tenant, of one of its kinds, or of names that start
/// with a group. `0` is the character after `/`, `;` the one after `:`.
pub(crate) fn key_range(
    tenant: Option<&Text>,
    kind: Option<&Text>,
    group: Option<&Text>,
) -> (String, String) {
    match (tenant, kind, group) {
        (Some(tenant), Some(kind), Some(group)) => {
            let prefix = format!("{tenant}/{kind}/{group}");
            (format!("{prefix}:"), format!("{prefix};"))
        }
        (Some(tenant), Some(kind), None) => {
            (format!("{tenant}/{kind}/"), format!("{tenant}/{kind}0"))
        }
        (Some(tenant), None, _) => (format!("{tenant}/"), format!("{tenant}0")),
        (None, _, _) => (String::new(), char::MAX.to_string()),
    }
}

/// Returns whether `value` passes an optional equality filter.
pub(crate) fn matches_filter(filter: &Option<Text>, value: &str) -> bool {
    filter.as_ref().is_none_or(|filter| **filter == *value)
}
