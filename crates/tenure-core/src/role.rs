//! Roles of API keys.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Role of an API key. Each role includes the permissions of the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads.
    Viewer,
    /// Acquires locks, submits and runs jobs.
    Worker,
    /// Breaks locks; manages jobs and resources.
    Operator,
    /// Everything, including API keys.
    Admin,
}

impl Role {
    /// All roles, lowest first.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Worker, Self::Operator, Self::Admin];

    /// Returns the name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Worker => "worker",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The role does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a role; expected viewer, worker, operator or admin")]
pub struct UnknownRole(String);

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(word: &str) -> Result<Self, UnknownRole> {
        let role = Self::ALL.into_iter().find(|role| role.as_str() == word);
        role.ok_or_else(|| UnknownRole(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_round_trip_and_are_ordered() {
        for role in Role::ALL {
            assert_eq!(role.as_str().parse(), Ok(role));
        }
        assert!(Role::ALL.is_sorted_by(|a, b| a < b));
        assert!("root".parse::<Role>().is_err());
    }
}
