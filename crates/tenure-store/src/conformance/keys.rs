//! Cases about API keys.

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

/// Keys are stored unchanged, revoked once, and record their last use.
pub async fn api_keys_are_stored_used_and_revoked(harness: &mut impl Harness) {
    let store = harness.store();
    let keys = store.key_ring();
    let all = async || keys.all().await.expect("the store is available");
    assert_eq!(all().await, []);
    for (id, at) in [("b", 20), ("a", 10)] {
        assert!(keys.add(key(id, at)).await.expect("the store is available"));
    }
    let duplicate = ApiKey { name: "another".into(), ..key("a", 30) };
    assert!(!keys.add(duplicate).await.expect("the store is available"), "ids are unique");
    assert_eq!(all().await, [key("a", 10), key("b", 20)]);

    for (at, by) in [(40, "ann: it leaked"), (50, "bob")] {
        assert!(keys.revoke("a", Millis(at), by).await.expect("the store is available"));
    }
    assert!(!keys.revoke("z", Millis(40), "ann").await.expect("the store is available"));
    for at in [70, 60] {
        let uses = [("b".into(), Millis(at)), ("z".into(), Millis(at))];
        keys.record_uses(&uses).await.expect("the store is available");
    }
    let (revoked_at, revoked_by) = (Some(Millis(40)), Some("ann: it leaked".into()));
    let expected = [
        ApiKey { revoked_at, revoked_by, ..key("a", 10) },
        ApiKey { used_at: Some(Millis(70)), ..key("b", 20) },
    ];
    assert_eq!(all().await, expected);
}

/// The first secret wins.
pub async fn servers_share_a_secret(harness: &mut impl Harness) {
    let store = harness.store();
    for candidate in ["first", "second"] {
        let secret =
            store.key_ring().get_or_set_secret(candidate).await.expect("the store is available");
        assert_eq!(secret, "first");
    }
}

/// Signed-out cookies are kept until they expire.
pub async fn signed_out_cookies_are_kept_until_they_expire(harness: &mut impl Harness) {
    let store = harness.store();
    let sign_out = async |cookie: &str, until, now| {
        let signed_out = store.key_ring().sign_out(cookie, Millis(until), Millis(now)).await;
        signed_out.expect("the store is available");
        let mut all = store.key_ring().signed_out().await.expect("the store is available");
        all.sort_unstable();
        all
    };
    store.key_ring().get_or_set_secret("first").await.expect("the store is available");
    assert_eq!(sign_out("a", 20, 10).await, ["a"]);
    assert_eq!(sign_out("b", 100, 19).await, ["a", "b"]);
    assert_eq!(sign_out("b", 100, 20).await, ["b"], "the other one has expired");
    let secret = store.key_ring().get_or_set_secret("second").await;
    assert_eq!(secret.expect("the store is available"), "first");
}

/// Keys, signed-out cookies and the secret survive a restart.
pub async fn api_keys_survive_a_restart(harness: &mut impl Harness) {
    let store = harness.store();
    assert!(store.key_ring().add(key("a", 10)).await.expect("the store is available"));
    store.key_ring().get_or_set_secret("first").await.expect("the store is available");
    let signed_out = store.key_ring().sign_out("c", Millis(20), Millis(10)).await;
    signed_out.expect("the store is available");
    drop(store);
    harness.restart().await;
    let store = harness.store();
    assert_eq!(store.key_ring().all().await.expect("the store is available"), [key("a", 10)]);
    assert_eq!(store.key_ring().signed_out().await.expect("the store is available"), ["c"]);
    assert_eq!(
        store.key_ring().get_or_set_secret("second").await.expect("the store is available"),
        "first"
    );
}
