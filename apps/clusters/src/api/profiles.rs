//! The profiles that a tenant can use.

use tenure_app::Caller;

use crate::LoadedClusters;
use crate::profile::Profile;
use crate::wire::{ProfileInfo, TtlBounds, WorkerBounds};

/// Lists the profiles with a base domain of the caller's tenant, and those whose files are broken.
pub(super) fn list(app: &LoadedClusters, caller: &Caller) -> Vec<ProfileInfo> {
    let tenant = caller.only_tenant();
    let usable = app.profiles.iter().map(|profile| info(app, profile, tenant.as_deref()));
    let usable = usable.filter(|info| !info.base_domains.is_empty());
    let broken = app.profiles.disabled().map(|(name, problem)| ProfileInfo {
        name: name.to_owned(),
        problem: Some(problem.to_owned()),
        ..ProfileInfo::default()
    });
    let mut all: Vec<ProfileInfo> = usable.chain(broken).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn info(app: &LoadedClusters, profile: &Profile, tenant: Option<&str>) -> ProfileInfo {
    let is_owned =
        |domain: &&String| tenant.is_none_or(|tenant| app.settings.owner_of(domain) == tenant);
    let domains = profile.base_domains.default_first().filter(is_owned);
    let (workers, ttl) = (profile.workers, profile.ttl);
    ProfileInfo {
        name: profile.name.clone(),
        description: profile.description.clone(),
        problem: None,
        platform: Some(profile.platform.name.to_owned()),
        versions: profile.versions.default_first().cloned().collect(),
        regions: profile.regions.default_first().cloned().collect(),
        base_domains: domains.cloned().collect(),
        workers: Some(WorkerBounds {
            min: workers.min,
            default: workers.default,
            max: workers.max,
        }),
        ttl_ms: Some(TtlBounds {
            min: ttl.min_ms,
            default: ttl.default_ms,
            max: ttl.max_ms,
            required: ttl.required,
        }),
        required_tags: profile.required_tags.clone(),
    }
}
