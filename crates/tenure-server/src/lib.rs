//! The HTTP server in front of a store.
//!
//! [`run`] serves on a listener until a shutdown signal. A request passes `listen` and `auth`,
//! which authenticates the caller and checks the access rule of the route; `api` has one file per
//! resource of the API; `audit` writes the audit log. `keyfile` creates the admin key on the first
//! start, `janitor` runs housekeeping, `metrics` exports the Prometheus metrics. Apps add routes,
//! duties and metrics through `tenure-app`; this crate names none of them.
//!
//! Handlers stay short: parse, build a command, submit it. The rules of the model are in
//! `tenure-core`.

pub mod api;
pub mod audit;
pub mod auth;
pub mod docs;
mod in_flight;
pub mod janitor;
pub mod keyfile;
pub mod listen;
pub mod metrics;
mod openapi;
mod request_id;
mod security;
mod state;
mod trace;

#[cfg(feature = "otel")]
pub use trace::continue_trace;

use std::sync::Arc;
use std::time::Duration;

use tenure_app::bodies::{BODIES_BYTES_MAX, BodyReader};
use tenure_app::{Apps, Live, LiveConfig, Services};
use tenure_core::Kinds;
use tenure_store::committer::Sweep;
use tenure_store::metered::Metered;
use tenure_store::observer::Observer;
use tenure_store::{Committer, Store, StoreError};
use tokio::net::TcpListener;
use tokio::sync::watch;

use audit::Audit;
use auth::Keys;
use auth::limits::{AUTH_FAILURE_RATE, Rate};
use janitor::Janitor;
use listen::HttpServer;
use metrics::Metrics;
pub use state::ServerState;
use state::StateParts;

/// Configuration of a server.
pub struct Config {
    /// The API keys.
    pub keys: Keys,
    /// The installed apps.
    pub apps: Apps,
    /// The configuration that may change while the server runs.
    pub live: LiveConfig,
    /// HTTP settings.
    pub http: HttpConfig,
}

impl Config {
    /// Returns the default configuration with these keys and kinds, without apps.
    #[must_use]
    pub fn new(keys: Keys, kinds: Arc<Kinds>) -> Self {
        let live = LiveConfig { kinds, ..LiveConfig::default() };
        Self { keys, apps: Apps::default(), live, http: HttpConfig::default() }
    }
}

/// HTTP settings.
pub struct HttpConfig {
    /// Certificate and key; `None` for plain HTTP.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// The audit log.
    pub audit: Audit,
    /// Request rate per tenant; unlimited if `None`.
    pub tenant_rate: Option<Rate>,
    /// Rate of failed authentications per address.
    pub auth_failure_rate: Rate,
    /// Maximum number of open connections.
    pub connections_max: usize,
    /// Maximum time that reading a request may take, and that a connection may be idle.
    pub read_timeout: Duration,
    /// Maximum size of all request bodies that are being read.
    pub bodies_bytes_max: usize,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            tls: None,
            audit: Audit::off(),
            tenant_rate: None,
            auth_failure_rate: AUTH_FAILURE_RATE,
            connections_max: listen::CONNECTIONS_MAX,
            read_timeout: listen::READ_TIMEOUT,
            bodies_bytes_max: BODIES_BYTES_MAX,
        }
    }
}

/// Serves until `shutdown` completes, then drains open requests for at most five seconds.
pub async fn run(
    listener: TcpListener,
    store: Arc<dyn Store>,
    config: Config,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let server = Server::start(store, config, "tenure-server").await;
    server.map_err(std::io::Error::other)?.serve(listener, shutdown).await
}

/// A server whose janitor runs and that does not listen yet.
pub struct Server {
    state: ServerState,
    store: Arc<dyn Store>,
    janitor: Janitor,
    tls: Option<Arc<rustls::ServerConfig>>,
    connections_max: usize,
}

impl Server {
    /// Declares the kinds, then starts the committer and the janitor. `name` is the holder of the
    /// janitor's lock that others see.
    pub async fn start(
        store: Arc<dyn Store>,
        config: Config,
        name: &str,
    ) -> Result<Self, StoreError> {
        let Config { keys, apps, live, http } = config;
        let HttpConfig { tls, audit, connections_max, read_timeout, bodies_bytes_max, .. } = http;
        let metrics = Arc::new(Metrics::new(&apps));
        metrics.reload(&live);
        let observer = Arc::clone(&metrics) as Arc<dyn Observer>;
        let store: Arc<dyn Store> = Arc::new(Metered::new(store, observer));
        // Before the first sweep: a job that is settled without its kind cannot be retried.
        store.declare(Arc::clone(&live.kinds)).await?;
        let secret = store.key_ring().get_or_set_secret(&tenure_store::random::secret()).await?;
        keys.refresh(&*store).await?;
        let committer = Committer::start_with(Arc::clone(&store), Sweep::External);
        let live = watch::Sender::new(live);
        let janitor = Janitor::start(committer.clone(), Live::new(&live), &apps, name);
        let bodies = BodyReader::new(read_timeout, bodies_bytes_max);
        let services = Services::new(committer, Live::new(&live), secret.clone(), bodies);
        audit.attach(name, &store, metrics.audit_dropped());
        let state = ServerState::new(StateParts {
            services,
            apps,
            keys,
            secret,
            rates: (http.tenant_rate, http.auth_failure_rate),
            audit,
            secure: tls.is_some(),
            janitor: Arc::clone(janitor.status()),
            metrics,
            live,
        });
        Ok(Self { state, store, janitor, tls, connections_max })
    }

    /// The state shared by the handlers.
    #[must_use]
    pub fn state(&self) -> &ServerState {
        &self.state
    }

    /// Serves until `shutdown` completes, then drains open requests for at most five seconds.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let Self { state, store, janitor, tls, connections_max } = self;
        let services = &state.services;
        let wake_waiters =
            tokio::spawn(Arc::clone(&services.job_waits).listen(services.store().watch()));
        let refresh_keys = tokio::spawn(Arc::clone(&state.keys).run_refresh(Arc::clone(&store)));
        let (draining, closing) = (state.draining.clone(), services.closing.clone());
        let stop = tokio::spawn(async move {
            shutdown.await;
            draining.cancel();
            closing.cancel();
        });
        let (read_timeout, draining) = (services.bodies.timeout(), state.draining.clone());
        let http = HttpServer { listener, tls, connections_max, read_timeout, draining };
        http.serve(api::router(state.clone()), services.closing.clone()).await;
        for task in [wake_waiters, refresh_keys, stop] {
            task.abort();
        }
        state.keys.flush_usage(&*store).await;
        state.audit.close().await?;
        janitor.stop().await;
        Ok(())
    }
}
