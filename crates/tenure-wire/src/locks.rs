//! JSON types of locks and sessions.

use serde::{Deserialize, Serialize};
use tenure_core::key::{InvalidName, lock_path};
use tenure_core::record::Waiter;
use tenure_core::session::Revocation;
use tenure_core::{
    JobId, LockName, LockPath, LockSet, Millis, RequestId, ResourceKey, SessionId, TenureView,
    Text, Token,
};

#[cfg(feature = "openapi")]
use super::schema;
use super::{instant, parse_server_instant};

/// Name of one lock, or of several locks of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Locks {
    /// One lock.
    One(String),
    /// Several locks, all or none.
    Many(Vec<String>),
}

impl Locks {
    /// Parses the names.
    pub fn to_set(&self) -> Result<LockSet, InvalidName> {
        match self {
            Self::One(name) => Ok(name.parse::<LockName>()?.into()),
            Self::Many(names) => {
                let names: Result<Vec<LockName>, _> = names.iter().map(|n| n.parse()).collect();
                LockSet::new(names?)
            }
        }
    }
}

impl From<&LockSet> for Locks {
    fn from(set: &LockSet) -> Self {
        match set.size() {
            1 => Self::One(set.first().to_string()),
            _ => Self::Many(set.iter().map(ToString::to_string).collect()),
        }
    }
}

/// `POST …/acquire`
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcquireRequest {
    /// The lock, or several. Defaults to `main`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<Locks>,
    /// Name of a holder without a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Time in milliseconds after which the tenure of a holder without a session expires unless it
    /// is renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Session that becomes the holder. Excludes `holder` and `ttl_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Maximum time to wait in the queue, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Time in milliseconds after which the server responds even if the request is still waiting.
    /// Repeat the request with the same `Idempotency-Key` to keep waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_ms: Option<u64>,
    /// Purpose of the tenure, for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<String>,
    /// Age in milliseconds above which the lock is reported; defaults to that of its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_ms: Option<u64>,
}

/// `POST …/renew`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "token": 1 })))]
pub struct RenewRequest {
    /// Ignored: the token identifies the tenure. Accepted for symmetry with release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<Locks>,
    /// Token of the tenure.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::FencingToken))]
    pub token: Token,
    /// New time to live in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Ttl>))]
    pub ttl_ms: Option<u64>,
}

/// `POST …/release`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "token": 1 })))]
pub struct ReleaseRequest {
    /// Locks of the tenure to release. Defaults to all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<Locks>,
    /// Token of the tenure.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::FencingToken))]
    pub token: Token,
    /// Waiter to grant the locks to, ahead of all others: the name or the id of its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::HolderName>))]
    pub to: Option<String>,
}

/// `POST …/withdraw`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "request": "4d0c9f6f2c4e4c7f" })))]
pub struct WithdrawRequest {
    /// `Idempotency-Key` of the acquire request to withdraw.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::EarlierIdempotencyKey))]
    pub request: String,
}

/// `POST …/break`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "token": 1, "reason": "stuck" })))]
pub struct BreakRequest {
    /// Locks that the tenure must hold, as a precondition. The whole tenure ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<Locks>,
    /// Token of the current tenure.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::FencingToken))]
    pub token: Token,
    /// Reason for the break, for the audit log and the history.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Reason))]
    pub reason: String,
    /// Whether the job of the tenure ends too, instead of being retried by its rule.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub end_job: bool,
}

/// `POST /v1/sessions`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "name": "worker-7", "ttl_ms": 15_000 })))]
pub struct OpenSessionRequest {
    /// Name of the process, for display.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::HolderName))]
    pub name: String,
    /// Time in milliseconds after which the session expires without a heartbeat.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Ttl))]
    pub ttl_ms: u64,
}

/// `POST /v1/sessions/{id}/beat`
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "seen": 0 })))]
pub struct HeartbeatRequest {
    /// Number of the last revocation that the client has processed.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Uint64))]
    pub seen: u64,
}

/// Result of opening a session or of a heartbeat.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionResponse {
    /// Id of the session.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub session: SessionId,
    /// Time in milliseconds after which the session expires without a heartbeat.
    pub ttl_ms: u64,
    /// Revocations that the client has not yet acknowledged by `seen`.
    pub revoked: Vec<RevocationInfo>,
}

/// Revocation of a tenure of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RevocationInfo {
    /// Number of the revocation, to be acknowledged by `seen`.
    pub n: u64,
    /// `tenant/kind/name`.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::ResourcePath))]
    pub resource: ResourceKey,
    /// Token of the tenure.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::FencingToken))]
    pub token: Token,
    /// If true, the tenure is not revoked; its job is requested to stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel: bool,
}

impl From<Revocation> for RevocationInfo {
    fn from(Revocation { n, key, token, cancel }: Revocation) -> Self {
        Self { n, resource: key, token, cancel }
    }
}

impl From<RevocationInfo> for Revocation {
    fn from(RevocationInfo { n, resource, token, cancel }: RevocationInfo) -> Self {
        Self { n, key: resource, token, cancel }
    }
}

/// A tenure.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenureInfo {
    /// Tenant.
    pub tenant: String,
    /// `kind/name` or `kind/name#lock`.
    pub lock: String,
    /// All locks that were granted together, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<String>,
    /// Fencing token.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::FencingToken))]
    pub token: Token,
    /// Holder of the tenure.
    pub holder: HolderInfo,
    /// Time of the grant.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub since: String,
    /// Time since the grant in milliseconds.
    pub age_ms: u64,
    /// Age in milliseconds above which it is reported: that of the acquire, else that of the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_ms: Option<u64>,
    /// Time in milliseconds after which the tenure expires without a heartbeat.
    pub expires_in_ms: u64,
    /// Time since the last heartbeat of the holder in milliseconds.
    #[serde(default)]
    pub heartbeat_age_ms: u64,
    /// Number of waiting requests.
    pub waiters: usize,
}

/// Holder of a tenure: the session and its purpose.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HolderInfo {
    /// Id of the session.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub session: SessionId,
    /// Name of the session.
    pub name: String,
    /// Purpose of the tenure, for display.
    pub purpose: Option<String>,
    /// Job that runs under the tenure, if any.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Id>))]
    pub job: Option<JobId>,
}

impl TenureInfo {
    /// Converts a tenure to one object for all of its locks.
    #[must_use]
    pub fn new(view: &TenureView) -> Self {
        let paths: Vec<_> = view.locks.iter().map(|lock| lock_path(&view.key, lock)).collect();
        Self {
            tenant: view.key.tenant().to_owned(),
            lock: paths[0].clone(),
            set: if paths.len() > 1 { paths } else { Vec::new() },
            token: view.token,
            holder: HolderInfo {
                session: view.session,
                name: view.holder.to_string(),
                purpose: view.purpose.as_deref().map(str::to_owned),
                job: view.job,
            },
            since: instant(view.since),
            age_ms: view.age_ms,
            max_age_ms: view.max_age_ms,
            expires_in_ms: view.expires_in_ms,
            heartbeat_age_ms: view.heartbeat_age_ms,
            waiters: view.waiters,
        }
    }

    /// Converts a tenure to one object for each of its locks.
    #[must_use]
    pub fn per_lock(view: &TenureView) -> Vec<Self> {
        let whole = Self::new(view);
        let lock = |lock| Self { lock: lock_path(&view.key, lock), ..whole.clone() };
        view.locks.iter().map(lock).collect()
    }

    /// Returns `true` if the lock is held for longer than its maximum age.
    #[must_use]
    pub fn is_over_age(&self) -> bool {
        self.max_age_ms.is_some_and(|max_age_ms| self.age_ms > max_age_ms)
    }

    /// Converts back. The request id is not part of the JSON and becomes 0.
    pub fn to_view(&self) -> Result<TenureView, InvalidName> {
        let paths = if self.set.is_empty() { std::slice::from_ref(&self.lock) } else { &self.set };
        let paths: Result<Vec<LockPath>, _> = paths.iter().map(|path| path.parse()).collect();
        let paths = paths?;
        let key = paths[0].resource(&self.tenant)?;
        Ok(TenureView {
            key,
            locks: LockSet::new(paths.into_iter().map(|path| path.lock).collect())?,
            token: self.token,
            session: self.holder.session,
            holder: self.holder.name.as_str().into(),
            purpose: self.holder.purpose.as_deref().map(Into::into),
            max_age_ms: self.max_age_ms,
            request: RequestId(0),
            job: self.holder.job,
            since: parse_server_instant(&self.since),
            age_ms: self.age_ms,
            expires_in_ms: self.expires_in_ms,
            waiters: self.waiters,
            heartbeat_age_ms: self.heartbeat_age_ms,
        })
    }
}

/// Result of a release.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReleaseResponse {
    /// Always true.
    pub released: bool,
    /// Whether it had been released before.
    pub already: bool,
}

/// Result of a withdrawal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WithdrawResponse {
    /// Always true.
    pub withdrawn: bool,
    /// Token of the tenure that had already been granted and is now released.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::FencingToken>))]
    pub token: Option<Token>,
}

/// Result of a break.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BreakResponse {
    /// Always true.
    pub broken: bool,
}

/// Result of closing a session.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CloseSessionResponse {
    /// Always true.
    pub closed: bool,
}

/// A request that waits for locks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WaiterInfo {
    /// Position in the queue, from 1.
    pub position: usize,
    /// Name of its session.
    pub name: String,
    /// Id of its session.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub session: SessionId,
    /// Locks it waits for.
    pub locks: Vec<String>,
    /// Purpose of the requested tenure, for display.
    pub purpose: Option<String>,
    /// Time at which it started to wait.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub since: String,
    /// Time spent waiting in milliseconds.
    pub waiting_ms: u64,
}

/// `GET /v1/locks/{kind}/{name}`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourceLocksResponse {
    /// Tenant.
    pub tenant: String,
    /// `kind/name`.
    pub resource: String,
    /// Last token that was granted.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::FencingToken))]
    pub token: Token,
    /// Current tenures.
    pub tenures: Vec<TenureInfo>,
    /// Waiting requests, in order.
    pub queue: Vec<WaiterInfo>,
}

impl ResourceLocksResponse {
    /// Creates the response from the tenures of a resource and its queue, with the name of each
    /// waiter's session.
    #[must_use]
    pub fn new(
        key: &ResourceKey,
        token: Token,
        tenures: &[TenureView],
        queue: &[(Waiter, Text)],
        now: Millis,
    ) -> Self {
        let waiter = |(at, (waiter, name)): (usize, &(Waiter, Text))| WaiterInfo {
            position: at + 1,
            name: name.to_string(),
            session: waiter.session,
            locks: waiter.locks.iter().map(ToString::to_string).collect(),
            purpose: waiter.purpose.as_deref().map(str::to_owned),
            since: instant(waiter.since),
            waiting_ms: now.since(waiter.since),
        };
        Self {
            tenant: key.tenant().to_owned(),
            resource: format!("{}/{}", key.kind(), key.name()),
            token,
            tenures: tenures.iter().flat_map(TenureInfo::per_lock).collect(),
            queue: queue.iter().enumerate().map(waiter).collect(),
        }
    }
}
