//! The state shared by the HTTP handlers of this server.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::FromRef;
use axum::http::HeaderMap;
use tenure_app::{Apps, LiveConfig, Services};
use tenure_config::RetentionSettings;
use tenure_store::StoreError;
use tenure_store::clock::stopwatch;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::api::batch::BATCHES_MAX;
use crate::api::events::STREAMS_MAX;
use crate::api::signin::SignInLinks;
use crate::audit::Audit;
use crate::auth::access::Rules;
use crate::auth::limits::{Limits, Rate};
use crate::auth::{Keys, SignedIn, Signer};
use crate::docs::Docs;
use crate::in_flight::InFlightRequests;
use crate::janitor::JanitorStatus;
use crate::metrics::Metrics;

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
    pub janitor: Arc<JanitorStatus>,
    /// Cancelled when the server is about to shut down: it is no longer ready, but still serves.
    pub draining: CancellationToken,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// When the server started.
    pub(crate) started: Instant,
    pub(crate) rules: Rules,
    pub(crate) docs: Docs,
    pub(crate) in_flight: Arc<InFlightRequests>,
    pub(crate) links: SignInLinks,
    pub(crate) streams: Arc<Semaphore>,
    /// Batches that are being applied.
    pub(crate) batches: Semaphore,
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
    pub(crate) janitor: Arc<JanitorStatus>,
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
        let signer = Signer::new(secret, keys.admin_fingerprint());
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
            draining: CancellationToken::new(),
            metrics: parts.metrics,
            started: stopwatch(),
            in_flight: Arc::default(),
            links: SignInLinks::default(),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            batches: Semaphore::new(BATCHES_MAX),
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

    /// Changes the retention of finished jobs and history.
    pub fn set_retention(&self, retention: RetentionSettings) {
        self.live.send_modify(|live| live.retention = retention);
    }

    /// Returns the verified cookie of a request, unless it was signed out.
    pub(crate) fn signed_in(&self, headers: &HeaderMap) -> Option<SignedIn> {
        let signed_in = self.signer.read(headers, self.keys.now());
        signed_in.filter(|signed_in| !self.keys.is_signed_out(&signed_in.id))
    }

    /// Returns the path of a link that signs its bearer in as admin, once.
    #[must_use]
    pub fn sign_in_link(&self) -> String {
        format!("/signin?code={}", self.links.issue())
    }
}
