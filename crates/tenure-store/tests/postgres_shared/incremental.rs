//! Verification of a growing history on a database that others use and change.

use tenure_core::verify::Problem;
use tenure_store::postgres::Postgres;
use tenure_store::verify::incremental::IncrementalVerifier;

use crate::common::*;

/// Verifies all that is new, and compares all records. Returns the number of entries.
pub(crate) async fn catch_up(verifier: &mut IncrementalVerifier, store: &Postgres) -> usize {
    verifier.check_incarnation(store).await.expect("database is up");
    let mut entries = 0;
    loop {
        let step = verifier.check_page(store).await.expect("database is up");
        entries += step.entries;
        if !step.has_more {
            break;
        }
    }
    while verifier.compare_records(store, 100).await.expect("database is up").has_more {}
    entries
}

fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn edited_page_is_reported_once_while_another_server_writes() {
    let url = new_database();
    let (a, b) = (open(&url).await, open(&url).await);
    let user = user_connection(&url).await;
    let mut verifier = IncrementalVerifier::default();
    apply_one(&*a, open_session(1)).await;
    for n in 0..3 {
        acquire_and_release(&*a, "c1", 100 + n).await;
        acquire_and_release(&*b, "c2", 200 + n).await;
    }
    assert_eq!(catch_up(&mut verifier, &a).await, 12);
    assert_eq!(verifier.take_problems(), []);
    acquire_and_release(&*b, "c1", 300).await;
    acquire_and_release(&*b, "c2", 301).await;
    // A read flushes the projection.
    assert_eq!(verifier.unverified(&*b).await.expect("database is up"), 4);
    let sql = "UPDATE tenure.pages SET lines = replace(lines, '\"n\":8', '\"n\":9') \
               WHERE key = 't/cluster/c1' AND lines LIKE '%\"n\":8%'";
    assert_eq!(user.execute(sql, &[]).await.expect("statement succeeds"), 1);
    assert_eq!(catch_up(&mut verifier, &a).await, 4);
    let found = texts(&verifier.take_problems());
    assert!(found.iter().all(|it| it.starts_with("t/cluster/c1 entry 9: ")), "{found:?}");
    for what in ["it was edited", "entries are missing"] {
        assert!(found.iter().any(|it| it.contains(what)), "{found:?}");
    }
    acquire_and_release(&*b, "c2", 302).await;
    assert_eq!(catch_up(&mut verifier, &a).await, 2);
    assert_eq!(verifier.take_problems(), []);
}
