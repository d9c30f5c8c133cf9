//! The apps of this binary: the one place that names them.

use std::sync::Arc;

use tenure_app::Apps;

/// Returns the installed apps.
#[must_use]
pub fn installed() -> Apps {
    Apps::new(vec![
        #[cfg(feature = "builds")]
        Arc::new(tenure_builds::Builds),
        #[cfg(feature = "clusters")]
        Arc::new(tenure_clusters::Clusters),
        #[cfg(feature = "pipelines")]
        Arc::new(tenure_pipelines::Pipelines),
    ])
}
