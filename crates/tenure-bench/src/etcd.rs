//! etcd locks by the usual recipe: put if the key does not exist, delete if its revision matches.
//!
//! Each worker has one lease, granted once. A pair counts only if both transactions succeed.
//!
//! This uses the JSON gateway of etcd, which is slower than gRPC: the results are not the best that
//! etcd can achieve. With many requests in flight the gateway costs more than the disk, as data on
//! tmpfs shows. Pairs/s of etcd 3.4.23 on 2 cores shared with the load, fdatasync 0.2 ms, by
//! requests in flight; gRPC is tonic with one connection for all workers:
//!
//! | data on | by      |    1 |   16 |   64 |  256 |
//! |---------|---------|------|------|------|------|
//! | disk    | gateway |  577 | 1651 | 1802 | 1829 |
//! | disk    | gRPC    |  682 | 2460 | 3321 | 4192 |
//! | tmpfs   | gateway |  812 | 2393 | 2330 | 2414 |
//! | tmpfs   | gRPC    | 1136 | 3632 | 4565 | 4359 |

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::http::Connection;
use crate::load::Pairs;

/// Longer than any run: the recipe needs a lease, but it must not expire.
const LEASE_TTL_S: u32 = 3600;

/// Connection and lease of one worker.
pub(crate) struct EtcdLocks {
    http: Connection,
    lease: String,
    /// Key of the current pair in base64, as the gateway requires.
    key: String,
}

impl EtcdLocks {
    pub(crate) async fn open(addr: SocketAddr) -> Result<Self> {
        let mut http = Connection::open(addr).await?;
        let request = format!(r#"{{"TTL":"{LEASE_TTL_S}"}}"#);
        let reply = post(&mut http, "/v3/lease/grant", &request).await.context("grant a lease")?;
        let lease = reply["ID"].as_str().context("grant a lease: the reply has no ID")?.to_owned();
        Ok(Self { http, lease, key: String::new() })
    }

    /// Returns the revision that created the key, which is the fencing token of the recipe.
    async fn acquire(&mut self) -> Result<u64> {
        let put = format!(r#"{{"key":"{}","lease":"{}"}}"#, self.key, self.lease);
        self.txn(0, "request_put", &put).await.context("acquire an etcd lock")
    }

    async fn release(&mut self, revision: u64) -> Result<()> {
        let delete = format!(r#"{{"key":"{}"}}"#, self.key);
        let done = self.txn(revision, "request_delete_range", &delete).await;
        done.map(drop).context("release an etcd lock")
    }

    /// Performs `operation` if the key was created at `revision` (0 if it must not exist), and
    /// returns the new revision of the store.
    async fn txn(&mut self, revision: u64, operation: &str, operand: &str) -> Result<u64> {
        let key = &self.key;
        let request = format!(
            r#"{{"compare":[{{"target":"CREATE","result":"EQUAL","key":"{key}",
            "create_revision":"{revision}"}}],"success":[{{"{operation}":{operand}}}]}}"#
        );
        let reply = post(&mut self.http, "/v3/kv/txn", &request).await?;
        ensure!(reply["succeeded"] == true, "the comparison failed: {reply}");
        let revision = reply["header"]["revision"].as_str().context("read the revision")?;
        revision.parse().context("parse the revision")
    }
}

impl Pairs for EtcdLocks {
    async fn pair(&mut self, n: u64) -> Result<()> {
        self.key = base64(format!("lock/{n}").as_bytes());
        let revision = self.acquire().await?;
        self.release(revision).await
    }
}

/// Checks that an etcd with a leader responds.
pub(crate) async fn ping(addr: SocketAddr) -> Result<()> {
    let mut http = Connection::open(addr).await?;
    let status = post(&mut http, "/v3/maintenance/status", "{}").await?;
    ensure!(status["leader"].as_str().is_some_and(|id| id != "0"), "etcd has no leader yet");
    Ok(())
}

async fn post(http: &mut Connection, path: &str, request: &str) -> Result<Value> {
    let (status, body) = http.post(path, &[], request.as_bytes()).await?;
    let text = || String::from_utf8_lossy(body).into_owned();
    ensure!(status == 200, "etcd responded with {status}: {}", text());
    serde_json::from_slice(body).with_context(|| format!("parse the reply {}", text()))
}

/// Base64 with padding (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |i: usize| usize::from(group.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let digit = char::from(DIGITS[bits >> (18 - 6 * i) & 63]);
            text.push(if i <= group.len() { digit } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers;

    #[test]
    fn base64_conforms_to_rfc_4648() {
        for (plain, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
        assert_eq!(base64(&[0xfb, 0xff]), "+/8=");
    }

    #[tokio::test]
    async fn pair_succeeds_and_a_held_lock_is_an_error() {
        let Some(server) = servers::etcd(&std::env::temp_dir()).await.unwrap() else { return };
        let mut locks = EtcdLocks::open(server.addr()).await.unwrap();
        locks.pair(7).await.unwrap();
        locks.pair(7).await.unwrap();
        let revision = locks.acquire().await.unwrap();
        let error = format!("{:#}", locks.pair(7).await.unwrap_err());
        assert!(error.starts_with("acquire an etcd lock: the comparison failed"), "{error}");
        let error = format!("{:#}", locks.release(revision - 1).await.unwrap_err());
        assert!(error.starts_with("release an etcd lock: the comparison failed"), "{error}");
        locks.release(revision).await.unwrap();
    }
}
