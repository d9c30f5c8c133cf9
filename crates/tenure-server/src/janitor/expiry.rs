//! Expiry: ends expired sessions and lock requests, and settles their tenures and jobs.
//!
//! The end of a session also ends its tenures and the attempts of its jobs (`WORKER_TIMEOUT`), and
//! moves its resources out of their `during` states. Every server runs it, with or without the
//! janitor's lock; `mod.rs` says why.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};
use tenure_store::StoreError;
use tenure_store::committer::SWEEP_INTERVAL;

use super::retries;
use super::status::JanitorStatus;
use super::store_clock::StoreClock;

pub(super) const NAME: &str = "expiry";

/// Sweeps the store. Reports jobs that became due as the duty `retries`.
pub(super) struct Expiry {
    pub(super) status: Arc<JanitorStatus>,
    pub(super) clock: Arc<StoreClock>,
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
        let retries = self.status.start_run(retries::NAME, self.clock.now(cx.store()).await);
        let swept = cx.store().sweep().await;
        self.status.finish_run(&retries, retries::report(&swept));
        let swept = swept?;
        Ok(DutyReport::done(swept.sessions + swept.tenures))
    }
}
