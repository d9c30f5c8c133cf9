//! Locks through two servers at once, and what others of the database keep from them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_core::{Outcome, Refusal};
use tenure_store::clock::{ManualClock, stopwatch};
use tenure_store::ledger::STALL_MS;
use tenure_store::{Committer, Store};
use tenure_testbed::{Fault, Proxy};

use crate::bed::*;

const RESOURCES: usize = 20;
const TASKS: usize = 24;
const ROUNDS: usize = 20;

/// Takes and gives back locks through one server, and counts who else thinks to hold them.
async fn work(committer: Committer, task: usize, holders: Arc<Vec<AtomicUsize>>) -> u64 {
    let me = task as u128 + 1;
    committer.submit(session(me)).await.expect("the server is there");
    let mut granted = 0;
    for round in 0..ROUNDS {
        let at = (task * 7 + round * 3) % RESOURCES;
        let name = format!("c{at}");
        let ask = ask(me, me * 1_000 + round as u128, 60_000);
        let outcome = loop {
            let outcome = committer.acquire(&key(&name), &ask, PATIENCE).await;
            let outcome = outcome.expect("the server is there");
            if outcome != Outcome::Refused(Refusal::Busy) {
                break outcome;
            }
        };
        let token = token(&outcome);
        assert_eq!(holders[at].fetch_add(1, Ordering::SeqCst), 0, "{name} has two holders");
        tokio::task::yield_now().await;
        holders[at].fetch_sub(1, Ordering::SeqCst);
        let mut outcome = Outcome::Refused(Refusal::Busy);
        while outcome == Outcome::Refused(Refusal::Busy) {
            outcome = committer.submit(release(&name, token)).await.expect("the server is there");
        }
        assert_eq!(outcome, Outcome::Released { already: false });
        granted += 1;
    }
    granted
}

#[tokio::test(flavor = "multi_thread")]
async fn through_two_servers_a_lock_never_has_two_holders() {
    let url = database();
    let (a, b) = (open(&url).await, open(&url).await);
    let committers = [&a, &b].map(|store| Committer::start(Arc::clone(store) as Arc<dyn Store>));
    let holders: Arc<Vec<_>> = Arc::new((0..RESOURCES).map(|_| AtomicUsize::new(0)).collect());
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| tokio::spawn(work(committers[task % 2].clone(), task, Arc::clone(&holders))))
        .collect();
    let mut granted = 0;
    for task in tasks {
        granted += task.await.expect("no task panics");
    }
    assert_eq!(granted, (TASKS * ROUNDS) as u64);
    for store in [&a, &b] {
        let report = tenure_store::verify::verify(&**store).await.expect("it reads");
        assert_eq!(report.problems, []);
        assert_eq!((report.resources, report.grants), (RESOURCES, granted));
    }
}

#[tokio::test]
async fn whoever_locks_a_row_of_the_tables_stops_nobody() {
    let url = database();
    let (a, b) = (open(&url).await, open(&url).await);
    one(&*a, session(1)).await;
    take_and_release(&*a, "c1", 10).await;
    verified(&[&a]).await;
    let user = raw(&url).await;
    let stop = "BEGIN; SELECT FROM tenure.resources WHERE key = 't/cluster/c1' FOR UPDATE";
    user.batch_execute(stop).await.expect("nobody has it");
    let started = stopwatch();
    for n in 1..20 {
        take_and_release(&*b, &format!("c{n}"), 100 + n).await;
    }
    assert!(started.elapsed() < Duration::from_secs(2), "others were slow");
    user.batch_execute("ROLLBACK").await.expect("it is there");
    assert_eq!(token(&one(&*a, acquire("c1", 1, 202)).await).0, 3);
    verified(&[&a, &b]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_inside_a_transaction_loses_its_turn_soon() {
    let url = database();
    let server = tenure_testbed::shared();
    let proxy = Proxy::start(server.port()).expect("a free port");
    let name = url.rsplit('/').next().expect("a name");
    let a = open(&format!("postgres://postgres@127.0.0.1:{}/{name}", proxy.port())).await;
    let b = open(&url).await;
    one(&*b, session(3)).await;
    one(&*a, session(1)).await;
    take_and_release(&*a, "c1", 10).await;
    proxy.set_fault(Fault::BlackholeBefore(b"COMMIT".to_vec()));
    let stopped = tokio::spawn({
        let a = Arc::clone(&a);
        async move { a.apply(vec![session(2), acquire("c1", 2, 20)]).await }
    });
    until("it stops inside its transaction", async || proxy.triggered() > 0).await;
    let started = stopwatch();
    assert_eq!(token(&one(&*b, acquire("c1", 3, 30)).await).0, 2);
    assert!(started.elapsed() < Duration::from_secs(4), "it kept its turn for too long");
    // When it goes on it finds that it was too late.
    proxy.set_fault(Fault::None);
    proxy.disconnect_all();
    let late = stopped.await.expect("no panic").expect("it tries again");
    assert!(matches!(late[1], Outcome::Refused(Refusal::Held { .. })), "{late:?}");
    verified(&[&a, &b]).await;
}

#[tokio::test]
async fn when_nobody_looked_for_a_while_everybody_has_full_time_again() {
    let (url, clock) = (database(), ManualClock::default());
    let a = open_with(&url, Some(&clock)).await;
    one(&*a, session_of(1, "t", 4_000)).await;
    one(&*a, session_of(2, "t", 3_600_000)).await;
    token(&one(&*a, acquire("c1", 1, 10)).await);
    a.sweep().await.expect("the server is there");
    // The database is away; no server can look.
    clock.advance(60_000);
    let b = open_with(&url, Some(&clock)).await;
    let refused = one(&*b, acquire("c1", 2, 20)).await;
    assert!(matches!(refused, Outcome::Refused(Refusal::Held { .. })), "{refused:?}");
    assert_eq!(b.sweep().await.expect("the server is there").sessions, 0);
    // From the first look on it is a full time to live, neither less nor more.
    for _ in 0..2 {
        clock.advance(STALL_MS - 1);
        assert_eq!(a.sweep().await.expect("the server is there").sessions, 0);
    }
    clock.advance(2);
    let swept = b.sweep().await.expect("the server is there");
    assert_eq!((swept.sessions, swept.tenures), (1, 1));
    assert_eq!(token(&one(&*a, acquire("c1", 2, 21)).await).0, 2);
    verified(&[&a, &b]).await;
}

#[tokio::test]
async fn the_tenure_of_one_acquire_ends_with_its_time_although_nobody_asks() {
    let (url, clock) = (database(), ManualClock::default());
    let a = open_with(&url, Some(&clock)).await;
    let mut solo = ask(0, 77, 0);
    solo.claimant = tenure_core::Claimant::Solo { name: "solo".into(), ttl_ms: 1_500 };
    let action = tenure_core::LockAction::Acquire(solo);
    token(&one(&*a, tenure_core::Command::Lock { key: key("c1"), action }).await);
    a.sweep().await.expect("the server is there");
    clock.advance(1_500);
    let swept = a.sweep().await.expect("the server is there");
    assert_eq!((swept.sessions, swept.tenures), (1, 1));
    let shown = a.reads().show(&key("c1")).await.expect("it reads").expect("it is known");
    assert_eq!(shown.tenures, []);
    verified(&[&a]).await;
}
