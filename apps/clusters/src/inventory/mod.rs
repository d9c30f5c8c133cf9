//! What exists of an installation in the cloud.

use async_trait::async_trait;

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

/// A query that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot list the resources of the installation: {0}")]
pub struct InventoryError(pub String);
