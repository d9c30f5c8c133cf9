//! Resources by their tags, from the Resource Groups Tagging API.
//!
//! Its answers are eventually consistent, and list some kinds of resources for an hour after their
//! end: see `ec2.rs`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use super::{AwsError, Client, Protocol, Service};

const TAGGING: Service = Service {
    name: "tagging",
    protocol: Protocol::Json11,
    target: "ResourceGroupsTaggingAPI_20170126",
};
const ACTION: &str = "GetResources";

/// Number of resources of one page, the maximum of the service.
const PAGE_SIZE: usize = 100;
/// Maximum number of pages of one query.
pub const PAGES_MAX: usize = 200;
/// Value of the tags of what belongs to one installation only.
const OWNED: &str = "owned";

/// Returns the keys of the tags of what belongs to an installation: those of the installer, and of
/// the Cluster API that it runs.
#[must_use]
pub fn tag_keys(infra_id: &str) -> [String; 2] {
    [
        format!("kubernetes.io/cluster/{infra_id}"),
        format!("sigs.k8s.io/cluster-api-provider-aws/cluster/{infra_id}"),
    ]
}

/// Returns the ARNs of the resources that belong to an installation, in the region of the client.
///
/// # Errors
///
/// Fails if a request fails, or there are more than [`PAGES_MAX`] pages.
pub async fn owned_resources(
    client: &Client,
    infra_id: &str,
) -> Result<BTreeSet<String>, AwsError> {
    let mut arns = BTreeSet::new();
    for key in tag_keys(infra_id) {
        resources(client, &key, OWNED, &mut arns).await?;
    }
    Ok(arns)
}

/// Adds the ARNs of the resources with a tag.
async fn resources(
    client: &Client,
    key: &str,
    value: &str,
    arns: &mut BTreeSet<String>,
) -> Result<(), AwsError> {
    let mut page = String::new();
    for _ in 0..PAGES_MAX {
        let mut request = json!({
            "TagFilters": [{"Key": key, "Values": [value]}],
            "ResourcesPerPage": PAGE_SIZE,
        });
        if !page.is_empty() {
            request["PaginationToken"] = page.as_str().into();
        }
        let answer: Answer = client.call(TAGGING, ACTION, &request, Duration::ZERO).await?;
        arns.extend(answer.resources.into_iter().map(|resource| resource.arn));
        page = answer.next.unwrap_or_default();
        // A page may be empty and not be the last one.
        if page.is_empty() {
            return Ok(());
        }
    }
    let why = format!("there are more than {PAGES_MAX} pages of resources with the tag {key}");
    Err(AwsError::Answer { service: TAGGING.name, action: ACTION, why })
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "ResourceTagMappingList")]
    resources: Vec<Resource>,
    #[serde(rename = "PaginationToken", default)]
    next: Option<String>,
}

#[derive(Deserialize)]
struct Resource {
    #[serde(rename = "ResourceARN")]
    arn: String,
}
