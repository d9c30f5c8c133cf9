//! The audit log that servers share.

use tenure_core::{Millis, RequestId};
use tenure_store::Store;
use tenure_store::audit::{AuditFilter, AuditRetention, AuditRow};

use crate::common::{new_database, open};

fn row(n: u64, class: &'static str, action: &str) -> AuditRow {
    AuditRow {
        id: RequestId(n.into()),
        at: Millis(n),
        server: "a".to_owned(),
        class,
        tenant: (n > 1).then(|| "acme".to_owned()),
        principal: (n > 1).then(|| format!("ann/{n}")),
        key: (n > 1).then(|| n.to_string()),
        action: action.to_owned(),
        entry: format!("entry {n}   "),
    }
}

#[tokio::test]
async fn servers_share_entries_and_prune_each_class_separately() {
    let url = new_database();
    let (first, second) = (open(&url).await, open(&url).await);
    let rows = [
        row(1, "denied", "look"),
        row(2, "operators", "lock.break"),
        row(3, "denied", "lock.break"),
        row(4, "operators", "key.create"),
    ];
    let log = first.shared_audit().expect("servers share it");
    for _ in 0..2 {
        log.append(&rows).await.expect("database is up; a repetition adds nothing");
    }
    let all = AuditFilter { limit: 10, ..AuditFilter::default() };
    let find = async |filter: AuditFilter| {
        let log = second.shared_audit().expect("servers share it");
        let found = log.newest(&filter).await.expect("database is up");
        found.iter().map(|entry| entry[6..7].to_owned()).collect::<Vec<_>>().concat()
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(find(all.clone()).await, "4321");
    assert_eq!(find(AuditFilter { limit: 2, ..all.clone() }).await, "43");
    assert_eq!(find(AuditFilter { since: Some(Millis(3)), ..all.clone() }).await, "43");
    assert_eq!(find(AuditFilter { tenant: text("acme"), ..all.clone() }).await, "432");
    assert_eq!(find(AuditFilter { action: text("lock.break"), ..all.clone() }).await, "32");
    assert_eq!(find(AuditFilter { who: text("ann/4"), ..all.clone() }).await, "4");
    assert_eq!(find(AuditFilter { who: text("3"), ..all.clone() }).await, "3");
    assert_eq!(find(AuditFilter { who: text("\0"), ..all.clone() }).await, "");
    // Each entry has ten bytes.
    let prune = async |class: &str, since: Option<Millis>, max_bytes: u64| {
        log.prune(class, AuditRetention { since, max_bytes }).await.expect("database is up")
    };
    assert_eq!(prune("denied", None, 20).await, 0);
    assert_eq!(prune("denied", None, 19).await, 1);
    assert_eq!(find(all.clone()).await, "432");
    assert_eq!(prune("operators", Some(Millis(4)), 1_000).await, 1);
    assert_eq!(find(all).await, "43");
}

#[tokio::test]
async fn a_prune_deletes_any_number_of_entries() {
    const ROWS: u64 = 35_000;
    let store = open(&new_database()).await;
    let log = store.shared_audit().expect("servers share it");
    let mut rows: Vec<_> = (0..ROWS).map(|n| row(n, "denied", "look")).collect();
    for row in &mut rows {
        row.entry = "0123456789".to_owned();
    }
    log.append(&rows).await.expect("database is up");
    log.append(&[row(ROWS, "operators", "lock.break")]).await.expect("database is up");
    let prune = async |since: Option<Millis>, max_bytes: u64| {
        log.prune("denied", AuditRetention { since, max_bytes }).await.expect("database is up")
    };
    assert_eq!(prune(None, 10 * ROWS).await, 0);
    assert_eq!(prune(None, 10 * 25_000 + 9).await, 10_000, "the size is found in the third step");
    assert_eq!(prune(None, 10 * 24_999).await, 1);
    assert_eq!(prune(Some(Millis(ROWS - 1)), 10 * ROWS).await, 24_998);
    assert_eq!(prune(None, 0).await, 1);
    let all = AuditFilter { limit: 10, ..AuditFilter::default() };
    let left = log.newest(&all).await.expect("database is up");
    assert_eq!(left, [format!("entry {ROWS}   ")], "another class is not affected");
}
