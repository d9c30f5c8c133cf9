//! Queries over HTTP.

use std::time::Duration;

use async_trait::async_trait;
use tenure_core::limits::PAGE_MAX;
use tenure_core::{JobId, ResourceKey};

use super::HttpTransport;
use crate::error::Error;
use crate::transport::Queries;
use crate::wire::{
    GroupInfo, HistoryEntry, JobInfo, ListResponse, LogResponse, ResourceInfo,
    ResourceLocksResponse, StatusResponse, WhoamiResponse, WhyResponse,
};

impl HttpTransport {
    /// Verifies that the server is a Tenure server and accepts the key.
    pub async fn verify(&self) -> Result<(), Error> {
        let whoami: Result<WhoamiResponse, _> = self.get("/v1/whoami").await;
        match whoami {
            Ok(_) => Ok(()),
            Err(Error::Protocol(why) | Error::NotFound(why)) => {
                Err(Error::Protocol(format!("{} is not a Tenure server: {why}", self.base)))
            }
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl Queries for HttpTransport {
    async fn job(&self, id: JobId, max_wait: Duration) -> Result<JobInfo, Error> {
        let path = format!("/v1/jobs/{id}?wait_ms={}", max_wait.as_millis());
        self.get_with_wait(&path, max_wait).await
    }

    async fn why_job(&self, id: JobId) -> Result<WhyResponse, Error> {
        self.get(&format!("/v1/jobs/{id}/why")).await
    }

    async fn job_log(
        &self,
        id: JobId,
        attempt: Option<u32>,
        after: u64,
        max_wait: Duration,
    ) -> Result<LogResponse, Error> {
        let attempt = attempt.map(|attempt| format!("&attempt={attempt}")).unwrap_or_default();
        let wait_ms = max_wait.as_millis();
        let query = format!("after={after}&limit={PAGE_MAX}&wait_ms={wait_ms}{attempt}");
        self.get_with_wait(&format!("/v1/jobs/{id}/logs?{query}"), max_wait).await
    }

    async fn resource(&self, key: &ResourceKey) -> Result<ResourceInfo, Error> {
        self.get(&resource_path(key)).await
    }

    async fn locks(&self, key: &ResourceKey) -> Result<Option<ResourceLocksResponse>, Error> {
        match self.get(&format!("/v1/locks/{}/{}", key.kind(), key.name())).await {
            Err(Error::NotFound(_)) => Ok(None),
            shown => shown.map(Some),
        }
    }

    async fn group(&self, key: &ResourceKey) -> Result<GroupInfo, Error> {
        self.get(&format!("/v1/groups/{}/{}", key.kind(), key.name())).await
    }

    async fn why_resource(&self, key: &ResourceKey) -> Result<WhyResponse, Error> {
        self.get(&format!("{}/why", resource_path(key))).await
    }

    async fn history(
        &self,
        key: &ResourceKey,
        cursor: Option<String>,
    ) -> Result<ListResponse<HistoryEntry>, Error> {
        let cursor = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let path = resource_path(key);
        self.get(&format!("{path}/history?limit={PAGE_MAX}{cursor}")).await
    }

    /// Every request names the tenant of the transport.
    async fn status(&self, _tenant: &str) -> Result<StatusResponse, Error> {
        self.get("/v1/status").await
    }
}

/// Returns the path of a resource. Keys consist of characters that need no encoding.
pub(super) fn resource_path(key: &ResourceKey) -> String {
    format!("/v1/resources/{}/{}", key.kind(), key.name())
}
