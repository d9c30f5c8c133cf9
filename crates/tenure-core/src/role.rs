//! What a key may do.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a key may do; each role may do all that the ones before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Looks.
    Viewer,
    /// Takes locks, submits jobs and works them.
    Worker,
    /// Breaks locks; decides about jobs and resources.
    Operator,
    /// Everything, keys included.
    Admin,
}

impl Role {
    /// All of them, lowest first.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Worker, Self::Operator, Self::Admin];

    /// Its name.
    #[must_use]
    pub fn word(self) -> &'static str {
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
        f.write_str(self.word())
    }
}

/// No role has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no role: there are viewer, worker, operator and admin")]
pub struct NoSuchRole(String);

impl FromStr for Role {
    type Err = NoSuchRole;

    fn from_str(word: &str) -> Result<Self, NoSuchRole> {
        let role = Self::ALL.into_iter().find(|role| role.word() == word);
        role.ok_or_else(|| NoSuchRole(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_read_as_they_are_written_and_each_may_more_than_the_one_before() {
        for role in Role::ALL {
            assert_eq!(role.word().parse(), Ok(role));
        }
        assert!(Role::ALL.is_sorted_by(|a, b| a < b));
        assert!("root".parse::<Role>().is_err());
    }
}
