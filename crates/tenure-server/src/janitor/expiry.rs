//! Expiry: ends sessions that have lapsed and waits that have run out, and settles what they held.
//!
//! With a session end its tenures, the attempts of its jobs (`WORKER_TIMEOUT`), and the states its
//! resources were in, in one step of the store. Every server does this, also without the janitor's
//! lock; `mod.rs` says why.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};
use tenure_store::StoreError;
use tenure_store::committer::SWEEP_INTERVAL;

use super::board::Board;
use super::retries;
use super::time::Time;

pub(super) const NAME: &str = "expiry";

/// Ends expired sessions. It also reports what became due, as the duty `retries`.
pub(super) struct Expiry {
    pub(super) board: Arc<Board>,
    pub(super) time: Arc<Time>,
}

#[async_trait]
impl Duty for Expiry {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interval(&self) -> Duration {
        SWEEP_INTERVAL
    }

    async fn run(&mut self, cx: &DutyContext) -> Result<DutyReport, StoreError> {
        let retries = self.board.begin(retries::NAME, self.time.now(cx.store()).await);
        let swept = cx.store().sweep().await;
        self.board.end(&retries, retries::found(&swept));
        let swept = swept?;
        Ok(DutyReport::done(swept.sessions + swept.tenures))
    }
}
