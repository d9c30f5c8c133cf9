//! The shape that all duties have, and the loop that keeps one.

use std::time::Duration;

use tenure_store::StoreError;
use tokio::time::MissedTickBehavior;

use super::Around;

/// Something that has to be done again and again.
pub(super) trait Duty {
    /// What it is called.
    const NAME: &'static str;
    /// How often it is due.
    const EVERY: Duration;

    /// Does it once. Doing it twice must be harmless.
    async fn run(&mut self, on: &Around) -> Result<Found, StoreError>;
}

/// What one run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// How many things it found or dealt with.
    pub(super) count: usize,
    /// How many of them no earlier run has counted.
    pub(super) new: usize,
    /// What a person should know.
    pub(super) note: Option<String>,
}

impl Found {
    /// Things that were dealt with, and that no later run finds again.
    pub(super) fn done(count: usize) -> Self {
        Self { count, new: count, note: None }
    }
}

/// Keeps a duty for as long as it is polled. A run that takes long delays the next one, nobody
/// else's.
pub(super) async fn keep<D: Duty>(mut duty: D, on: &Around) {
    let mut ticks = tokio::time::interval(D::EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = on.time.now(on.store()).await;
        let begun = on.board.begin(D::NAME, now);
        let result = duty.run(on).await;
        on.board.end(&begun, result);
    }
}
