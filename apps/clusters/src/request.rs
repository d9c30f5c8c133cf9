//! The request for a cluster, as users write it. Its profile fills in what is missing and checks
//! the rest; see `profile/resolve.rs`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use tenure_wire::schema::{integer, string, text};

use crate::names::{DOMAIN_BYTES_MAX, NAME_BYTES_MAX};
use crate::profile::{OWNER_BYTES_MAX, TTL_MS_MAX, WORKERS_MAX};

/// DNS labels.
const NAME_PATTERN: &str = "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$";

tenure_wire::schemas! {
    /// Name of a cluster: a DNS label, the first of its domain.
    ClusterName => string().min_length(Some(1)).max_length(Some(NAME_BYTES_MAX))
        .pattern(Some(NAME_PATTERN)).examples(["demo"]);
    /// Name of a profile.
    ProfileName => text(1, crate::profile::PROFILE_BYTES_MAX).examples(["aws-dev"]);
    /// An OpenShift version.
    OpenShiftVersion => text(1, crate::profile::VERSION_BYTES_MAX).examples(["4.19.1"]);
    /// A region of the platform.
    RegionName => text(1, crate::profile::REGION_BYTES_MAX).examples(["us-east-1"]);
    /// A domain below which clusters get their own.
    BaseDomain => text(1, DOMAIN_BYTES_MAX).examples(["dev.example.com"]);
    /// A number of worker nodes.
    WorkerCount => integer(0, u64::from(WORKERS_MAX)).examples([3]);
    /// Time from the request to the automatic destroy, in milliseconds; 0 for none.
    ClusterTtl => integer(0, TTL_MS_MAX).examples([28_800_000]);
    /// Person or team that a cluster belongs to.
    ClusterOwner => text(1, OWNER_BYTES_MAX).examples(["ann@example.com"]);
}

/// Request for a new cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateClusterRequest, example = json!({
    "name": "demo", "profile": "aws-dev", "owner": "ann@example.com", "ttl_ms": 28_800_000
}))]
pub struct CreateRequest {
    /// Name, unique below its base domain.
    #[schema(value_type = ClusterName)]
    pub name: String,
    /// Profile, which has the defaults and bounds of everything else.
    #[schema(value_type = ProfileName)]
    pub profile: String,
    /// OpenShift version. Defaults to that of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<OpenShiftVersion>)]
    pub version: Option<String>,
    /// Region. Defaults to that of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RegionName>)]
    pub region: Option<String>,
    /// Base domain. Defaults to that of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BaseDomain>)]
    pub base_domain: Option<String>,
    /// Number of worker nodes. Defaults to that of the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<WorkerCount>)]
    pub workers: Option<u32>,
    /// Time from the request to the automatic destroy. Defaults to that of the profile. `0` keeps
    /// the cluster until it is destroyed, if the profile allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ClusterTtl>)]
    pub ttl_ms: Option<u64>,
    /// Person or team that it belongs to.
    #[schema(value_type = ClusterOwner)]
    pub owner: String,
    /// Tags of its resources in the cloud.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Whether what a failed create has left is kept for an investigation. Defaults to `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preserve_on_failure: Option<bool>,
}

/// A field of a request that its profile does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = ProfileViolation)]
pub struct Violation {
    /// Field: `workers`, or `tags.NAME` for one tag.
    pub field: String,
    /// What is wrong, and the remedy.
    pub message: String,
}

impl Violation {
    /// Creates a violation.
    pub(crate) fn new(field: &str, message: impl Into<String>) -> Self {
        Self { field: field.to_owned(), message: message.into() }
    }
}

/// `FIELD: MESSAGE`.
impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<CreateRequest, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn three_fields_are_required() {
        let request = parse(r#"{"name":"a","profile":"p","owner":"ann"}"#).unwrap();
        assert_eq!(request.ttl_ms, None);
        assert_eq!(request.preserve_on_failure, None);
        for text in [
            r#"{"name":"a","profile":"p"}"#,
            r#"{"name":"a","owner":"ann"}"#,
            r#"{"profile":"p","owner":"ann"}"#,
        ] {
            assert!(parse(text).unwrap_err().to_string().contains("missing field"), "{text}");
        }
    }

    #[test]
    fn null_is_the_same_as_a_missing_field() {
        let request = r#"{"name":"a","profile":"p","owner":"ann","ttl_ms":null,"workers":null}"#;
        assert_eq!(
            parse(request).unwrap(),
            parse(&request.replace(",\"ttl_ms\":null,\"workers\":null", "")).unwrap()
        );
    }

    #[test]
    fn unknown_fields_and_negative_numbers_are_refused() {
        for field in [r#""worker":3"#, r#""workers":-1"#, r#""ttl_ms":1.5"#, r#""tags":{"a":1}"#] {
            let text = format!(r#"{{"name":"a","profile":"p","owner":"ann",{field}}}"#);
            assert!(parse(&text).is_err(), "{field}");
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        let request = CreateRequest {
            name: "a".to_owned(),
            profile: "p".to_owned(),
            version: Some("4.19.1".to_owned()),
            region: Some("us-east-1".to_owned()),
            base_domain: Some("a.example".to_owned()),
            workers: Some(0),
            ttl_ms: Some(0),
            owner: "ann".to_owned(),
            tags: [("team".to_owned(), "x".to_owned())].into(),
            preserve_on_failure: Some(true),
        };
        assert_eq!(parse(&serde_json::to_string(&request).unwrap()).unwrap(), request);
    }
}
