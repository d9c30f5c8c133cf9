//! What is asked of the keys of every store.

use tenure_core::session::ALL_TENANTS;
use tenure_core::{Millis, Role};

use super::Harness;
use crate::keys::ApiKey;

fn key(id: &str, created_at: u64) -> ApiKey {
    ApiKey {
        id: id.into(),
        name: "ci".into(),
        tenant: ALL_TENANTS.into(),
        role: Role::Operator,
        hash: "00ff".into(),
        created_at: Millis(created_at),
        created_by: "admin".into(),
        expires_at: Some(Millis(9_000)),
        used_at: None,
        revoked_at: None,
        revoked_by: None,
    }
}

/// Keys are kept as they were given, are taken back once, and know when they were last used.
pub async fn keys_are_kept_used_and_revoked(harness: &mut impl Harness) {
    let store = harness.store();
    let keys = store.key_ring();
    let all = async || keys.all().await.expect("the store is there");
    assert_eq!(all().await, []);
    for (id, at) in [("b", 20), ("a", 10)] {
        assert!(keys.add(key(id, at)).await.expect("the store is there"));
    }
    let taken = ApiKey { name: "another".into(), ..key("a", 30) };
    assert!(!keys.add(taken).await.expect("the store is there"), "an id names one key");
    assert_eq!(all().await, [key("a", 10), key("b", 20)]);

    for (at, by) in [(40, "ann: it leaked"), (50, "bob")] {
        assert!(keys.revoke("a", Millis(at), by).await.expect("the store is there"));
    }
    assert!(!keys.revoke("z", Millis(40), "ann").await.expect("the store is there"));
    for at in [70, 60] {
        let uses = [("b".into(), Millis(at)), ("z".into(), Millis(at))];
        keys.used(&uses).await.expect("the store is there");
    }
    let (revoked_at, revoked_by) = (Some(Millis(40)), Some("ann: it leaked".into()));
    let expected = [
        ApiKey { revoked_at, revoked_by, ..key("a", 10) },
        ApiKey { used_at: Some(Millis(70)), ..key("b", 20) },
    ];
    assert_eq!(all().await, expected);
}

/// The first secret stays.
pub async fn servers_share_a_secret(harness: &mut impl Harness) {
    let store = harness.store();
    for fresh in ["first", "second"] {
        let secret = store.key_ring().secret(fresh).await.expect("the store is there");
        assert_eq!(secret, "first");
    }
}

/// Keys and the secret outlive the store.
pub async fn keys_survive_a_restart(harness: &mut impl Harness) {
    let store = harness.store();
    assert!(store.key_ring().add(key("a", 10)).await.expect("the store is there"));
    store.key_ring().secret("first").await.expect("the store is there");
    drop(store);
    harness.restart().await;
    let store = harness.store();
    assert_eq!(store.key_ring().all().await.expect("the store is there"), [key("a", 10)]);
    assert_eq!(store.key_ring().secret("second").await.expect("the store is there"), "first");
}
