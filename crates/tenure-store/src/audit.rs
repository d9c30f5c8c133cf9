//! The audit log that all servers of a store share.
//!
//! A store that only one server uses has none: that server's files are enough. Callers append few
//! entries; the calls of workers stay in the files of their server.

use async_trait::async_trait;
use tenure_core::{Millis, RequestId};

use crate::store::Result;

/// An entry of the shared audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// Unique id: an entry that is appended twice is stored once.
    pub id: RequestId,
    /// Time of the call, by the clock of the server.
    pub at: Millis,
    /// Server that was called.
    pub server: String,
    /// Class of the entry; each is pruned separately.
    pub class: &'static str,
    /// Tenant on whose behalf the call was made.
    pub tenant: Option<String>,
    /// Name of the caller.
    pub principal: Option<String>,
    /// Id of the caller's key.
    pub key: Option<String>,
    /// Action.
    pub action: String,
    /// The whole entry, as JSON.
    pub entry: String,
}

/// Filter for audit entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Earliest time.
    pub since: Option<Millis>,
    /// Tenant.
    pub tenant: Option<String>,
    /// Name of the caller, or id of its key.
    pub who: Option<String>,
    /// Action.
    pub action: Option<String>,
    /// Maximum number of entries.
    pub limit: usize,
}

/// What is kept of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditRetention {
    /// Earliest time.
    pub since: Option<Millis>,
    /// Maximum size of the entries, in bytes.
    pub max_bytes: u64,
}

/// Storage of the shared audit log.
#[async_trait]
pub trait SharedAudit: Send + Sync {
    /// Appends entries, except those that were appended before: an append whose answer was lost can
    /// be repeated.
    async fn append(&self, rows: &[AuditRow]) -> Result<()>;

    /// Returns the newest matching entries as JSON, newest first.
    async fn newest(&self, filter: &AuditFilter) -> Result<Vec<String>>;

    /// Deletes the entries of a class that are not to be kept. Returns their number.
    async fn prune(&self, class: &str, keep: AuditRetention) -> Result<usize>;
}
