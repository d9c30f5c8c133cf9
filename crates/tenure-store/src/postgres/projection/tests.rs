//! Two servers that flush the same projection.

use tenure_core::{Command, SessionId};

use crate::postgres::Postgres;
use crate::store::Store as _;

#[tokio::test(flavor = "multi_thread")]
async fn flush_accepts_a_projection_that_another_server_has_flushed() {
    let server = tenure_testbed::shared();
    let url = server.url(&server.new_database().expect("new database"));
    let [a, b] = [Postgres::open(&url).await, Postgres::open(&url).await]
        .map(|store| store.expect("store opens"));
    for (store, session) in [(&a, 1), (&b, 2)] {
        let session = SessionId(session);
        let (tenant, name) = ("t".into(), "s".into());
        let open = Command::Open { session, tenant, name, ttl_ms: 60_000 };
        store.apply(vec![open]).await.expect("database is up");
    }
    b.shared.flush().await.expect("database is up");
    assert!(!a.shared.flush().await.expect("database is up"), "nothing left to flush");
}
