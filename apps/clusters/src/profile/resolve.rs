//! Checks a request against its profile, and fills in what it leaves open. All violations are
//! returned at once.

use tenure_config::duration;

use super::tags::check_text;
use super::{Choice, OWNER_BYTES_MAX, Profile};
use crate::config::ClusterConfig;
use crate::names;
use crate::progress::truncate;
use crate::request::{CreateRequest, Violation};
use crate::settings::Settings;

/// Maximum length of a value that a violation repeats, in bytes.
const SHOWN_BYTES_MAX: usize = 128;
impl Profile {
    /// Returns the configuration of the requested cluster.
    ///
    /// # Errors
    ///
    /// Fails with all violations of the profile and of the rules of names and tags.
    pub fn resolve(
        &self,
        request: &CreateRequest,
        tenant: &str,
        settings: &Settings,
    ) -> Result<ClusterConfig, Vec<Violation>> {
        let mut violations = Vec::new();
        let mut check = |result: Result<(), Violation>| violations.extend(result.err());
        check(names::check_name(&request.name).map_err(|why| Violation::new("name", why)));
        check(self.check_profile(request));
        check(self.check_owner(&request.owner));
        check(self.check_preserve(request));
        let workers = request.workers.unwrap_or(self.workers.default);
        check(self.check_workers(workers));
        let version = self.choose("version", &self.versions, request.version.as_deref());
        let region = self.region(request.region.as_deref());
        let base_domain = self.base_domain(request.base_domain.as_deref(), tenant, settings);
        let ttl_ms = self.ttl(request.ttl_ms);
        for result in [&version, &region, &base_domain] {
            violations.extend(result.as_ref().err().cloned());
        }
        violations.extend(ttl_ms.as_ref().err().cloned());
        let tags = self.resolve_tags(&request.tags, &mut violations);
        match (version, region, base_domain, ttl_ms) {
            (Ok(version), Ok(region), Ok(base_domain), Ok(ttl_ms)) if violations.is_empty() => {
                Ok(ClusterConfig {
                    name: request.name.clone(),
                    platform: self.platform.name.to_owned(),
                    base_domain,
                    profile: self.name.clone(),
                    version,
                    region,
                    workers,
                    ttl_ms,
                    owner: request.owner.clone(),
                    tags,
                    preserve_on_failure: request.preserve_on_failure.unwrap_or(false),
                })
            }
            _ => Err(violations),
        }
    }

    /// Checks a number of workers, of a new cluster or of one that is scaled.
    ///
    /// # Errors
    ///
    /// Fails if it is out of bounds.
    pub fn check_workers(&self, workers: u32) -> Result<(), Violation> {
        let (min, max) = (self.workers.min, self.workers.max);
        if (min..=max).contains(&workers) {
            return Ok(());
        }
        let name = &self.name;
        let why = format!("it is {workers}; the profile {name} allows between {min} and {max}");
        Err(Violation::new("workers", why))
    }

    /// Checks a time to live, counted from the request for the cluster. If it is extended, that is
    /// the whole time, with what has elapsed. `0` stands for none, and returns `None`.
    ///
    /// # Errors
    ///
    /// Fails if it is out of bounds.
    pub fn check_ttl(&self, ttl_ms: u64) -> Result<Option<u64>, Violation> {
        let name = &self.name;
        let refuse = |why: String| Err(Violation::new("ttl_ms", why));
        let [min, max] = [self.ttl.min_ms, self.ttl.max_ms].map(duration::format);
        match ttl_ms {
            0 if self.ttl.required => refuse(format!(
                "the profile {name} does not allow clusters without a time to live: choose one \
                 between {min} and {max}"
            )),
            0 => Ok(None),
            ms if (self.ttl.min_ms..=self.ttl.max_ms).contains(&ms) => Ok(Some(ms)),
            ms => {
                let got = duration::format(ms);
                refuse(format!("it is {got}; the profile {name} allows between {min} and {max}"))
            }
        }
    }

    fn ttl(&self, requested: Option<u64>) -> Result<Option<u64>, Violation> {
        match (requested, self.ttl.default_ms) {
            (Some(ms), _) => self.check_ttl(ms),
            (None, None) if self.ttl.required => {
                let why = format!("it is missing; the profile {} has no default", self.name);
                Err(Violation::new("ttl_ms", why))
            }
            (None, default) => Ok(default),
        }
    }

    fn check_profile(&self, request: &CreateRequest) -> Result<(), Violation> {
        if request.profile == self.name {
            return Ok(());
        }
        let (got, name) = (shown(&request.profile), &self.name);
        let why = format!("it is {got:?}, checked against the profile {name}");
        Err(Violation::new("profile", why))
    }

    fn check_owner(&self, owner: &str) -> Result<(), Violation> {
        if owner.is_empty() {
            let why = "it is missing: name the person or team that the cluster belongs to";
            return Err(Violation::new("owner", why));
        }
        check_text("the owner", owner, OWNER_BYTES_MAX)
            .map_err(|why| Violation::new("owner", why))?;
        match &self.owner_pattern {
            Some(pattern) if !pattern.is_match(owner) => {
                let pattern = pattern.as_str();
                let shown = pattern.strip_prefix("^(?:").and_then(|rest| rest.strip_suffix(")$"));
                let (name, shown) = (&self.name, shown.unwrap_or(pattern));
                let why =
                    format!("{owner:?} does not match {shown}, as the profile {name} requires");
                Err(Violation::new("owner", why))
            }
            _ => Ok(()),
        }
    }

    fn check_preserve(&self, request: &CreateRequest) -> Result<(), Violation> {
        if self.allow_preserve || request.preserve_on_failure != Some(true) {
            return Ok(());
        }
        let why = format!("the profile {} does not allow it: leave it out", self.name);
        Err(Violation::new("preserve_on_failure", why))
    }

    fn choose(
        &self,
        field: &str,
        choice: &Choice,
        requested: Option<&str>,
    ) -> Result<String, Violation> {
        let Some(requested) = requested else {
            return Ok(choice.default.clone().unwrap_or_default());
        };
        if choice.allowed.iter().any(|value| value == requested) {
            return Ok(requested.to_owned());
        }
        let (name, allowed) = (&self.name, choice.allowed.join(", "));
        let requested = shown(requested);
        let why = format!("{requested:?} is not in the profile {name}; choose one of {allowed}");
        Err(Violation::new(field, why))
    }

    fn region(&self, requested: Option<&str>) -> Result<String, Violation> {
        match requested {
            Some(_) if !self.platform.has_regions => {
                let why = format!("the platform {} has no regions: remove it", self.platform.name);
                Err(Violation::new("region", why))
            }
            _ => self.choose("region", &self.regions, requested),
        }
    }

    /// Returns the base domain. One of another tenant is answered like one that does not exist.
    fn base_domain(
        &self,
        requested: Option<&str>,
        tenant: &str,
        settings: &Settings,
    ) -> Result<String, Violation> {
        let refuse = |why: String| Err(Violation::new("base_domain", why));
        let is_owned = |domain: &&str| settings.owner_of(domain) == tenant;
        let allowed = self.base_domains.allowed.iter().map(String::as_str);
        let owned: Vec<&str> = allowed.filter(is_owned).collect();
        let name = &self.name;
        if let Some(requested) = requested {
            if owned.contains(&requested) {
                return Ok(requested.to_owned());
            }
            let choose = match owned.as_slice() {
                [] => "it has none for this tenant; choose another profile".to_owned(),
                owned => format!("choose one of {}", owned.join(", ")),
            };
            let requested = shown(requested);
            return refuse(format!("{requested:?} is not in the profile {name}; {choose}"));
        }
        let default = self.base_domains.default.as_deref().filter(is_owned);
        match (default, owned.as_slice()) {
            (Some(domain), _) | (None, &[domain]) => Ok(domain.to_owned()),
            (None, []) => refuse(format!(
                "the profile {name} has no base domain for this tenant; choose another profile"
            )),
            (None, owned) => refuse(format!("it is missing; choose one of {}", owned.join(", "))),
        }
    }
}

/// Returns the beginning of a value, for a message.
pub(super) fn shown(value: &str) -> &str {
    truncate(value, SHOWN_BYTES_MAX)
}
