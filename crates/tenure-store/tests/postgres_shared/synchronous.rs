//! A synchronous standby: what was acknowledged survives the loss of the primary.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure_core::{Outcome, Refusal, Token};
use tenure_store::store::StoreError;
use tenure_store::{Committer, Store};
use tenure_testbed::{Durability, Fault, Postgres, Proxy};

use crate::common::*;
use crate::faults::granted_tokens;
use crate::incarnations::acquire_when_up;

const TASKS: u128 = 4;

/// Acquires and releases a lock until the store fails. Returns the tokens that were granted, and
/// whether the last one was released.
async fn run_workload(
    committer: Committer,
    task: u128,
    acknowledged: Arc<AtomicUsize>,
) -> (BTreeSet<u64>, bool) {
    let (name, mut tokens) = (format!("c{task}"), BTreeSet::new());
    for round in 0.. {
        let result = committer.submit(acquire(&name, 1, task * 100_000 + round)).await;
        let Ok(Outcome::Granted(view)) = &result else {
            assert!(is_failover(&result), "{result:?}");
            return (tokens, true);
        };
        tokens.insert(view.token.0);
        let result = committer.submit(release(&name, view.token)).await;
        if !matches!(result, Ok(Outcome::Released { already: false })) {
            assert!(is_failover(&result), "{result:?}");
            return (tokens, false);
        }
        acknowledged.fetch_add(1, Ordering::SeqCst);
    }
    unreachable!("the primary is killed")
}

/// Returns `true` for what requests get during a fail-over: an error, or, repeated on the new
/// primary, that the sessions of the old one have ended.
fn is_failover(result: &Result<Outcome, StoreError>) -> bool {
    let ended =
        |refusal: &Refusal| matches!(refusal, Refusal::SessionExpired | Refusal::Lost { .. });
    match result {
        Err(error) => matches!(error, StoreError::Unavailable(_)),
        Ok(Outcome::Refused(refusal)) => ended(refusal),
        Ok(_) => false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_synchronous_standby_has_every_acknowledged_write() {
    let mut primary = Postgres::start(Durability::Disk).expect("PostgreSQL is installed");
    let name = primary.new_database().expect("new database");
    let [replication, address] =
        [(); 2].map(|()| Proxy::start(primary.port()).expect("a free port"));
    let standby =
        primary.standby_through(replication.port(), Durability::Disk).expect("standby starts");
    let sql = |sql: &str| primary.psql("postgres", sql).expect("the primary is up");
    sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
    sql("SELECT pg_reload_conf()");
    let is_synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    wait_until("the standby is synchronous", async || sql(is_synchronous) == "1").await;
    let store = open(&format!("postgres://postgres@127.0.0.1:{}/{name}", address.port())).await;
    apply_one(&*store, open_session(1)).await;
    let committer = Committer::start(Arc::clone(&store) as Arc<dyn Store>);
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let workload =
        |task| tokio::spawn(run_workload(committer.clone(), task, Arc::clone(&acknowledged)));
    let tasks: Vec<_> = (1..=TASKS).map(workload).collect();
    wait_until("the tasks make progress", async || acknowledged.load(Ordering::SeqCst) > 50).await;

    // The standby misses a commit, which is not acknowledged, and takes over.
    replication.set_fault(Fault::Down);
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    wait_until("a commit waits for the standby", async || sql(waits) != "0").await;
    primary.kill();
    standby.promote().expect("promotion succeeds");
    address.redirect(standby.port());
    address.disconnect_all();
    let mut last = Token(0);
    for (task, outcome) in (1..=TASKS).zip(tasks) {
        let (tokens, is_released) = outcome.await.expect("the task does not panic");
        let name = format!("c{task}");
        wait_until("the standby serves", async || {
            store.reads().show(&key(&name)).await.is_ok_and(|shown| shown.is_some())
        })
        .await;
        let kept = granted_tokens(&store, &format!("t/cluster/{name}")).await;
        assert!(tokens.is_subset(&kept), "{name}: {tokens:?} were granted, {kept:?} are kept");
        let shown = store.reads().show(&key(&name)).await.expect("it is up").expect("a record");
        let held = shown.tenures.first().map(|tenure| tenure.token.0);
        let last_released = tokens.last().filter(|_| is_released);
        assert!(held.is_none() || held != last_released.copied(), "{name}: a release is lost");
        if task == 1 {
            last = Token(tokens.last().copied().expect("it made progress"));
        }
    }
    let granted = acquire_when_up(&store, 2, 900_000).await.expect("a new incarnation");
    assert!(granted_token(&granted) > last, "{granted:?} is not above {last:?}");
    assert_valid_history(&[&store]).await;
}
