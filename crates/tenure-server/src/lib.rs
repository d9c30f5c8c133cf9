//! Who answers: the HTTP server in front of a store.
//!
//! [`run`] serves on a listener until a shutdown signal. A request comes through `listen` and
//! `auth`, which says who asks and whether they may; `api` has one file per kind of resource;
//! `problem` says no in one form; `audit` notes what was done. `keyfile` makes the key of the first
//! start, `janitor` does what nobody asks for, `metrics` has every number that Prometheus sees.
//! Handlers stay short: parse, build a command, send it. No rule of the model is here.

pub mod api;
pub mod audit;
pub mod auth;
pub mod docs;
pub mod extract;
mod given;
pub mod janitor;
pub mod keyfile;
mod known;
pub mod listen;
pub mod metrics;
mod openapi;
mod places;
pub mod problem;
mod repeats;
mod request_id;
mod security;
mod trace;
mod waits;
mod whose;

#[cfg(feature = "otel")]
pub use trace::continue_trace;

use std::sync::Arc;
use std::time::Duration;

use tenure::config::Keep;
use tenure_apps::pipelines::Catalog;
use tenure_core::Kinds;
use tenure_store::committer::Sweep;
use tenure_store::metered::Metered;
use tenure_store::observer::Observer;
use tenure_store::{Committer, Store, StoreError};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use api::events::STREAMS_MAX;
use api::signin::Links;
use audit::Audit;
use auth::limits::{Limits, Rate, WRONG_KEYS};
use auth::{Caller, Keys, Signer, Veil};
use given::Given;
use janitor::{Board, Janitor};
use listen::Door;
use metrics::Metrics;
use repeats::Repeats;
use waits::Waits;
use whose::Whose;

/// What a server is told at its start.
pub struct Config {
    /// Who may ask.
    pub keys: Keys,
    /// What resources can be and what can be done to them, that of pipelines included.
    pub kinds: Arc<Kinds>,
    /// The pipelines, if there are any.
    pub pipelines: Option<Arc<Catalog>>,
    /// How it deals with those who ask.
    pub front: Front,
}

impl Config {
    /// The usual, with the admin key.
    #[must_use]
    pub fn new(keys: Keys, kinds: Arc<Kinds>) -> Self {
        Self { keys, kinds, pipelines: None, front: Front::default() }
    }
}

/// How a server deals with those who ask.
pub struct Front {
    /// A certificate and its key; none for plain HTTP.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Where everything that is done is noted.
    pub audit: Audit,
    /// How much each tenant may ask; as much as it likes when nothing is said.
    pub tenants: Option<Rate>,
    /// How many wrong keys may come from one address.
    pub wrong_keys: Rate,
    /// Connections that are open at once.
    pub connections_max: usize,
    /// How long a client may take to say what it wants, and a connection may be idle.
    pub patience: Duration,
}

impl Default for Front {
    fn default() -> Self {
        Self {
            tls: None,
            audit: Audit::off(),
            tenants: None,
            wrong_keys: WRONG_KEYS,
            connections_max: listen::CONNECTIONS_MAX,
            patience: listen::PATIENCE,
        }
    }
}

/// What is in force and may change while a server runs.
#[derive(Clone, Default)]
pub struct InForce {
    /// What resources can be and what can be done to them.
    pub kinds: Arc<Kinds>,
    /// The pipelines, if there are any.
    pub pipelines: Option<Arc<Catalog>>,
    /// How long things are kept after they are over.
    pub retention: Keep,
}

/// What handlers share.
pub struct App {
    /// The way to the store.
    pub committer: Committer,
    /// Who may ask.
    pub keys: Arc<Keys>,
    /// How much they may ask.
    pub limits: Limits,
    /// Signs cookies.
    pub signer: Signer,
    /// Notes what was done.
    pub audit: Audit,
    /// Whether clients come over TLS.
    pub secure: bool,
    /// How long a body may take.
    pub patience: Duration,
    /// What is seen of the janitor.
    pub janitor: Arc<Board>,
    /// Cancelled when the server is about to shut down: it is not ready any more, and answers.
    pub leaving: CancellationToken,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Cancelled when the server shuts down: whoever waits is told.
    pub closing: CancellationToken,
    in_force: watch::Sender<InForce>,
    waits: Arc<Waits>,
    repeats: Arc<Repeats>,
    whose: Whose,
    given: Given,
    links: Links,
    streams: Arc<Semaphore>,
}

impl App {
    /// The kinds that are declared.
    #[must_use]
    pub fn kinds(&self) -> Arc<Kinds> {
        Arc::clone(&self.in_force.borrow().kinds)
    }

    /// The pipelines that are declared.
    #[must_use]
    pub fn pipelines(&self) -> Option<Arc<Catalog>> {
        self.in_force.borrow().pipelines.clone()
    }

    /// Declares other kinds and pipelines, from now on.
    pub async fn declare(
        &self,
        kinds: Arc<Kinds>,
        pipelines: Option<Arc<Catalog>>,
    ) -> Result<(), StoreError> {
        self.committer.store().declare(Arc::clone(&kinds)).await?;
        self.metrics.know(&kinds);
        self.metrics.know_pipelines(pipelines.as_ref());
        self.in_force.send_modify(|in_force| {
            (in_force.kinds, in_force.pipelines) = (kinds, pipelines);
        });
        Ok(())
    }

    /// What a caller sees in place of positions; none for one who may see them.
    pub(crate) fn veil(&self, caller: &Caller) -> Option<Veil> {
        caller.bound().map(|home| Veil::new(self.signer.secret(), home))
    }

    /// The position that a caller means.
    pub(crate) fn position(&self, caller: &Caller, seen: Option<u64>) -> Option<u64> {
        let veil = self.veil(caller);
        seen.map(|seen| veil.map_or(seen, |veil| veil.show(seen)))
    }

    /// The path of a link that signs somebody in as admin, once.
    #[must_use]
    pub fn sign_in_link(&self) -> String {
        format!("/signin?code={}", self.links.issue())
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
    store: Arc<dyn Store>,
    janitor: Janitor,
    tls: Option<Arc<rustls::ServerConfig>>,
    connections_max: usize,
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
        let Config { keys, kinds, pipelines, front } = config;
        let Front { tls, audit, tenants, wrong_keys, connections_max, patience } = front;
        let metrics = Arc::new(Metrics::new());
        metrics.know(&kinds);
        metrics.know_pipelines(pipelines.as_ref());
        let observer = Arc::clone(&metrics) as Arc<dyn Observer>;
        let store: Arc<dyn Store> = Arc::new(Metered::new(store, observer));
        // Before anything is swept: whoever settles a job without its kind cannot retry it.
        store.declare(Arc::clone(&kinds)).await?;
        let secret = store.key_ring().secret(&tenure_store::random::secret()).await?;
        let root = keys.root_mark();
        keys.refresh(&*store).await?;
        let committer = Committer::start_with(Arc::clone(&store), Sweep::Elsewhere);
        let in_force = watch::Sender::new(InForce { kinds, pipelines, retention });
        let janitor = Janitor::start(committer.clone(), in_force.subscribe(), name);
        let app = Arc::new(App {
            committer,
            keys: Arc::new(keys),
            limits: Limits::new(tenants, wrong_keys),
            signer: Signer::new(secret, root),
            audit,
            secure: tls.is_some(),
            patience,
            janitor: Arc::clone(janitor.board()),
            leaving: CancellationToken::new(),
            metrics,
            closing: CancellationToken::new(),
            in_force,
            waits: Arc::default(),
            repeats: Arc::default(),
            whose: Whose::default(),
            given: Given::default(),
            links: Links::default(),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
        });
        Ok(Self { app, store, janitor, tls, connections_max })
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
        let Self { app, store, janitor, tls, connections_max } = self;
        let hints = app.committer.store().watch();
        let told = tokio::spawn(Arc::clone(&app.waits).listen(hints));
        let fresh = tokio::spawn(Arc::clone(&app.keys).keep_fresh(Arc::clone(&store)));
        let closing = app.closing.clone();
        let (leave, begin) = (app.leaving.clone(), closing.clone());
        let told_to_stop = tokio::spawn(async move {
            shutdown.await;
            leave.cancel();
            begin.cancel();
        });
        let (patience, leaving) = (app.patience, app.leaving.clone());
        let door = Door { listener, tls, connections_max, patience, leaving };
        door.serve(api::router(Arc::clone(&app)), closing).await;
        for task in [told, fresh, told_to_stop] {
            task.abort();
        }
        app.keys.note_uses(&*store).await;
        app.audit.flush().await?;
        janitor.stop().await;
        Ok(())
    }
}
