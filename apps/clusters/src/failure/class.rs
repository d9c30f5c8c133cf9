//! Classes of failures, each with its policy.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Maximum number of retries of an interrupted attempt. They are not counted as attempts, so they
/// need a bound of their own.
const INTERRUPTED_RETRIES_MAX: u32 = 20;

/// Class of a failure.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[schema(as = FailureClass)]
pub enum Class {
    /// An API refuses because of too many requests.
    Throttled,
    /// The cloud has no more machines of this type.
    Capacity,
    /// A connection failed, or an API is temporarily down.
    Network,
    /// Something did not become ready in time.
    Timeout,
    /// Something of the same name exists.
    Conflict,
    /// The credentials are invalid.
    Credentials,
    /// The credentials lack a permission.
    Permission,
    /// A quota of the account is exhausted.
    Quota,
    /// The configuration is invalid.
    InvalidConfig,
    /// The account is blocked, or not verified yet.
    Account,
    /// A known defect of the installer or the platform.
    PlatformBug,
    /// The installer was interrupted.
    Interrupted,
    /// Nothing is known.
    Unknown,
}

/// When what an attempt has left is removed before the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleanup {
    /// If resources may exist.
    IfStarted,
    /// Always, once the installer has run.
    Always,
}

/// Who has to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// No one: it is tried again.
    Automatic,
    /// No one at first, and then an operator.
    Operator,
    /// The user who asked for the cluster.
    User,
}

/// How failures of a class are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Maximum number of retries after failures of this class in one job; 0 if it is final.
    pub retries: u32,
    /// Whether the attempt is one of those that the settings allow.
    pub counted: bool,
    /// First delay, in units of the backoff of the settings.
    pub backoffs: u64,
    /// When what is left is removed.
    pub cleanup: Cleanup,
    /// Who has to act.
    pub actor: Actor,
}

impl Class {
    /// All classes.
    pub const ALL: [Self; 13] = [
        Self::Throttled,
        Self::Capacity,
        Self::Network,
        Self::Timeout,
        Self::Conflict,
        Self::Credentials,
        Self::Permission,
        Self::Quota,
        Self::InvalidConfig,
        Self::Account,
        Self::PlatformBug,
        Self::Interrupted,
        Self::Unknown,
    ];

    /// Returns its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Throttled => "THROTTLED",
            Self::Capacity => "CAPACITY",
            Self::Network => "NETWORK",
            Self::Timeout => "TIMEOUT",
            Self::Conflict => "CONFLICT",
            Self::Credentials => "CREDENTIALS",
            Self::Permission => "PERMISSION",
            Self::Quota => "QUOTA",
            Self::InvalidConfig => "INVALID_CONFIG",
            Self::Account => "ACCOUNT",
            Self::PlatformBug => "PLATFORM_BUG",
            Self::Interrupted => "INTERRUPTED",
            Self::Unknown => "UNKNOWN",
        }
    }

    /// Parses a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == name)
    }

    /// Returns the policy. With the default backoff of 5 minutes, the first delays are 5 minutes
    /// for throttling, networks and known defects, 10 minutes for timeouts and what is unknown, and
    /// 30 minutes for capacity.
    #[must_use]
    pub fn policy(self) -> Policy {
        let policy = |retries, counted, backoffs, cleanup, actor| Policy {
            retries,
            counted,
            backoffs,
            cleanup,
            actor,
        };
        let (if_started, always) = (Cleanup::IfStarted, Cleanup::Always);
        match self {
            Self::Throttled => policy(5, false, 1, if_started, Actor::Automatic),
            Self::Network => policy(3, true, 1, if_started, Actor::Automatic),
            Self::Capacity => policy(3, true, 6, always, Actor::Operator),
            Self::Timeout => policy(2, true, 2, always, Actor::Operator),
            Self::PlatformBug => policy(2, true, 1, always, Actor::Automatic),
            Self::Interrupted => {
                policy(INTERRUPTED_RETRIES_MAX, false, 0, always, Actor::Automatic)
            }
            // Once, after leftovers of the same cluster were removed.
            Self::Conflict => policy(1, true, 1, always, Actor::User),
            Self::Unknown => policy(1, true, 2, if_started, Actor::Operator),
            Self::Credentials
            | Self::Permission
            | Self::Quota
            | Self::InvalidConfig
            | Self::Account => policy(0, true, 1, if_started, Actor::User),
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
