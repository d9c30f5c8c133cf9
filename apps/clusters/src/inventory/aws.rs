//! Inventory of an installation on AWS, by its tags.
//!
//! See `aws/tagging.rs` for the query, and `aws/ec2.rs` for why it is not enough.

use std::collections::BTreeSet;

use async_trait::async_trait;

use super::{Inventory, InventoryError};
use crate::aws::{AwsError, Client, ec2, tagging};
use crate::status::Infra;

/// Finds the resources of installations on AWS.
#[derive(Clone, Debug)]
pub struct AwsInventory {
    client: Client,
}

impl AwsInventory {
    /// Creates the inventory. The region of the client does not matter.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }
}

#[async_trait]
impl Inventory for AwsInventory {
    async fn list(&self, infra: &Infra) -> Result<Vec<String>, InventoryError> {
        if infra.infra_id.is_empty() {
            // The tag of no installation: the answer would be empty.
            return Err(InventoryError("the installation has no infra id".to_owned()));
        }
        let fail = |error: AwsError| InventoryError(error.to_string());
        let mut found = BTreeSet::new();
        for region in regions(&infra.region) {
            let client = self.client.in_region(region);
            let owned = tagging::owned_resources(&client, &infra.infra_id);
            let mut arns = owned.await.map_err(fail)?;
            if region == infra.region {
                ec2::retain_existing(&client, &mut arns).await.map_err(fail)?;
            }
            found.append(&mut arns);
        }
        Ok(found.into_iter().collect())
    }
}

/// Returns a region and the one that lists the global resources of its partition, such as hosted
/// zones.
fn regions(region: &str) -> BTreeSet<&str> {
    let global = match region {
        _ if region.starts_with("cn-") => "cn-northwest-1",
        _ if region.starts_with("us-gov-") => "us-gov-west-1",
        _ => "us-east-1",
    };
    BTreeSet::from([region, global])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn global_resources_are_looked_up_in_their_partition() {
        assert_eq!(regions("eu-central-1"), BTreeSet::from(["eu-central-1", "us-east-1"]));
        assert_eq!(regions("us-east-1"), BTreeSet::from(["us-east-1"]));
        assert_eq!(regions("cn-north-1"), BTreeSet::from(["cn-north-1", "cn-northwest-1"]));
        assert_eq!(regions("us-gov-east-1"), BTreeSet::from(["us-gov-east-1", "us-gov-west-1"]));
    }
}
