//! The JSON of the API, apart from the types of the model: what clients and servers exchange.
//!
//! Bodies refuse unknown fields, so that a misspelt option is an error and not a surprise.
//! Durations are milliseconds, instants RFC 3339 in UTC.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenure_core::key::{BadName, lock_path};
use tenure_core::session::Revoked;
use tenure_core::{
    LockName, LockPath, LockSet, Millis, RequestId, ResourceKey, SessionId, TenureView, Token,
};

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
    pub fn to_set(&self) -> Result<LockSet, BadName> {
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
#[serde(deny_unknown_fields)]
pub struct RenewBody {
    /// Not needed: the token says it. Taken for symmetry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<Locks>,
    /// The tenure.
    pub token: Token,
    /// Another time to live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
}

/// `POST …/release`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseBody {
    /// Only these of its locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<Locks>,
    /// The tenure.
    pub token: Token,
}

/// `POST …/withdraw`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WithdrawBody {
    /// The `Idempotency-Key` of the acquire that is taken back.
    pub request: String,
}

/// `POST …/break`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BreakBody {
    /// Only these of its locks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<Locks>,
    /// The tenure, exactly.
    pub token: Token,
    /// Why.
    pub reason: String,
}

/// `POST /v1/sessions`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenBody {
    /// What people call the process.
    pub name: String,
    /// How long it lives without a heartbeat.
    pub ttl_ms: u64,
}

/// `POST /v1/sessions/{id}/beat`
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeatBody {
    /// The last revocation that is known.
    #[serde(default)]
    pub seen: u64,
}

/// The answer to opening a session and to a heartbeat.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionAnswer {
    /// The session.
    pub session: SessionId,
    /// How long it lives without a heartbeat.
    pub ttl_ms: u64,
    /// Tenures that were taken from it and that were not confirmed by `seen`.
    pub revoked: Vec<RevokedAnswer>,
}

/// A tenure that was taken from a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RevokedAnswer {
    /// To be confirmed by `seen`.
    pub n: u64,
    /// `tenant/kind/name`.
    pub resource: ResourceKey,
    /// The token of the tenure.
    pub token: Token,
}

impl From<Revoked> for RevokedAnswer {
    fn from(Revoked { n, key, token }: Revoked) -> Self {
        Self { n, resource: key, token }
    }
}

impl From<RevokedAnswer> for Revoked {
    fn from(RevokedAnswer { n, resource, token }: RevokedAnswer) -> Self {
        Self { n, key: resource, token }
    }
}

/// A tenure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TenureAnswer {
    /// Whose it is.
    pub tenant: String,
    /// `kind/name` or `kind/name#lock`.
    pub lock: String,
    /// All locks that were granted together, when there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<String>,
    /// The fencing number.
    pub token: Token,
    /// Who holds it.
    pub holder: HolderAnswer,
    /// Since when.
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
pub struct HolderAnswer {
    /// The session.
    pub session: SessionId,
    /// Its name.
    pub name: String,
    /// What for.
    pub purpose: Option<String>,
    /// The job, when there is one.
    pub job: Option<String>,
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
                job: None,
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
    pub fn to_view(&self) -> Result<TenureView, BadName> {
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
            since: millis(&self.since),
            age_ms: self.age_ms,
            expires_in_ms: self.expires_in_ms,
            waiters: self.waiters,
        })
    }
}

/// The answer to a release.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReleaseAnswer {
    /// Always true.
    pub released: bool,
    /// It had been released before.
    pub already: bool,
}

/// The answer to a withdrawal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WithdrawAnswer {
    /// Always true.
    pub withdrawn: bool,
    /// The tenure that it had been granted and that was released.
    pub token: Option<Token>,
}

/// A request in the queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WaiterAnswer {
    /// The place, 1 for the next.
    pub position: usize,
    /// The name of its session.
    pub name: String,
    /// Its session.
    pub session: SessionId,
    /// The locks it wants.
    pub locks: Vec<String>,
    /// What for.
    pub purpose: Option<String>,
    /// Since when.
    pub since: String,
    /// For how long already.
    pub waiting_ms: u64,
}

/// `GET /v1/locks/{kind}/{name}`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResourceLocks {
    /// Whose it is.
    pub tenant: String,
    /// `kind/name`.
    pub resource: String,
    /// The last token that was given out.
    pub token: Token,
    /// Who holds what.
    pub tenures: Vec<TenureAnswer>,
    /// Who waits.
    pub queue: Vec<WaiterAnswer>,
}

/// A page of a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListAnswer<T> {
    /// The rows.
    pub items: Vec<T>,
    /// Give it as `cursor` for the next page; nothing when this is the last.
    pub next: Option<String>,
}

/// A line of history.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HistoryLine {
    /// The place among all lines.
    pub position: u64,
    /// `tenant/kind/name`.
    pub resource: ResourceKey,
    /// When, as text.
    pub at: String,
    /// The entry, exactly as it was hashed.
    pub line: String,
    /// `sha256(hash of the entry before, line)`.
    pub hash: String,
}

/// `GET /v1/verify`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VerifyAnswer {
    /// Whether nothing contradicts.
    pub ok: bool,
    /// Resources with a history.
    pub resources: usize,
    /// Entries read.
    pub entries: u64,
    /// Tenures that began.
    pub grants: u64,
    /// The contradictions.
    pub problems: Vec<String>,
}

/// `GET /readyz`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadyAnswer {
    /// Whether it answers.
    pub ready: bool,
    /// `embedded`, `memory`, ….
    pub store: String,
    /// What its locks are worth.
    pub safety: String,
    /// Its life between two restores.
    pub incarnation: u32,
    /// How many sessions live.
    pub sessions: usize,
    /// How many resources are held or waited for.
    pub live: usize,
}

/// RFC 9457 problem details, with the facts that are useful.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Problem {
    /// The page about it.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The stable code.
    pub code: String,
    /// What happened and what to do.
    pub detail: String,
    /// Quote it when you ask for help.
    pub request_id: String,
    /// Which of the refusals with this code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who holds the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<TenureAnswer>,
    /// The present tenure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<TenureAnswer>,
    /// How many wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_length: Option<usize>,
    /// The place in the queue of a request that still waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// The token that is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
}

/// An instant as the API writes it.
#[must_use]
pub fn instant(at: Millis) -> String {
    let ms = i64::try_from(at.0).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX).to_string()
}

fn millis(text: &str) -> Millis {
    let at = text.parse::<Timestamp>().map_or(0, Timestamp::as_millisecond);
    Millis(u64::try_from(at).unwrap_or(0))
}
