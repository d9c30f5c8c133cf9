//! Several servers on one database, and databases that fail.

#![cfg(feature = "postgres")]

#[path = "postgres_shared/audit.rs"]
mod audit;
#[path = "postgres_shared/claims.rs"]
mod claims;
#[path = "postgres_shared/common.rs"]
mod common;
#[path = "postgres_shared/faults.rs"]
mod faults;
#[path = "postgres_shared/fence.rs"]
mod fence;
#[path = "postgres_shared/incarnations.rs"]
mod incarnations;
#[path = "postgres_shared/incremental.rs"]
mod incremental;
#[path = "postgres_shared/locks.rs"]
mod locks;
#[path = "postgres_shared/outages.rs"]
mod outages;
#[path = "postgres_shared/pages.rs"]
mod pages;
#[path = "previous_format/mod.rs"]
mod previous_format;
#[path = "postgres_shared/projection.rs"]
mod projection;
#[path = "postgres_shared/records.rs"]
mod records;
#[path = "postgres_shared/synchronous.rs"]
mod synchronous;
#[path = "postgres_shared/wakeups.rs"]
mod wakeups;
