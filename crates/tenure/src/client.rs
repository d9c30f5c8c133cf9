//! A client: the door to a server or to a store in this process.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Text;
use tenure_store::{Committer, Store};

use crate::error::Error;
use crate::link::Link;
use crate::session::Session;

/// The tenant of those who name none.
pub const DEFAULT_TENANT: &str = "default";

/// A door to a server or to a store in this process; cheap to clone.
#[derive(Clone)]
pub struct Client {
    link: Arc<dyn Link>,
    tenant: Text,
}

impl Client {
    /// A client of the server at `url`, with an API key.
    #[cfg(feature = "http")]
    pub fn connect(url: &str, key: &str) -> Result<Self, Error> {
        let link = crate::http::HttpLink::new(url, key, DEFAULT_TENANT)?;
        Ok(Self::over(Arc::new(link), DEFAULT_TENANT))
    }

    /// A client of a store in this process.
    #[must_use]
    pub fn local(store: Arc<dyn Store>) -> Self {
        Self::over(Arc::new(Committer::start(store)), DEFAULT_TENANT)
    }

    /// A client over a link of your own.
    #[must_use]
    pub fn over(link: Arc<dyn Link>, tenant: &str) -> Self {
        Self { link, tenant: tenant.into() }
    }

    /// Opens a session that lives for `ttl` without a heartbeat, and starts its heartbeat.
    pub async fn session(&self, name: &str, ttl: Duration) -> Result<Session, Error> {
        Session::open(&self.link, &self.tenant, name, ttl).await
    }
}
