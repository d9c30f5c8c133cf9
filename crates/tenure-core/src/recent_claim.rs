//! Idempotency of claims: what a session remembers of a claim that took jobs.

use serde::{Deserialize, Serialize};

use crate::command::{Claim, ClaimScope};
use crate::history::digest;
use crate::id::RequestId;

/// A claim that took jobs. Serialized as one short text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RecentClaim {
    /// Request id.
    pub request: RequestId,
    /// Digest of what it asked for; `None` if it was stored by a version without digests.
    pub digest: Option<u64>,
}

impl RecentClaim {
    /// Returns what is remembered of a claim.
    #[must_use]
    pub fn new(claim: &Claim) -> Self {
        let Claim { request, kinds, max, only, .. } = claim;
        let scope = match only {
            None => "-".to_owned(),
            Some(ClaimScope::Group { tenant, group }) => format!("group {tenant}/{group}"),
            Some(ClaimScope::Resource { tenant, name }) => format!("resource {tenant}/{name}"),
        };
        let digest = digest(&format!("{max} {scope} {}", kinds.join(" ")));
        Self { request: *request, digest: u64::try_from(digest >> 64).ok() }
    }

    /// Returns `true` if it has the request id of `claim`.
    pub(crate) fn has_id_of(&self, claim: &Claim) -> bool {
        self.request == claim.request
    }

    /// Returns `true` if it asked for the same as `claim`, as far as that is known.
    pub(crate) fn is_same_as(&self, claim: &Claim) -> bool {
        self.digest.is_none() || *self == Self::new(claim)
    }
}

impl From<RecentClaim> for String {
    fn from(RecentClaim { request, digest }: RecentClaim) -> Self {
        digest.map_or_else(|| request.to_string(), |digest| format!("{request} {digest:x}"))
    }
}

impl TryFrom<String> for RecentClaim {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parse = || -> Option<Self> {
            let mut words = text.split(' ');
            let request = words.next()?.parse().ok()?;
            let digest = words.next().map(|word| u64::from_str_radix(word, 16)).transpose();
            Some(Self { request, digest: digest.ok()? })
        };
        parse().ok_or_else(|| format!("{text:?} is not a recent claim"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::SessionId;

    fn claim() -> Claim {
        Claim {
            session: SessionId(1),
            request: RequestId(2),
            kinds: vec!["a".into(), "b".into()],
            max: 3,
            only: None,
            tenant: None,
        }
    }

    #[test]
    fn other_arguments_under_the_same_id_are_noticed() {
        let recent = RecentClaim::new(&claim());
        assert!(recent.is_same_as(&claim()));
        let group = ClaimScope::Group { tenant: "t".into(), group: "g".into() };
        let resource = ClaimScope::Resource { tenant: "t".into(), name: "g".into() };
        for other in [
            Claim { max: 4, ..claim() },
            Claim { kinds: vec!["a".into()], ..claim() },
            Claim { only: Some(group), ..claim() },
            Claim { only: Some(resource), ..claim() },
        ] {
            assert!(!recent.is_same_as(&other), "{other:?}");
        }
    }

    #[test]
    fn it_round_trips_and_older_versions_are_read() {
        let recent = RecentClaim::new(&claim());
        assert_eq!(RecentClaim::try_from(String::from(recent)), Ok(recent));
        let old = RecentClaim::try_from(RequestId(2).to_string()).unwrap();
        assert_eq!(old.digest, None);
        assert!(old.is_same_as(&claim()));
    }
}
