//! What exists of an installation in the cloud.

mod aws;
mod command;

use std::sync::Arc;

use async_trait::async_trait;

pub use aws::AwsInventory;
pub use command::{CommandInventory, OUTPUT_BYTES_MAX, TIME_LIMIT};

use crate::aws::Client;
use crate::settings::{Settings, Verification};
use crate::status::Infra;

/// Finds the resources of an installation by the tag `kubernetes.io/cluster/INFRA_ID`.
///
/// Such queries are eventually consistent: a resource can be missing in an answer for seconds after
/// its creation, and be listed for seconds after its deletion. So a destroy counts as complete only
/// after two empty answers.
#[async_trait]
pub trait Inventory: Send + Sync {
    /// Lists the resources of an installation, by their names in the cloud.
    ///
    /// # Errors
    ///
    /// Fails if the query cannot be made, for example because it is throttled. Nothing is known
    /// then.
    async fn list(&self, infra: &Infra) -> Result<Vec<String>, InventoryError>;
}

/// Region of the client before a query names that of its installation.
const ANY_REGION: &str = "us-east-1";

/// Opens the inventory of the settings; none if a destroy is not verified, and nothing is known
/// about what exists.
///
/// # Errors
///
/// Fails if the settings of AWS are wrong.
pub fn open(settings: &Settings) -> Result<Option<Arc<dyn Inventory>>, InventoryError> {
    Ok(match &settings.verification {
        Verification::Aws => {
            let client = Client::from_env(ANY_REGION, settings.aws_endpoint.as_deref());
            let client = client.map_err(|error| InventoryError(error.to_string()))?;
            Some(Arc::new(AwsInventory::new(client)))
        }
        Verification::Command(argv) => Some(Arc::new(CommandInventory::new(argv, settings))),
        Verification::None => None,
    })
}

/// A query that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot list the resources of the installation: {0}")]
pub struct InventoryError(pub String);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn settings_choose_the_inventory() {
        let mut settings = Settings::new(Path::new("/nonexistent"));
        assert!(open(&settings).unwrap().is_some());
        settings.verification = Verification::Command(vec!["true".to_owned()]);
        assert!(open(&settings).unwrap().is_some());
        settings.verification = Verification::None;
        assert!(open(&settings).unwrap().is_none());
    }

    #[test]
    fn a_wrong_endpoint_is_named() {
        let mut settings = Settings::new(Path::new("/nonexistent"));
        settings.aws_endpoint = Some("127.0.0.1:4566".to_owned());
        let error = open(&settings).err().unwrap().to_string();
        assert!(error.contains("127.0.0.1:4566"), "{error}");
    }
}
