//! Controllers: fleet-wide singletons of apps that talk to external systems.
//!
//! Every process that runs workers competes for the lock `controller/NAME` of the tenant `tenure`;
//! the holder runs the controller, the others wait in the queue of the lock. When the lock is lost,
//! the controller's future is dropped before the store can grant the lock to another process. A
//! frozen process cannot drop it in time: its later writes carry an old token, which a guard
//! refuses. `GET /v1/controllers` shows the holders.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::worker::Failure;
use tenure::{Client, Lost, Session, Tenure};
use tenure_core::{ResourceKey, Token};
use tokio_util::sync::CancellationToken;

use crate::live::Live;
use crate::problem::Problem;

pub use tenure::client::SYSTEM_TENANT;

/// Kind of the resources whose locks elect the processes that run controllers.
pub const CONTROLLER_KIND: &str = "controller";

/// Returns the resource whose lock elects the process that runs a controller.
pub fn resource(name: &str) -> Result<ResourceKey, Problem> {
    let key = ResourceKey::new(SYSTEM_TENANT, CONTROLLER_KIND, name);
    key.map_err(|error| Problem::invalid(&error))
}

/// Time after which another process takes over from one that died.
const TTL: Duration = Duration::from_secs(10);
/// Time that one request for the lock waits in its queue; then it is repeated.
const WAIT: Duration = Duration::from_secs(60 * 60);
/// Pause before the next run; it doubles with each consecutive failure.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause between two runs.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A fleet-wide singleton that does network I/O: a poller, a feeder, a watch.
#[async_trait]
pub trait Controller: Send + Sync + 'static {
    /// Name, unique among all apps: the lock is `controller/NAME`.
    fn name(&self) -> &'static str;

    /// Runs while this process holds the lock. The future is dropped when the lock is lost or the
    /// process shuts down. When it returns, the lock is released and the controller starts again
    /// after a pause, possibly in another process.
    async fn run(&self, cx: ControllerContext) -> Result<(), Failure>;
}

/// Context of a running controller; cheap to clone.
#[derive(Clone)]
pub struct ControllerContext {
    tenure: Arc<Tenure>,
    /// Client for all tenants; see [`Client::for_tenant`].
    pub client: Client,
    /// The live configuration.
    pub live: Live,
}

impl ControllerContext {
    /// Returns the token of the lock, to be passed with each external write.
    #[must_use]
    pub fn token(&self) -> Token {
        self.tenure.token()
    }

    /// Fails if the lock is lost. Call it right before each effect that no guard protects.
    pub fn check(&self) -> Result<(), Lost> {
        self.tenure.check()
    }
}

/// Runs a controller whenever this process holds its lock.
pub struct ControllerRunner {
    controller: Arc<dyn Controller>,
    client: Client,
    live: Live,
    name: String,
    ttl: Duration,
}

impl ControllerRunner {
    /// Creates a runner. `name` is the holder of the lock that others see.
    #[must_use]
    pub fn new(controller: Arc<dyn Controller>, client: Client, live: Live, name: &str) -> Self {
        Self { controller, client, live, name: name.to_owned(), ttl: TTL }
    }

    /// Sets the time after which another process takes over from one that died.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Runs until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) {
        let controller = self.controller.name();
        let mut failures: u32 = 0;
        while !stop.is_cancelled() {
            match self.run_once(&stop).await {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures = failures.saturating_add(1);
                    tracing::warn!(controller, failures, %error, "controller failed");
                }
            }
            let doublings = failures.saturating_sub(1).min(16);
            let pause = PAUSE.saturating_mul(1 << doublings).min(PAUSE_MAX);
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Acquires the lock, runs the controller under it once, and releases the lock.
    async fn run_once(&self, stop: &CancellationToken) -> Result<(), Failure> {
        let session = self.client.for_tenant(SYSTEM_TENANT)?.session(&self.name, self.ttl).await?;
        let result = tokio::select! {
            result = self.run_in(&session) => result,
            () = stop.cancelled() => Ok(()),
        };
        session.close().await;
        result
    }

    async fn run_in(&self, session: &Session) -> Result<(), Failure> {
        let controller = self.controller.name();
        let path = format!("{CONTROLLER_KIND}/{controller}");
        let tenure = session.lock(&path)?.wait(WAIT).purpose("controller").acquire().await?;
        let tenure = Arc::new(tenure);
        tracing::info!(controller, token = %tenure.token(), "controller started");
        let cx = ControllerContext {
            tenure: Arc::clone(&tenure),
            client: self.client.clone(),
            live: self.live.clone(),
        };
        tokio::select! {
            lost = tenure.lost() => Err(Failure::new("LOST", lost)),
            result = self.controller.run(cx) => result,
        }
    }
}
