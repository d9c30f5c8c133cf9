//! Who answers: the HTTP server in front of a store.
//!
//! [`run`] serves on a listener until a shutdown signal; `api` has one file per kind of resource,
//! `auth` says who asks, `problem` says no in one form, `keyfile` makes the key of the first
//! start, `janitor` does what nobody asks for. Handlers stay short: parse, check the role, build a
//! command, send it. No rule of the model is here.

pub mod api;
pub mod auth;
pub mod docs;
pub mod extract;
pub mod janitor;
pub mod keyfile;
mod openapi;
pub mod problem;
mod repeats;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use tenure::config::Keep;
use tenure_core::Kinds;
use tenure_store::committer::Sweep;
use tenure_store::{Committer, Store, StoreError};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use auth::Keys;
use janitor::{Board, Janitor};
use repeats::Repeats;
use waits::Waits;

/// How long requests may take to end after a shutdown began.
const DRAIN: Duration = Duration::from_secs(5);

/// What a server is told at its start.
pub struct Config {
    /// Who may ask.
    pub keys: Keys,
    /// What resources can be and what can be done to them.
    pub kinds: Arc<Kinds>,
}

/// What is in force and may change while a server runs.
#[derive(Clone, Default)]
pub struct InForce {
    /// What resources can be and what can be done to them.
    pub kinds: Arc<Kinds>,
    /// How long things are kept after they are over.
    pub retention: Keep,
}

/// What handlers share.
pub struct App {
    /// The way to the store.
    pub committer: Committer,
    /// Who may ask.
    pub keys: Keys,
    /// What is seen of the janitor.
    pub janitor: Arc<Board>,
    /// Cancelled when the server shuts down: whoever waits is told.
    pub closing: CancellationToken,
    in_force: watch::Sender<InForce>,
    waits: Arc<Waits>,
    repeats: Arc<Repeats>,
}

impl App {
    /// The kinds that are declared.
    #[must_use]
    pub fn kinds(&self) -> Arc<Kinds> {
        Arc::clone(&self.in_force.borrow().kinds)
    }

    /// Declares other kinds, from now on.
    pub async fn declare(&self, kinds: Arc<Kinds>) -> Result<(), StoreError> {
        self.committer.store().declare(Arc::clone(&kinds)).await?;
        self.in_force.send_modify(|in_force| in_force.kinds = kinds);
        Ok(())
    }

    /// Keeps what is over for another time, from now on.
    pub fn retain(&self, retention: Keep) {
        self.in_force.send_modify(|in_force| in_force.retention = retention);
    }
}

/// Serves until `shutdown` completes, then lets requests end, at most for five seconds.
pub async fn run(
    listener: TcpListener,
    store: Arc<dyn Store>,
    config: Config,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let server = Server::start(store, config, Keep::default(), "tenure-server").await;
    server.map_err(std::io::Error::other)?.serve(listener, shutdown).await
}

/// A server whose janitor is at work and that does not listen yet.
pub struct Server {
    app: Arc<App>,
    janitor: Janitor,
}

impl Server {
    /// Declares the kinds, then starts the way to the store and the janitor. People see the
    /// janitor's lock held by `name`.
    pub async fn start(
        store: Arc<dyn Store>,
        config: Config,
        retention: Keep,
        name: &str,
    ) -> Result<Self, StoreError> {
        let Config { keys, kinds } = config;
        // Before anything is swept: whoever settles a job without its kind cannot retry it.
        store.declare(Arc::clone(&kinds)).await?;
        let committer = Committer::start_with(store, Sweep::Elsewhere);
        let in_force = watch::Sender::new(InForce { kinds, retention });
        let janitor = Janitor::start(committer.clone(), in_force.subscribe(), name);
        let app = Arc::new(App {
            committer,
            keys,
            janitor: Arc::clone(janitor.board()),
            closing: CancellationToken::new(),
            in_force,
            waits: Arc::default(),
            repeats: Arc::default(),
        });
        Ok(Self { app, janitor })
    }

    /// What its handlers share.
    #[must_use]
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Serves until `shutdown` completes, then lets requests end, at most for five seconds.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let Self { app, janitor } = self;
        let hints = app.committer.store().watch();
        let told = tokio::spawn(Arc::clone(&app.waits).listen(hints));
        let served = serve(listener, app, shutdown).await;
        told.abort();
        janitor.stop().await;
        served
    }
}

async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let closing = app.closing.clone();
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
