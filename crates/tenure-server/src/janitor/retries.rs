//! Retries: jobs whose rest is over, or whose time has come, become ready.
//!
//! There is no second walk for them: what is due is in the same index of the store as what has
//! lapsed, and the sweep of `expiry.rs` sees to both. A claim that comes first sees to it itself.
//! This file only has its row on the board.

use tenure_store::StoreError;
use tenure_store::store::Swept;

use tenure_app::DutyReport;

pub(super) const NAME: &str = "retries";

/// What a sweep means for what is due.
pub(super) fn found(swept: &Result<Swept, StoreError>) -> Result<DutyReport, StoreError> {
    swept.as_ref().map(|swept| DutyReport::done(swept.due)).map_err(Clone::clone)
}
