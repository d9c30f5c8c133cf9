//! Databases that refuse or ignore connections, also behind PgBouncer: every command fails
//! promptly, at once while the breaker is open, and the recovery is noticed immediately.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tenure_core::{Command, LockAction, Outcome, SessionId, Token};
use tenure_store::clock::stopwatch;
use tenure_store::store::{PAGE_MAX, StoreError, TenureQuery};
use tenure_store::{Committer, Store};
use tenure_testbed::Fault;

use crate::common::*;
use crate::faults::ProxiedStore;

/// Two seconds, and one for a machine that is busy with other tests.
const PROMPT: Duration = Duration::from_secs(3);

fn renew(name: &str, token: Token) -> Command {
    Command::Lock { key: key(name), action: LockAction::Renew { token, ttl_ms: None } }
}

/// What makes the database unreachable.
enum Outage {
    Network(Fault),
    FrozenPooler,
    KilledPooler,
}

impl Outage {
    fn begin(&self, proxied: &mut ProxiedStore) {
        match (self, &mut proxied.pooler) {
            (Self::Network(fault), _) => proxied.proxy.set_fault(fault.clone()),
            (Self::FrozenPooler, Some(pooler)) => pooler.signal(Signal::STOP),
            (Self::KilledPooler, Some(pooler)) => pooler.kill(),
            (Self::FrozenPooler | Self::KilledPooler, None) => panic!("there is no pooler"),
        }
    }

    fn end(&self, proxied: &mut ProxiedStore) {
        match (self, &mut proxied.pooler) {
            (Self::Network(_), _) => {
                proxied.proxy.set_fault(Fault::None);
                // Connections that were ignored have a gap; nothing else is sent on them.
                proxied.proxy.disconnect_all();
            }
            (Self::FrozenPooler, Some(pooler)) => pooler.signal(Signal::CONT),
            (Self::KilledPooler, Some(pooler)) => pooler.resume().expect("it starts again"),
            (Self::FrozenPooler | Self::KilledPooler, None) => panic!("there is no pooler"),
        }
    }
}

/// Sends commands while the database cannot be reached, then lets it recover.
async fn assert_outage_is_reported_promptly(mut proxied: ProxiedStore, outage: Outage) {
    let committer = Committer::start(Arc::clone(&proxied.store) as Arc<dyn Store>);
    let opened = committer.submit(open_session(1)).await;
    assert!(matches!(opened, Ok(Outcome::Alive { .. })), "{opened:?}");
    let held = granted_token(&committer.submit(acquire("held", 1, 1)).await.expect("it is up"));
    outage.begin(&mut proxied);
    for round in 0..5 {
        let new = 10 + round * 2;
        let commands = [
            acquire(&format!("c{new}"), 1, new),
            acquire(&format!("c{}", new + 1), 1, new + 1),
            Command::Heartbeat { session: SessionId(1), seen: 0, tenant: None },
            renew("held", held),
            release("held", held),
        ];
        let requests = commands.map(|command| {
            let committer = committer.clone();
            tokio::spawn(async move {
                let since = stopwatch();
                let result = committer.submit(command.clone()).await;
                (command, since.elapsed(), result)
            })
        });
        for request in requests {
            let (command, elapsed, result) = request.await.expect("no panic");
            assert!(matches!(result, Err(StoreError::Unavailable(_))), "{command:?}: {result:?}");
            assert!(elapsed < PROMPT, "{command:?} took {elapsed:?} in round {round}");
            // The breaker is open, and a sweep or another batch may be ahead.
            assert!(round == 0 || elapsed < PROMPT / 2, "{command:?}: {elapsed:?} in {round}");
        }
    }
    outage.end(&mut proxied);
    let since = stopwatch();
    while committer.submit(acquire("c9", 1, 1_000)).await.is_err() {
        assert!(since.elapsed() < PROMPT, "the breaker does not close");
    }
    assert!(since.elapsed() < PROMPT, "recovered after {:?}", since.elapsed());
    // Nothing is granted or released by requests that have failed.
    let query = TenureQuery { limit: PAGE_MAX, ..TenureQuery::default() };
    let held = proxied.store.reads().tenures(query).await.expect("database is up");
    let held: Vec<_> = held.items.iter().map(|tenure| tenure.key.name().to_owned()).collect();
    assert_eq!(held, ["c9", "held"]);
    assert_valid_history(&[&proxied.store]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_connections_are_reported_promptly() {
    assert_outage_is_reported_promptly(ProxiedStore::new().await, Outage::Network(Fault::Down))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_database_is_reported_promptly() {
    assert_outage_is_reported_promptly(
        ProxiedStore::new().await,
        Outage::Network(Fault::Blackhole),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_connections_behind_a_pooler_are_reported_promptly() {
    assert_outage_is_reported_promptly(ProxiedStore::pooled().await, Outage::Network(Fault::Down))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_database_behind_a_pooler_is_reported_promptly() {
    assert_outage_is_reported_promptly(
        ProxiedStore::pooled().await,
        Outage::Network(Fault::Blackhole),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_pooler_is_reported_promptly_and_grants_nothing_later() {
    assert_outage_is_reported_promptly(ProxiedStore::pooled().await, Outage::FrozenPooler).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_pooler_is_reported_promptly() {
    assert_outage_is_reported_promptly(ProxiedStore::pooled().await, Outage::KilledPooler).await;
}
