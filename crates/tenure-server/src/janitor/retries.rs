//! Retries: jobs whose backoff or `run_at` has passed become ready.
//!
//! The store keeps due jobs and expiring sessions in the same index, so the sweep of `expiry.rs`
//! handles both; a claim that comes first promotes due jobs itself. This file only reports the
//! status of the duty.

use tenure_store::StoreError;
use tenure_store::store::Swept;

use tenure_app::DutyReport;

pub(super) const NAME: &str = "retries";

/// Converts the result of a sweep to the report of this duty.
pub(super) fn report(swept: &Result<Swept, StoreError>) -> Result<DutyReport, StoreError> {
    swept.as_ref().map(|swept| DutyReport::done(swept.due)).map_err(Clone::clone)
}
