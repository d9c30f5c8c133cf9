//! `tenure.assert_held` in the transactions of users: its commit and a take-over never both happen
//! in the wrong order.

use std::time::Duration;

use tenure_core::{Command, LockAction, Outcome, Refusal, Token};
use tenure_store::Store;
use tenure_store::clock::{ManualClock, stopwatch};
use tenure_testbed::{Fault, Proxy};

use crate::bed::*;

const HELD: &str = "SELECT tenure.assert_held('t/cluster/c1', 1)";

/// What a failed statement is called.
fn state(error: &tokio_postgres::Error) -> &str {
    error.code().expect("the database says so").code()
}

fn break_it(token: Token) -> Command {
    let (by, reason) = ("ann".into(), "test".into());
    let action = LockAction::Break { token, locks: None, by, reason };
    Command::Lock { key: key("c1"), action }
}

#[tokio::test]
async fn a_statement_of_somebody_who_does_not_hold_the_lock_fails() {
    let url = database();
    let store = open(&url).await;
    one(&*store, session(1)).await;
    let user = raw(&url).await;
    let error = user.execute(HELD, &[]).await.expect_err("nobody ever had it");
    assert_eq!(state(&error), "TN001");
    // A transaction that has failed may not be quite over when it has its answer.
    let token = token(&insist(&*store, acquire("c1", 1, 10)).await);
    user.execute(HELD, &[]).await.expect("it is held");
    // A name that begins or ends like another is another.
    one(&*store, acquire("c", 1, 11)).await;
    one(&*store, acquire("c12", 1, 12)).await;
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
        let error = user.execute(&sql, &[]).await.expect_err("it is not held");
        assert_eq!(state(&error), "TN001", "{other}");
    }
    user.execute("SELECT tenure.assert_held('t/cluster/c1#main', 1)", &[]).await.expect("held");
    insist(&*store, release("c1", token)).await;
    let error = user.execute(HELD, &[]).await.expect_err("it was released");
    assert_eq!(state(&error), "TN001");
}

#[tokio::test]
async fn a_take_over_waits_for_the_transaction_that_asked_first() {
    let url = database();
    let (a, b) = (open(&url).await, open(&url).await);
    one(&*a, session(1)).await;
    one(&*a, session(2)).await;
    let held = token(&one(&*a, acquire("c1", 1, 10)).await);
    let user = raw(&url).await;
    user.batch_execute(&format!("BEGIN; {HELD}")).await.expect("it is held");
    let commands = [break_it(held), release("c1", held), acquire("c1", 2, 20)];
    for (command, request) in commands.into_iter().zip(30..) {
        let outcome = one(&*a, command.clone()).await;
        assert_eq!(outcome, Outcome::Refused(Refusal::Busy), "{command:?}");
        let started = stopwatch();
        take_and_release(&*b, "c2", request).await;
        assert!(started.elapsed() < Duration::from_millis(200), "others have to wait");
    }
    // A second reader is no take-over.
    raw(&url).await.execute(HELD, &[]).await.expect("it is still held");
    user.batch_execute("COMMIT").await.expect("it is there");
    assert_eq!(insist(&*a, break_it(held)).await, Outcome::Broken);
    assert_eq!(token(&one(&*b, acquire("c1", 2, 21)).await), Token(2));
    // The other order: the take-over came first.
    let error = user.batch_execute(&format!("BEGIN; {HELD}")).await.expect_err("it is lost");
    assert_eq!(state(&error), "TN001");
    verified(&[&a, &b]).await;
}

#[tokio::test]
async fn a_lapsed_holder_keeps_the_lock_while_its_transaction_lasts() {
    let (url, clock) = (database(), ManualClock::default());
    let a = open_with(&url, Some(&clock)).await;
    one(&*a, session_of(1, "t", 1_500)).await;
    one(&*a, session(2)).await;
    token(&one(&*a, acquire("c1", 1, 10)).await);
    let user = raw(&url).await;
    user.batch_execute(&format!("BEGIN; {HELD}")).await.expect("it is held");
    clock.advance(1_600);
    let swept = a.sweep().await.expect("the server is there");
    assert_eq!((swept.sessions, swept.tenures), (1, 0));
    let outcome = one(&*a, acquire("c1", 2, 20)).await;
    assert_eq!(outcome, Outcome::Refused(Refusal::Busy));
    user.batch_execute("COMMIT").await.expect("it is there");
    let swept = a.sweep().await.expect("the server is there");
    assert_eq!((swept.sessions, swept.tenures), (0, 1));
    let error = user.execute(HELD, &[]).await.expect_err("it has ended");
    assert_eq!(state(&error), "TN001");
    assert_eq!(token(&insist(&*a, acquire("c1", 2, 21)).await), Token(2));
    verified(&[&a]).await;
}

#[tokio::test]
async fn whoever_needs_to_see_the_past_is_told_that_it_does_not_work() {
    let url = database();
    let store = open(&url).await;
    one(&*store, session(1)).await;
    token(&one(&*store, acquire("c1", 1, 10)).await);
    let user = raw(&url).await;
    let sql = format!("BEGIN ISOLATION LEVEL REPEATABLE READ; {HELD}");
    let error = user.batch_execute(&sql).await.expect_err("it would see what was true before");
    assert_eq!(state(&error), "TN002");
}

#[tokio::test]
async fn others_go_on_while_a_dead_worker_has_a_transaction_open() {
    let (url, clock) = (database(), ManualClock::default());
    let store = open_with(&url, Some(&clock)).await;
    one(&*store, session_of(1, "t", 1_500)).await;
    one(&*store, session(2)).await;
    one(&*store, submit("t/scheduler/r1", "configure", 10)).await;
    let ask = Command::Claim(claim(1, 11, "scheduler", 1));
    assert_eq!(claimed(one(&*store, ask).await).len(), 1);
    // A job with another lock of the resource is ready all the time.
    one(&*store, submit("t/scheduler/r1", "shrink", 12)).await;
    let user = raw(&url).await;
    let held = "BEGIN; SELECT tenure.assert_held('t/scheduler/r1#config', 1)";
    user.batch_execute(held).await.expect("it is held");
    clock.advance(1_600);
    let swept = store.sweep().await.expect("the server is there");
    assert_eq!((swept.sessions, swept.tenures), (1, 0));
    one(&*store, submit("t/scheduler/r2", "shrink", 20)).await;
    let jobs = claimed(one(&*store, Command::Claim(claim(2, 21, "scheduler", 5))).await);
    let names: Vec<&str> = jobs.iter().map(|job| job.tenure.key.name()).collect();
    assert_eq!(names, ["r2"], "what a transaction relies on stays as it is");
    user.batch_execute("COMMIT").await.expect("it is there");
    until("the other job starts", async || {
        let ask = Command::Claim(claim(2, 22, "scheduler", 5));
        claimed(one(&*store, ask).await).iter().any(|job| job.tenure.key.name() == "r1")
    })
    .await;
    verified(&[&store]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_cut_off_at_its_commit_does_not_come_back_under_a_transaction() {
    let server = tenure_testbed::shared();
    let proxy = Proxy::start(server.port()).expect("a free port");
    let name = server.new_database().expect("a new database");
    let store = open(&format!("postgres://postgres@127.0.0.1:{}/{name}", proxy.port())).await;
    one(&*store, session(1)).await;
    let held = token(&one(&*store, acquire("c1", 1, 10)).await);
    let user = raw(&server.url(&name)).await;
    proxy.set_fault(Fault::DisconnectBefore(b"COMMIT".to_vec()));
    let cuts = proxy.triggered();
    let releasing = tokio::spawn({
        let store = std::sync::Arc::clone(&store);
        async move { store.apply(vec![release("c1", held)]).await }
    });
    until("it is cut off", async || proxy.triggered() > cuts).await;
    proxy.set_fault(Fault::Down);
    user.batch_execute(&format!("BEGIN; {HELD}")).await.expect("it is held");
    proxy.set_fault(Fault::None);
    let answer = releasing.await.expect("no panic").expect("it tries again");
    assert_eq!(answer, [Outcome::Refused(Refusal::Busy)]);
    user.batch_execute("COMMIT").await.expect("it is there");
    assert_eq!(insist(&*store, release("c1", held)).await, Outcome::Released { already: false });
    verified(&[&store]).await;
}
