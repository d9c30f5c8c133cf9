//! The scenarios of the stores, over HTTP.

mod common;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::{KEY, Server};
use tenure::Link;
use tenure::http::HttpLink;
use tenure::wire::{HistoryLine, ListAnswer, VerifyAnswer};
use tenure_core::history::Entry;
use tenure_core::{Command, LockAction, Outcome, ResourceKey};
use tenure_store::clock::ManualClock;
use tenure_store::scenario::{self, Driver};
use tenure_store::{Memory, Store};

struct OverHttp {
    server: Server,
    store: Arc<Memory>,
    clock: ManualClock,
}

impl OverHttp {
    fn link(&self, tenant: &str) -> HttpLink {
        HttpLink::new(&self.server.url, KEY, tenant).expect("a good address")
    }
}

#[async_trait]
impl Driver for OverHttp {
    async fn send(&mut self, command: Command) -> Outcome {
        let tenant = match &command {
            Command::Open { tenant, .. } => tenant.to_string(),
            Command::Lock { key, .. } => key.tenant().to_owned(),
            _ => "t".to_owned(),
        };
        // The name of who breaks comes from the key, not from the command.
        let command = match command {
            Command::Lock { key, action: LockAction::Break { token, locks, reason, .. } } => {
                let action = LockAction::Break { token, locks, by: "admin".into(), reason };
                Command::Lock { key, action }
            }
            other => other,
        };
        self.link(&tenant).send(command, Duration::ZERO).await.expect("the server is there")
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
        unreachable!("a store in memory is not restarted")
    }

    async fn history(&mut self, key: &ResourceKey) -> Vec<Entry> {
        let path = format!("/v1/resources/{}/{}/history?limit=1000", key.kind(), key.name());
        let page: ListAnswer<HistoryLine> =
            self.link(key.tenant()).get(&path).await.expect("the server is there");
        let entry = |line: &HistoryLine| Entry::parse(&line.line).expect("our own line");
        page.items.iter().rev().map(entry).collect()
    }

    async fn verify(&mut self) -> Vec<String> {
        let answer: VerifyAnswer =
            self.link("t").get("/v1/verify").await.expect("the server is there");
        answer.problems
    }
}

async fn run(name: &str) {
    let clock = ManualClock::default();
    let store = Arc::new(Memory::with_clock(clock.clone()));
    let server = Server::start(Arc::clone(&store) as Arc<dyn Store>).await;
    scenario::run(scenario::text(name), &mut OverHttp { server, store, clock }).await;
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
