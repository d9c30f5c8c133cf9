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

over_http!(
    a_broken_tenure_is_over_and_its_holder_is_told,
    a_closed_session_hands_over_at_once,
    a_holder_that_stops_renewing_loses_the_lock,
    a_lapsed_session_never_comes_back,
    a_lock_is_held_by_one,
    a_release_hands_over_to_the_first_living_waiter,
    a_release_matches_the_token,
    a_repeated_request_gives_the_same_tenure,
    a_session_belongs_to_its_tenant,
    a_set_of_locks_is_all_or_nothing,
    a_wait_ends_in_time,
    a_wide_request_is_not_starved,
    a_withdrawn_request_leaks_nothing,
    bad_numbers_are_refused,
    one_heartbeat_renews_everything,
    the_token_stays_while_the_tenure_lasts,
);
