//! `tenure.assert_held` in user transactions: a take-over never precedes the commit of a
//! transaction that has asserted the lock.

use std::time::Duration;

use tenure_core::{Command, LockAction, Outcome, Refusal, Token};
use tenure_store::Store;
use tenure_store::clock::{ManualClock, stopwatch};
use tenure_testbed::{Fault, Proxy};

use crate::common::*;

const HELD: &str = "SELECT tenure.assert_held('t/cluster/c1', 1)";

fn sql_state(error: &tokio_postgres::Error) -> &str {
    error.code().expect("database error").code()
}

fn break_lock(token: Token) -> Command {
    let (by, reason) = ("ann".into(), "test".into());
    let action = LockAction::Break { token, locks: None, by, reason, end_job: false };
    Command::Lock { key: key("c1"), action }
}

#[tokio::test]
async fn assert_held_fails_unless_the_lock_is_held_with_the_token() {
    let url = new_database();
    let store = open(&url).await;
    apply_one(&*store, open_session(1)).await;
    let user = user_connection(&url).await;
    let error = user.execute(HELD, &[]).await.expect_err("never held");
    assert_eq!(sql_state(&error), "TN001");
    // The failed transaction may still be ending when its error arrives.
    let token = granted_token(&apply_until_not_busy(&*store, acquire("c1", 1, 10)).await);
    user.execute(HELD, &[]).await.expect("lock is held");
    // Neither a prefix nor a suffix of a name matches.
    apply_one(&*store, acquire("c", 1, 11)).await;
    apply_one(&*store, acquire("c12", 1, 12)).await;
    let others = [
        "'t/cluster/c1', 2",
        "'t/cluster/c1', 0",
        "'t/cluster/c1', 11",
        "'t/cluster/c1#other', 1",
        "'t/cluster/c1#mai', 1",
        "'t/cluster/c1 main=1', 1",
        "E't/cluster/c1 main=1 \\nt/cluster/c12', 1",
        "'c1', 1",
        "'cluster/c1', 1",
    ];
    for other in others {
        let sql = format!("SELECT tenure.assert_held({other})");
        let error = user.execute(&sql, &[]).await.expect_err("lock is not held");
        assert_eq!(sql_state(&error), "TN001", "{other}");
    }
    user.execute("SELECT tenure.assert_held('t/cluster/c1#main', 1)", &[])
        .await
        .expect("lock is held");
    apply_until_not_busy(&*store, release("c1", token)).await;
    let error = user.execute(HELD, &[]).await.expect_err("lock is released");
    assert_eq!(sql_state(&error), "TN001");
}

#[tokio::test]
async fn take_over_is_refused_while_a_user_transaction_relies_on_the_lock() {
    let url = new_database();
    let (a, b) = (open(&url).await, open(&url).await);
    apply_one(&*a, open_session(1)).await;
    apply_one(&*a, open_session(2)).await;
    let held = granted_token(&apply_one(&*a, acquire("c1", 1, 10)).await);
    let user = user_connection(&url).await;
    user.batch_execute(&format!("BEGIN; {HELD}")).await.expect("lock is held");
    let commands = [break_lock(held), release("c1", held), acquire("c1", 2, 20)];
    for (command, request) in commands.into_iter().zip(30..) {
        let outcome = apply_one(&*a, command.clone()).await;
        assert_eq!(outcome, Outcome::Refused(Refusal::Busy), "{command:?}");
        let started = stopwatch();
        acquire_and_release(&*b, "c2", request).await;
        assert!(started.elapsed() < Duration::from_millis(200), "other resources are blocked");
    }
    // A second assertion is not a take-over.
    user_connection(&url).await.execute(HELD, &[]).await.expect("lock is held");
    user.batch_execute("COMMIT").await.expect("database is up");
    assert_eq!(apply_until_not_busy(&*a, break_lock(held)).await, Outcome::Broken);
    assert_eq!(granted_token(&apply_one(&*b, acquire("c1", 2, 21)).await), Token(2));
    // The other order: the take-over precedes the assertion.
    let error = user.batch_execute(&format!("BEGIN; {HELD}")).await.expect_err("lock is lost");
    assert_eq!(sql_state(&error), "TN001");
    assert_valid_history(&[&a, &b]).await;
}

#[tokio::test]
async fn expired_holder_keeps_the_lock_until_its_transaction_ends() {
    let (url, clock) = (new_database(), ManualClock::default());
    let a = open_with(&url, Some(&clock)).await;
    apply_one(&*a, open_session_of(1, "t", 1_500)).await;
    apply_one(&*a, open_session(2)).await;
    granted_token(&apply_one(&*a, acquire("c1", 1, 10)).await);
    let user = user_connection(&url).await;
    user.batch_execute(&format!("BEGIN; {HELD}")).await.expect("lock is held");
    clock.advance(1_600);
    let swept = a.sweep().await.expect("database is up");
    assert_eq!((swept.sessions, swept.tenures), (1, 0));
    let outcome = apply_one(&*a, acquire("c1", 2, 20)).await;
    assert_eq!(outcome, Outcome::Refused(Refusal::Busy));
    user.batch_execute("COMMIT").await.expect("database is up");
    let swept = a.sweep().await.expect("database is up");
    assert_eq!((swept.sessions, swept.tenures), (0, 1));
    let error = user.execute(HELD, &[]).await.expect_err("tenure has ended");
    assert_eq!(sql_state(&error), "TN001");
    assert_eq!(granted_token(&apply_until_not_busy(&*a, acquire("c1", 2, 21)).await), Token(2));
    assert_valid_history(&[&a]).await;
}

#[tokio::test]
async fn assert_held_refuses_repeatable_read() {
    let url = new_database();
    let store = open(&url).await;
    apply_one(&*store, open_session(1)).await;
    granted_token(&apply_one(&*store, acquire("c1", 1, 10)).await);
    let user = user_connection(&url).await;
    let sql = format!("BEGIN ISOLATION LEVEL REPEATABLE READ; {HELD}");
    let error = user.batch_execute(&sql).await.expect_err("REPEATABLE READ is refused");
    assert_eq!(sql_state(&error), "TN002");
}

#[tokio::test]
async fn open_transaction_of_an_expired_worker_does_not_block_other_resources() {
    let (url, clock) = (new_database(), ManualClock::default());
    let store = open_with(&url, Some(&clock)).await;
    apply_one(&*store, open_session_of(1, "t", 1_500)).await;
    apply_one(&*store, open_session(2)).await;
    apply_one(&*store, submit("t/scheduler/r1", "configure", 10)).await;
    let claim = Command::Claim(claim_request(1, 11, "scheduler", 1));
    assert_eq!(assignments(apply_one(&*store, claim).await).len(), 1);
    // A job that needs another lock of the same resource is ready throughout.
    apply_one(&*store, submit("t/scheduler/r1", "shrink", 12)).await;
    let user = user_connection(&url).await;
    let held = "BEGIN; SELECT tenure.assert_held('t/scheduler/r1#config', 1)";
    user.batch_execute(held).await.expect("lock is held");
    clock.advance(1_600);
    let swept = store.sweep().await.expect("database is up");
    assert_eq!((swept.sessions, swept.tenures), (1, 0));
    apply_one(&*store, submit("t/scheduler/r2", "shrink", 20)).await;
    let jobs =
        assignments(apply_one(&*store, Command::Claim(claim_request(2, 21, "scheduler", 5))).await);
    let names: Vec<&str> = jobs.iter().map(|job| job.tenure.key.name()).collect();
    assert_eq!(names, ["r2"], "the fenced resource does not change");
    user.batch_execute("COMMIT").await.expect("database is up");
    wait_until("the other job starts", async || {
        let claim = Command::Claim(claim_request(2, 22, "scheduler", 5));
        assignments(apply_one(&*store, claim).await).iter().any(|job| job.tenure.key.name() == "r1")
    })
    .await;
    assert_valid_history(&[&store]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_commit_is_not_resent_on_a_resource_fenced_in_the_meantime() {
    let server = tenure_testbed::shared();
    let proxy = Proxy::start(server.port()).expect("free port");
    let name = server.new_database().expect("new database");
    let store = open(&format!("postgres://postgres@127.0.0.1:{}/{name}", proxy.port())).await;
    apply_one(&*store, open_session(1)).await;
    let held = granted_token(&apply_one(&*store, acquire("c1", 1, 10)).await);
    let user = user_connection(&server.url(&name)).await;
    proxy.set_fault(Fault::DisconnectBefore(b"COMMIT".to_vec()));
    let cuts = proxy.triggered();
    let releasing = tokio::spawn({
        let store = std::sync::Arc::clone(&store);
        async move { store.apply(vec![release("c1", held)]).await }
    });
    wait_until("the connection is cut", async || proxy.triggered() > cuts).await;
    proxy.set_fault(Fault::Down);
    user.batch_execute(&format!("BEGIN; {HELD}")).await.expect("lock is held");
    proxy.set_fault(Fault::None);
    let answer = releasing.await.expect("task does not panic").expect("retry succeeds");
    assert_eq!(answer, [Outcome::Refused(Refusal::Busy)]);
    user.batch_execute("COMMIT").await.expect("database is up");
    assert_eq!(
        apply_until_not_busy(&*store, release("c1", held)).await,
        Outcome::Released { already: false }
    );
    assert_valid_history(&[&store]).await;
}
