//! Locks through two servers, and interference by other users of the database.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_core::limits::STALL_MS;
use tenure_core::{Outcome, Refusal};
use tenure_store::clock::{ManualClock, stopwatch};
use tenure_store::{Committer, Store, StoreError};
use tenure_testbed::{Fault, Proxy};

use crate::common::*;

const RESOURCES: usize = 20;
const TASKS: usize = 24;
const ROUNDS: usize = 20;

/// Acquires and releases locks through one server. Counts holders independently of the store.
async fn work(committer: Committer, task: usize, holders: Arc<Vec<AtomicUsize>>) -> u64 {
    let session = task as u128 + 1;
    committer.submit(open_session(session)).await.expect("database is up");
    let mut granted = 0;
    for round in 0..ROUNDS {
        let at = (task * 7 + round * 3) % RESOURCES;
        let name = format!("c{at}");
        let request = acquire_request(session, session * 1_000 + round as u128, 60_000);
        let outcome = loop {
            let outcome = committer.acquire(&key(&name), &request, TIMEOUT).await;
            let outcome = outcome.expect("database is up");
            if outcome != Outcome::Refused(Refusal::Busy) {
                break outcome;
            }
        };
        let token = granted_token(&outcome);
        assert_eq!(holders[at].fetch_add(1, Ordering::SeqCst), 0, "{name} has two holders");
        tokio::task::yield_now().await;
        holders[at].fetch_sub(1, Ordering::SeqCst);
        let mut outcome = Outcome::Refused(Refusal::Busy);
        while outcome == Outcome::Refused(Refusal::Busy) {
            outcome = committer.submit(release(&name, token)).await.expect("database is up");
        }
        assert_eq!(outcome, Outcome::Released { already: false });
        granted += 1;
    }
    granted
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_never_has_two_holders_across_two_servers() {
    let url = new_database();
    let (a, b) = (open(&url).await, open(&url).await);
    let committers = [&a, &b].map(|store| Committer::start(Arc::clone(store) as Arc<dyn Store>));
    let holders: Arc<Vec<_>> = Arc::new((0..RESOURCES).map(|_| AtomicUsize::new(0)).collect());
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| tokio::spawn(work(committers[task % 2].clone(), task, Arc::clone(&holders))))
        .collect();
    let mut granted = 0;
    for task in tasks {
        granted += task.await.expect("task does not panic");
    }
    assert_eq!(granted, (TASKS * ROUNDS) as u64);
    for store in [&a, &b] {
        let report = tenure_store::verify::verify(&**store).await.expect("read succeeds");
        assert_eq!(report.problems, []);
        assert_eq!((report.resources, report.grants), (RESOURCES, granted));
    }
}

#[tokio::test]
async fn row_lock_on_the_projection_does_not_block_servers() {
    let url = new_database();
    let (a, b) = (open(&url).await, open(&url).await);
    apply_one(&*a, open_session(1)).await;
    acquire_and_release(&*a, "c1", 10).await;
    assert_valid_history(&[&a]).await;
    let user = user_connection(&url).await;
    let lock_row = "BEGIN; SELECT FROM tenure.resources WHERE key = 't/cluster/c1' FOR UPDATE";
    user.batch_execute(lock_row).await.expect("row is not locked");
    let started = stopwatch();
    for n in 1..20 {
        acquire_and_release(&*b, &format!("c{n}"), 100 + n).await;
    }
    assert!(started.elapsed() < Duration::from_secs(2), "writers are blocked");
    user.batch_execute("ROLLBACK").await.expect("database is up");
    assert_eq!(granted_token(&apply_one(&*a, acquire("c1", 1, 202)).await).0, 3);
    assert_valid_history(&[&a, &b]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_stalls_inside_a_transaction_loses_the_writer_lock() {
    let url = new_database();
    let server = tenure_testbed::shared();
    let proxy = Proxy::start(server.port()).expect("free port");
    let name = url.rsplit('/').next().expect("database name");
    let a = open(&format!("postgres://postgres@127.0.0.1:{}/{name}", proxy.port())).await;
    let b = open(&url).await;
    apply_one(&*b, open_session(3)).await;
    apply_one(&*a, open_session(1)).await;
    acquire_and_release(&*a, "c1", 10).await;
    proxy.set_fault(Fault::BlackholeBefore(b"COMMIT".to_vec()));
    let stopped = tokio::spawn({
        let a = Arc::clone(&a);
        async move { a.apply(vec![open_session(2), acquire("c1", 2, 20)]).await }
    });
    wait_until("the server stalls inside its transaction", async || proxy.triggered() > 0).await;
    let started = stopwatch();
    assert_eq!(granted_token(&apply_one(&*b, acquire("c1", 3, 30)).await).0, 2);
    assert!(started.elapsed() < Duration::from_secs(4), "the writer lock was held for too long");
    let stopped = stopped.await.expect("task does not panic");
    assert!(matches!(stopped, Err(StoreError::Unavailable(_))), "{stopped:?}");
    // When it resumes, its transaction is gone and the retry is refused.
    proxy.set_fault(Fault::None);
    proxy.disconnect_all();
    let retry = async || a.apply(vec![open_session(2), acquire("c1", 2, 20)]).await.ok();
    wait_until("the server resumes", async || retry().await.is_some()).await;
    let late = retry().await.expect("it has resumed");
    assert!(matches!(late[1], Outcome::Refused(Refusal::Held { .. })), "{late:?}");
    assert_valid_history(&[&a, &b]).await;
}

#[tokio::test]
async fn sessions_get_their_full_ttl_after_a_time_without_sweeps() {
    let (url, clock) = (new_database(), ManualClock::default());
    let a = open_with(&url, Some(&clock)).await;
    apply_one(&*a, open_session_of(1, "t", 4_000)).await;
    apply_one(&*a, open_session_of(2, "t", 3_600_000)).await;
    granted_token(&apply_one(&*a, acquire("c1", 1, 10)).await);
    a.sweep().await.expect("database is up");
    // The database is down, so no server can sweep.
    clock.advance(60_000);
    let b = open_with(&url, Some(&clock)).await;
    let refused = apply_one(&*b, acquire("c1", 2, 20)).await;
    assert!(matches!(refused, Outcome::Refused(Refusal::Held { .. })), "{refused:?}");
    assert_eq!(b.sweep().await.expect("database is up").sessions, 0);
    // From the first sweep on it is the full TTL, neither less nor more.
    for _ in 0..2 {
        clock.advance(STALL_MS - 1);
        assert_eq!(a.sweep().await.expect("database is up").sessions, 0);
    }
    clock.advance(2);
    let swept = b.sweep().await.expect("database is up");
    assert_eq!((swept.sessions, swept.tenures), (1, 1));
    assert_eq!(granted_token(&apply_one(&*a, acquire("c1", 2, 21)).await).0, 2);
    assert_valid_history(&[&a, &b]).await;
}

#[tokio::test]
async fn tenure_of_a_solo_acquire_expires_by_the_sweep_alone() {
    let (url, clock) = (new_database(), ManualClock::default());
    let a = open_with(&url, Some(&clock)).await;
    let mut solo = acquire_request(0, 77, 0);
    solo.claimant = tenure_core::Claimant::Solo { name: "solo".into(), ttl_ms: 1_500 };
    let action = tenure_core::LockAction::Acquire(solo);
    granted_token(&apply_one(&*a, tenure_core::Command::Lock { key: key("c1"), action }).await);
    a.sweep().await.expect("database is up");
    clock.advance(1_500);
    let swept = a.sweep().await.expect("database is up");
    assert_eq!((swept.sessions, swept.tenures), (1, 1));
    let shown = a.reads().show(&key("c1")).await.expect("read succeeds").expect("resource exists");
    assert_eq!(shown.tenures, []);
    assert_valid_history(&[&a]).await;
}
