//! Policies: what happens when an operation meets another. Implemented in `submit.rs`.

use std::str::FromStr;

/// Policy for a submit that meets a queued or running operation of the same resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Wait in the lane.
    #[default]
    Queue,
    /// Return the id of the present job.
    Attach,
    /// Refuse, naming the present job.
    Reject,
    /// Keep at most one job waiting behind the running one; further submits attach to it.
    Coalesce,
    /// Replace the waiting jobs, which end as superseded.
    Replace,
    /// Request the running job to stop, and run after it has.
    Cancel,
}

impl Policy {
    const ALL: [Self; 6] =
        [Self::Queue, Self::Attach, Self::Reject, Self::Coalesce, Self::Replace, Self::Cancel];

    /// Returns the configuration spelling.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Attach => "attach",
            Self::Reject => "reject",
            Self::Coalesce => "coalesce",
            Self::Replace => "replace",
            Self::Cancel => "cancel",
        }
    }
}

impl FromStr for Policy {
    type Err = String;
    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|policy| policy.as_str() == word);
        let all = || Self::ALL.map(Self::as_str).join(", ");
        found.ok_or_else(|| format!("{word:?} is not a policy; expected {}", all()))
    }
}
