//! The scenarios of the stores, over HTTP.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::{KEY, Server};
use serde::de::DeserializeOwned;
use tenure::Transport;
use tenure::http::HttpTransport;
use tenure_core::history::Entry;
use tenure_core::resource::Resource;
use tenure_core::{Code, Command, Job, JobId, LockAction, Millis, Outcome, ResourceKey, Text};
use tenure_store::clock::{Clock, ManualClock};
use tenure_store::scenario::{self, Driver};
use tenure_store::{Memory, Store};
use tenure_wire::{HistoryEntry, JobInfo, ListResponse, ResourceInfo, VerifyResponse, WhyResponse};

struct OverHttp {
    server: Server,
    store: Arc<Memory>,
    clock: ManualClock,
    /// Key of each tenant that a caller is bound to.
    keys: HashMap<Text, String>,
}

impl OverHttp {
    fn transport(&self, tenant: &str) -> HttpTransport {
        HttpTransport::new(&self.server.url, KEY, tenant).expect("a valid URL")
    }

    /// Returns the transport of a caller that is bound to a tenant.
    async fn bound_transport(&mut self, tenant: &Text) -> HttpTransport {
        if !self.keys.contains_key(tenant) {
            let key = common::key(&self.server, tenant, "operator").await;
            self.keys.insert(tenant.clone(), key);
        }
        HttpTransport::new(&self.server.url, &self.keys[tenant], tenant).expect("a valid URL")
    }

    /// Reads an object; `None` if it does not exist.
    async fn find<T: DeserializeOwned>(&self, tenant: &str, path: &str) -> Option<T> {
        match self.transport(tenant).get(path).await {
            Ok(found) => Some(found),
            Err(tenure::Error::Refused(refusal)) if refusal.code() == Code::NotFound => None,
            Err(error) => panic!("{path}: {error}"),
        }
    }
}

#[async_trait]
impl Driver for OverHttp {
    async fn send(&mut self, command: Command) -> Outcome {
        // The server takes the principal from the key, not from the command.
        let tenant = match &command {
            Command::Open { tenant, .. } => tenant.to_string(),
            Command::Lock { key, .. } | Command::Resource { key, .. } => key.tenant().to_owned(),
            _ => "*".to_owned(),
        };
        // A caller is bound to a tenant by its key.
        let bound = match &command {
            Command::Heartbeat { tenant, .. } | Command::Close { tenant, .. } => tenant.clone(),
            Command::Claim(claim) => claim.tenant.clone(),
            Command::Lock { action: LockAction::Acquire(acquire), .. } => acquire.tenant.clone(),
            _ => None,
        };
        let transport = match bound {
            Some(bound) => self.bound_transport(&bound).await,
            None => self.transport(&tenant),
        };
        transport.send(command, Duration::ZERO).await.expect("the server is there")
    }

    async fn advance(&mut self, ms: u64) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(500);
            self.clock.advance(step);
            self.store.sweep().await.expect("the store is there");
            left -= step;
        }
    }

    async fn restart(&mut self) {
        unreachable!("the memory store is not restarted")
    }

    async fn now(&mut self) -> Millis {
        self.clock.now()
    }

    async fn job(&mut self, id: JobId) -> Option<Job> {
        let job: JobInfo = self.find("*", &format!("/v1/jobs/{id}")).await?;
        Some(job.to_job())
    }

    async fn resource(&mut self, key: &ResourceKey) -> Option<Resource> {
        let path = format!("/v1/resources/{}/{}", key.kind(), key.name());
        let resource: ResourceInfo = self.find(key.tenant(), &path).await?;
        Some(resource.to_resource())
    }

    async fn why(&mut self, id: JobId) -> String {
        let why: WhyResponse = self.find("*", &format!("/v1/jobs/{id}/why")).await.expect("a job");
        why.why
    }

    async fn history(&mut self, key: &ResourceKey) -> Vec<Entry> {
        let path = format!("/v1/resources/{}/{}/history?limit=1000", key.kind(), key.name());
        let page: ListResponse<HistoryEntry> =
            self.transport(key.tenant()).get(&path).await.expect("the server is there");
        let entry = |line: &HistoryEntry| Entry::parse(&line.line).expect("a valid entry");
        page.items.iter().rev().map(entry).collect()
    }

    async fn verify(&mut self) -> Vec<String> {
        let answer: VerifyResponse =
            self.transport("t").get("/v1/verify").await.expect("the server is there");
        answer.problems
    }
}

async fn run(name: &str) {
    let clock = ManualClock::default();
    let store = Arc::new(Memory::with_clock(clock.clone()));
    let server = Server::start_with(Arc::clone(&store) as Arc<dyn Store>, scenario::kinds()).await;
    scenario::run(
        scenario::text(name),
        &mut OverHttp { server, store, clock, keys: HashMap::new() },
    )
    .await;
}

macro_rules! over_http {
    ($($name:ident),* $(,)?) => {$(
        #[tokio::test]
        async fn $name() {
            run(stringify!($name)).await;
        }
    )*};
}

tenure_store::for_each_scenario!([over_http]);
