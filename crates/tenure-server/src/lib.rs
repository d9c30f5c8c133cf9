//! Who answers: the HTTP server in front of a store.
//!
//! [`run`] serves on a listener until a shutdown signal; `api` has one file per kind of resource,
//! `auth` says who asks, `problem` says no in one form, `keyfile` makes the key of the first
//! start. Handlers stay short: parse, check the role, build a command, send it. No rule of the
//! model is here.

pub mod api;
pub mod auth;
pub mod extract;
pub mod keyfile;
pub mod problem;

use std::sync::Arc;
use std::time::Duration;

use tenure_store::{Committer, Store};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use auth::Keys;

/// How long requests may take to end after a shutdown began.
const DRAIN: Duration = Duration::from_secs(5);

/// What handlers share.
pub struct App {
    /// The way to the store.
    pub committer: Committer,
    /// Who may ask.
    pub keys: Keys,
    /// Cancelled when the server shuts down: whoever waits is told.
    pub closing: CancellationToken,
}

/// Serves until `shutdown` completes, then lets requests end, at most for five seconds.
pub async fn run(
    listener: TcpListener,
    store: Arc<dyn Store>,
    keys: Keys,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let closing = CancellationToken::new();
    let committer = Committer::start(store);
    let app = Arc::new(App { committer, keys, closing: closing.clone() });
    let begin = closing.clone();
    let serve =
        axum::serve(NoDelay(listener), api::router(app)).with_graceful_shutdown(async move {
            shutdown.await;
            begin.cancel();
        });
    let drained = async {
        closing.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        result = serve => result,
        () = drained => {
            tracing::warn!("connections were still open after {DRAIN:?} and are cut");
            Ok(())
        }
    }
}

/// A listener whose connections send small answers at once.
struct NoDelay(TcpListener);

impl axum::serve::Listener for NoDelay {
    type Io = tokio::net::TcpStream;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, addr) = axum::serve::Listener::accept(&mut self.0).await;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        (stream, addr)
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}
