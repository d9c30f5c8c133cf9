//! The JSON of locks and sessions.

use serde::{Deserialize, Serialize};
use tenure_core::key::{InvalidName, lock_path};
use tenure_core::session::Revocation;
use tenure_core::{
    JobId, LockName, LockPath, LockSet, RequestId, ResourceKey, SessionId, TenureView, Token,
};

#[cfg(feature = "openapi")]
use super::schema;
use super::{instant, millis};

/// One lock, or several of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Locks {
    /// One.
    One(String),
    /// Several, all or none.
    Many(Vec<String>),
}

impl Locks {
    /// The set of locks that is meant.
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
pub struct AcquireBody {
    /// The lock, or several; `main` when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<Locks>,
    /// The name of a holder without a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// How long a holder without a session lives without a renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// The session that holds; then neither `holder` nor `ttl_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// How long to wait in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Answer after this long although it still waits; ask again with the same `Idempotency-Key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll_ms: Option<u64>,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purpose: Option<String>,
}

/// `POST …/renew`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "token": 1 })))]
pub struct RenewBody {
    /// Not needed: the token says it. Taken for symmetry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<Locks>,
    /// The tenure.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Fence))]
    pub token: Token,
    /// Another time to live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Ttl>))]
    pub ttl_ms: Option<u64>,
}

/// `POST …/release`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "token": 1 })))]
pub struct ReleaseBody {
    /// Only these of its locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<Locks>,
    /// The tenure.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Fence))]
    pub token: Token,
}

/// `POST …/withdraw`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "request": "4d0c9f6f2c4e4c7f" })))]
pub struct WithdrawBody {
    /// The `Idempotency-Key` of the acquire that is taken back.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::EarlierKey))]
    pub request: String,
}

/// `POST …/break`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "token": 1, "reason": "stuck" })))]
pub struct BreakBody {
    /// Only these of its locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<Locks>,
    /// The tenure, exactly.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Fence))]
    pub token: Token,
    /// Why.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Reason))]
    pub reason: String,
}

/// `POST /v1/sessions`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "name": "worker-7", "ttl_ms": 15_000 })))]
pub struct OpenBody {
    /// What people call the process.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::HolderName))]
    pub name: String,
    /// How long it lives without a heartbeat.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Ttl))]
    pub ttl_ms: u64,
}

/// `POST /v1/sessions/{id}/beat`
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(example = json!({ "seen": 0 })))]
pub struct BeatBody {
    /// The last revocation that is known.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Count))]
    pub seen: u64,
}

/// The answer to opening a session and to a heartbeat.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionAnswer {
    /// The session.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub session: SessionId,
    /// How long it lives without a heartbeat.
    pub ttl_ms: u64,
    /// Tenures that were taken from it and that were not confirmed by `seen`.
    pub revoked: Vec<RevokedAnswer>,
}

/// A tenure that was taken from a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RevokedAnswer {
    /// To be confirmed by `seen`.
    pub n: u64,
    /// `tenant/kind/name`.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::ResourcePath))]
    pub resource: ResourceKey,
    /// The token of the tenure.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Fence))]
    pub token: Token,
    /// It is not taken: its job is asked to stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel: bool,
}

impl From<Revocation> for RevokedAnswer {
    fn from(Revocation { n, key, token, cancel }: Revocation) -> Self {
        Self { n, resource: key, token, cancel }
    }
}

impl From<RevokedAnswer> for Revocation {
    fn from(RevokedAnswer { n, resource, token, cancel }: RevokedAnswer) -> Self {
        Self { n, key: resource, token, cancel }
    }
}

/// A tenure.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenureAnswer {
    /// Whose it is.
    pub tenant: String,
    /// `kind/name` or `kind/name#lock`.
    pub lock: String,
    /// All locks that were granted together, when there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<String>,
    /// The fencing number.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Fence))]
    pub token: Token,
    /// Who holds it.
    pub holder: HolderAnswer,
    /// Since when.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub since: String,
    /// For how long already.
    pub age_ms: u64,
    /// How long it lasts without a heartbeat.
    pub expires_in_ms: u64,
    /// How many requests wait.
    pub waiters: usize,
}

/// The session and the purpose behind a tenure.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HolderAnswer {
    /// The session.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub session: SessionId,
    /// Its name.
    pub name: String,
    /// What for.
    pub purpose: Option<String>,
    /// The job, when there is one.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Id>))]
    pub job: Option<JobId>,
}

impl TenureAnswer {
    /// One answer for all locks of a grant.
    #[must_use]
    pub fn of(view: &TenureView) -> Self {
        let paths: Vec<_> = view.locks.iter().map(|lock| lock_path(&view.key, lock)).collect();
        Self {
            tenant: view.key.tenant().to_owned(),
            lock: paths[0].clone(),
            set: if paths.len() > 1 { paths } else { Vec::new() },
            token: view.token,
            holder: HolderAnswer {
                session: view.session,
                name: view.holder.to_string(),
                purpose: view.purpose.as_deref().map(str::to_owned),
                job: view.job,
            },
            since: instant(view.since),
            age_ms: view.age_ms,
            expires_in_ms: view.expires_in_ms,
            waiters: view.waiters,
        }
    }

    /// One answer for each lock of a grant.
    #[must_use]
    pub fn each(view: &TenureView) -> Vec<Self> {
        let whole = Self::of(view);
        let lock = |lock| Self { lock: lock_path(&view.key, lock), ..whole.clone() };
        view.locks.iter().map(lock).collect()
    }

    /// The tenure that is meant; the request that got it does not travel.
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
            request: RequestId(0),
            job: self.holder.job,
            since: millis(&self.since),
            age_ms: self.age_ms,
            expires_in_ms: self.expires_in_ms,
            waiters: self.waiters,
        })
    }
}

/// The answer to a release.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReleaseAnswer {
    /// Always true.
    pub released: bool,
    /// It had been released before.
    pub already: bool,
}

/// The answer to a withdrawal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WithdrawAnswer {
    /// Always true.
    pub withdrawn: bool,
    /// The tenure that it had been granted and that was released.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<schema::Fence>))]
    pub token: Option<Token>,
}

/// The answer to a break.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BrokenAnswer {
    /// Always true.
    pub broken: bool,
}

/// The answer to closing a session.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClosedAnswer {
    /// Always true.
    pub closed: bool,
}

/// A request in the queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WaiterAnswer {
    /// The place, 1 for the next.
    pub position: usize,
    /// The name of its session.
    pub name: String,
    /// Its session.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Id))]
    pub session: SessionId,
    /// The locks it wants.
    pub locks: Vec<String>,
    /// What for.
    pub purpose: Option<String>,
    /// Since when.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Instant))]
    pub since: String,
    /// For how long already.
    pub waiting_ms: u64,
}

/// `GET /v1/locks/{kind}/{name}`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourceLocks {
    /// Whose it is.
    pub tenant: String,
    /// `kind/name`.
    pub resource: String,
    /// The last token that was given out.
    #[cfg_attr(feature = "openapi", schema(value_type = schema::Fence))]
    pub token: Token,
    /// Who holds what.
    pub tenures: Vec<TenureAnswer>,
    /// Who waits.
    pub queue: Vec<WaiterAnswer>,
}
