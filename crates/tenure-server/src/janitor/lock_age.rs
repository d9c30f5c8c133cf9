//! Old locks: warns once about each tenure that is held for longer than its maximum age.
//!
//! It must never break one: its holder is alive, and may still write.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use tenure_app::{Duty, DutyContext, DutyReport};
use tenure_core::{ResourceKey, TenureView, Token};
use tenure_store::StoreError;
use tenure_store::store::{PAGE_MAX, TenureQuery};
use tenure_wire::TenureInfo;

pub(super) const NAME: &str = "lock_age";

/// Warns about locks past their maximum age.
#[derive(Default)]
pub(super) struct LockAge {
    /// Held tenures that were warned about.
    warned: BTreeSet<(ResourceKey, Token)>,
}

#[async_trait]
impl Duty for LockAge {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(30)
    }

    async fn run(&mut self, cx: &DutyContext) -> Result<DutyReport, StoreError> {
        let mut over_age = BTreeSet::new();
        let mut new = 0;
        // The census is much cheaper than a list of all locks.
        let mut listed = !any_over_age(cx).await?;
        let mut after = None;
        while !listed {
            let query = TenureQuery { after, limit: PAGE_MAX, ..<_>::default() };
            let page = cx.store().reads().tenures(query).await?;
            for view in &page.items {
                let info = TenureInfo::new(view);
                if !info.is_over_age() {
                    continue;
                }
                let tenure = (view.key.clone(), view.token);
                if !self.warned.contains(&tenure) {
                    new += 1;
                    warn(view, &info);
                }
                over_age.insert(tenure);
            }
            after = page.next;
            listed = after.is_none();
        }
        // Drops ended tenures, so the set is bounded by the held ones.
        self.warned = over_age;
        Ok(DutyReport { count: self.warned.len(), new, note: None })
    }
}

async fn any_over_age(cx: &DutyContext) -> Result<bool, StoreError> {
    let census = cx.store().reads().census().await?;
    let any = census
        .groups()
        .any(|(_, _, group)| group.lock_max_age_ratio.is_some_and(|highest| highest > 1.0));
    Ok(any)
}

fn warn(view: &TenureView, info: &TenureInfo) {
    let (tenant, lock, token) = (view.key.tenant(), &info.lock, view.token);
    let resource = format!("{}/{}", view.key.kind(), view.key.name());
    tracing::warn!(
        tenant, lock, %token, holder = %view.holder, session = %view.session,
        purpose = view.purpose.as_deref().unwrap_or_default(),
        age_ms = view.age_ms, max_age_ms = view.max_age_ms,
        "lock is held for longer than its maximum age; see `tenure lock show {resource} --tenant \
         {tenant}`. If its holder should not have it, stop the holder, or end the tenure with \
         `tenure lock break {resource} --tenant {tenant} --token {token} --reason TEXT`"
    );
}
