//! `tenure.assert_held` in the transactions of users: its commit and a take-over never both happen
//! in the wrong order.

use std::time::Duration;

use tenure_core::{Command, LockAction, Outcome, Refusal, Token};
use tenure_store::Store;
use tenure_store::clock::{ManualClock, stopwatch};

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
    let token = token(&one(&*store, acquire("c1", 1, 10)).await);
    user.execute(HELD, &[]).await.expect("it is held");
    for other in ["'t/cluster/c1', 2", "'t/cluster/c1', 0", "'t/cluster/c1#other', 1", "'c1', 1"] {
        let sql = format!("SELECT tenure.assert_held({other})");
        let error = user.execute(&sql, &[]).await.expect_err("it is not held");
        assert_eq!(state(&error), "TN001", "{other}");
    }
    user.execute("SELECT tenure.assert_held('t/cluster/c1#main', 1)", &[]).await.expect("held");
    one(&*store, release("c1", token)).await;
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
    assert_eq!(one(&*a, break_it(held)).await, Outcome::Broken);
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
    // Its transaction may not be quite over when it has its answer.
    assert_eq!(token(&insist(&*a, acquire("c1", 2, 21)).await), Token(2));
    verified(&[&a]).await;
}
