//! Clusters that were destroyed long ago, and whose snapshots are deleted, leave the lists. Their
//! history stays for as long as that of the store.

use std::time::Duration;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};
use tenure_core::{Command, Outcome, Precondition, ResourceAction, ResourceKey};
use tenure_store::StoreError;
use tenure_store::store::{PAGE_MAX, ResourceQuery};

use crate::LoadedClusters;
use crate::names::CLUSTER;
use crate::state::ClusterState;
use crate::status::ClusterStatus;

/// Deletes the resources of destroyed clusters.
#[derive(Default)]
pub(crate) struct Retention {
    /// Where the next run continues.
    after: Option<ResourceKey>,
}

#[async_trait]
impl Duty for Retention {
    fn name(&self) -> &'static str {
        "cluster_retention"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn run(&mut self, cx: &DutyContext) -> Result<DutyReport, StoreError> {
        let Some(app) = cx.live.app::<LoadedClusters>() else { return Ok(DutyReport::default()) };
        let retention_ms = app.settings.artifact_retention_ms;
        let now = cx.store().status().await?.now;
        let query = ResourceQuery {
            kind: Some(CLUSTER.into()),
            state: Some(ClusterState::Destroyed.as_str().into()),
            after: self.after.take(),
            limit: PAGE_MAX,
            ..ResourceQuery::default()
        };
        let mut deleted = 0;
        let page = cx.store().reads().resources(query).await?;
        self.after = page.next;
        for view in page.items {
            let resource = &view.resource;
            let document = resource.status.as_ref().map(|status| &*status.document);
            // Until its snapshots are deleted, the status says where they are.
            let purged = ClusterStatus::parse(document)
                .is_ok_and(|status| status.snapshot.is_none() && status.destroyed.is_none());
            let old = now.since(resource.since) > retention_ms;
            if !purged || !old || !resource.lane.is_empty() {
                continue;
            }
            let precondition = Some(Precondition::Generation(resource.generation));
            let action = ResourceAction::Delete { by: "janitor".into(), precondition };
            let command = Command::Resource { key: view.key.clone(), action };
            let outcome = cx.committer.submit(command).await?;
            deleted += usize::from(matches!(outcome, Outcome::Deleted));
        }
        Ok(DutyReport::done(deleted))
    }
}
