//! A server in this process, configured like `tenure serve`, for benchmarks of apps over HTTP.

use std::net::SocketAddr;

use std::sync::Arc;

use anyhow::{Context as _, Result};
use axum::Router;
use tenure_app::{Apps, Loaded};
use tenure_server::audit::{Audit, AuditLimits};
use tenure_server::auth::Keys;
use tenure_server::{Config, HttpConfig, Server};
use tenure_store::{Committer, Store};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::servers::Scratch;

/// A server that is not serving yet.
pub struct InProcess {
    server: Server,
    listener: TcpListener,
    /// Address on loopback.
    pub addr: SocketAddr,
    /// Admin key.
    pub key: String,
    /// Committer of its store.
    pub committer: Committer,
}

impl InProcess {
    /// Starts a server with an audit log, which `tenure serve` has by default.
    pub async fn start(
        store: Arc<dyn Store>,
        scratch: &Scratch,
        apps: Apps,
        loaded: &Loaded,
    ) -> Result<Self> {
        let key = tenure_store::random::secret();
        let audit = Audit::open(&scratch.path().join("audit.jsonl"), AuditLimits::default())?;
        let front = HttpConfig { audit, ..HttpConfig::default() };
        let config = Config { keys: Keys::admin(&key), apps, live: loaded.live(), http: front };
        let server = Server::start(store, config, "bench").await?;
        let committer = server.state().services.committer.clone();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        Ok(Self { server, listener, addr, key, committer })
    }

    /// Serves until `stop` is cancelled.
    pub async fn serve(self, stop: CancellationToken) -> Result<()> {
        self.server.serve(self.listener, stop.cancelled_owned()).await.context("serve")
    }
}

/// Serves a router with the HTTP stack of the server until `stop` is cancelled, for a baseline that
/// differs only in the store.
pub async fn serve_plain(listener: TcpListener, router: Router, stop: CancellationToken) {
    tenure_server::listen::serve_plain(listener, router, stop).await;
}
