//! Expiry: ends sessions that have lapsed and waits that have run out, and settles what they held.
//!
//! With a session end its tenures, the attempts of its jobs (`WORKER_TIMEOUT`), and the states its
//! resources were in, in one step of the store. Every server does this, also without the janitor's
//! lock; `mod.rs` says why.

use std::time::Duration;

use tenure_store::StoreError;
use tenure_store::committer::SWEEP_EVERY;

use super::duty::{Duty, Found};
use super::{Around, retries};

pub(super) const NAME: &str = "expiry";

/// Ends what has lapsed.
pub(super) struct Expiry;

impl Duty for Expiry {
    const NAME: &'static str = NAME;
    const EVERY: Duration = SWEEP_EVERY;

    async fn run(&mut self, on: &Around) -> Result<Found, StoreError> {
        let retries = on.board.begin(retries::NAME, on.time.now(on.store()).await);
        let swept = on.store().sweep().await;
        on.board.end(&retries, retries::found(&swept));
        let swept = swept?;
        Ok(Found::done(swept.sessions + swept.tenures))
    }
}
