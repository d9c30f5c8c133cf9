//! Policies: what happens when an operation meets another. What each does is in [`crate::submit`].

use std::str::FromStr;

/// What happens when an operation meets another one of the same resource that is queued or running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Waits in the lane.
    #[default]
    Queue,
    /// The caller gets the id of the present job.
    Attach,
    /// Refused, naming the present job.
    Reject,
    /// At most one waits behind the running one; further submits join it.
    Coalesce,
    /// Takes the place of the waiting ones, which end as superseded.
    Replace,
    /// The running one is asked to stop; the incoming one runs after it has stopped.
    Cancel,
}

impl Policy {
    const ALL: [Self; 6] =
        [Self::Queue, Self::Attach, Self::Reject, Self::Coalesce, Self::Replace, Self::Cancel];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
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
        let known = Self::ALL.into_iter().find(|policy| policy.word() == word);
        let words = || Self::ALL.map(Self::word).join(", ");
        known.ok_or_else(|| format!("{word:?} is no policy; there are {}", words()))
    }
}
