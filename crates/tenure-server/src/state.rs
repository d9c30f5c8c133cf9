//! The state shared by the HTTP handlers of this server.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRef;
use tenure_app::{Apps, Caller, LiveConfig, Services};
use tenure_config::Keep;
use tenure_store::StoreError;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::api::events::STREAMS_MAX;
use crate::api::signin::Links;
use crate::audit::Audit;
use crate::auth::access::Rules;
use crate::auth::limits::{Limits, Rate};
use crate::auth::{Keys, Signer, Veil};
use crate::docs::Docs;
use crate::janitor::Board;
use crate::metrics::Metrics;
use crate::repeats::Repeats;

/// The state shared by the HTTP handlers; cheap to clone.
#[derive(Clone)]
pub struct ServerState(Arc<Inner>);

/// The fields of [`ServerState`].
pub struct Inner {
    /// What the handlers of the server and of apps share.
    pub services: Services,
    /// The installed apps.
    pub apps: Apps,
    /// The API keys.
    pub keys: Arc<Keys>,
    /// Rate limits.
    pub limits: Limits,
    /// Signs cookies.
    pub signer: Signer,
    /// The audit log.
    pub audit: Audit,
    /// Whether clients connect over TLS.
    pub secure: bool,
    /// Status of the janitor.
    pub janitor: Arc<Board>,
    /// Cancelled when the server is about to shut down: it is no longer ready, but still serves.
    pub leaving: CancellationToken,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    pub(crate) rules: Rules,
    pub(crate) docs: Docs,
    pub(crate) repeats: Arc<Repeats>,
    pub(crate) links: Links,
    pub(crate) streams: Arc<Semaphore>,
    live: watch::Sender<LiveConfig>,
}

/// What a [`ServerState`] is built from.
pub(crate) struct StateParts {
    pub(crate) services: Services,
    pub(crate) apps: Apps,
    pub(crate) keys: Keys,
    pub(crate) secret: String,
    /// Per tenant, and of failed authentications.
    pub(crate) rates: (Option<Rate>, Rate),
    pub(crate) audit: Audit,
    pub(crate) secure: bool,
    pub(crate) janitor: Arc<Board>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) live: watch::Sender<LiveConfig>,
}

impl Deref for ServerState {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl FromRef<ServerState> for Services {
    fn from_ref(state: &ServerState) -> Self {
        state.services.clone()
    }
}

impl ServerState {
    pub(crate) fn new(parts: StateParts) -> Self {
        let StateParts { services, apps, keys, secret, rates, .. } = parts;
        let signer = Signer::new(secret, keys.root_mark());
        Self(Arc::new(Inner {
            services,
            rules: Rules::new(&apps),
            docs: Docs::default(),
            apps,
            keys: Arc::new(keys),
            limits: Limits::new(rates.0, rates.1),
            signer,
            audit: parts.audit,
            secure: parts.secure,
            janitor: parts.janitor,
            leaving: CancellationToken::new(),
            metrics: parts.metrics,
            repeats: Arc::default(),
            links: Links::default(),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            live: parts.live,
        }))
    }

    /// Declares the kinds of `config` to the store and makes it the live configuration.
    pub async fn reload(&self, config: LiveConfig) -> Result<(), StoreError> {
        self.services.store().declare(Arc::clone(&config.kinds)).await?;
        self.metrics.reload(&config);
        self.live.send_replace(config);
        Ok(())
    }

    /// Changes how long finished jobs and history are kept.
    pub fn retain(&self, retention: Keep) {
        self.live.send_modify(|live| live.retention = retention);
    }

    /// What a caller sees in place of positions; `None` for one who may see them.
    pub(crate) fn veil(&self, caller: &Caller) -> Option<Veil> {
        caller.bound_tenant().map(|tenant| Veil::new(self.signer.secret(), tenant))
    }

    /// The position that a caller means.
    pub(crate) fn position(&self, caller: &Caller, shown: Option<u64>) -> Option<u64> {
        let veil = self.veil(caller);
        shown.map(|shown| veil.map_or(shown, |veil| veil.show(shown)))
    }

    /// Returns the path of a link that signs its bearer in as admin, once.
    #[must_use]
    pub fn sign_in_link(&self) -> String {
        format!("/signin?code={}", self.links.issue())
    }
}
